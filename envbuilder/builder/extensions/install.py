"""Install the extensions in the image: a folder each, the files of projects, and the index for the start hook."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from envbuilder.builder.extensions.cache import PACKAGE, TREE, CachedExtension, Call, Key
from envbuilder.builder.extensions.check_targets import libraries_of
from envbuilder.core.beneath import copy_tree_beneath, folder_beneath, link_beneath, new_beneath, open_beneath
from envbuilder.core.errors import BuildError
from envbuilder.plan.model import EXTENSIONS
from envbuilder.recipe.extension import Form

VERSION: Final = 2  # of the index
MODULES: Final = f"{EXTENSIONS}/modules"  # `envbuilder.pth` puts it on Python's path
_SANDBOX: Final = "/space/"  # flags with paths of the sandbox are left out of the index


def install_extensions(
    built: Sequence[CachedExtension], *, architectures: tuple[str, ...], tree: Path
) -> None:
    """Write the layer's files below `tree`, through no link that a project installs there.

    Raises BuildError if two projects install the same file.
    """
    built = tuple({one.folder: one for one in built}.values())  # two captures may make the same call
    folder_beneath(tree.parent, tree.name)
    for one in built:
        call = one.compiled.call
        if call is None:
            _install_project(one, tree)
        else:
            library = f"{install_path(call.name, one.compiled.key)[1:]}/{call.library}"
            with (
                _each_once("an extension"),
                new_beneath(tree, library) as out,
                os.fdopen(open_beneath(one.folder, call.library), "rb") as stream,
            ):
                shutil.copyfileobj(stream, out)
                os.fchmod(out.fileno(), 0o755)
    with _each_once("an extension"):
        for one in (one for one in built if _is_imported(one, built)):
            name, place = one.compiled.name, install_path(one.compiled.name, one.compiled.key)
            link_beneath(tree, f"{MODULES[1:]}/{name}.so", f"../{Path(place).name}/{name}.so")
        index = make_index(built, architectures=architectures)
        with new_beneath(tree, f"{EXTENSIONS[1:]}/index.json") as out:
            out.write(index.encode())


@contextlib.contextmanager
def _each_once(who: str) -> Iterator[None]:
    """Raise BuildError if the block installs a file that is there."""
    try:
        yield
    except FileExistsError as error:
        raise BuildError(f"{who} installs `/{error.filename}`, as another does") from error


def install_path(name: str, key: Key) -> str:
    """Return the folder of a compiled call in the image. Its name holds the key, so two builds never share a path."""
    return f"{EXTENSIONS}/{name}-{key.digest[:16]}"


def make_index(built: Sequence[CachedExtension], *, architectures: tuple[str, ...]) -> str:
    """Return the index of the image's extensions. It does not depend on the time or the machine of a build."""
    value = asdict(built[0].compiled.facts) | {
        "version": VERSION,
        "architectures": list(architectures),
        "extensions": [_entry(one) for one in built],
    }
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _entry(one: CachedExtension) -> dict[str, object]:
    compiled = one.compiled
    entry = index_entry(compiled.name, compiled.key, compiled.call)
    entry |= {"targets": list(compiled.targets), "size": compiled.size}
    if compiled.call is None:
        libraries = (f"/{path.relative_to(one.folder / TREE)}" for path in libraries_of(one.folder))
        return entry | {"libraries": sorted(libraries)}  # by which the start hook finds `pkg._C`
    return entry | {"sources": dict(compiled.sources), "headers": dict(compiled.headers)}


def index_entry(name: str, key: Key, call: Call | None) -> dict[str, object]:
    """Return an extension's entry in the index, without the results of its compile. `call` is None for a project."""
    entry: dict[str, object] = {"name": name, "key": key.digest, "function": PACKAGE}
    if call is None:
        return entry
    return entry | {
        "function": call.function,
        "file": f"{install_path(name, key)}/{call.library}",
        "is_python_module": call.is_python_module,
        "is_standalone": call.is_standalone,
        "arguments": _arguments(call),
    }


def _arguments(call: Call) -> dict[str, object]:
    """Return the arguments by which the start hook recognizes a call."""
    flags = {"extra_cflags": call.extra_cflags, "extra_cuda_cflags": call.extra_cuda_cflags}
    found: dict[str, object] = {
        name: [flag for flag in given if _SANDBOX not in flag] for name, given in flags.items()
    }
    if call.function == "load_inline":
        found |= {
            "cpp_sources": list(call.cpp_sources),
            "cuda_sources": list(call.cuda_sources),
            "functions": json.loads(call.functions),
            "with_pytorch_error_handling": call.with_pytorch_error_handling,
        }
    return found


def _install_project(one: CachedExtension, tree: Path) -> None:
    with _each_once(f"the extension `{one.compiled.name}`"):
        copy_tree_beneath(one.folder, TREE, tree)


def _is_imported(one: CachedExtension, built: Sequence[CachedExtension]) -> bool:
    """Return whether `import NAME` finds it: a Python module of the recipe's `sources`, or with a unique name."""
    call = one.compiled.call
    if call is None or call.is_standalone or not call.is_python_module:
        return False
    calls = [other.compiled for other in built if other.compiled.call is not None]
    return one.form is Form.LOAD or [other.name for other in calls].count(call.name) == 1
