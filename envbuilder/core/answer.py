"""The data of a command under `--json`."""

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """The data of one command. A field that was not set is left out."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
