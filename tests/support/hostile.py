"""A home and variables as conda, pyenv, modules and job scripts leave them: each would bring another Python."""

import json
from pathlib import Path

# What a program sees of the Python that runs it. `evil` is a module of the hostile home.
SEEN = """
import json, os, shutil, sys
names = ("PYTHONHOME", "PYTHONPATH", "LD_PRELOAD", "CONDA_PREFIX", "BASH_ENV", "CC")
print(json.dumps({
    "python": sys.executable, "found": shutil.which("python"), "prefix": sys.prefix, "evil": "evil" in sys.modules,
    "left": [name for name in names if name in os.environ],
    "libs": [one for one in os.environ.get("LD_LIBRARY_PATH", "").split(":") if one],
}))
"""
OWN = "/opt/env/bin/python"
PREFIX = "/opt/env"
VARIABLES = {
    "none": "", "PYTHONPATH": "HOME/evil", "PYTHONHOME": "/usr",
    "LD_PRELOAD": "/lib/x86_64-linux-gnu/libm.so.6", "LD_LIBRARY_PATH": "HOME/evil",
    "CONDA_PREFIX": "HOME/conda", "BASH_ENV": "HOME/.bashrc", "CC": "HOME/conda/bin/gcc",
}  # fmt: skip
START_FILE = """\
echo "the machine's start file was read" >&2
export PATH="HOME/conda/bin:HOME/.pyenv/shims:$PATH"
alias python="HOME/conda/bin/python"
"""


def make_home(home: Path) -> Path:
    """Fill a home: conda's base is activated by every start file, pyenv has shims, and packages lie in ~/.local."""
    for folder in ("conda/bin", ".pyenv/shims"):
        (home / folder).mkdir(parents=True)
        for name in ("python", "python3", "torchrun"):
            program = home / folder / name
            program.write_text("#!/bin/sh\necho another Python\n")
            program.chmod(0o755)
    for folder in ("evil", ".local/lib/python3.11/site-packages"):
        (home / folder).mkdir(parents=True)
        for name in ("sitecustomize", "usercustomize"):
            (home / folder / f"{name}.py").write_text("import sys; sys.modules['evil'] = sys\n")
    set_start_files(home, {})
    return home


def set_start_files(home: Path, variables: dict[str, str], text: str = START_FILE) -> None:
    exports = "".join(f'export {name}="{value}"\n' for name, value in variables.items())
    for name in (".bashrc", ".bash_profile", ".profile"):
        (home / name).write_text((text + exports).replace("HOME/", f"{home}/"))


def variables(home: Path, name: str) -> dict[str, str]:
    value = VARIABLES[name].replace("HOME", str(home))
    return {name: value} if value else {}


def need_own(printed: str) -> None:
    """Fail unless the environment's Python printed this, and saw nothing of the hostile home."""
    line = next((line for line in printed.splitlines() if line.startswith("{")), None)
    assert line, printed
    seen = json.loads(line)
    libs = seen.pop("libs")
    assert seen == {"python": OWN, "found": OWN, "prefix": PREFIX, "evil": False, "left": []}
    assert not [path for path in libs if "evil" in path]
