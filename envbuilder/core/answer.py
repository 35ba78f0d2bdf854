"""What a command answers: its data under `--json`, and the reply around it."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, RootModel

from envbuilder.core.findings import Finding

Shape = TypeVar("Shape")
Data_co = TypeVar("Data_co", covariant=True)


class Answer(BaseModel):
    """The data of one command. A field that was not set is left out."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class BareAnswer(RootModel[Shape]):
    """The data of one command that has no name of its own: usually a list of rows."""

    model_config = ConfigDict(frozen=True, defer_build=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Generic[Data_co]):
    """The answer of a command: its data for `--json`, its text for people, and how it ended."""

    data: Data_co | None = None
    text: str = ""
    is_document: bool = False  # `text` is a file, such as a Dockerfile, for another program to read
    findings: tuple[Finding, ...] = ()
    exit_code: int = 0
