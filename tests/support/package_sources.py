"""Make the sources of a recipe without CUDA on disk: signed archives of packages, a Python index and a folder of wheels."""

import base64
import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from urllib.parse import quote

import pytest

from envbuilder.core.processor import X86_64, Processor
from envbuilder.sources.names import Sources
from tests.support.debs import write_package

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
    "libold1t64": ("1", ""),
    "libold2": ("1", ""),
}
UNASKED = {"unrelated", "libold1t64", "libold2"}  # by any recipe


TOOLS = {  # for x86-64, to build for 64-bit Arm
    "libc6": ("2.36-9", ""),
    "libc6-dev": ("2.36-9", "libc6"),
    "gcc-12": ("12.2.0-14", "libc6"),
    "gcc-12-aarch64-linux-gnu": ("12.2.0-14cross1", "libc6, libc6-dev-arm64-cross"),
    "g++-12-aarch64-linux-gnu": ("12.2.0-14cross1", "gcc-12-aarch64-linux-gnu"),
    "libc6-dev-arm64-cross": ("2.36-8cross1", ""),
    "python3.11-minimal": ("3.11.2-6", "libc6"),
    "libpython3.11-stdlib": ("3.11.2-6", ""),
}
Packages = Mapping[str, tuple[str, str]]
Sign = Callable[[str], bytes]


def write_deb(
    folder: Path,
    name: str,
    version: str,
    depends: str,
    *,
    pool: str = "pool/main",
    files: Mapping[str, bytes] = MappingProxyType({}),
    processor: Processor = X86_64,
) -> str:
    """Write a package with these files into an archive's pool and return its stanza of the package lists."""
    control = f"Package: {name}\nVersion: {version}\nArchitecture: {processor.debian}\n"
    control += "Essential: yes\n" if name == "base-files" else ""
    control += f"Depends: {depends}\n" if depends else ""
    path = f"{pool}/{name}_{version.rpartition(':')[2]}_{processor.debian}.deb"
    parents = {f"./{folder}/" for place in files for folder in PurePosixPath(place).parents if folder.name}
    members = [
        *((name, "", 0o755) for name in ("./", *sorted(parents))),
        *((f"./{place}", data, 0o755 if "/bin/" in place else 0o644) for place, data in files.items()),
    ]
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    about = f"{control}Maintainer: test <test@example.org>\nDescription: test\n"
    write_package(folder / path, members, about=about, packed="")
    content = (folder / path).read_bytes()
    return f"{control}Filename: {path}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"


@contextlib.contextmanager
def signing_key(keyring: Path) -> Iterator[Sign]:
    """Make a key, write its public half into `keyring`, and give the function that signs a text in clear."""
    yesterday = (
        int(time.time()) - 24 * 60 * 60
    )  # key and signatures are of one second, whatever the clock does
    with tempfile.TemporaryDirectory() as home:  # its path must be short: the agent's socket lies there
        options = (
            "--homedir",
            home,
            "--batch",
            "--quiet",
            "--passphrase",
            "",
            f"--faked-system-time={yesterday}!",
        )

        def gpg(*words: str, text: str = "") -> bytes:
            ended = subprocess.run(
                ["gpg", *options, *words], input=text.encode(), check=False, capture_output=True
            )
            assert ended.returncode == 0, ended.stderr.decode(errors="replace")
            return ended.stdout

        gpg("--quick-gen-key", "test <test@example.org>", "ed25519", "sign", "never")
        keyring.parent.mkdir(parents=True, exist_ok=True)
        keyring.write_bytes(gpg("--export"))
        try:
            yield lambda text: gpg("--clearsign", text=text)
        finally:
            subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True, capture_output=True)


def write_suite(
    folder: Path,
    suite: str,
    indexes: Mapping[str, str],
    sign: Sign,
    head: str,
    processor: Processor = X86_64,
    native: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the signed lists of a suite: the text of the package list of each component. `head` begins its Release.

    `native` are those for x86-64, beside the ones for another processor.
    """
    sums = ""
    every = [(processor.debian, indexes), *([(X86_64.debian, native)] if native else [])]
    for debian, component, listing in ((debian, *named) for debian, some in every for named in some.items()):
        path = f"{component}/binary-{debian}/Packages"
        index = folder / "dists" / suite / path
        index.parent.mkdir(parents=True)
        index.write_text(listing)
        sums += f" {hashlib.sha256(listing.encode()).hexdigest()} {len(listing.encode())} {path}\n"
    release = (
        f"{head}Architectures: {' '.join(debian for debian, _ in every)}\nComponents: {' '.join(indexes)}\n"
        f"Date: Sat, 10 Jun 2023 08:00:00 UTC\nSHA256:\n{sums}"
    )
    (folder / "dists" / suite / "InRelease").write_bytes(sign(release))


def write_flat(folder: Path, listing: str, keyring: Path) -> None:
    """Write the signed lists of a repository in the shape of NVIDIA's: all in one folder, with the key beside it."""
    (folder / "Packages").write_text(listing)
    digest = hashlib.sha256(listing.encode()).hexdigest()
    release = "Origin: NVIDIA\nLabel: NVIDIA CUDA\nArchitecture: amd64\nDate: Sat, 10 Jun 2023 08:00:00 UTC\n"
    with signing_key(keyring) as sign:
        text = f"{release}SHA256:\n {digest} {len(listing.encode())} Packages\n"
        (folder / "InRelease").write_bytes(sign(text))


def fingerprint(keyring: Path) -> str:
    show = ["gpg", "--show-keys", "--with-colons", keyring]
    text = subprocess.run(show, check=True, capture_output=True, text=True).stdout
    return next(line.split(":")[9] for line in text.splitlines() if line.startswith("fpr"))


def security_of(mirror: Path) -> Path:
    """Return the folder of the security archive of a mirror: `…/mirror` → `…/mirror-security`."""
    return mirror.with_name(f"{mirror.name}-security")


def write_mirror(
    folder: Path,
    keyring: Path,
    packages: Packages = PACKAGES,
    *,
    updates: Packages = MappingProxyType({}),
    security: Packages = MappingProxyType({}),
    archive: Path | None = None,
    processor: Processor = X86_64,
    native: Packages = MappingProxyType({}),
) -> None:
    """Write a mirror of Debian in `folder`, with a security archive beside it or in `archive`, and the key of both.

    `native` are packages for x86-64 beside those for another processor. With them comes the suite that has qemu.
    """
    archive = archive or security_of(folder)
    with signing_key(keyring) as sign:
        for suite, place, pool, some in (
            ("bookworm", folder, "pool/main", packages),
            ("bookworm-updates", folder, "pool/main", updates),
            ("bookworm-security", archive, "pool/updates/main", security),
        ):
            label = "Debian-Security" if place == archive else "Debian"
            listing = "\n".join(
                write_deb(place, name, *rest, pool=pool, processor=processor) for name, rest in some.items()
            )
            head = f"Origin: Debian\nLabel: {label}\nSuite: stable\nCodename: {suite}\n"
            listings = (
                [write_deb(folder, name, *rest) for name, rest in native.items()]
                if suite == "bookworm"
                else []
            )
            write_suite(
                place, suite, {"main": listing}, sign, head, processor,
                {"main": "\n".join(listings)} if native else {},
            )  # fmt: skip
        if native:
            emulator = write_deb(folder, "qemu-user", "1:10.0", "")
            head = "Origin: Debian\nLabel: Debian\nSuite: stable\nCodename: trixie\n"
            write_suite(folder, "trixie", {"main": emulator}, sign, head)


def debian(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the mirror in a folder and its security archive, as `Sources` names them."""
    return {"debian": (f"{folder.as_uri()}/",), "security": (f"{security_of(folder).as_uri()}/",)}


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    tag: str = "py3-none-any",
    requires: tuple[str, ...] = (),
    files: Mapping[str, str | bytes] = MappingProxyType({}),
    headers: tuple[str, ...] = (),
) -> Path:
    """Write a wheel with these files, or with an empty module. `headers` are more lines of its metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    every = {
        **(files or {f"{name}.py": ""}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"{line}\n" for line in (*headers, *(f"Requires-Dist: {line}" for line in requires))),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = ""
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in every.items():
            content = text if isinstance(text, bytes) else text.encode()
            archive.writestr(file, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{file},sha256={digest},{len(content)}\n"
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path


def write_index(folder: Path, *wheels: Path) -> None:
    """Write the pages of an index. Its links are relative, so a server of the index must also have the wheels."""
    projects = sorted({wheel.name.partition("-")[0] for wheel in wheels})
    for project in projects:
        page = folder / project.replace("_", "-") / "index.html"
        page.parent.mkdir(parents=True)
        links = [
            f'<a href="{quote(os.path.relpath(wheel, page.parent))}#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}">{wheel.name}</a>'
            for wheel in wheels
            if wheel.name.startswith(f"{project}-")
        ]
        page.write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")


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
            folder / "wheels", "torch", "2.13.0+cpu", tag="cp311-cp311-manylinux_2_28_x86_64",
            requires=("filelock", "setuptools>=77"),
        )  # fmt: skip
        yield Sources(
            **debian(folder / "mirror"),
            keyring=folder / "keyring.gpg",
            indexes=(f"{(folder / 'simple').as_uri()}/",),
            folders=(folder / "wheels",),
        )


MOVED = PACKAGES | {
    "libc6": ("2.36-10", ""), "libc6-dev": ("2.36-10", "libc6 (= 2.36-10)"),
    "git": ("1:2.40-1", "libc6 (>= 2.36-10), perl"), "perl": ("5.36", ""), "make": ("4.4", ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def moved(world: Sources, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The same world after a point release. A snapshot service keeps the earlier mirror."""
    folder = tmp_path_factory.mktemp("moved")
    write_mirror(folder / "mirror", folder / "keyring.gpg", MOVED)
    day, archive = f"{DAY:%Y%m%d}T000000Z", folder / "snapshot/archive"
    write_mirror(archive / "debian" / day, folder / "old.gpg", archive=archive / "debian-security" / day)
    return replace(
        world,
        **debian(folder / "mirror"),
        keyring=folder / "keyring.gpg",
        snapshot=f"{(folder / 'snapshot').as_uri()}/",
    )


SECURITY = {
    "libc6": ("2.36-9+deb12u1", ""),
    "libc6-dev": ("2.36-9+deb12u1", "libc6 (= 2.36-9+deb12u1)"),
    "git": ("1:2.39.5-0+deb12u3", "libc6 (>= 2.36-9+deb12u1)"),
    "unrelated": ("1.1", ""),
}
UPDATES = {"ca-certificates": ("2", "")}


@pytest.fixture(scope="module")
def patched(world: Sources, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The same world with updates in both pockets, and a newer `make` in the release."""
    folder = tmp_path_factory.mktemp("patched")
    release = PACKAGES | {"make": MOVED["make"]}
    write_mirror(folder / "mirror", folder / "keyring.gpg", release, updates=UPDATES, security=SECURITY)
    return replace(world, **debian(folder / "mirror"), keyring=folder / "keyring.gpg")


UBUNTU = {
    "base-files": ("13ubuntu10", ""), "ca-certificates": ("1", ""), "libc6": ("2.39-0ubuntu8", ""),
    "libc6-dev": ("2.39-0ubuntu8", "libc6 (= 2.39-0ubuntu8)"), "libcrypt-dev": ("1:4.4.36-4build1", ""),
    "gcc-13": ("13.2.0-23ubuntu4", "libc6"), "g++-13": ("13.2.0-23ubuntu4", "gcc-13"),
    "binutils": ("2.42-4ubuntu2", ""), "make": ("4.3-4.1build2", ""), "python3.12": ("3.12.3-1", "libc6"),
    "python3.12-dev": ("3.12.3-1", "python3.12"), "usr-is-merged": ("38ubuntu1", ""),
}  # fmt: skip
UNIVERSE = {"ninja-build": ("1.11.1-2", "")}
UBUNTU_UPDATES = {"gcc-13": ("13.3.0-6ubuntu2", "libc6"), "g++-13": ("13.3.0-6ubuntu2", "gcc-13")}
UBUNTU_SECURITY = {"python3.12": ("3.12.3-1ubuntu0.9", "libc6"), "ninja-build": ("1.11.1-2ubuntu0.1", "")}


def write_ubuntu(folder: Path, keyring: Path, packages: Packages = UBUNTU) -> None:
    """Write an archive in Ubuntu's shape: one for all pockets of noble, with main and universe, and its key."""
    pockets = {"": {**packages, **UNIVERSE}, "-updates": UBUNTU_UPDATES, "-security": UBUNTU_SECURITY}
    with signing_key(keyring) as sign:
        for pocket, some in pockets.items():
            listings = dict.fromkeys(("main", "universe"), "")
            for name, rest in some.items():
                component = "universe" if name in UNIVERSE else "main"
                listings[component] += write_deb(folder, name, *rest, pool=f"pool/{component}") + "\n"
            head = f"Origin: Ubuntu\nLabel: Ubuntu\nSuite: noble{pocket}\nCodename: noble\nVersion: 24.04\n"
            write_suite(folder, f"noble{pocket}", listings, sign, head)


@pytest.fixture(scope="module")
def ubuntu(world: Sources, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The world of a machine that knows an archive of Ubuntu, and its snapshot of a day."""
    folder = tmp_path_factory.mktemp("ubuntu")
    write_ubuntu(folder / "snapshot" / f"{DAY:%Y%m%d}T000000Z", folder / "ubuntu.gpg")
    (folder / "archive").symlink_to(folder / "snapshot" / f"{DAY:%Y%m%d}T000000Z")
    return replace(
        world,
        ubuntu=(f"{(folder / 'archive').as_uri()}/",),
        ubuntu_snapshot=f"{(folder / 'snapshot').as_uri()}/",
        ubuntu_keyring=folder / "ubuntu.gpg",
    )
