"""The recipe: what a person wishes, read from YAML with every mistake reported at once."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from envbuilder.core.cache import Sha256, sha256_text
from envbuilder.core.decode import (
    LINE_OR_EMPTY,
    MAJOR_MINOR,
    Code,
    Entry,
    Fields,
    Kind,
    Mistakes,
    Node,
    Shape,
    nearest,
    read_text,
    shown,
)
from envbuilder.core.decode import load as load_yaml
from envbuilder.core.errors import RecipeError, UsageError
from envbuilder.core.findings import Finding
from envbuilder.recipe.extension import Extension, read_extensions
from envbuilder.recipe.fields import VARIABLE, RecipeCode, read_packages, read_path

FORMAT: Final = 1  # of Recipe.canonical(); a new number makes every lock stale
SUFFIX: Final = ".yaml"
REQUIRED: Final = ("base", "python", "gcc", "pytorch")
OPTIONAL: Final = (
    "summary", "gpus", "cuda", "libxcrypt", "packages", "apt", "extensions", "env", "nccl", "tests", "extends",
)  # fmt: skip

_NAME: Final = Shape(
    pattern=r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*",
    expected="a recipe name of lower-case letters and digits with single `.`, `_` or `-` between them",
    hint="the name of the recipe is also the name of its image",
)
_BASE: Final = Shape(
    pattern=r"[a-z]+/[a-z0-9.]+",
    expected="distribution/suite, or {image: REFERENCE}",
    hint="`base: debian/bookworm`, or `base: {image: registry/repository:tag@sha256:…}`",
)
_PART: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REFERENCE: Final = Shape(
    pattern=r"(?:(?=[^/]*[.:]|localhost/)[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)?"
    rf"{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    expected="a reference such as registry/repository:tag@sha256:…",
    hint="a tag alone serves as well: `lock` finds its digest",
)
_GCC: Final = Shape(
    pattern=r"[0-9]+", expected='a major version such as "12"', hint="the suite decides the rest"
)
_LIBXCRYPT: Final = Shape(pattern=r"[0-9]+\.[0-9]+(\.[0-9]+)?", expected='a version such as "4.4"')
_TORCH: Final = Shape(
    pattern=r"[0-9]+\.[0-9]+\.[0-9]+",
    expected='a full version such as "2.6.0"',
    hint="`cuda:` chooses the build, so no `+cu124` here",
)
_GPU: Final = Shape(pattern=r"[A-Za-z][A-Za-z0-9 -]*", expected="the name of a GPU such as A100")
_APT: Final = Shape(
    pattern=r"[a-z0-9][a-z0-9+.-]{1,99}",
    expected="the name of a Debian package",
    hint="the lock chooses its version",
)
_NCCL: Final = Shape(
    pattern="auto|off",
    expected="auto, off, or {profile: FILE}",
    hint="`auto` lets each node decide; `envbuilder detect --save FILE` writes a profile",
)
AUTO: Final = "auto"
# What the text of each key, or of each item of its list, must look like; a key that is not here is a line of text.
SHAPES: Final = {
    "gpus": _GPU,
    "base": _BASE,
    "image": _REFERENCE,  # of `base`
    "python": MAJOR_MINOR,
    "cuda": replace(MAJOR_MINOR, expected='a version such as "12.4"'),
    "gcc": _GCC,
    "libxcrypt": _LIBXCRYPT,
    "pytorch": _TORCH,
    "apt": _APT,
    "extends": _NAME,
    "nccl": _NCCL,
}

_UNSEEN: Final = frozenset({Code.UNREADABLE, Code.SYNTAX, RecipeCode.EXTENDS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The effective recipe, after `extends`; empty text and empty tuples stand for what was not asked."""

    name: str
    path: Path  # of the recipe file; extension sources are relative to its folder
    summary: str
    gpus: tuple[str, ...]
    base: str  # distribution/suite, e.g. debian/bookworm; "" where it stands on an image
    image: str = ""  # the reference of that image, as written
    python: str
    cuda: str  # "" without CUDA
    gcc: str
    libxcrypt: str
    pytorch: str
    packages: tuple[str, ...]  # PEP 508, requirement files folded in
    apt: tuple[str, ...]
    extensions: tuple[Extension, ...]
    env: tuple[tuple[str, str], ...]  # sorted by name
    nccl: str = "auto"  # "auto", "off", or the path of a profile below the recipe's folder
    tests: tuple[str, ...]  # commands run in both artefacts after a build
    places: tuple[tuple[str, str], ...]  # `$.cuda` → `recipes/a100.yaml:4:7`

    @property
    def digest(self) -> Sha256:
        """Of everything that decides a build: not the summary, the tests or where things were written."""
        return sha256_text(self.canonical())

    def canonical(self) -> str:
        """What decides a build, as one stable text; GPU and apt names are a set, packages keep their order."""
        value = {
            "format": FORMAT,
            "gpus": sorted(set(self.gpus)),
            "base": {"image": self.image} if self.image else self.base,
            "python": self.python,
            "cuda": self.cuda,
            "gcc": self.gcc,
            "libxcrypt": self.libxcrypt,
            "pytorch": self.pytorch,
            "packages": self.packages,
            "apt": sorted(set(self.apt)),
            "extensions": [extension.canonical() for extension in self.extensions],
            "env": dict(self.env),
        }
        if self.nccl != AUTO:
            value["nccl"] = self.nccl
        return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def place(self, path: str) -> str:
        """Where the value at `$.key[0]` was written; for what was not written, the place of what would hold it."""
        known = dict(self.places)
        while path not in known and path != "$":
            path = path[: max(path.rfind("."), path.rfind("["))]
        return known.get(path, str(self.path))


def recipes_folder(environment: Mapping[str, str]) -> Path:
    """Where recipes are, for the verbs that need none and want to name one that is there."""
    return Path(environment.get("ENVBUILDER_RECIPES") or "recipes")


def list_recipes(folder: Path) -> tuple[str, ...]:
    """The names of the recipes in a folder, sorted."""
    return tuple(sorted(path.stem for path in folder.glob(f"*{SUFFIX}") if path.is_file()))


def need_recipes(folder: Path) -> tuple[str, ...]:
    """What `list_recipes` finds; raises UsageError where that is nothing."""
    names = list_recipes(folder)
    if not names:
        raise UsageError(f"`{folder}` holds no recipes", hint="`--recipes` names another folder")
    return names


def load_all(folder: Path) -> tuple[tuple[Recipe, ...], tuple[Finding, ...]]:
    """Every recipe of a folder that can be read, and the mistakes of the others, each once; raises UsageError for no file."""
    recipes: list[Recipe] = []
    mistakes: dict[Finding, None] = {}  # of what two recipes extend, both tell
    for name in need_recipes(folder):
        try:
            recipes.append(load(folder / f"{name}{SUFFIX}"))
        except RecipeError as error:
            mistakes |= dict.fromkeys(error.findings)
    return tuple(recipes), tuple(mistakes)


def find_recipe(name: str, folder: Path) -> Path:
    """Return the file that NAME stands for: a recipe in `folder`, or a path; raises UsageError with what exists."""
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
    """What to do where nothing was built of NAME: build it, or name a recipe that there is; NAME may be a path to a SIF."""
    if name.endswith(".sif"):
        return "name one that is there, or a recipe that was built"
    try:
        find_recipe(name, folder)
    except UsageError as error:
        if list_recipes(folder):
            return f"{error.message}; {error.hint}"
    return f"`envbuilder build {name}` makes image and SIF; `--output` says where they are"


def load(path: Path, *, name: str = "") -> Recipe:
    """Read the recipe with all that it extends; raises RecipeError whose findings hold every mistake."""
    mistakes = Mistakes()
    name = name or path.stem
    if not re.fullmatch(_NAME.pattern, name):
        mistakes.add(
            RecipeCode.NAME, str(path), f"expected {_NAME.expected}, found {shown(name)}", hint=_NAME.hint
        )
    root = _load_merged(path, mistakes, ())
    recipe = None if root is None else _read(root, path, name, mistakes)
    if recipe is None or mistakes.findings:
        count = len(mistakes.findings)
        raise RecipeError(
            f"the recipe `{path}` has {count} mistake{'s' if count > 1 else ''}", findings=mistakes.findings
        )
    return recipe


def _load_merged(path: Path, mistakes: Mistakes, above: tuple[Path, ...]) -> Node | None:
    """One file merged over what it extends; its own unknown keys are collected here, where they were written."""
    node = load_yaml(path, mistakes)
    if node is None:
        return None
    fields = Fields(node, mistakes, optional=(*REQUIRED, *OPTIONAL))
    parent = node.get("extends")
    if parent is None:
        return node
    name = fields.text("extends", SHAPES["extends"])
    if not name:
        return node
    file = path.with_name(f"{name}{SUFFIX}")
    if file in (*above, path):
        circle = " → ".join(step.stem for step in (*above, path, file))
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
    base = _load_merged(file, mistakes, (*above, path))
    return node if base is None else _merge(base, node)


def _merge(base: Node, over: Node) -> Node:
    """Maps merge, lists append, everything else is replaced; each value keeps the place where it was written."""
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


def _read(root: Node, path: Path, name: str, mistakes: Mistakes) -> Recipe | None:
    if root.kind is not Kind.MAP:
        return None
    known = tuple(entry.key for entry in root.entries)  # unknown keys were collected file by file
    # What cannot be read cannot be merged, and its keys are then not missing but unseen.
    is_whole = not {finding.code for finding in mistakes.findings} & _UNSEEN
    fields = Fields(root, mistakes, required=REQUIRED if is_whole else (), optional=known)
    folder = path.parent
    packages = tuple(read_packages(fields, folder, mistakes))
    if is_whole:
        _check_pairs(fields, mistakes)
    env = [(entry.key, _read_variable(entry, mistakes)) for entry in fields.entries("env")]
    base, image = _read_base(fields, mistakes)
    return Recipe(
        name=name,
        path=path,
        summary=fields.text("summary"),
        gpus=fields.texts("gpus", SHAPES["gpus"]),
        base=base,
        image=image,
        python=fields.text("python", SHAPES["python"]),
        cuda=fields.text("cuda", SHAPES["cuda"]),
        gcc=fields.text("gcc", SHAPES["gcc"]),
        libxcrypt=fields.text("libxcrypt", SHAPES["libxcrypt"]),
        pytorch=fields.text("pytorch", SHAPES["pytorch"]),
        packages=tuple(dict.fromkeys(text for text, _ in packages)),
        apt=fields.texts("apt", SHAPES["apt"]),
        extensions=read_extensions(fields, folder, mistakes),
        env=tuple(sorted(env)),
        nccl=_read_nccl(fields, folder, mistakes),
        tests=fields.texts("tests"),
        places=tuple(_places(root, packages)),
    )


def _check_pairs(fields: Fields, mistakes: Mistakes) -> None:
    """Of `cuda` and `gpus`, both or none: a toolkit needs to know its targets, and without CUDA torch is the CPU's."""
    gpus = fields.node.get("gpus")
    cuda = fields.node.get("cuda")
    if cuda is not None and (gpus is None or (gpus.kind is Kind.LIST and not gpus.items)):
        mistakes.at(
            cuda,
            RecipeCode.PAIR,
            "`cuda` needs `gpus`",
            hint="add `gpus: [A100]`: it decides what code is compiled for",
        )
    if gpus is not None and gpus.items and cuda is None:
        mistakes.at(
            gpus, RecipeCode.PAIR, "`gpus` needs `cuda`", hint='add `cuda: "12.4"`, or leave out `gpus`'
        )


def _read_variable(entry: Entry, mistakes: Mistakes) -> str:
    if not re.fullmatch(VARIABLE.pattern, entry.key):
        mistakes.add(
            RecipeCode.VARIABLE,
            entry.where,
            f"{entry.node.path}: {shown(entry.key)} cannot be the name of an environment variable",
            hint=VARIABLE.hint,
        )
    return read_text(entry.node, mistakes, LINE_OR_EMPTY)


def _read_base(fields: Fields, mistakes: Mistakes) -> tuple[str, str]:
    """The suite, or the reference of `{image: …}`; the other is ""."""
    node = fields.node.get("base")
    if node is None or node.kind is not Kind.MAP:
        return fields.text("base", SHAPES["base"]), ""
    return "", Fields(node, mistakes, required=("image",)).text("image", SHAPES["image"])


def _read_nccl(fields: Fields, folder: Path, mistakes: Mistakes) -> str:
    """`auto`, `off`, or `{profile: FILE}`."""
    node = fields.node.get("nccl")
    if node is None:
        return AUTO
    if node.kind is Kind.MAP:
        inner = Fields(node, mistakes, required=("profile",))
        profile = inner.node.get("profile")
        return AUTO if profile is None else read_path(profile, folder, mistakes)
    if node.kind is Kind.BOOLEAN and node.text == "off":
        return node.text
    return read_text(node, mistakes, SHAPES["nccl"])


def _places(root: Node, packages: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, str]]:
    """Every value's path in the effective recipe, with the file and line it came from."""
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
