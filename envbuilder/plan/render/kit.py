"""What a rendered text is written from: the plan, the programs that run in the container, and what they compile."""

from dataclasses import dataclass

from envbuilder.lock.model import SourceFile
from envbuilder.plan.model import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """One extension: what is compiled, and its entry in the index."""

    name: str
    files: tuple[SourceFile, ...]  # below the recipe's folder
    specification: str  # the argument of `compile_extension.py`, or of `build_project.py`, JSON
    entry: str  # the argument of `install_extension.py`, JSON
    env: tuple[tuple[str, str], ...]
    project: str = ""  # the folder in which a project builds itself; "" for a call of torch's `load()`

    @property
    def sums(self) -> str:
        """Return the files as `sha256sum --check` reads them."""
        return "".join(f"{file.sha256}  {file.path}\n" for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """Everything that a text is written from."""

    plan: Plan
    summary: str
    programs: tuple[tuple[str, str], ...]  # name → text; they run inside the container
    uv: str  # the version of uv that installs the wheels
    pytorch_index: str
    labels: tuple[tuple[str, str], ...]  # of the image
    compiles: tuple[Compile, ...]

    def program(self, name: str) -> str:
        return dict(self.programs)[name]

    @property
    def base(self) -> str:
        """Return the usual name of the recipe's distribution as an image."""
        return f"debian:{self.plan.os.suite}"
