"""Make a standalone Python ready at its place, started by itself from `interpreter.sh`.

It comes with the paths and the compiler of the machine that built it, and with programs that an environment does not need. The rest of
its files stays as it is.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

PLACE = "/opt/python"
PREFIX = "/install"  # as which it was configured
# Below its place, and below its standard library. An environment has neither pip nor Tk: uv installs packages, and nobody sees windows.
DROP = (
    "share", "lib/tcl*", "lib/tk*", "lib/Tix*", "lib/itcl*", "lib/thread*", "lib/libtcl*", "lib/libtk*",
    "lib/pkgconfig/tcl*", "lib/pkgconfig/tk*",
)  # fmt: skip
DROP_FROM_LIBRARY = (
    "site-packages/*", "ensurepip", "idlelib", "tkinter", "turtledemo", "turtle.py", "test", "lib-dynload/_tkinter*", "**/__pycache__",
)  # fmt: skip
# What other builds read: programs and modules that describe this one.
DESCRIPTIONS = (
    "_sysconfigdata_*.py",
    "_sysconfig_vars_*.json",
    "build-details.json",
    "config-*/Makefile",
    "config-*/python-config.py",
)
# The compilers of the machine that built it, and the plain names of the recipe's.
COMPILERS = (
    (r"(?:clang|[\w-]+-linux-gnu-gcc)", "gcc"),
    (r"(?:clang|[\w-]+-linux-gnu-g)\+\+", "g++"),
    (r"llvm-ar", "ar"),
)


def main(folder: Path) -> None:
    need_plain(folder)
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = folder / "lib" / name
    programs = {"python", "python3", name, "python3-config", f"{name}-config"}
    unwanted = [path for path in (folder / "bin").iterdir() if path.name not in programs]
    unwanted += [path for pattern in DROP for path in folder.glob(pattern)]
    unwanted += [path for pattern in DROP_FROM_LIBRARY for path in library.glob(pattern)]
    for path in unwanted:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.is_symlink() or path.exists():
            path.unlink()
    descriptions = [path for pattern in DESCRIPTIONS for path in sorted(library.glob(pattern))]
    descriptions += [folder / "bin" / f"{name}-config", *sorted((folder / "lib/pkgconfig").glob("*.pc"))]
    if not any(path.name.startswith("_sysconfigdata_") for path in descriptions):
        sys.exit(f"{library}: it has no `_sysconfigdata_*.py`, so it is no standalone Python of a known form")
    for path in descriptions:
        if path.is_file() and not path.is_symlink():
            text = path.read_text(encoding="utf-8")
            path.write_text(relocated(text), encoding="utf-8")
    program = Path(__file__).with_name("byte_code.py")
    subprocess.run([sys.executable, "-B", str(program), "compile", str(library)], check=True)


def need_plain(folder: Path) -> None:
    """End the program unless there are only folders, files, and links to paths below the folder."""
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            target = os.readlink(path)
            if not os.path.normpath(path.parent / target).startswith(f"{folder}/"):
                sys.exit(f"the archive holds the link `{path}` to `{target}`, outside of its folder")
        elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            sys.exit(f"the archive holds the device or pipe `{path}`")


def relocated(text: str) -> str:
    """Return the text with the paths of the new place and the plain names of the compilers."""
    text = re.sub(rf"(?<![\w./-])((?:-[IL])?){PREFIX}(?![\w.-])", rf"\g<1>{PLACE}", text)
    for pattern, plain in COMPILERS:
        text = re.sub(rf"(?<![\w.+/-])(?:/[\w./-]+/)?{pattern}(?![\w+./-])", plain, text)
    return text


if __name__ == "__main__":
    main(Path(PLACE))
