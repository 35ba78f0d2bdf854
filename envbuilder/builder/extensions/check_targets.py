"""Check that compiled libraries have code for every GPU of the recipe."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from envbuilder.builder.extensions.cache import answers, read_index
from envbuilder.compat.tables.cuda import load_switches
from envbuilder.core.beneath import files_beneath, read_beneath
from envbuilder.core.errors import BuildError, CompileError
from envbuilder.core.findings import CodeEnum, Finding
from envbuilder.lock.model import LockedExtension
from envbuilder.recipe.extension import Form

_SCRIPTS: Final = ("setup.py", "pyproject.toml", "CMakeLists.txt")
_GATE: Final = re.compile(r"cuda\.is_available\(\)|cuda\.device_count\(\)")
_OWN_LIST: Final = re.compile(
    r"-gencode|-arch[= ]|arch=compute_|environ\W+TORCH_CUDA_ARCH_LIST\W+\s*=[^=]|CMAKE_CUDA_ARCHITECTURES"
)


class ExtensionCode(CodeEnum):
    WRONG = "EB630", "an extension holds code for other GPUs than the recipe's"
    WITHOUT = "EB631", "an extension with CUDA sources was built without code for a GPU"
    NOTHING = "EB632", "a `capture` reached no load()"
    ENDED = "EB633", "a line of a `capture` ended in an error"
    RAISED = "EB637", "the build of an extension ended in an error of its own"
    TWINS = "EB635", "several extensions have one name, so that `import` of it says nothing"
    PATCH = "EB634", "a `patch` does not fit the sources of its extension"


def explain_targets(
    name: str, extension: LockedExtension, out: Path, build_dir: Path, gpus: tuple[str, ...]
) -> None:
    """Raise BuildError if the program that failed left libraries in its OUT which lack code for a GPU of the recipe."""
    try:
        held = read_index(out).held
    except BuildError:  # it failed before
        return
    targets = {PurePosixPath(library).name: names for library, names in held.items()}
    if extension.form is Form.PROJECT:
        with answers("source"):
            check_project(name, targets, gpus, build_dir, str(PurePosixPath("src", extension.path)))
    else:
        check_call(name, next(iter(targets.values()), ()), gpus)


def extra_targets(targets: Iterable[str], architectures: Sequence[str]) -> tuple[str, ...]:
    """Return the targets that no GPU of the recipe needs."""
    return tuple(target for target in sorted(targets) if not _bare([target]) <= _wanted(architectures))


def check_call(name: str, targets: Sequence[str], architectures: Sequence[str]) -> None:
    """Raise BuildError unless the library of a call has code for these GPUs."""
    if not _wanted(architectures) <= _bare(targets):
        raise extension_error(
            ExtensionCode.WRONG,
            f"the extension `{name}` holds code for {_names(targets)}; the recipe's GPUs need {_names(_wanted(architectures))}",
            "look for `-gencode` or `-arch` among its flags: they override the recipe's GPUs",
        )


def check_project(
    name: str,
    held: Mapping[str, Sequence[str]],
    architectures: tuple[str, ...],
    build_dir: Path,
    project: str,
) -> None:
    """Raise BuildError unless the libraries of a project with CUDA sources have code for these GPUs.

    `project` is the project's folder in the build directory.
    """
    files = {
        PurePosixPath(file).relative_to(project).as_posix(): file
        for file in files_beneath(build_dir, project)
    }
    sources = [file for file in files if file.endswith(".cu")]
    scripts: dict[str, str] = {
        script: read_beneath(build_dir, files[script]).decode(errors="replace")
        for script in _SCRIPTS
        if script in files
    }
    if architectures and sources and not any(held.values()):
        why = _places(scripts, _GATE)
        because = f": {why[0]} asks for a GPU" if why else ""
        raise extension_error(
            ExtensionCode.WITHOUT,
            f"the extension `{name}` was built without code for a GPU, though it has `{sources[0]}`{because}",
            _switch_hint(scripts, "cuda", architectures)
            or "look in its setup.py for what decides between CPP and CUDA sources, and set that in `env` of the extension",
        )
    for library, targets in held.items():
        if not targets or _wanted(architectures) <= _bare(targets):
            continue
        places = _places(scripts, _OWN_LIST)
        because = f": {places[0]} names its own" if places else ""
        raise extension_error(
            ExtensionCode.WRONG,
            f"the extension `{name}` holds code for {_names(targets)} in `{library}`; "
            f"the recipe's GPUs need {_names(_wanted(architectures))}{because}",
            _switch_hint(scripts, "architectures", architectures)
            or "look in its setup.py for what leaves nvcc or sets TORCH_CUDA_ARCH_LIST, and remove that with `patch` of the extension",
        )


def _switch_hint(scripts: dict[str, str], effect: str, architectures: tuple[str, ...]) -> str:
    text = "\n".join(scripts.values())
    rows = [row for row in load_switches().rows if row.effect == effect]
    known = [row for row in rows if re.search(rf"\b{row.variable}\b", text)]
    settings = ", ".join(row.setting(architectures) for row in known)
    return f"its setup.py reads it from a variable: `env: {{{settings}}}` of the extension" if known else ""


def _places(scripts: dict[str, str], pattern: re.Pattern[str]) -> list[str]:
    return [
        f"`{name}:{number}`"
        for name, text in scripts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line.partition("#")[0])
    ]


def _bare(targets: Iterable[str]) -> set[str]:
    """Return the targets without suffix: sm_90a is also code for 9.0, with all of its features."""
    return {re.sub(r"(\d)[af]$", r"\1", target) for target in targets}


def _wanted(architectures: Sequence[str]) -> set[str]:
    return _bare(f"sm_{architecture.replace('.', '')}" for architecture in architectures)


def _names(targets: Iterable[str]) -> str:
    return ", ".join(sorted(targets)) or "no GPU at all"


def extension_error(code: str, message: str, hint: str, *, where: str = "") -> CompileError:
    finding = Finding(code=code, where=where, message=message, hint=hint)
    return CompileError(message, hint=hint, findings=(finding,))
