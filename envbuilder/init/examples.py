"""Copy an example recipe of envbuilder, with its lock and the sources of its extensions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from envbuilder.core.cache import save_bytes
from envbuilder.core.errors import UsageError
from envbuilder.core.spelling import nearest
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.json_schema import FILE
from envbuilder.recipe.load import list_recipes, load, new_path
from envbuilder.recipe.model import SUFFIX, Recipe

_PACKAGE: Final = Path(__file__).parents[1]


def examples_folder(package: Path = _PACKAGE) -> Path:
    """Return the folder of the example recipes: a wheel has it in the package, a clone beside it."""
    packed = package / "examples"
    return packed if packed.is_dir() else package.with_name("recipes")


def copy_example(name: str, folder: Path) -> Recipe:
    """Copy an example into a folder of recipes. Raises UsageError if there is none or a file would be overwritten."""
    source = examples_folder()
    known = list_recipes(source)
    if name not in known:
        hint = f"{nearest(name, known)}examples: {', '.join(known)}"
        raise UsageError(f"there is no example `{name}`", hint=hint)
    path = new_path(name, folder)
    files = {folder / file: (source / file).read_bytes() for file in _files(load(source / path.name), source)}
    if (folder / FILE).exists():  # perhaps of another version, which serves as well
        del files[folder / FILE]
    for target, content in files.items():
        if target.exists() and target.read_bytes() != content:
            raise UsageError(
                f"`{target}` is there with other content, and nothing is overwritten",
                hint="`--recipes` names another folder",
            )
    for target, content in files.items():
        save_bytes(target, content)
    return load(path)


def _files(recipe: Recipe, source: Path) -> Iterator[Path]:
    """Yield the files of an example, from the folder of examples. Its recipe comes last."""
    yield Path(FILE)
    tops = {Path(path).parts[0] for one in recipe.extensions for path in _paths(one)}
    for top in sorted(tops):
        for path in sorted((source / top).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(source)
    yield Path(f"{recipe.name}.lock")
    yield Path(f"{recipe.name}{SUFFIX}")


def _paths(extension: Extension) -> tuple[str, ...]:
    return tuple(filter(None, (*extension.sources, *extension.include, extension.path, extension.patch)))
