"""`init`: a first recipe, from three questions or from what a project or a machine already has.

`readers` and `prompt` collect requests, `choose_pins` finds the nearest pins that pass `check`, and `render` writes the
recipe. Each line that cannot be taken over is reported with its reason, and listed in the file.
"""

import contextlib
import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from envbuilder.compat.check import examine as examine_recipe
from envbuilder.compat.check import load_tables, need_sound
from envbuilder.compat.tables.cuda import load_switches
from envbuilder.core.answer import Answer
from envbuilder.core.errors import EnvbuilderError, UsageError, blaming_content
from envbuilder.core.findings import Finding
from envbuilder.init.choose_pins import choose
from envbuilder.init.readers.conda import read_environment
from envbuilder.init.readers.definition_file import read_definition
from envbuilder.init.readers.dockerfile import read_dockerfile
from envbuilder.init.readers.pip import read_requirements
from envbuilder.init.readers.project import (
    read_folder,
    read_pyproject,
    read_setup,
    read_setup_cfg,
)
from envbuilder.init.render import recipe_text
from envbuilder.init.requests import Requests
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.json_schema import FILE, schema_text
from envbuilder.recipe.load import load, new_path, recipes_folder
from envbuilder.recipe.model import Recipe

KINDS: Final = (
    "the folder of a project or the address of its git repository, a requirements file (.txt, .in), conda's environment "
    "(.yml, .yaml), pyproject.toml, setup.py, setup.cfg, a Dockerfile or a definition file (.def)"
)


class NewRecipe(Answer):
    """The recipe that was written, with its pins. `reached` is checked, or with `--try` or an example locked or built."""

    name: str
    file: Path
    base: str
    python: str
    cuda: str
    gcc: str
    libxcrypt: str
    pytorch: str
    gpus: tuple[str, ...]
    packages: tuple[str, ...]
    apt: tuple[str, ...]
    reached: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRecipe:
    path: Path
    recipe: Recipe
    findings: tuple[Finding, ...]  # the lines that were left out or moved, then the warnings of `check`

    def typed(self) -> str:
        """Return the recipe as a command takes it: by its name where that finds it."""
        found = self.path.parent in (recipes_folder({}), Path())
        return self.recipe.name if found else shlex.quote(str(self.path))

    def text(self) -> str:
        name = self.typed()
        return f"{self.path}\n{self.recipe.summary}\n$ envbuilder lock {name}\n$ envbuilder build {name}"

    def answer(self, reached: str) -> NewRecipe:
        pins = {key: getattr(self.recipe, key) for key in NewRecipe.model_fields.keys() - {"file", "reached"}}
        return NewRecipe.model_validate({"file": self.path, "reached": reached, **pins})


def read_source(path: Path, requests: Requests) -> None:
    """Read a project's folder, or one file of it; its name says of which kind it is."""
    if requests.top is None or not requests.holds(path):  # the next project that is named
        requests.top = _project_of(path)
    if path.is_dir():
        with blaming_content(f"the folder `{path}`"):
            read_folder(path, requests, read_source)
        return
    if not path.is_file():
        raise UsageError(f"there is no file `{path}`", hint=f"`--from` takes {KINDS}")
    readers = {
        ".txt": read_requirements, ".in": read_requirements, ".yml": read_environment, ".yaml": read_environment,
        ".dockerfile": read_dockerfile, ".def": read_definition, ".toml": read_pyproject, ".cfg": read_setup_cfg,
        ".py": read_setup if "setup" in path.name.lower() else None,
    }  # fmt: skip
    reader = readers.get(path.suffix.lower())
    if "dockerfile" in path.name.lower():
        reader = read_dockerfile
    if reader is None:
        raise UsageError(f"cannot tell the kind of `{path}` from its name", hint=f"`--from` takes {KINDS}")
    with blaming_content(f"`{path}`"):
        reader(path, requests)


def _project_of(path: Path) -> Path:
    """Return the folder whose files a project may name: the given folder; for a file, that of its repository or the working folder."""
    if path.is_dir():
        return path
    above = path.absolute().parents
    repository = next((folder for folder in above if (folder / ".git").exists()), None)
    return repository or next((folder for folder in above if folder == Path.cwd()), path.absolute().parent)


def make(name: str, folder: Path, requests: Requests, sources: tuple[str, ...]) -> WrittenRecipe:
    """Write the recipe, sound by every rule of `check`, and the schema beside it where there is none."""
    home = _home(folder, requests)
    path = new_path(name, home)
    tables = load_tables()
    chosen = choose(requests, tables, name=name, path=path)
    extensions = (
        tuple(_without_cuda(one) for one in chosen.extensions) if not chosen.gpus else chosen.extensions
    )
    recipe = replace(chosen, extensions=tuple(_placed(one, home) for one in extensions))
    home.mkdir(parents=True, exist_ok=True)
    if home == folder:
        with contextlib.suppress(FileExistsError):
            _write_new(folder / FILE, schema_text())
    try:
        _write_new(path, recipe_text(recipe, sources, requests.left, has_schema=home == folder))
    except FileExistsError as error:
        raise UsageError(f"`{path}` is there, and nothing is overwritten") from error
    try:
        read = load(path)
        report = examine_recipe(read, tables)
        need_sound(read, report)
    except EnvbuilderError:
        path.unlink()
        raise
    return WrittenRecipe(path=path, recipe=read, findings=(*requests.left, *report.findings))


def _home(folder: Path, requests: Requests) -> Path:
    """Return the folder of the recipe: `folder`, unless sources of extensions lie outside it."""
    here, wanted = Path.cwd(), [Path(text) for one in requests.extensions.values() for text in _paths(one)]
    if all(path.is_relative_to(folder.resolve()) for path in wanted):
        return folder
    if all(path.is_relative_to(here) for path in wanted):
        return Path()  # found by its name from here
    return Path(os.path.commonpath(wanted))


def _without_cuda(extension: Extension) -> Extension:
    """Return an extension without the variables that make its build need CUDA."""
    switches = {one.variable for one in load_switches().rows if one.effect == "cuda"}
    return replace(extension, env=tuple(pair for pair in extension.env if pair[0] not in switches))


def _paths(extension: Extension) -> tuple[str, ...]:
    """Return the paths of an extension on this machine."""
    return (
        ()
        if extension.is_remote
        else (*((extension.path,) if extension.path else ()), *extension.sources, *extension.include)
    )


def _placed(extension: Extension, home: Path) -> Extension:
    """Return an extension with paths from the recipe's folder."""
    if not _paths(extension):
        return extension

    def place(text: str) -> str:
        return Path(text).relative_to(home.resolve()).as_posix()

    return replace(
        extension,
        path=place(extension.path) if extension.path else "",
        sources=tuple(map(place, extension.sources)),
        include=tuple(map(place, extension.include)),
    )


def _write_new(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
