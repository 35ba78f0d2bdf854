"""The closed family of errors; only `cli` catches them and turns them into exit codes.

    EnvbuilderError        EB000   1  base, never raised itself
    ├── UsageError         EB200   2  what was typed: names, options, paths
    │   └── RecipeError    EB201   2  what was written in a recipe, every mistake at once
    ├── IncompatibleError  EB300   3  pins that cannot work together
    ├── LockError          EB400   4  lock missing or stale
    ├── FetchError         EB500   5  download, mirror or registry
    │   └── RegistryError  EB520   5  a registry does not do what was asked
    │       ├── AccessError   EB521   5  it refuses access (401, 403)
    │       ├── AbsentError   EB522   5  it has no such thing (404)
    │       ├── BusyError     EB523   5  it is busy or out of order (429, 5xx)
    │       ├── CutError      EB524   5  it does not answer, or stopped in the middle
    │       └── ContentError  EB525   5  what it sends is not what its digest says
    ├── BuildError         EB600   6  a build step failed
    │   ├── CommandError   EB601   6  an outside program failed
    │   └── SpaceError     EB602   6  the disk is full
    ├── VerifyError        EB700   7  what was built is not what was promised
    ├── ToolError          EB800   8  a needed tool is missing or too old
    └── LaunchError        EB850   9  a job could not be started

Anything outside the family is a bug and keeps its traceback.
"""

from typing import ClassVar

from envbuilder.core.findings import Finding


class EnvbuilderError(Exception):
    """A failure a person can act on: a full sentence, an optional hint, and the findings behind it."""

    code: ClassVar[str] = "EB000"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", findings: tuple[Finding, ...] = ()) -> None:
        message = message.rstrip()  # it may end with what a program said, or did not say
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.findings = findings
        self.log = ""  # the file with all that was said and done, where one was written


class UsageError(EnvbuilderError):
    code = "EB200"
    exit_code = 2


class RecipeError(UsageError):
    code = "EB201"


class IncompatibleError(EnvbuilderError):
    code = "EB300"
    exit_code = 3


class LockError(EnvbuilderError):
    code = "EB400"
    exit_code = 4


class FetchError(EnvbuilderError):
    code = "EB500"
    exit_code = 5


class RegistryError(FetchError):
    code = "EB520"


class AccessError(RegistryError):
    code = "EB521"


class AbsentError(RegistryError):
    code = "EB522"


class BusyError(RegistryError):
    code = "EB523"


class CutError(RegistryError):
    code = "EB524"


class ContentError(RegistryError):
    code = "EB525"


class BuildError(EnvbuilderError):
    code = "EB600"
    exit_code = 6


class CommandError(BuildError):
    code = "EB601"


class SpaceError(BuildError):
    code = "EB602"


class VerifyError(EnvbuilderError):
    code = "EB700"
    exit_code = 7


class ToolError(EnvbuilderError):
    code = "EB800"
    exit_code = 8


class LaunchError(EnvbuilderError):
    code = "EB850"
    exit_code = 9
