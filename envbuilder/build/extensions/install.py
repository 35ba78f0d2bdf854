"""Install the extensions as the image has them: a folder each, the files of projects, and the index that the start hook reads."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from envbuilder.build.extensions.cache import PACKAGE, TREE, CachedExtension, Call, Compiled, Key
from envbuilder.core.errors import BuildError
from envbuilder.plan.model import EXTENSIONS
from envbuilder.recipe.extension import Form

VERSION: Final = 2  # of the index
MODULES: Final = f"{EXTENSIONS}/modules"  # `envbuilder.pth` puts it on Python's path
_BEFORE: Final = "/space/"  # paths of the sandbox mean nothing in the image


def install_extensions(
    built: Sequence[CachedExtension], *, architectures: tuple[str, ...], tree: Path
) -> None:
    """Write the layer's files below `tree`. Raises BuildError if two projects install the same file."""
    built = tuple({one.folder: one for one in built}.values())  # two captures may make the same call
    for one in built:
        if one.compiled.call is None:
            _install_project(one, tree)
        else:
            _install_call(one, tree)
    modules = [one for one in built if _is_imported(one, built)]
    if modules:
        folder = tree / MODULES[1:]
        folder.mkdir(parents=True)
        for one in modules:
            link = Path("..") / installed_folder(one.compiled).rpartition("/")[2] / f"{one.compiled.name}.so"
            (folder / link.name).symlink_to(link)
    index = tree / EXTENSIONS[1:] / "index.json"
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_text(
        make_index([one.compiled for one in built], architectures=architectures), encoding="utf-8"
    )


def installed_folder(compiled: Compiled) -> str:
    """Return the folder of a compiled call in the image. Its name holds the key, so two builds never share a path by chance."""
    return install_path(compiled.name, compiled.key)


def install_path(name: str, key: Key) -> str:
    return f"{EXTENSIONS}/{name}-{key.digest[:16]}"


def make_index(compiled: Sequence[Compiled], *, architectures: tuple[str, ...]) -> str:
    """Return the index of the image's extensions. It does not depend on the time or the machine of a build."""
    facts = compiled[0].facts
    value = {
        "version": VERSION,
        "torch": facts.torch,
        "cuda": facts.cuda,
        "cxx11_abi": facts.cxx11_abi,
        "python": facts.python,
        "architectures": list(architectures),
        "extensions": [_entry(one) for one in compiled],
    }
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _entry(compiled: Compiled) -> dict[str, object]:
    call = compiled.call
    entry: dict[str, object] = {
        "name": compiled.name,
        "key": compiled.key.digest,
        "function": compiled.function,
        "targets": list(compiled.targets),
        "size": compiled.size,
    }
    if call is None:
        return entry
    sources = {"sources": dict(compiled.sources), "headers": dict(compiled.headers)}
    return entry | call_entry(call, installed_folder(compiled)) | sources


def call_entry(call: Call, folder: str) -> dict[str, object]:
    """Return the entry of a call whose library lies in `folder` of the image, whichever engine compiled it."""
    return {
        "file": f"{folder}/{call.library}",
        "is_python_module": call.is_python_module,
        "is_standalone": call.is_standalone,
        "arguments": _arguments(call),
    }


def _arguments(call: Call) -> dict[str, object]:
    """Return the arguments by which the start hook recognizes a call."""
    found: dict[str, object] = {
        "extra_cflags": _plain(call.extra_cflags),
        "extra_cuda_cflags": _plain(call.extra_cuda_cflags),
    }
    if call.function == "load_inline":
        found |= {
            "cpp_sources": list(call.cpp_sources),
            "cuda_sources": list(call.cuda_sources),
            "functions": json.loads(call.functions),
            "with_pytorch_error_handling": call.with_pytorch_error_handling,
        }
    return found


def _plain(flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if _BEFORE not in flag]


def _install_call(one: CachedExtension, tree: Path) -> None:
    call = one.compiled.call
    assert call is not None, "a project is installed, not placed"
    folder = tree / installed_folder(one.compiled)[1:]
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(one.folder / call.library, folder / call.library)
    (folder / call.library).chmod(0o755)


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
    """Whether `import NAME` finds it: a Python module with a unique name. Of two, the one that the recipe names."""
    call = one.compiled.call
    if call is None or call.is_standalone or not call.is_python_module:
        return False
    same = [
        other
        for other in built
        if other.compiled.name == one.compiled.name and other.compiled.function != PACKAGE
    ]
    return one.form is Form.LOAD or len(same) == 1
