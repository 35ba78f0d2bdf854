"""The extensions layer: each extension compiled in the sandbox for exactly the recipe's GPUs.

The compile folder is kept between builds, so that an edit compiles only the files it touches; sources get a new time
only when their bytes changed, which is what ninja looks at.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder import image
from envbuilder.command import Command, Runner
from envbuilder.engines.sandbox import Mount, Root, sandboxed
from envbuilder.errors import BuildError
from envbuilder.lock import LockedExtension
from envbuilder.plan import EXTENSIONS, ExtensionsStep
from envbuilder.store import Sha256, Store, sha256_file

MODULES: Final = f"{EXTENSIONS}/modules"  # `envbuilder.pth` puts it on Python's path
SPACE: Final = "/space"
STRIP: Final = "-Wl,--build-id=none,--strip-all"  # symbol tables hold nvcc's temporary file names
NVCC_MEMORY: Final = 3 << 30  # bytes that one compile of a file with torch's headers may need


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    extension: LockedExtension
    library: Path


def compile_command(
    extension: LockedExtension, step: ExtensionsStep, *, root: Root, space: Path, jobs: int
) -> Command:
    """The compile of one extension in its space; its sources are below `space/src`."""
    return sandboxed(
        root,
        ("/opt/env/bin/python", "/compile_extension.py", f"{SPACE}/spec.json"),
        why=f"compile the extension `{extension.name}`",
        mounts=(
            Mount(source=space, target=SPACE, writable=True),
            Mount(source=image.path("compile_extension.py"), target="/compile_extension.py"),
        ),
        env=(
            ("CC", "gcc"),
            ("CXX", "g++"),
            ("CUDA_HOME", "/usr/local/cuda"),
            ("MAX_JOBS", str(jobs)),
            (
                "NVCC_APPEND_FLAGS",
                "--objdir-as-tempdir",
            ),  # temporary names without the process id: same source, same object
            ("TORCH_CUDA_ARCH_LIST", ";".join(step.architectures)),
            ("PYTHONDONTWRITEBYTECODE", "1"),
        ),
        cwd=f"{SPACE}/src",
    )


def specification(extension: LockedExtension) -> dict[str, object]:
    """The arguments of torch's `load()`, with paths as the sandbox has them."""
    return {
        "name": extension.name,
        "sources": [f"{SPACE}/src/{source}" for source in extension.sources],
        "extra_include_paths": [f"{SPACE}/src/{folder}" for folder in extension.include],
        "extra_cflags": list(extension.cflags),
        "extra_cuda_cflags": list(extension.cuda_cflags),
        "extra_ldflags": [STRIP],
        "build_directory": f"{SPACE}/build",
        "with_cuda": any(source.endswith(".cu") for source in extension.sources),
    }


def compile_extension(
    extension: LockedExtension,
    step: ExtensionsStep,
    *,
    store: Store,
    runner: Runner,
    root: Root,
    space: Path,
    jobs: int,
    tell: Callable[[str], None],
) -> Compiled:
    """Compile in `space` (the caller holds its lock) and check what is inside; `tell` hears of each compiled file."""
    place_sources(extension, store=store, folder=space / "src")
    (space / "spec.json").write_text(json.dumps(specification(extension), sort_keys=True), encoding="utf-8")
    (space / "build").mkdir(exist_ok=True)

    def hear(line: str) -> None:
        if match := re.match(r"\[(\d+)/(\d+)\] ", line):
            tell(f"{extension.name}: {match[1]} of {match[2]} commands")

    runner.run(compile_command(extension, step, root=root, space=space, jobs=jobs), on_line=hear)
    library = space / "build" / f"{extension.name}.so"
    if any(source.endswith(".cu") for source in extension.sources):
        found = architectures_inside(runner.run(list_command(root, space, extension)))
        wanted = {f"sm_{architecture.replace('.', '')}" for architecture in step.architectures}
        if found != wanted:
            raise BuildError(
                f"the extension `{extension.name}` holds code for {_names(found)}; the recipe's GPUs need {_names(wanted)}",
                hint="look for `-gencode` or `-arch` among its `cuda_cflags`: they override the recipe's GPUs",
            )
    return Compiled(extension=extension, library=library)


def list_command(root: Root, space: Path, extension: LockedExtension) -> Command:
    return sandboxed(
        root,
        ("cuobjdump", "--list-elf", "--list-ptx", f"{SPACE}/build/{extension.name}.so"),
        why=f"read the architectures inside the extension `{extension.name}`",
        mounts=(Mount(source=space, target=SPACE),),
    )


def architectures_inside(listing: str) -> set[str]:
    """The targets in a listing of cuobjdump, `sm_80` for machine code and `compute_80` for PTX."""
    found = set(re.findall(r"\.(sm_\w+)\.cubin$", listing, flags=re.MULTILINE))
    return found | {
        name.replace("sm_", "compute_")
        for name in re.findall(r"\.(sm_\w+)\.ptx$", listing, flags=re.MULTILINE)
    }


def place_sources(extension: LockedExtension, *, store: Store, folder: Path) -> None:
    """Make `folder` hold exactly the extension's files; a file whose bytes are right already is left alone."""
    wanted = {file.path: file.sha256 for file in extension.files}
    for path in sorted(folder.rglob("*"), reverse=True) if folder.exists() else ():
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):  # it still holds something
                path.rmdir()
        elif path.is_symlink() or str(path.relative_to(folder)) not in wanted:
            path.unlink()
    for name, digest in wanted.items():
        path = folder / name
        if path.is_file() and sha256_file(path) == digest:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(store.artefact(digest), path)


def installed_folder(extension: LockedExtension, key: Sha256) -> str:
    """Where the image has the extension; `key` is the layer's, so that two builds never share a path by chance."""
    return f"{EXTENSIONS}/{extension.name}-{key[:16]}"


def arrange(one: Compiled, *, key: Sha256, tree: Path) -> None:
    """Copy a library to where the image has it; to be done while its space is still locked."""
    folder = tree / installed_folder(one.extension, key)[1:]
    folder.mkdir(parents=True)
    shutil.copyfile(one.library, folder / one.library.name)
    (folder / one.library.name).chmod(0o755)
    modules = tree / MODULES[1:]
    modules.mkdir(exist_ok=True)
    (modules / one.library.name).symlink_to(f"../{folder.name}/{one.library.name}")


def write_index(
    extensions: tuple[LockedExtension, ...], step: ExtensionsStep, *, key: Sha256, tree: Path
) -> None:
    """Write what the image knows of its extensions."""
    entries = [
        {
            "name": extension.name,
            "file": f"{installed_folder(extension, key)}/{extension.name}.so",
            "architectures": list(step.architectures),
            "sources": {file.path: file.sha256 for file in extension.files},
        }
        for extension in extensions
    ]
    index = json.dumps({"version": 1, "extensions": entries}, sort_keys=True, indent=1) + "\n"
    (tree / EXTENSIONS[1:] / "index.json").write_text(index, encoding="utf-8")


def _names(targets: set[str]) -> str:
    return ", ".join(sorted(targets)) or "no GPU at all"
