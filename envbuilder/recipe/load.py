"""Find recipes by name, and read one with the recipes it extends. Every mistake is reported at once."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from envbuilder.artifacts.outputs import SIF, need_no_folder
from envbuilder.core.errors import RecipeError, UsageError
from envbuilder.core.findings import Finding
from envbuilder.core.models import RawRule, keys_of, read_node
from envbuilder.core.places import (
    FormCode,
    List,
    Map,
    Mistakes,
    PlacedNode,
    check_credentials,
    load_text,
    shown,
)
from envbuilder.core.places import load as load_yaml
from envbuilder.core.plain import counted, pasted
from envbuilder.core.processor import AARCH64, processor_for
from envbuilder.core.spelling import nearest, nearest_name
from envbuilder.recipe.fields import RecipeCode
from envbuilder.recipe.from_lock import requirements_of
from envbuilder.recipe.matrix import KEY, MARK, choose_variant, file_of, read_variants
from envbuilder.recipe.model import AUTO, NAME, SUFFIX, BaseImage, NcclChoice, Recipe, RecipeFile, check_pairs
from envbuilder.recipe.packages import IMAGE_TORCH, NO_TORCH, LockItem, Requirements, brings, notes_on
from envbuilder.recipe.repository import RepositoryFile, make_repository
from envbuilder.recipe.warm import Warm
from envbuilder.recipe.wheel_sources import index_of, wheel_of
from envbuilder.sources.names import RECIPE

_JUDGED: Final = frozenset({FormCode.UNKNOWN_KEY, RecipeCode.PATH})
_UNSEEN: Final = frozenset({FormCode.UNREADABLE, FormCode.SYNTAX, RecipeCode.EXTENDS})
_FILE: Final[Any] = Annotated[RecipeFile, RawRule(check_pairs)]
_EXTENDS: Final[Any] = Annotated[str, NAME]
_OWN_KEY: Final = re.compile(r"^(?:pytorch|libxcrypt|extends)\s*:", re.MULTILINE)
# A recipe file without any of these is one environment.
_MANY: Final = re.compile(rf"{KEY}:|extends:|\b(?:{'|'.join(AARCH64.gpus)})\b")
_AS_WRITTEN: Final = (
    "summary", "gpus", "platform", "python", "cuda", "gcc", "libxcrypt", "apt", "security", "env", "tests", "run", "kernels",
)  # fmt: skip
# What a value of the key usually looks like: narrower than its shape, so that it tells the keys apart.
_USUAL: Final = {
    "base": r"[a-z]+/[a-z0-9.]+",
    "python": r"3\.\d+",
    "gcc": r"\d+",
    "libxcrypt": r"4\.\d+(\.\d+)?",
    "cuda": r"(9|\d\d)\.\d+(\.\d+)?",
    "pytorch": r"[12]\.\d+\.\d+",
}


def recipes_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of recipes for commands without `--recipes`. It may not exist."""
    return Path(environment.get("ENVBUILDER_RECIPES") or "recipes")


def list_recipes(folder: Path) -> tuple[str, ...]:
    """Return the names of the recipes in a folder, sorted. Each variant of a matrix is one."""
    paths = sorted(path for path in folder.glob(f"*{SUFFIX}") if path.is_file())
    return tuple(name for path in paths for name in _names(path))


def _recipes_here(folder: Path) -> tuple[str, ...]:
    """Return the recipes of the current folder, where `init` writes one beside its sources, and that `folder` lacks.

    Other files of a project end in .yaml too.
    """
    if folder.absolute() == Path.cwd():
        return ()
    files = (path for path in Path().glob(f"*{SUFFIX}") if not (folder / path).exists())
    return tuple(sorted(path.stem for path in files if _is_recipe(path)))


def _is_recipe(path: Path) -> bool:
    return path.is_file() and bool(_OWN_KEY.search(load_text(path, Mistakes()) or ""))


def expand(name: str, folder: Path) -> tuple[str, ...]:
    """Return the variants if NAME is a recipe with a matrix, otherwise NAME. Raises UsageError for an unknown one."""
    path = find_recipe(name, folder)
    end = path.suffix if name.endswith(path.suffix) else ""
    above = name.removesuffix(end).removesuffix(path.stem)
    return tuple(f"{above}{stem}{end}" for stem in _names(path))


def _names(path: Path) -> tuple[str, ...]:
    mistakes = Mistakes()  # loading the recipe reports them
    text = None if MARK in path.stem else load_text(path, mistakes)
    root = _load_merged(path, mistakes, []) if text and _MANY.search(text) else None
    variants = read_variants(root, mistakes) if root else {}
    return tuple(f"{path.stem}{MARK}{variant}" for variant in variants) or (path.stem,)


def examples_folder(package: Path = Path(__file__).parents[1]) -> Path:
    """Return the folder of the example recipes: a wheel has it in the package, a clone beside it."""
    packed = package / "examples"
    return packed if packed.is_dir() else package.with_name("recipes")


def need_recipes(folder: Path) -> tuple[str, ...]:
    """Return the names of the recipes in a folder. Raises UsageError if there are none."""
    names = list_recipes(folder)
    if not names:
        examples = ", ".join(list_recipes(examples_folder()))
        hint = (
            "`envbuilder init NAME` writes a first one, and `envbuilder init --example cpu` an example "
            f"({examples}); `--recipes` names another folder"
        )
        raise UsageError(f"`{folder}` holds no recipes", hint=hint)
    return names


def load_all(folder: Path) -> tuple[tuple[Recipe, ...], tuple[Finding, ...]]:
    """Return a folder's valid recipes and the mistakes of the others. Raises UsageError without recipes."""
    recipes: list[Recipe] = []
    mistakes: dict[Finding, None] = {}  # two recipes may extend the same file with a mistake
    here = _recipes_here(folder)
    inside = list_recipes(folder) if here else need_recipes(folder)
    places = ((folder, inside), (Path(), here))
    for path in (parent / f"{name}{SUFFIX}" for parent, names in places for name in names):
        try:
            recipes.append(load(path))
        except RecipeError as error:
            mistakes |= dict.fromkeys(error.findings)
    return tuple(recipes), tuple(mistakes)


def find_recipe(name: str, folder: Path) -> Path:
    """Return the file of NAME: a recipe in `folder` or here, or a path. Raises UsageError with the known names."""
    need_no_folder(name)
    if name.endswith((SIF, ".lock")):
        kind = "lock" if name.endswith(".lock") else "SIF"
        place = Path(name).parent if kind == "lock" else Path(name).parent.parent / folder.name
        beside = place / f"{Path(name).stem}{SUFFIX}"
        built_from = beside if file_of(beside)[0].is_file() else Path(name).stem
        hint = f"type the recipe that it was made from: `{built_from}`"
        raise UsageError(f"`{name}` is a {kind}, and a recipe is expected here", hint=hint)
    if "/" in name or name.endswith((SUFFIX, ".yml")):
        if not file_of(Path(name))[0].is_file():
            message = _why_no_file(Path(name)) or f"there is no recipe file `{name}`"
            hint = f"{_with_ending(name)}give a path to a file, or a name from `list`"
            raise UsageError(message, hint=hint)
        return Path(name)
    path, here = folder / f"{name}{SUFFIX}", Path(f"{name}{SUFFIX}")
    if file_of(path)[0].is_file():
        return path
    if _is_recipe(file_of(here)[0]):
        return here  # `init` writes it beside the sources of its extensions
    known = (*list_recipes(folder), *_recipes_here(folder))
    empty = f"`{folder}` holds no recipes, and `envbuilder init NAME` or `init --example cpu` writes one"
    listing = f"recipes: {', '.join(known)}" if known else empty
    meant = _with_ending(name) or _with_ending(str(folder / name)) or nearest(name, known)
    hint = f"{meant}{listing}; a path to a recipe file works as well"
    if not known and name in list_recipes(examples_folder()):
        hint = f"`envbuilder init --example {pasted(name)}` writes the example of this name"
    raise UsageError(_why_no_file(path) or f"there is no recipe {shown(name)} in `{folder}`", hint=hint)


def _why_no_file(path: Path) -> str:
    """Return what a path is that exists and is no file, "" for one that does not exist."""
    if path.is_dir():
        return f"`{path}` is a folder, and a recipe is a file"
    return f"`{path}` is a link that leads to no file" if path.is_symlink() else ""


def _with_ending(path: str) -> str:
    """Return a question about the file whose ending was left out, "" where there is none."""
    files = (f"{path}{ending}" for ending in (SUFFIX, ".yml"))
    return next((f"did you mean `{file}`? " for file in files if Path(file).is_file()), "")


def new_path(name: str, folder: Path, text: str | None = None) -> Path:
    """Return the path of a new recipe; raises UsageError for a bad name or an existing file.

    A file with this `text` is accepted: an interrupted command wrote it.
    """
    if name.endswith((SUFFIX, ".yml")):
        hint = f"write `{Path(name).stem}`: the file gets its ending by itself"
        raise UsageError(f"`{name}` is a file, where the name of the new recipe is expected", hint=hint)
    path = folder / f"{name}{SUFFIX}"
    if not re.fullmatch(NAME.pattern, name):
        message = f"`{name}` cannot be the name of a recipe: expected {NAME.expected}"
        raise UsageError(message, hint=NAME.hint)
    is_ours = text is not None and path.is_file() and path.read_bytes() == text.encode()
    if not is_ours and (path.exists() or path.is_symlink()):
        hint = "give another name, or remove it"
        raise UsageError(f"`{path}` is there, and nothing is overwritten", hint=hint)
    return path


def hint_to_build(name: str, folder: Path) -> str:
    """Return the hint if NAME has no artifacts: build or pull them, or choose a known recipe. NAME may be a SIF's path."""
    if name.endswith(SIF):
        return "name one that is there, or a recipe that was built"
    try:
        find_recipe(name, folder)
    except UsageError as error:
        if list_recipes(folder):
            return f"{error.message}; {error.hint}"
    make = f"`envbuilder build {pasted(name)}` makes image and SIF, `envbuilder pull {pasted(name)}` fetches them"
    return f"{make}; `--artifacts` says where they are"


def load(path: Path) -> Recipe:
    """Read a recipe, or a variant of it, and the recipes it extends. Raises RecipeError with a finding for each mistake."""
    recipe, findings = read(path)
    if recipe is None or findings:
        raise mistaken(path, findings)
    return recipe


def mistaken(path: Path, findings: tuple[Finding, ...]) -> RecipeError:
    """Return the error of a recipe with mistakes."""
    count = counted(len(findings), "mistake")
    return RecipeError(f"the recipe `{file_of(path)[0]}` has {count}", findings=findings)


def read(path: Path) -> tuple[Recipe | None, tuple[Finding, ...]]:
    """Return a recipe and its mistakes. The recipe is there to be judged if these decide no pin: keys that are unknown, for
    which the nearest stand, and files that are missing.
    """
    mistakes, name = Mistakes(), path.stem
    path, variant = file_of(path)
    if not re.fullmatch(NAME.pattern, path.stem):
        message = f"expected {NAME.expected}, found {shown(path.stem)}"
        mistakes.add(RecipeCode.NAME, str(path), message, hint=NAME.hint)
    files: list[Path] = []
    root = _load_merged(path, mistakes, files)
    if root:
        root = choose_variant(root, variant, path, mistakes)
    file = _read_file(root, path, mistakes) if root else None
    if root and file:
        file = _with_locks(file, path.parent, mistakes)
        _check_projects(file, mistakes)
        _check_ops(file, root, mistakes)
        _check_addresses(file, root, mistakes)
    if root is None or file is None or {finding.code for finding in mistakes.findings} - _JUDGED:
        return None, mistakes.findings
    return _make(file, _respelled(root), tuple(files), name), mistakes.findings


def _load_merged(path: Path, mistakes: Mistakes, files: list[Path]) -> PlacedNode | None:
    """Return a file merged over the one it extends, without `extends`. Each file read is added to `files`."""
    files.append(path)
    node = load_yaml(path, mistakes)
    if node is None:
        return None
    check_credentials(node, mistakes)
    alone = node.get("packages")
    if alone and isinstance(alone.value, Map) and {"from", "requirements"} & alone.value.keys():
        node.value["packages"] = List([alone.value], [(alone.where, alone.where)])
    parent = node.get("extends")
    if parent is None:
        return node
    del node.value["extends"]
    name: str | None = read_node(_EXTENDS, parent, mistakes)
    if name is None:
        return node
    file = path.with_name(f"{name}{SUFFIX}")
    if file in files:
        circle = " → ".join(step.stem for step in (*files, file))
        message = f"recipes that extend each other in a circle: {circle}"
        mistakes.at(parent, RecipeCode.EXTENDS, message, hint="leave `extends` out of one of them")
        return node
    if not file.is_file():
        known = tuple(sorted({other.stem for other in path.parent.glob(f"*{SUFFIX}")} - {path.stem}))
        hint = f"{nearest(name.removesuffix(SUFFIX), known)}recipes: {', '.join(known) or 'none'}"
        mistakes.at(parent, RecipeCode.EXTENDS, f"there is no recipe `{name}` beside this one", hint=hint)
        return node
    base = _load_merged(file, mistakes, files)
    if base is None:
        return node
    if isinstance(base.value, Map):
        base.value.pop(KEY, None)
    return replace(node, value=_merge(base.value, node.value))


def _merge(base: Any, over: Any) -> Any:
    """Merge maps, append lists and replace all else. Each value keeps its own place."""
    if isinstance(base, List) and isinstance(over, List):
        return List([*base, *over], [*base.places, *over.places])
    if isinstance(base, Map) and isinstance(over, Map):
        merged = {key: _merge(base[key], value) if key in base else value for key, value in over.items()}
        return Map(base | merged, base.places | over.places)
    return over


def _read_file(root: PlacedNode, path: Path, mistakes: Mistakes) -> RecipeFile | None:
    here = Mistakes()
    file: RecipeFile | None = read_node(_FILE, root, here, context=path.parent)
    unknown = [finding for finding in here.findings if finding.code == FormCode.UNKNOWN_KEY]
    if unknown:  # what follows from a misspelt key is no mistake of its own
        here = Mistakes()
        file = read_node(_FILE, _respelled(root), here, context=path.parent, skip_unknown=True)
    if file is None and {finding.code for finding in here.findings} <= _JUDGED:
        root = _respelled(root)  # extensions name files, and decide no pin
        others = {key: value for key, value in root.value.items() if key != "extensions"}
        rest = replace(root, value=Map(others, root.value.places))
        file = read_node(_FILE, rest, Mistakes(), context=path.parent, skip_unknown=True)
    # If a file could not be read, its keys are unknown and not missing.
    is_whole = not {finding.code for finding in mistakes.findings} & _UNSEEN
    for finding in (*unknown, *here.findings):
        is_missing = finding.code == FormCode.MISSING_KEY and finding.message.startswith("$: ")
        if is_whole or not (is_missing or finding.code == RecipeCode.PAIR):
            key = finding.message.partition(":")[0].removeprefix("$.")
            swapped = _swap_hint(root, key) if finding.code == FormCode.VALUE else ""
            mistakes.add(finding.code, finding.where, finding.message, hint=swapped or finding.hint)
    return file


def _respelled(root: PlacedNode) -> PlacedNode:
    """Return the recipe with the nearest known key for each unknown one, where that is free."""
    if not isinstance(root.value, Map):
        return root
    known, renamed = keys_of(RecipeFile), Map(root.value, root.value.places)
    for key in set(root.value) - set(known):
        near = nearest_name(key, known)
        if near and near not in renamed:
            renamed[near], renamed.places[near] = root.value[key], root.value.places[key]
    return replace(root, value=renamed)


def _make(file: RecipeFile, root: PlacedNode, files: tuple[Path, ...], name: str) -> Recipe:
    packages = tuple(_packages(file, root))
    path, lists = files[0], _lists(file)
    bounds = (text for requirements in lists for text, _ in requirements.constraints)
    named = (path for requirements in lists for path in requirements.files)
    keys = (path.parent / entry.key for entry in file.apt_sources if isinstance(entry, RepositoryFile))
    placed = (wheel_of(text) for text, _ in packages)
    wheels = (path.parent / wheel.path for wheel in placed if wheel and wheel.source == RECIPE)
    return Recipe(
        **{key: getattr(file, key) for key in _AS_WRITTEN},
        name=name,
        path=path,
        base="" if isinstance(file.base, BaseImage) else file.base,
        image=file.base.image if isinstance(file.base, BaseImage) else "",
        pytorch="" if file.pytorch in (NO_TORCH, IMAGE_TORCH) else file.pytorch,
        keeps_torch=file.pytorch == IMAGE_TORCH,
        packages=tuple(dict.fromkeys(text for text, _ in packages)),
        constraints=tuple(dict.fromkeys(bounds)),
        hashes=tuple(hashed for requirements in lists for hashed in requirements.hashes),
        locks=tuple(
            sorted(
                (pins for requirements in lists for pins in requirements.locks), key=lambda pins: pins.path
            )
        ),
        indexes=file.indexes,
        conda=file.conda,
        apt_sources=tuple(make_repository(entry, path.parent) for entry in file.apt_sources),
        extensions=tuple(extension.as_capture for extension in file.extensions),
        warm=warm if isinstance(warm := file.warm, Warm) else Warm(run=warm),
        nccl=(nccl.profile or AUTO) if isinstance(nccl := file.nccl, NcclChoice) else nccl,
        nccl_version=nccl.version if isinstance(nccl, NcclChoice) else "",
        files=tuple(dict.fromkeys((*files, *named, *keys, *wheels))),
        places=tuple(_places(root, packages)),
        notes=tuple(_notes(file, root)),
    )


def _lists(file: RecipeFile) -> tuple[Requirements, ...]:
    return tuple(entry for entry in file.packages if isinstance(entry, Requirements))


def _with_locks(file: RecipeFile, folder: Path, mistakes: Mistakes) -> RecipeFile:
    """Read the locks of other tools, which have packages for several Pythons and processors."""
    processor, items = processor_for(file.platform, file.gpus), list(file.packages)
    for number, item in enumerate(items):
        if isinstance(item, LockItem):
            items[number] = requirements = requirements_of(
                item, folder, python=file.python, pytorch=file.pytorch, processor=processor
            )
            for mistake in requirements.mistakes:
                mistakes.add(mistake.code, mistake.where, mistake.message, hint=mistake.hint)
    return replace(file, packages=tuple(items))


def _check_projects(file: RecipeFile, mistakes: Mistakes) -> None:
    """Report the projects of requirements files that no extension brings."""
    for project, where in (placed for requirements in _lists(file) for placed in requirements.projects):
        if any(brings(extension, project) for extension in file.extensions):
            continue
        kind = "repository" if project.git else "archive" if project.url else "folder"
        what = f"the {kind} `{project.git or project.url or project.path}`"
        hint = f"write `extensions: [{project.entry()}]`"
        if project.git and not project.commit:
            hint += f"; `git ls-remote {pasted(project.git, project.revision or 'HEAD')}` says the commit"
        message = f"{what} is a project, which the recipe takes as an extension"
        mistakes.add(RecipeCode.REQUIREMENT, where, message, hint=hint)


def _check_ops(file: RecipeFile, root: PlacedNode, mistakes: Mistakes) -> None:
    """Report ops of a DeepSpeed that nothing brings."""
    names = {re.split(r"[^\w.-]", text, maxsplit=1)[0].lower() for text, _ in _packages(file, root)}
    for extension in file.extensions if "deepspeed" not in names else ():
        if extension.deepspeed:
            message = (
                f"`{extension.name}` compiles ops of DeepSpeed, and `packages` does not have `deepspeed`"
            )
            mistakes.add(RecipeCode.EXTENSION, root.where, message, hint="add `deepspeed` to `packages`")


def _check_addresses(file: RecipeFile, root: PlacedNode, mistakes: Mistakes) -> None:
    """Report wheels with an address that an index has too."""
    for text, where in _packages(file, root):
        wheel = wheel_of(text)
        index = index_of(wheel.name, file.indexes) if wheel else None
        if wheel and index:
            message = f"`{wheel.name}` has an address here, and the index `{index.name}` has it too"
            hint = "leave out one of the two: a package comes from one place"
            mistakes.add(RecipeCode.REQUIREMENT, where, message, hint=hint)


def _notes(file: RecipeFile, root: PlacedNode) -> Iterator[Finding]:
    pin = root.get("pytorch") or root
    for requirements in _lists(file):
        yield from notes_on(
            requirements, file.extensions, pytorch=file.pytorch, cuda=file.cuda, python=file.python,
            processor=processor_for(file.platform, file.gpus), place=pin.where, indexes=file.indexes,
        )  # fmt: skip


def _packages(file: RecipeFile, root: PlacedNode) -> Iterator[tuple[str, str]]:
    """Yield each requirement of `packages` with its place."""
    node = root.get("packages")
    for item, entry in zip(node.inner.values() if node else (), file.packages, strict=True):
        placed = entry.packages if isinstance(entry, Requirements) else ()
        yield from ((entry, item.where),) if isinstance(entry, str) else placed


def _places(root: PlacedNode, packages: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, str]]:
    """Yield the path of each value in the effective recipe, with the place it came from."""
    yield "$", root.where
    for node in root.inner.values():
        yield from ((node.path, node.where),) if node.path == "$.packages" else _places_below(node)
    first = dict(reversed(packages))
    for index, text in enumerate(dict.fromkeys(text for text, _ in packages)):
        yield f"$.packages[{index}]", first[text]


def _places_below(node: PlacedNode) -> Iterator[tuple[str, str]]:
    yield node.path, node.where
    for inner in node.inner.values():
        yield from _places_below(inner)


def _swap_hint(root: PlacedNode, key: str) -> str:
    """Return what to write if the key has the value of another one, which has its; "" otherwise."""
    values = root.value if key in _USUAL else {}
    texts = {name: values[name] for name in _USUAL if isinstance(values.get(name), str)}
    mine = texts.get(key, "")
    for other, theirs in texts.items():
        is_swapped = re.fullmatch(_USUAL[other], mine) and re.fullmatch(_USUAL[key], theirs)
        if is_swapped and not re.fullmatch(_USUAL[other], theirs):
            ours, its = (text if "/" in text else f'"{text}"' for text in (theirs, mine))
            return f"are `{key}` and `{other}` swapped? write `{key}: {ours}` and `{other}: {its}`"
    return ""
