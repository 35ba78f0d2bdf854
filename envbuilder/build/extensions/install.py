"""Install the extensions in the image: a folder each, the files of projects, and the index for the start hook."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from envbuilder.build.extensions.cache import PACKAGE, TREE, CachedExtension, Call, Compiled, Key
from envbuilder.core.errors import BuildError
from envbuilder.plan.model import EXTENSIONS
from envbuilder.recipe.extension import Form

VERSION: Final = 2  # of the index
MODULES: Final = f"{EXTENSIONS}/modules"  # `envbuilder.pth` puts it on Python's path
_SANDBOX: Final = "/space/"  # flags with paths of the sandbox are left out of the index


def install_extensions(
    built: Sequence[CachedExtension], *, architectures: tuple[str, ...], tree: Path
) -> None:
    """Write the layer's files below `tree`. Raises BuildError if two projects install the same file."""
    built = tuple({one.folder: one for one in built}.values())  # two captures may make the same call
    for one in built:
        call = one.compiled.call
        if call is None:
            _install_project(one, tree)
        else:
            library = tree / install_path(call.name, one.compiled.key)[1:] / call.library
            library.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(one.folder / call.library, library)
            library.chmod(0o755)
    modules = [one for one in built if _is_imported(one, built)]
    if modules:
        folder = tree / MODULES[1:]
        folder.mkdir(parents=True)
        for one in modules:
            name, place = one.compiled.name, install_path(one.compiled.name, one.compiled.key)
            (folder / f"{name}.so").symlink_to(f"../{Path(place).name}/{name}.so")
    index = tree / EXTENSIONS[1:] / "index.json"
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_text(
        make_index([one.compiled for one in built], architectures=architectures), encoding="utf-8"
    )


def install_path(name: str, key: Key) -> str:
    """Return the folder of a compiled call in the image. Its name holds the key, so two builds never share a path."""
    return f"{EXTENSIONS}/{name}-{key.digest[:16]}"


def make_index(compiled: Sequence[Compiled], *, architectures: tuple[str, ...]) -> str:
    """Return the index of the image's extensions. It does not depend on the time or the machine of a build."""
    value = asdict(compiled[0].facts) | {
        "version": VERSION,
        "architectures": list(architectures),
        "extensions": [_entry(one) for one in compiled],
    }
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _entry(compiled: Compiled) -> dict[str, object]:
    entry = index_entry(compiled.name, compiled.key, compiled.call)
    entry |= {"targets": list(compiled.targets), "size": compiled.size}
    if compiled.call is None:
        return entry
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
    for path in sorted((one.folder / TREE).rglob("*")):
        target = tree / path.relative_to(one.folder / TREE)
        if path.is_dir() and not path.is_symlink():
            target.mkdir(parents=True, exist_ok=True)
        elif target.exists():
            raise BuildError(
                f"the extension `{one.compiled.name}` installs `/{target.relative_to(tree)}`, as another does"
            )
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)


def _is_imported(one: CachedExtension, built: Sequence[CachedExtension]) -> bool:
    """Return whether `import NAME` finds it: a Python module of the recipe's `sources`, or with a unique name."""
    call = one.compiled.call
    if call is None or call.is_standalone or not call.is_python_module:
        return False
    calls = [other.compiled for other in built if other.compiled.call is not None]
    return one.form is Form.LOAD or [other.name for other in calls].count(call.name) == 1
