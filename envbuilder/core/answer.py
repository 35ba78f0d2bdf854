"""The data of a command under `--json`."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, RootModel

Shape = TypeVar("Shape")


class Answer(BaseModel):
    """The data of one command. A field that was not set is left out."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class BareAnswer(RootModel[Shape]):
    """The data of one command that has no name of its own: usually a list of rows."""

    model_config = ConfigDict(frozen=True, defer_build=True)
