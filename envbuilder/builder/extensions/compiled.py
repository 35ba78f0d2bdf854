"""Compiled extensions and captured calls in the store: their entries, and how what a program left becomes one.

A compiled extension lies there under its key as `extension.py` leaves it: `tree` and `index.json`. Its fields of the key lie beside it,
so a miss can be explained by the field that differs.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from packaging.utils import canonicalize_name
from pydantic import Field

from envbuilder.builder.slots import NVCC_MEMORY
from envbuilder.compat.tables.cuda import load_cuda_packages
from envbuilder.core.answer import Answer
from envbuilder.core.beneath import (
    copy_tree_beneath,
    files_beneath,
    open_beneath,
    read_beneath,
    unlink_beneath,
    walk_beneath,
)
from envbuilder.core.cache import Sha256, Store, read_proved, save_proved, save_text, sha256_text
from envbuilder.core.errors import BuildError, LockError
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.models import Shape, adapter
from envbuilder.lock.model import Artifact, LockedExtension
from envbuilder.plan.extension import CAPTURED, Calls, Key, LoadCall, call_key, project_key, recipe_calls
from envbuilder.plan.make import make_plan
from envbuilder.plan.model import Plan
from envbuilder.recipe.extension import Form
from envbuilder.recipe.model import Recipe

COMPILED_FILE: Final = "compiled.json"
CAPTURED_FILE: Final = "captured.json"
_LISTS: Final = ("calls.json", "places.json")  # of a capture, beside the files
_PLACE: Final = Shape(pattern=r"([^\x00-\x1f\x7f]{1,300}:\d+)?", expected="a file and a line")
VERSION: Final = 2  # of both files
TREE: Final = "tree"
INDEX: Final = "index.json"
OUT: Final = "0"  # the folder of one call or project in the program's OUT
_MOST: Final = 64 << 20  # bytes of an index: it names the headers that a compile read
# A line of ninja's log: start and end in milliseconds, the time of its inputs or 0, and the object.
_TIMED: Final = re.compile(r"(\d{1,12})\t(\d{1,12})\t([^\t]*)\t([^\t]+)(?:\t|$)")
_LOG: Final = ".ninja_log"
_NINJAS: Final = (_LOG, ".ninja_deps", "build.ninja")
_OBJECTS: Final = re.compile(
    r"build/|src/(.*/)?build/temp\.[^/]+/"
)  # in a build directory; `extension.py` keeps them
MEMORY: Final = "memory"  # in the program's OUT
_MOST_MEMORY: Final = 1 << 40  # foreign code may have written the number


class ExtensionCode(CodeEnum):
    WRONG = "EB630", "an extension holds code for other GPUs than the recipe's"
    WITHOUT = "EB631", "an extension with CUDA sources was built without code for a GPU"
    NOTHING = "EB632", "a `capture` reached no load()"
    ENDED = "EB633", "a line of a `capture` ended in an error"
    RAISED = "EB637", "the build of an extension ended in an error of its own"
    TWINS = "EB635", "several extensions have one name, so that `import` of it says nothing"
    WARM = "EB638", "a program of `warm` ended in an error, or launched no kernel"
    PATCH = "EB634", "a `patch` does not fit the sources of its extension"


# ---- the entry of a compiled extension


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionEntry:
    """The extension's entry in the image's index. A project has `libraries`, a call `file` and what follows it."""

    name: str
    function: str  # load | load_inline | package
    key: str
    size: int  # bytes of all libraries
    targets: tuple[str, ...]  # sm_80: machine code, compute_80: PTX; of all libraries
    libraries: tuple[str, ...] = ()
    file: str = ""
    is_python_module: bool = True
    is_standalone: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)  # path and sha256
    headers: Mapping[str, str] = field(default_factory=dict)  # the same, of other files that the compile read


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionIndex:
    """What `extension.py` says of what it made."""

    entry: ExtensionEntry
    facts: Mapping[str, str | bool | None]  # torch, cuda, cxx11_abi, python: it works with this torch alone
    held: Mapping[str, tuple[str, ...]]  # library → targets


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledExtension(ExtensionIndex):
    """The entry of an extension in the store."""

    seconds: float  # of the compile
    timings: Mapping[str, float]  # seconds of each compiled file
    recipe: str  # the first recipe that needed it
    memory: int = 0  # bytes of the largest process of the compile; 0 in an older entry


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedExtension:
    """An entry of the store, and its folder."""

    compiled: CompiledExtension
    folder: Path
    part: str = ""  # the name of the extension's program


def load_compiled(folder: Path) -> CompiledExtension | None:
    """Return the entry in a folder of the store, None if it is missing or has another version."""
    try:
        made = json.loads((folder / COMPILED_FILE).read_text(encoding="utf-8"))
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if made.pop("version") != VERSION or not (folder / TREE).is_dir():
            return None
        del made["key"]
        compiled: CompiledExtension = adapter(CompiledExtension).validate_python(index | made)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return compiled


def read_index(out: Path) -> ExtensionIndex:
    """Read what the program says of what it made. Raises BuildError."""
    with answers(INDEX):
        index: ExtensionIndex = adapter(ExtensionIndex).validate_json(
            read_beneath(out, f"{OUT}/{INDEX}", limit=_MOST)
        )
    return index


def save_compiled(
    out: Path, folder: Path, *, key: Key, seconds: float, timings: Mapping[str, float], recipe: str
) -> None:
    """Write the entry of what a program left in its OUT into the empty folder. Raises BuildError for another extension."""
    if read_index(out).entry.key != key.digest:
        raise BuildError(f"the build left the `{INDEX}` of another extension")
    with answers(INDEX):
        save_text(folder / INDEX, read_beneath(out, f"{OUT}/{INDEX}", limit=_MOST).decode())
    with answers(TREE):
        copy_tree_beneath(out, f"{OUT}/{TREE}", folder / TREE)
    made = {
        "version": VERSION,
        "key": dict(key.fields),
        "seconds": seconds,
        "timings": timings,
        "recipe": recipe,
        "memory": read_memory(out),
    }
    save_text(folder / COMPILED_FILE, json.dumps(made, indent=1) + "\n")


@contextlib.contextmanager
def answers(name: str) -> Iterator[None]:
    """Raise BuildError for a result of the sandbox that is not there or cannot be read: foreign code may have written it."""
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:  # a full disk is another error
        raise BuildError(f"the build left no `{name}`: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BuildError(f"the build left a `{name}` that cannot be read: {error}") from error


def ninja_timings(build_dir: Path) -> dict[str, float]:
    """Return the time of each object's last compile, from the logs of ninja below the folder."""
    latest: dict[str, float] = {}
    with contextlib.suppress(BuildError):  # a tree or a log without a reasonable end
        for start, end, _, file in _logged(build_dir, files_beneath(build_dir)):
            if file.endswith(".o"):
                latest[PurePosixPath(file).name] = (int(end) - int(start)) / 1000
    return dict(sorted(latest.items()))


def _logged(build_dir: Path, files: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the lines in those of the files that are logs of ninja."""
    for log in (name for name in files if PurePosixPath(name).name == _LOG):
        lines = (line.decode(errors="replace") for line in read_beneath(build_dir, log).splitlines())
        yield from (timed.groups() for timed in map(_TIMED.match, lines) if timed)


def drop_unfinished(build_dir: Path, began: float) -> bool:
    """Remove the objects that a killed build, which began then, may have left half written. Returns whether the rest is of use.

    ninja logs an object when it is complete. Up to 1.10 it logs no time of the inputs, and then takes an object of the log for
    complete that a later build began to write again.
    """
    try:
        tree = [
            (path, status.st_mtime)
            for path, status in walk_beneath(build_dir)
            if stat.S_ISREG(status.st_mode)
        ]
        complete: dict[str, bool] = {}
        for _, _, inputs, file in _logged(build_dir, (path for path, _ in tree)):
            complete[PurePosixPath(file).name] = inputs != "0"
        for path, changed in tree:
            name = PurePosixPath(path).name
            is_whole = name in complete and (complete[name] or changed < began)
            if _OBJECTS.match(path) and name not in _NINJAS and not is_whole:
                unlink_beneath(build_dir, path)
    except (BuildError, OSError):  # a tree or a log without a reasonable end, or that cannot be read
        return False
    return True


# ---- the memory of a compile


def read_memory(out: Path) -> int:
    """Return the bytes of the largest process that a program has noted in its OUT, 0 where it noted none."""
    with contextlib.suppress(OSError, BuildError, ValueError):
        return min(int(read_beneath(out, MEMORY, limit=20)), _MOST_MEMORY)
    return 0


Compiled = LockedExtension | Artifact  # an extension, or a source distribution among the packages


def known_memory(of: Compiled, origin: str, store: Store) -> int:
    """Return the bytes that a compiler of it took so far. Before its first compile, what the tables say, otherwise 3 GiB."""
    with contextlib.suppress(OSError, ValueError):
        return int(read_proved(store.proof(_memory_key(of, origin))))
    row = load_cuda_packages().by_name.get(canonicalize_name(_project(of)))
    return (row.build.memory << 30 if row and row.build else 0) or NVCC_MEMORY


def save_memory(of: Compiled, origin: str, store: Store, size: int) -> None:
    """Note for the next compile what one compiler took."""
    save_proved(store.proof(_memory_key(of, origin)), f"{size}")


def _memory_key(of: Compiled, origin: str) -> Sha256:
    """Return the same key for all versions of a project, and for a recipe's own sources."""
    return sha256_text(json.dumps(["memory of a compiler", of.name, _project(of) or origin]))


def _project(of: Compiled) -> str:
    archive = of if isinstance(of, Artifact) else of.archive
    return archive.name if archive else ""


# ---- the entry of captured calls


def save_calls(out: Path, folder: Path) -> Calls:
    """Write the entry of the calls and files that a program captured into the empty folder. Raises BuildError.

    The files are hashed here: the program's own code ran beside it, and a key must not be its choice.
    """
    with answers("calls.json"):
        calls = adapter(tuple[LoadCall, ...]).validate_json(read_beneath(out, f"{CAPTURED}/calls.json"))
    with answers(CAPTURED):
        copy_tree_beneath(out, CAPTURED, folder / CAPTURED)
    names = [name.partition("/")[2] for name in files_beneath(folder, CAPTURED)]
    with answers("places.json"):
        places = adapter(tuple[Annotated[str, _PLACE], ...]).validate_json(
            read_beneath(out, f"{CAPTURED}/places.json")
        )
    files = {name: _sha256(folder, f"{CAPTURED}/{name}") for name in sorted(names) if name not in _LISTS}
    value = {"version": VERSION, "calls": list(map(asdict, calls)), "files": files, "places": places}
    save_text(folder / CAPTURED_FILE, json.dumps(value, indent=1, sort_keys=True) + "\n")
    return Calls(calls=calls, files=tuple(files.items()), places=places)


def _sha256(folder: Path, name: str) -> Sha256:
    with os.fdopen(open_beneath(folder, name), "rb") as stream:
        return Sha256(hashlib.file_digest(stream, "sha256").hexdigest())


def load_calls(folder: Path, store: Store) -> Calls | None:
    """Return the captured calls in a folder of the store, None if they are missing or damaged."""
    if not store.holds(folder, whole=True):
        return None
    try:
        value = json.loads((folder / CAPTURED_FILE).read_text(encoding="utf-8"))
        calls = adapter(tuple[LoadCall, ...]).validate_python(value["calls"])
        files = tuple((name, Sha256(digest)) for name, digest in sorted(value["files"].items()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    places = tuple(map(str, value.get("places", ())))  # an older entry has none
    return Calls(calls=calls, files=files, places=places) if value.get("version") == VERSION else None


HEAD: Final = ("name", "key", "form", "for", "size", "compiled in", "from")


class ListedExtension(Answer):
    """An extension; one that was not compiled yet has no more than its name, form, key and origin."""

    name: str
    extension: str
    form: str
    key: str
    decided_by: dict[str, str]
    function: str = ""
    targets: tuple[str, ...] = ()
    size: int = 0
    seconds: float = 0
    files: dict[str, float] = Field(default={})
    memory: int = 0
    compiled_for: str = ""
    torch: str = ""
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionStatus:
    """One key of an extension, and its entry in the store."""

    extension: LockedExtension
    name: str
    key: Key
    compiled: CompiledExtension | None


def find_extensions(plan: Plan, store: Store) -> Iterator[ExtensionStatus]:
    """Yield the status of each key. A project without captured calls has the key of its capture."""
    for extension in plan.extensions:
        calls = known_calls(plan, store, extension)
        if calls is None:
            keys = [(extension.name, project_key(plan.ground, extension))]
        else:
            keys = [(call.name, call_key(plan.ground, extension, call, calls)) for call in calls.calls]
        for name, key in keys:
            compiled = load_compiled(store.extension(key.entry))
            yield ExtensionStatus(extension=extension, name=name, key=key, compiled=compiled)


def known_calls(plan: Plan, store: Store, extension: LockedExtension) -> Calls | None:
    """Return the calls of an extension, None for a project's own build and before a capture."""
    if extension.form is Form.CAPTURE:
        return load_calls(store.extension(project_key(plan.ground, extension).digest), store)
    return recipe_calls(extension) if extension.form is Form.LOAD else None


def find_twins(plan: Plan, store: Store) -> Iterator[Finding]:
    """Yield a warning for each name that several captured or written calls have, as far as captures are known."""
    names: dict[str, dict[str, str]] = {}
    for status in find_extensions(plan, store):
        if status.extension.form is not Form.PROJECT:
            names.setdefault(status.name, {})[status.key.digest] = label(status.extension, status.name)
    for name, twins in names.items():
        if len(twins) > 1:
            yield Finding(
                code=ExtensionCode.TWINS,
                severity=Severity.WARNING,
                message=f"{' and '.join(f'`{twin}`' for twin in twins.values())} could both answer `import {name}`",
                hint=f"`load()` tells them apart by their sources; `import {name}` finds the recipe's `sources` of that name, or none",
            )


def twins_of(name: str, recipe: Recipe, recipes: Path, store: Store) -> tuple[Finding, ...]:
    """Return the same warnings for a recipe, none without a usable lock. The calls of a capture are known after a build."""
    if len(recipe.extensions) > 1 and any(extension.capture for extension in recipe.extensions):
        with contextlib.suppress(LockError):
            return tuple(find_twins(make_plan(name, recipes, store)[1], store))
    return ()


def label(extension: LockedExtension, name: str) -> str:
    """Return the name to show. Several projects may call `load()` with one name, so a captured call has its extension's too."""
    is_call = extension.form is Form.CAPTURE and name != extension.name
    return f"{extension.name}/{name}" if is_call else name


def cells(status: ExtensionStatus, recipe: str) -> tuple[str, ...]:
    """Return the row of an extension in the recipe's table, below `HEAD`."""
    compiled = status.compiled
    return (
        label(status.extension, status.name),
        status.key.digest[:16],
        str(status.extension.form),
        " ".join(compiled.entry.targets if compiled else ()) or "-",
        f"{compiled.entry.size / 1e6:.2f} MB" if compiled else "-",
        f"{compiled.seconds} s" if compiled else "-",
        origin(status, recipe),
    )


def describe(status: ExtensionStatus, recipe: str) -> ListedExtension:
    """Return the row of an extension for `--json`."""
    listed = ListedExtension(
        name=status.name, extension=status.extension.name, form=str(status.extension.form),
        key=status.key.digest, decided_by=dict(status.key.fields), origin=origin(status, recipe),
    )  # fmt: skip
    if (compiled := status.compiled) is None:
        return listed
    facts = {
        "function": compiled.entry.function, "targets": compiled.entry.targets, "size": compiled.entry.size, "seconds": compiled.seconds,
        "files": compiled.timings, "memory": compiled.memory, "compiled_for": compiled.recipe, "torch": compiled.facts["torch"],
    }  # fmt: skip
    return listed.model_copy(update=facts)


def origin(status: ExtensionStatus, recipe: str) -> str:
    if status.compiled is None:
        return "not compiled yet"
    if status.compiled.recipe == recipe:
        return "compiled for this recipe"
    return f"the store: compiled for `{status.compiled.recipe}`"
