"""Write an environment as a module of a cluster: after `module load a100`, `python` is the environment's.

It writes a module file for Lmod, one in Tcl for sites without Lmod, and the folder of commands that
both prepend to PATH.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.core.cache import save_text
from envbuilder.core.errors import UsageError, blaming_path
from envbuilder.run.container import START_FILE
from envbuilder.run.exec_wrapper import render_enter
from envbuilder.run.launch.site import Site

COMMANDS: Final = ("python", "python3", "torchrun")  # no pip: a SIF is read-only
CUDA_COMMANDS: Final = ("nvcc",)
EXECUTABLE: Final = 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """The module of one environment."""

    name: str
    sif: Path
    torch: str
    cuda: str  # "" without
    site: Site

    @property
    def commands(self) -> tuple[str, ...]:
        return (*COMMANDS, *(CUDA_COMMANDS if self.cuda else ()), f"{self.name}-exec")

    @property
    def summary(self) -> str:
        return (
            f"PyTorch {self.torch} {f'with CUDA {self.cuda}' if self.cuda else 'without CUDA'}, in {self.sif}"
        )

    @property
    def help(self) -> str:
        *programs, any_other = self.commands
        return f"{self.summary}: {', '.join(programs)}, and other programs through {any_other}"


def render_lua(module: Module, commands: Path) -> str:
    return "\n".join(
        [
            f"help({_lua(module.help)})",
            f"whatis({_lua(module.summary)})",
            'family("envbuilder") -- loading another environment unloads this one',
            *(f"depends_on({_lua(one)})" for one in module.site.modules),
            f'prepend_path("PATH", {_lua(str(commands))})',
            "",
        ]
    )


def render_tcl(module: Module, commands: Path) -> str:
    return "\n".join(
        [
            "#%Module1.0",
            f"proc ModulesHelp {{}} {{ puts stderr {_tcl(module.help)} }}",
            f"module-whatis {_tcl(module.summary)}",
            *(f"module load {_tcl(one)}" for one in module.site.modules),
            f"prepend-path PATH {_tcl(str(commands))}",
            "",
        ]
    )


def save_module(module: Module, folder: Path) -> Path:
    """Write the module below `folder`, over an earlier one. Returns the folder for `module use`.

    Lmod prefers the file in Lua. Other module systems read only the one in Tcl.
    """
    files, commands = folder / "modulefiles", folder / "commands" / module.name
    if ":" in str(commands):
        raise UsageError(f"`{folder}` cannot be in PATH: it has a colon", hint="choose another `--write`")
    hint = "`--write` names a folder that you may write to and that every node has"
    with blaming_path(f"cannot write the module to `{folder}`", hint=hint):
        if commands.is_dir():
            shutil.rmtree(commands)
        script = commands / f"{module.name}-exec"
        save_text(script, render_enter(module.name, module.sif, module.site))
        script.chmod(EXECUTABLE)
        save_text(commands / START_FILE.name, START_FILE.read_text(encoding="utf-8"))
        for name in module.commands[:-1]:
            (commands / name).symlink_to(script.name)
        save_text(files / f"{module.name}.lua", render_lua(module, commands))
        save_text(files / module.name, render_tcl(module, commands))
    return files


def _lua(text: str) -> str:
    """Quote the text as a string of Lua."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _tcl(text: str) -> str:
    """Quote the text as a word of Tcl without substitutions."""
    escaped = "".join(f"\\{character}" if character in '\\"$[]{};' else character for character in text)
    return '"' + escaped.replace("\n", "\\n") + '"'
