"""Find recipes by name, and read one with the recipes it extends. Every mistake is reported at once."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from envbuilder.core.errors import RecipeError, UsageError
from envbuilder.core.findings import Finding
from envbuilder.core.models import RawRule, read_node
from envbuilder.core.places import Code, Entry, Kind, Mistakes, Node, nearest, shown
from envbuilder.core.places import load as load_yaml
from envbuilder.recipe.fields import RecipeCode
from envbuilder.recipe.model import NAME, SUFFIX, Image, NcclProfile, Recipe, RecipeFile, check_pairs

_UNSEEN: Final = frozenset({Code.UNREADABLE, Code.SYNTAX, RecipeCode.EXTENDS})
_FILE: Final[Any] = Annotated[RecipeFile, RawRule(check_pairs)]
_EXTENDS: Final[Any] = Annotated[str, NAME]


def recipes_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of recipes for commands that only suggest names. It may not exist."""
    return Path(environment.get("ENVBUILDER_RECIPES") or "recipes")


def list_recipes(folder: Path) -> tuple[str, ...]:
    """Return the names of the recipes in a folder, sorted."""
    return tuple(sorted(path.stem for path in folder.glob(f"*{SUFFIX}") if path.is_file()))


def need_recipes(folder: Path) -> tuple[str, ...]:
    """Return the names of the recipes in a folder. Raises UsageError if there are none."""
    names = list_recipes(folder)
    if not names:
        raise UsageError(f"`{folder}` holds no recipes", hint="`--recipes` names another folder")
    return names


def load_all(folder: Path) -> tuple[tuple[Recipe, ...], tuple[Finding, ...]]:
    """Return a folder's valid recipes and the mistakes of the others. Raises UsageError without recipes."""
    recipes: list[Recipe] = []
    mistakes: dict[Finding, None] = {}  # two recipes may extend the same file with a mistake
    for name in need_recipes(folder):
        try:
            recipes.append(load(folder / f"{name}{SUFFIX}"))
        except RecipeError as error:
            mistakes |= dict.fromkeys(error.findings)
    return tuple(recipes), tuple(mistakes)


def find_recipe(name: str, folder: Path) -> Path:
    """Return the file of NAME: a recipe in `folder`, or a path. Raises UsageError with the known names."""
    if "/" in name or name.endswith((SUFFIX, ".yml")):
        if not Path(name).is_file():
            raise UsageError(
                f"there is no recipe file `{name}`", hint="give a path to a file, or a name from `list`"
            )
        return Path(name)
    known = list_recipes(folder)
    if name not in known:
        listing = f"recipes: {', '.join(known)}" if known else f"`{folder}` holds no recipes"
        raise UsageError(
            f"there is no recipe {shown(name)} in `{folder}`",
            hint=f"{nearest(name, known)}{listing}; a path to a recipe file works as well",
        )
    return folder / f"{name}{SUFFIX}"


def hint_to_build(name: str, folder: Path) -> str:
    """Return the hint if nothing was built from NAME: build it, or choose a known recipe. NAME may be a SIF's path."""
    if name.endswith(".sif"):
        return "name one that is there, or a recipe that was built"
    try:
        find_recipe(name, folder)
    except UsageError as error:
        if list_recipes(folder):
            return f"{error.message}; {error.hint}"
    return f"`envbuilder build {name}` makes image and SIF; `--output` says where they are"


def load(path: Path, *, name: str = "") -> Recipe:
    """Read a recipe and the recipes it extends. Raises RecipeError with a finding for each mistake."""
    mistakes = Mistakes()
    name = name or path.stem
    if not re.fullmatch(NAME.pattern, name):
        mistakes.add(
            RecipeCode.NAME, str(path), f"expected {NAME.expected}, found {shown(name)}", hint=NAME.hint
        )
    files: list[Path] = []
    root = _load_merged(path, mistakes, files)
    file = None if root is None else _read_file(root, path, mistakes)
    if root is None or file is None or mistakes.findings:
        count = len(mistakes.findings)
        raise RecipeError(
            f"the recipe `{path}` has {count} mistake{'s' if count > 1 else ''}", findings=mistakes.findings
        )
    return _make(file, root, tuple(files), name)


def _load_merged(path: Path, mistakes: Mistakes, files: list[Path]) -> Node | None:
    """Return a file merged over the one it extends, without `extends`. Each file read is added to `files`."""
    files.append(path)
    node = load_yaml(path, mistakes)
    if node is None:
        return None
    parent = node.get("extends")
    if parent is None:
        return node
    node = replace(node, entries=tuple(entry for entry in node.entries if entry.key != "extends"))
    name: str | None = read_node(_EXTENDS, parent, mistakes)
    if name is None:
        return node
    file = path.with_name(f"{name}{SUFFIX}")
    if file in files:
        circle = " → ".join(step.stem for step in (*files, file))
        mistakes.at(parent, RecipeCode.EXTENDS, f"recipes that extend each other in a circle: {circle}")
        return node
    if not file.is_file():
        known = tuple(other for other in list_recipes(path.parent) if other != path.stem)
        mistakes.at(
            parent,
            RecipeCode.EXTENDS,
            f"there is no recipe `{name}` beside this one",
            hint=f"{nearest(name, known)}recipes: {', '.join(known) or 'none'}",
        )
        return node
    base = _load_merged(file, mistakes, files)
    return node if base is None else _merge(base, node)


def _merge(base: Node, over: Node) -> Node:
    """Merge maps, append lists and replace all else. Each value keeps its own place."""
    if base.kind is Kind.LIST and over.kind is Kind.LIST:
        return replace(over, items=(*base.items, *over.items))
    if base.kind is Kind.MAP and over.kind is Kind.MAP:
        merged: dict[str, Entry] = {entry.key: entry for entry in base.entries}
        for entry in over.entries:
            below = merged.get(entry.key)
            node = _merge(below.node, entry.node) if below else entry.node
            merged[entry.key] = replace(entry, node=node)
        return replace(over, entries=tuple(merged.values()))
    return over


def _read_file(root: Node, path: Path, mistakes: Mistakes) -> RecipeFile | None:
    found = Mistakes()
    file: RecipeFile | None = read_node(_FILE, root, found, context=path.parent)
    # If a file could not be read, its keys are unknown and not missing.
    is_whole = not {finding.code for finding in mistakes.findings} & _UNSEEN
    for one in found.findings:
        is_missing = one.code == Code.MISSING_KEY and one.message.startswith("$: ")
        if is_whole or not (is_missing or one.code == RecipeCode.PAIR):
            mistakes.add(one.code, one.where, one.message, hint=one.hint)
    return file


def _make(file: RecipeFile, root: Node, files: tuple[Path, ...], name: str) -> Recipe:
    packages = tuple(_packages(file, root))
    path = files[0]
    node = root.get("packages")
    lists = (item.get("requirements") for item in node.items) if node else ()
    return Recipe(
        name=name,
        path=path,
        summary=file.summary,
        gpus=file.gpus,
        base="" if isinstance(file.base, Image) else file.base,
        image=file.base.image if isinstance(file.base, Image) else "",
        python=file.python,
        cuda=file.cuda,
        gcc=file.gcc,
        libxcrypt=file.libxcrypt,
        pytorch=file.pytorch,
        packages=tuple(dict.fromkeys(text for text, _ in packages)),
        apt=file.apt,
        extensions=file.extensions,
        env=file.env,
        nccl=file.nccl.profile if isinstance(file.nccl, NcclProfile) else file.nccl,
        tests=file.tests,
        files=(*files, *(path.parent / one.text for one in lists if one)),
        places=tuple(_places(root, packages)),
    )


def _packages(file: RecipeFile, root: Node) -> Iterator[tuple[str, str]]:
    """Yield each requirement with its place."""
    node = root.get("packages")
    for item, one in zip(node.items if node else (), file.packages, strict=True):
        yield from ((one, item.where),) if isinstance(one, str) else one


def _places(root: Node, packages: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, str]]:
    """Yield the path of each value in the effective recipe, with the place it came from."""
    yield "$", root.where
    for entry in root.entries:
        yield from (
            _places_below(entry.node, f"$.{entry.key}")
            if entry.key != "packages"
            else ((f"$.{entry.key}", entry.node.where),)
        )
    first = dict(reversed(packages))
    for index, text in enumerate(dict.fromkeys(text for text, _ in packages)):
        yield f"$.packages[{index}]", first[text]


def _places_below(node: Node, path: str) -> Iterator[tuple[str, str]]:
    yield path, node.where
    for index, item in enumerate(node.items):
        yield from _places_below(item, f"{path}[{index}]")
    for entry in node.entries:
        yield from _places_below(entry.node, f"{path}.{entry.key}")
