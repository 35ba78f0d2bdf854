"""Make the sources of a recipe without CUDA on disk: a Debian mirror, a Python index and a folder of wheels."""

import base64
import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from envbuilder.core.sources import Sources

DAY, LATER = date(2026, 11, 21), date(2027, 1, 2)


PACKAGES = {  # name → version, dependencies
    "base-files": ("12", ""),
    "ca-certificates": ("1", ""),
    "libc6": ("2.36-9", ""),
    "libc6-dev": ("2.36-9", "libc6 (= 2.36-9)"),
    "libcrypt-dev": ("1:4.4.33-2", ""),
    "gcc-12": ("12.2.0-14", "libc6"),
    "g++-12": ("12.2.0-14", "gcc-12"),
    "binutils": ("2.40", ""),
    "make": ("4.3", ""),
    "ninja-build": ("1.11", ""),
    "python3.11": ("3.11.2-6", "libc6"),
    "python3.11-dev": ("3.11.2-6", "python3.11"),
    "usr-is-merged": ("37~deb12u1", ""),
    "git": ("1:2.39.5-0+deb12u2", "libc6"),
    "unrelated": ("1", ""),
}


def write_deb(folder: Path, name: str, version: str, depends: str) -> str:
    """Write a package into the mirror's pool and return its stanza of the package lists."""
    control = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n"
    control += "Essential: yes\n" if name == "base-files" else ""
    control += f"Depends: {depends}\n" if depends else ""
    path = f"pool/main/{name}_{version.rpartition(':')[2]}_amd64.deb"
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "DEBIAN").mkdir(mode=0o755)
        text = f"{control}Maintainer: test <test@example.org>\nDescription: test\n"
        (Path(work) / "DEBIAN/control").write_text(text)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["dpkg-deb", "-Znone", "--build", work, folder / path], check=True, capture_output=True
        )
    content = (folder / path).read_bytes()
    return f"{control}Filename: {path}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"


def write_mirror(folder: Path, keyring: Path, packages: Mapping[str, tuple[str, str]] = PACKAGES) -> None:
    stanzas = [write_deb(folder, name, *rest) for name, rest in packages.items()]
    index = folder / "dists/bookworm/main/binary-amd64/Packages"
    index.parent.mkdir(parents=True)
    index.write_text("\n".join(stanzas))
    text = index.read_bytes()
    release = (
        "Origin: Debian\nLabel: Debian\nSuite: stable\nCodename: bookworm\nArchitectures: amd64\nComponents: main\n"
        "Date: Sat, 10 Jun 2023 08:00:00 UTC\nSHA256:\n"
        f" {hashlib.sha256(text).hexdigest()} {len(text)} main/binary-amd64/Packages\n"
    )
    with tempfile.TemporaryDirectory() as home:  # its path must be short: the agent's socket lies there
        gpg = ["gpg", "--homedir", home, "--batch", "--quiet", "--passphrase", ""]
        subprocess.run(
            [*gpg, "--quick-gen-key", "test <test@example.org>", "ed25519", "sign"],
            check=True,
            capture_output=True,
        )
        signed = subprocess.run(
            [*gpg, "--clearsign"], input=release.encode(), check=True, capture_output=True
        ).stdout
        keyring.write_bytes(subprocess.run([*gpg, "--export"], check=True, capture_output=True).stdout)
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True, capture_output=True)
    (folder / "dists/bookworm/InRelease").write_bytes(signed)


def write_wheel(
    folder: Path, name: str, version: str, *, tag: str = "py3-none-any", requires: tuple[str, ...] = ()
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {one}\n" for one in requires),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = ""
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{file},sha256={digest},{len(text)}\n"
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path


def write_index(folder: Path, *wheels: Path) -> None:
    projects = sorted({wheel.name.partition("-")[0] for wheel in wheels})
    for project in projects:
        (folder / project).mkdir(parents=True)
        links = [
            f'<a href="{wheel.as_uri()}#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}">{wheel.name}</a>'
            for wheel in wheels
            if wheel.name.startswith(f"{project}-")
        ]
        (folder / project / "index.html").write_text(
            f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"
        )


@pytest.fixture(scope="module")
def world() -> Iterator[Sources]:
    """A mirror, an index and a folder of wheels on disk: everything that a recipe without CUDA needs."""
    if not all(shutil.which(program) for program in ("apt-get", "gpg", "gpgconf")):
        pytest.skip("needs apt-get and gpg")
    with tempfile.TemporaryDirectory(prefix="envbuilder-world-") as name:
        folder = Path(name)
        write_mirror(folder / "mirror", folder / "keyring.gpg")
        files = folder / "files"
        write_index(
            folder / "simple",
            write_wheel(files, "numpy", "2.2.0", tag="cp311-cp311-manylinux_2_17_x86_64"),
            write_wheel(files, "numpy", "2.4.0", tag="cp311-cp311-manylinux_2_28_x86_64"),
            write_wheel(files, "numpy", "2.5.0", tag="cp311-cp311-macosx_11_0_arm64"),
            write_wheel(files, "setuptools", "80.0.0"),
            write_wheel(files, "filelock", "3.0.0"),
            write_wheel(files, "newglibc", "1.0", tag="cp311-cp311-manylinux_2_39_x86_64"),
        )
        write_wheel(
            folder / "wheels",
            "torch",
            "2.13.0+cpu",
            tag="cp311-cp311-manylinux_2_28_x86_64",
            requires=("filelock", "setuptools>=77"),
        )
        yield Sources(
            debian=(f"{(folder / 'mirror').as_uri()}/",),
            keyring=folder / "keyring.gpg",
            indexes=(f"{(folder / 'simple').as_uri()}/",),
            folders=(folder / "wheels",),
        )


MOVED = PACKAGES | {
    "libc6": ("2.36-10", ""),
    "libc6-dev": ("2.36-10", "libc6 (= 2.36-10)"),
    "git": ("1:2.40-1", "libc6 (>= 2.36-10), perl"),
    "perl": ("5.36", ""),
    "make": ("4.4", ""),
}


@pytest.fixture(scope="module")
def moved(world: Sources, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The same world after a point release. A snapshot service keeps the earlier mirror."""
    folder = tmp_path_factory.mktemp("moved")
    write_mirror(folder / "mirror", folder / "keyring.gpg", MOVED)
    day = folder / "snapshot/archive/debian" / f"{DAY:%Y%m%d}T000000Z"
    write_mirror(day, folder / "old.gpg")
    return replace(
        world,
        debian=(f"{(folder / 'mirror').as_uri()}/",),
        keyring=folder / "keyring.gpg",
        snapshot=f"{(folder / 'snapshot').as_uri()}/",
    )
