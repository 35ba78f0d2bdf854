"""Make the single file for machines without a package index: envbuilder's wheel and all wheels that it needs.

    python scripts/make_zipapp.py WHEEL FILE FOLDER [PYTHON…]    the Pythons that it is for; all that are supported by default

FOLDER gets the other wheels, and a second run takes them from there. The packages are those of requirements.lock, by hash. The same wheel gives the same bytes anywhere.
"""

import importlib.metadata
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def needed(name: str, known: set[str]) -> set[str]:
    """Return the installed packages that a package needs, and those that these need."""
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        found = str(canonicalize_name(requirement.name))
        if found not in known and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
            known.add(found)
            needed(found, known)
    return known


def locked(names: set[str]) -> str:
    """Return the lines of requirements.lock for these packages."""
    entries = re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements.lock").read_text(encoding="utf-8"))
    found = {canonicalize_name(entry.partition("==")[0]): entry.strip() for entry in entries}
    return "\n".join(found[name] for name in sorted(map(canonicalize_name, names))) + "\n"


def download(lock: str, python: str, folder: Path) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(lock, encoding="utf-8")
    platforms = [word for one in PLATFORMS for word in ("--platform", one)]
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--require-hashes", "--only-binary=:all:",
         "--implementation=cp", f"--python-version={python}", *platforms, f"--dest={folder}", f"--requirement={requirements}"],
        check=True,
    )  # fmt: skip


def entries(own: Path, folder: Path, pythons: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file of the zip."""
    wheels = sorted((own, *folder.glob("*.whl")), key=lambda path: path.name)
    hashes: dict[str, list[str]] = {}
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        hashes.setdefault(f"{name}=={version}", []).append(sha256(wheel.read_bytes()).hexdigest())
    yield "__main__.py", (ROOT / "scripts/zipapp_main.py").read_bytes()
    yield "pythons.txt", "\n".join(pythons).encode()
    lines = (" ".join((name, *(f"--hash=sha256:{one}" for one in found))) for name, found in hashes.items())
    yield "requirements.txt", "".join(f"{line}\n" for line in lines).encode()
    for wheel in wheels:
        yield f"wheels/{wheel.name}", wheel.read_bytes()


def main(wheel: str, file: str, wheels: str, *pythons: str) -> None:
    folder = Path(wheels)
    if not folder.is_dir():
        folder.mkdir(parents=True)
        lock = locked(needed("envbuilder-hpc", set()))
        for python in pythons or PYTHONS:
            download(lock, python, folder)
    with Path(file).open("wb") as stream:
        stream.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(stream, "w") as archive:  # stored: a wheel is already compressed
            for name, content in entries(Path(wheel), folder, pythons or PYTHONS):
                entry = zipfile.ZipInfo(name)  # of 1980, whatever the clock
                entry.create_system, entry.external_attr = 3, 0o100644 << 16
                archive.writestr(entry, content)
    Path(file).chmod(0o755)


if __name__ == "__main__":
    main(*sys.argv[1:])
