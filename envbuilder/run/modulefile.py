"""Write an environment as a module of a cluster: after `module load a100`, `python` is the environment's.

It writes a module file for Lmod, one in Tcl for sites without Lmod, and the folder of commands that
both prepend to PATH. Versions of a module lie beside each other, as these systems expect: `a100/2026.11`.
"""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from envbuilder.core.beneath import pinned_folder
from envbuilder.core.cache import save_text
from envbuilder.core.errors import UsageError, blaming_path
from envbuilder.core.models import Shape
from envbuilder.core.plain import one_line, pasted
from envbuilder.core.private import make_folder_for_all
from envbuilder.run.container import START_FILE
from envbuilder.run.launch.script import quoted, render_enter
from envbuilder.run.launch.site import Site

COMMANDS: Final = ("python", "python3", "torchrun")  # no pip: a SIF is read-only
EXECUTABLE: Final = 0o755
VERSION: Final = Shape(pattern=r"[A-Za-z0-9][A-Za-z0-9._+-]*(?<!\.lua)", expected="a version such as 2026.11")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    name: str
    sif: Path
    torch: str
    cuda: str  # "" without
    site: Site
    version: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.name}/{self.version}" if self.version else self.name

    @property
    def commands(self) -> tuple[str, ...]:
        return (*COMMANDS, *(["nvcc"] if self.cuda else []), f"{self.name}-exec")

    @property
    def summary(self) -> str:
        cuda = f"with CUDA {self.cuda}" if self.cuda else "without CUDA"
        return f"PyTorch {self.torch} {cuda}, in {self.sif}"

    @property
    def help(self) -> str:
        *programs, any_other = self.commands
        return f"{self.summary}: {', '.join(programs)}, and other programs through {any_other}"


def render_lua(module: Module, commands: Path) -> str:
    lines = (
        f"help({_lua(module.help)})",
        f"whatis({_lua(module.summary)})",
        'family("envbuilder") -- loading another environment unloads this one',
        *(f"depends_on({_lua(name)})" for name in module.site.modules),
        f'prepend_path("PATH", {_lua(str(commands))})',
    )
    return "\n".join(lines) + "\n"


def render_tcl(module: Module, commands: Path) -> str:
    lines = (
        "#%Module1.0",
        f"proc ModulesHelp {{}} {{ puts stderr {_tcl(module.help)} }}",
        f"module-whatis {_tcl(module.summary)}",
        *(f"module load {_tcl(name)}" for name in module.site.modules),
        f"prepend-path PATH {_tcl(str(commands))}",
    )
    return "\n".join(lines) + "\n"


def save_module(module: Module, folder: Path) -> Path:
    """Write the module below `folder`, over an earlier one. Returns the folder for `module use`.

    Lmod prefers the file in Lua. Other module systems read only the one in Tcl.
    """
    files, commands = folder / "modulefiles", folder / "commands" / module.full_name
    plain = files / module.name
    if plain.is_dir() if not module.version else plain.is_file():
        has = "has no version" if module.version else "has versions"
        hint = f"remove `{plain}`, `{plain}.lua` and `{folder / 'commands' / module.name}`, or choose another `--write`"
        raise UsageError(
            f"the module `{module.name}` in `{files}` {has}",
            hint=hint if module.version else "give a `--version`, too, or choose another `--write`",
        )
    if ":" in str(commands):
        raise UsageError(f"`{folder}` cannot be in PATH: it has a colon", hint="choose another `--write`")
    if module.version:
        script = commands / f"{module.name}-exec"
        kept = module.sif.with_name(f"{module.name}-{module.version}.sif")
        if script.is_file() and f"\nsif={quoted(str(kept))}\n" not in script.read_text(encoding="utf-8"):
            raise UsageError(
                f"version {module.version} is there: `{script}` runs another SIF than `{kept}`",
                hint="what people loaded under it stays: choose another `--version`",
            )
        module = replace(module, sif=_keep_version(module.sif, kept, module.version))
    hint = "`--write` names a folder that you may write to and that every node has"
    with blaming_path(f"cannot write the module to `{folder}`", hint=hint):
        make_folder_for_all(str(folder))
        with pinned_folder(folder, commands.parent.relative_to(folder).as_posix()) as inside:
            if (inside / commands.name).is_dir():
                shutil.rmtree(inside / commands.name)
        with pinned_folder(folder, commands.relative_to(folder).as_posix()) as inside:
            script = inside / f"{module.name}-exec"
            save_text(script, render_enter(module.name, module.sif, module.site), mode=EXECUTABLE)
            save_text(inside / START_FILE.name, START_FILE.read_text(encoding="utf-8"))
            for name in module.commands[:-1]:
                (inside / name).symlink_to(script.name)
        written = files / module.full_name
        with pinned_folder(folder, written.parent.relative_to(folder).as_posix()) as inside:
            save_text(inside / f"{written.name}.lua", render_lua(module, commands))
            save_text(inside / written.name, render_tcl(module, commands))
    return files


def _keep_version(sif: Path, kept: Path, version: str) -> Path:
    """Give the SIF a second name with the version, `NAME-VERSION.sif` beside it, and return that.

    A later build replaces NAME.sif; the version stays. Raises UsageError where it is another SIF already.
    """
    if sif == kept or (kept.exists() and kept.samefile(sif)):
        return kept
    if kept.exists():
        raise UsageError(
            f"version {version} is there: `{kept}` is another SIF than `{sif}`",
            hint=f"choose another `--version`; or `envbuilder module {pasted(kept)} --version {pasted(version)}` writes its module anew",
        )
    hint = f"make a copy, `{pasted('cp', sif, kept)}`, and give its path in place of the name"
    with blaming_path(f"cannot give `{sif}` a second name, `{kept}`", hint=hint):
        os.link(sif, kept)
    return kept


def _lua(text: str) -> str:
    """Quote the text as a string of Lua. Raises UsageError for more than one line."""
    escaped = one_line(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tcl(text: str) -> str:
    """Quote the text as a word of Tcl without substitutions. Raises UsageError for more than one line."""
    escaped = (f"\\{sign}" if sign in '\\"$[]{};' else sign for sign in one_line(text))
    return f'"{"".join(escaped)}"'
