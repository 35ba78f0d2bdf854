"""The lock: a recipe with every choice made, each artefact named by its sha256.

A build reads nothing that the lock does not name. Artefacts are named by a source and a path relative to it, never by
a host, so that a mirror, a local folder or a vendored copy serves as well.
"""

import itertools
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Final

from envbuilder.core.cache import Sha256, sha256_text
from envbuilder.core.decode import (
    LINE_OR_EMPTY,
    Code,
    Fields,
    Mistakes,
    Node,
    Shape,
    load_text,
    parse_json,
    read_list,
    read_text,
)
from envbuilder.core.errors import LockError
from envbuilder.core.findings import CodeEnum
from envbuilder.core.sources import REGISTRY
from envbuilder.lock.base_image.locked import Blob, LockedBase, diff_bases, read_locked_base
from envbuilder.recipe.extension import Extension, Form
from envbuilder.recipe.model import SUFFIX, Recipe

VERSION: Final = 1  # another version is refused
REVISION: Final = 0  # a later revision adds keys that may be passed over
PARTS: Final = {  # keys of Recipe.canonical() that each part is resolved from
    "debs": ("base", "python", "gcc", "libxcrypt", "apt"),
    "toolkit": ("base", "cuda"),
    "wheels": ("base", "python", "cuda", "pytorch", "packages"),
}
_DECIDED: Final = {
    "debs": "the Debian packages",
    "toolkit": "the CUDA toolkit",
    "wheels": "the Python packages",
}

_SHA256: Final = Shape(pattern=r"[0-9a-f]{64}", expected="64 hexadecimal digits")
_NAME: Final = Shape(pattern=r"[A-Za-z0-9][A-Za-z0-9+._-]*", expected="the name of a package")
_VERSION: Final = Shape(pattern=r"[0-9A-Za-z][0-9A-Za-z.+:~!_-]*", expected="a version")
_SOURCE: Final = Shape(pattern=r"[a-z][a-z0-9-]*", expected="the name of a source")
_PLATFORM: Final = Shape(pattern=r"linux/[a-z0-9]+", expected="a platform such as linux/amd64")
_PATH: Final = Shape(
    pattern=r"(?!(?:.*/)?\.{0,2}(?:/|$))[^\x00-\x1f\x7f\\]+",
    expected="a plain relative path with `/` and no `..`",
)


class LockCode(CodeEnum):
    """What can be wrong with a lock beyond the form of its values."""

    ORDER = "EB410", "entries that are doubled or not sorted"
    SOURCES = "EB411", "an extension whose sources have no digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """One file to fetch. `source` is `debian` (path below a mirror), `pypi` (path `project/filename` in a package
    index), `pytorch` (path `cu126/project/filename` below PyTorch's own indexes), `git` (the tree of a commit as a tar) or
    `registry` (path `manifests/sha256:…` or `blobs/sha256:…` below the image that `name` refers to; no lock writes it like this).
    """

    kind: str  # deb | wheel | blob; an extension's archive: git | sdist
    name: str
    version: str
    sha256: Sha256
    size: int  # bytes
    source: str
    path: str

    @property
    def filename(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file of the recipe's own, by its path relative to the recipe's folder."""

    path: str
    sha256: Sha256
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedExtension:
    name: str
    sources: tuple[str, ...]  # what is compiled, in the recipe's order
    include: tuple[str, ...]
    cflags: tuple[str, ...]
    cuda_cflags: tuple[str, ...]
    files: tuple[SourceFile, ...]  # every file that its build reads from the recipe's folder, sorted by path
    path: str = ""  # this and all below as in the recipe, see `extension.Extension`
    git: str = ""
    commit: str = ""
    sdist: str = ""
    capture: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    archive: Artefact | None = None  # what `git` or `sdist` stand for, as one file

    @property
    def form(self) -> Form:
        if self.capture:
            return Form.CAPTURE
        return Form.LOAD if self.sources else Form.PROJECT


OPTIONS: Final = (
    "sources", "include", "cflags", "cuda_cflags", "path", "git", "commit", "sdist", "capture", "env",
)  # fmt: skip
LATER: Final = (*OPTIONS[4:], "archive")  # keys that a lock has only where they say something


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Digests of what each part of the lock was resolved from: a part whose inputs stay is not resolved again."""

    debs: Sha256
    toolkit: Sha256
    wheels: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    recipe: Sha256  # digest of the effective recipe, see Recipe.digest
    epoch: int  # SOURCE_DATE_EPOCH of every build from this lock, seconds
    platform: str  # linux/amd64
    inputs: Inputs
    debs: tuple[Artefact, ...]  # the os layer, sorted by name
    toolkit: tuple[Artefact, ...]  # the cuda layer: .debs and wheels, sorted by name
    wheels: tuple[Artefact, ...]  # the python layer, sorted by name
    extensions: tuple[LockedExtension, ...]
    base: LockedBase | None = (
        None  # None where the recipe stands on a suite; `debs` are what is put on top of it
    )


def artefacts(lock: Lock) -> tuple[Artefact, ...]:
    """Every file that a build from this lock fetches, or makes of a repository."""
    archives = (extension.archive for extension in lock.extensions if extension.archive is not None)
    return (*lock.debs, *lock.toolkit, *lock.wheels, *archives, *(blobs(lock.base) if lock.base else ()))


def blobs(base: LockedBase) -> tuple[Artefact, ...]:
    """Every file of an image: its manifest, its config, and its layers, the lowest first."""
    layers = ((layer, f"layer {at} of {len(base.layers)}") for at, layer in enumerate(base.layers, 1))
    own = ((base.config, "config"), *layers)
    return (
        _blob(base, base.manifest, "manifests", "manifest"),
        *(_blob(base, one, "blobs", part) for one, part in own),
    )


def _blob(base: LockedBase, blob: Blob, place: str, part: str) -> Artefact:
    return Artefact(
        kind="blob", name=base.reference, version=part, sha256=blob.digest, size=blob.size, source=REGISTRY,
        path=f"{place}/sha256:{blob.digest}",
    )  # fmt: skip


def dump(lock: Lock) -> str:
    """The text of a lockfile: sorted, so that the same lock is the same bytes."""
    tidy = replace(
        lock,
        debs=tuple(sorted(lock.debs, key=_by_name)),
        toolkit=tuple(sorted(lock.toolkit, key=_by_name)),
        wheels=tuple(sorted(lock.wheels, key=_by_name)),
    )
    head = {"_": "made by `envbuilder lock NAME`; do not edit", "version": VERSION, "revision": REVISION}
    body = asdict(tidy)
    if tidy.base is None:
        del body["base"]
    body["extensions"] = [
        {key: value for key, value in one.items() if value or key not in LATER} for one in body["extensions"]
    ]
    return json.dumps(head | body, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def load(path: Path, *, recipe: str = "") -> Lock:
    """Read a lockfile; raises LockError when it is not there or cannot be used, with `recipe` as the user called it."""
    recipe = recipe or str(path.with_suffix(SUFFIX))
    if not path.is_file():
        raise LockError(f"there is no lock `{path}`", hint=f"`envbuilder lock {recipe}` makes it")
    mistakes = Mistakes()
    text = load_text(path, mistakes)
    if text is None:
        raise _refusal(str(path), recipe, mistakes)
    return parse(text, str(path), recipe=recipe)


def parse(text: str, where: str, *, recipe: str = "NAME") -> Lock:
    """Read the text of a lockfile; raises LockError with every mistake. A newer revision may hold more keys."""
    mistakes = Mistakes()
    root = parse_json(text, where, mistakes)
    if root is None:
        raise _refusal(where, recipe, mistakes)
    head = Fields(
        root, Mistakes(), required=("version", "revision"), optional=[entry.key for entry in root.entries]
    )
    version, revision = head.integer("version"), head.integer("revision")
    if version != VERSION and not head.mistakes.findings:
        raise LockError(
            f"the lock `{where}` has version {version}; this envbuilder reads version {VERSION}",
            hint=f"use the envbuilder that made it; or remove the file, and `envbuilder lock {recipe}` makes it anew",
        )
    lock = _Reader(mistakes, is_newer=revision > REVISION).lock(root)
    if mistakes.findings:
        raise _refusal(where, recipe, mistakes)
    return lock


def diff(old: Lock, new: Lock) -> tuple[str, ...]:
    """What is different, a line each: `+` added, `-` removed, `~` changed."""
    lines = []
    for name in ("platform", "epoch"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            lines.append(f"~ {name} {before} → {after}")
    if old.recipe != new.recipe:
        lines.append(f"~ recipe {old.recipe[:12]} → {new.recipe[:12]}")
    lines += diff_bases(old.base, new.base)
    for before, after in ((old.debs, new.debs), (old.toolkit, new.toolkit), (old.wheels, new.wheels)):
        lines += _diff_artefacts({item.name: item for item in before}, {item.name: item for item in after})
    lines += _diff_extensions(
        {item.name: item for item in old.extensions}, {item.name: item for item in new.extensions}
    )
    return tuple(lines)


def recipe_inputs(recipe: Recipe) -> Inputs:
    """What each part of a lock follows from, as digests of the recipe's values under `PARTS`."""
    values = json.loads(recipe.canonical())
    digests = {
        part: sha256_text(json.dumps({key: values[key] for key in keys}, sort_keys=True))
        for part, keys in PARTS.items()
    }
    return Inputs(debs=digests["debs"], toolkit=digests["toolkit"], wheels=digests["wheels"])


def check_fresh(recipe: Recipe, lock: Lock, files: Mapping[str, Sha256]) -> tuple[str, ...]:
    """Why the lock no longer fits the recipe and the files that its extensions compile; empty when it does.

    `files` holds the digests of these files as they are now, by their path below the recipe's folder.
    """
    reasons: list[str] = []
    if recipe.digest != lock.recipe:
        now = recipe_inputs(recipe)
        changed = [part for part in PARTS if getattr(now, part) != getattr(lock.inputs, part)]
        reasons += [
            f"the recipe changed in {_either(PARTS[part])}, which decide {_DECIDED[part]}" for part in changed
        ]
        options = list(_changed_extensions(recipe, lock))
        reasons += options
        if not changed and not options:
            reasons.append("the recipe changed in `gpus`, `env` or the order of its extensions")
    locked = {file.path: file.sha256 for extension in lock.extensions for file in extension.files}
    for path in sorted(locked.keys() | files.keys()):
        if path not in files:
            reasons.append(f"`{path}` is gone")
        elif path not in locked:
            reasons.append(f"`{path}` is new")
        elif files[path] != locked[path]:
            reasons.append(f"`{path}` changed")
    return tuple(reasons)


class _Reader:
    """Reads the nodes of a lock; of a newer revision it passes over keys that it does not know."""

    def __init__(self, mistakes: Mistakes, *, is_newer: bool) -> None:
        self._mistakes = mistakes
        self._is_newer = is_newer

    def lock(self, node: Node) -> Lock:
        fields = self._fields(node, Lock, "_", "version", "revision", optional=("base",))
        base = node.get("base")
        fields.integer("version")
        fields.integer("revision")
        return Lock(
            recipe=_digest(fields, "recipe"),
            epoch=fields.integer("epoch"),
            platform=fields.text("platform", _PLATFORM),
            inputs=self._inputs(fields),
            debs=self._artefacts(fields, "debs", ("deb",)),
            toolkit=self._artefacts(fields, "toolkit", ("deb", "wheel")),
            wheels=self._artefacts(fields, "wheels", ("wheel",)),
            extensions=self._extensions(fields),
            base=None if base is None else read_locked_base(base, self._mistakes, is_newer=self._is_newer),
        )

    def _fields(self, node: Node, kind: type, *more: str, optional: tuple[str, ...] = ()) -> Fields:
        known = (*more, *(field.name for field in dataclass_fields(kind) if field.name not in optional))
        extra = tuple(entry.key for entry in node.entries) if self._is_newer else ()
        return Fields(node, self._mistakes, required=known, optional=(*optional, *extra))

    def _inputs(self, fields: Fields) -> Inputs:
        node = fields.node.get("inputs")
        if node is None:
            return Inputs(debs=Sha256(""), toolkit=Sha256(""), wheels=Sha256(""))
        inner = self._fields(node, Inputs)
        return Inputs(
            debs=_digest(inner, "debs"), toolkit=_digest(inner, "toolkit"), wheels=_digest(inner, "wheels")
        )

    def _artefacts(self, fields: Fields, key: str, kinds: tuple[str, ...]) -> tuple[Artefact, ...]:
        nodes = fields.items(key)
        shape = Shape(pattern="|".join(kinds), expected=" or ".join(kinds))
        artefacts = [self._artefact(self._fields(node, Artefact), shape) for node in nodes]
        self._check_order(nodes, [artefact.name for artefact in artefacts])
        return tuple(artefacts)

    def _artefact(self, fields: Fields, kind: Shape) -> Artefact:
        return Artefact(
            kind=fields.text("kind", kind),
            name=fields.text("name", _NAME),
            version=fields.text("version", _VERSION),
            sha256=_digest(fields, "sha256"),
            size=fields.integer("size"),
            source=fields.text("source", _SOURCE),
            path=fields.text("path", _PATH),
        )

    def _extensions(self, fields: Fields) -> tuple[LockedExtension, ...]:
        return tuple(self._extension(node) for node in fields.items("extensions"))

    def _extension(self, node: Node) -> LockedExtension:
        fields = self._fields(node, LockedExtension, optional=LATER)
        nodes = fields.items("files")
        files = [self._file(self._fields(item, SourceFile)) for item in nodes]
        self._check_order(nodes, [file.path for file in files])
        extension = LockedExtension(
            name=fields.text("name"),
            sources=fields.texts("sources", _PATH),
            include=fields.texts("include", _PATH),
            cflags=fields.texts("cflags"),
            cuda_cflags=fields.texts("cuda_cflags"),
            files=tuple(files),
            path=fields.text("path", _PATH),
            git=fields.text("git"),
            commit=fields.text("commit"),
            sdist=fields.text("sdist"),
            capture=fields.texts("capture"),
            env=tuple(self._pair(item) for item in fields.items("env")),
            archive=self._archive(fields),
        )
        missing = sorted(set(extension.sources) - {file.path for file in files})
        if missing:
            self._mistakes.at(node, LockCode.SOURCES, f"no digest of {', '.join(missing)} among the files")
        return extension

    def _archive(self, fields: Fields) -> Artefact | None:
        node = fields.node.get("archive")
        kinds = Shape(pattern="git|sdist", expected="git or sdist")
        return None if node is None else self._artefact(self._fields(node, Artefact), kinds)

    def _pair(self, node: Node) -> tuple[str, str]:
        texts = tuple(
            read_text(item, self._mistakes, LINE_OR_EMPTY) for item in read_list(node, self._mistakes)
        )
        if len(texts) != 2:
            self._mistakes.at(node, Code.VALUE, "expected a name and a value")
        return texts[0] if texts else "", texts[-1] if texts else ""

    def _file(self, fields: Fields) -> SourceFile:
        return SourceFile(
            path=fields.text("path", _PATH), sha256=_digest(fields, "sha256"), size=fields.integer("size")
        )

    def _check_order(self, nodes: tuple[Node, ...], names: list[str]) -> None:
        for node, (before, name) in zip(nodes[1:], itertools.pairwise(names), strict=True):
            if before and name and not before < name:
                self._mistakes.at(
                    node, LockCode.ORDER, f"`{name}` follows `{before}`: expected each once, sorted"
                )


def _by_name(artefact: Artefact) -> str:
    return artefact.name


def _digest(fields: Fields, key: str) -> Sha256:
    return Sha256(fields.text(key, _SHA256))


def _refusal(where: str, recipe: str, mistakes: Mistakes) -> LockError:
    return LockError(
        f"the lock `{where}` cannot be used",
        hint=f"a lock is not edited by hand; remove the file, and `envbuilder lock {recipe}` makes it anew",
        findings=mistakes.findings,
    )


def _diff_artefacts(old: dict[str, Artefact], new: dict[str, Artefact]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if before is None:
            yield f"+ {name} {new[name].version}"
        elif after is None:
            yield f"- {name} {before.version}"
        elif before.version != after.version:
            yield f"~ {name} {before.version} → {after.version}"
        elif before.sha256 != after.sha256:
            yield f"~ {name} {after.version}: same version, other file ({before.sha256[:12]} → {after.sha256[:12]})"
        else:
            yield f"~ {name} {after.version}: same file, found elsewhere ({_origin(before)} → {_origin(after)})"


def _origin(artefact: Artefact) -> str:
    return f"{artefact.source}:{artefact.path}"


def _diff_extensions(old: dict[str, LockedExtension], new: dict[str, LockedExtension]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before is None:
            yield f"+ extension {name}"
        elif after is None:
            yield f"- extension {name}"
        elif before != after:
            for option in _changed_options(before, after):
                yield f"~ extension {name}: {option}"
            yield from _diff_files(name, before, after)


def _diff_files(name: str, before: LockedExtension, after: LockedExtension) -> Iterator[str]:
    old = {file.path: file.sha256 for file in before.files}
    new = {file.path: file.sha256 for file in after.files}
    for path in sorted(old.keys() | new.keys()):
        if path not in new:
            yield f"- extension {name}: {path}"
        elif path not in old:
            yield f"+ extension {name}: {path}"
        elif old[path] != new[path]:
            yield f"~ extension {name}: {path} {old[path][:12]} → {new[path][:12]}"


def _changed_extensions(recipe: Recipe, lock: Lock) -> Iterator[str]:
    wanted = {extension.name: extension for extension in recipe.extensions}
    locked = {extension.name: extension for extension in lock.extensions}
    for name in sorted(wanted.keys() | locked.keys()):
        if name not in locked:
            yield f"the recipe has a new extension `{name}`"
        elif name not in wanted:
            yield f"the recipe no longer has the extension `{name}`"
        else:
            for option in _changed_options(locked[name], wanted[name]):
                yield f"the recipe changed the extension `{name}`: {option}"


def _changed_options(before: LockedExtension, after: LockedExtension | Extension) -> Iterator[str]:
    for option in OPTIONS:
        old, new = getattr(before, option), getattr(after, option)
        if old != new:
            yield f"{option} {_words(old)} → {_words(new)}"


def _words(option: str | tuple[str | tuple[str, str], ...]) -> str:
    words = (
        [option]
        if isinstance(option, str)
        else [one if isinstance(one, str) else "=".join(one) for one in option]
    )
    return shlex.join(filter(None, words)) or "none"


def _either(keys: tuple[str, ...]) -> str:
    names = [f"`{key}`" for key in keys]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
