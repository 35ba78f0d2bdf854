"""Make the single file for machines without a new Python or a package index: envbuilder, a Python and all packages.

    python -m scripts.make_single_file WHEEL FOLDER [MACHINE]    MACHINE: x86_64, the default, or aarch64
    python -m scripts.make_single_file --pins RECIPE             prints the packages as requirements, without the recipe's

FOLDER gets `envbuilder-hpc-VERSION-MACHINE.run` and its SBOM, `….spdx.json`. The Python and its libraries are Debian's packages
in the lock of `envbuilder-base`, and start by a loader and a C library of their own, so this machine's do not matter. The
packages are those of requirements.lock. All are named by sha256. The same wheel gives the same bytes anywhere.

A folder $RELEASE_WHEELS keeps the wheels for a second run.
"""

import compileall
import gzip
import importlib.metadata
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from py_compile import PycInvalidationMode

from elftools.elf.dynamic import DynamicSection  # type: ignore[import-untyped]
from elftools.elf.elffile import ELFFile  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from envbuilder import __version__
from envbuilder.core.cache import Sha256, Store, cache_folder
from envbuilder.core.console import Console
from envbuilder.core.process import ProcessRunner
from envbuilder.core.processor import PROCESSORS, Processor
from envbuilder.lock.file import load_lock
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import open_context
from envbuilder.plan.sbom import License, debian_license, make_document, wheel_license
from envbuilder.recipe.load import load
from envbuilder.recipe.model import Recipe
from envbuilder.sources.deb import open_members

ROOT = Path(__file__).parents[1]
PYTHON = "3.11"  # Debian 12's, whose byte code is packed as well
LOCKS = {"x86_64": "envbuilder-base", "aarch64": "envbuilder-base-arm64"}
DEBS = (
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libgcc-s1", "libstdc++6", "zlib1g",
    "libbz2-1.0", "liblzma5", "libffi8", "libssl3", "libexpat1", "libuuid1", "libsqlite3-0",
)  # fmt: skip
GLIBC = (28, 17)  # of the wheels: google-re2 has none for an older one than 2.28
SITE = "usr/lib/python3/dist-packages"  # where Debian's Python looks for packages
UNUSED = re.compile(
    r"usr/(share/(?!doc/[^/]+/copyright$)|lib/[^/]+/(gconv|audit|engines-3|ossl-modules)/|lib/python3\.11/(lib2to3|pydoc_data)/)"
)
EPOCH = 315532800  # 1980, the first year that a zip can name
# Starts a program of the file by its own loader. Python takes `$0` for its path, so that virtual environments work.
START = """\
#!/bin/sh
top=$(readlink -f "$0") && top=${{top%/*/*}}
exec "$top/{loader}" --library-path "$top/{libraries}" --argv0 "$0" "$top/bin/python{python}" "$@"
"""
COMMAND = '#!/bin/sh\nexec "${0%/*}/python3" -I -m envbuilder "$@"\n'


def needed(name: str, markers: Mapping[str, str], known: set[str]) -> set[str]:
    """Return the installed packages that a package needs, and those that these need."""
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        package = str(canonicalize_name(requirement.name))
        if package not in known and (not requirement.marker or requirement.marker.evaluate(dict(markers))):
            known.add(package)
            needed(package, markers, known)
    return known


def locked(names: set[str]) -> str:
    """Return the lines of requirements.lock for these packages."""
    entries = re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements.lock").read_text(encoding="utf-8"))
    by_name: dict[str, str] = {
        canonicalize_name(entry.partition("==")[0]): entry.strip() for entry in entries
    }
    return "\n".join(by_name[name] for name in sorted(names)) + "\n"


def pins(recipe: Recipe) -> list[str]:
    """Return the packages of envbuilder, each with its version in requirements.lock, without those that a recipe names."""
    names = needed("envbuilder-hpc", recipe.processor.markers(recipe.python), set())
    named = {canonicalize_name(Requirement(text).name) for text in recipe.packages}
    return [line.partition(" ")[0] for line in locked(names - named).splitlines() if "==" in line]


def download(processor: Processor, folder: Path) -> list[Path]:
    """Return the wheels of requirements.lock for a processor, after those that lack are fetched."""
    folder.mkdir(parents=True, exist_ok=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(
        locked(needed("envbuilder-hpc", processor.markers(PYTHON), set())), encoding="utf-8"
    )
    tags = [f"manylinux_2_{minor}_{processor.machine}" for minor in GLIBC] + [
        f"manylinux2014_{processor.machine}"
    ]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    subprocess.run(
        [sys.executable, "-m", "pip", "-qq", "download", "--no-deps", "--require-hashes", "--only-binary=:all:",
         "--implementation=cp", f"--python-version={PYTHON}", *platforms, f"--dest={folder}", f"--requirement={requirements}"],
        check=True,
    )  # fmt: skip
    return sorted(folder.glob("*.whl"))


def fetch_debs(processor: Processor) -> dict[Artifact, Path]:
    """Return the packages of the Python, in the user's cache."""
    lock = load_lock(ROOT / f"recipes/{LOCKS[processor.machine]}.lock")
    debs = [deb for deb in lock.debs if deb.name in DEBS]
    store = Store(cache_folder(os.environ))
    context = open_context(store, ProcessRunner(os.environ), os.environ, Console(), offline=False)
    context.fetcher.fetch(debs)
    return {deb: store.artifact(deb.sha256) for deb in debs}


def unpack_deb(deb: Path, root: Path) -> License:
    """Write the needed files of a package, and return its license."""
    license_text = b""
    with open_members(deb) as tar:
        for info in tar:
            path = re.sub(r"^(\./)?(bin|lib|lib64)/", r"usr/\2/", info.name.removeprefix("./"))
            if not path.startswith("usr/") or UNUSED.match(path):
                continue
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if info.issym():
                if not info.linkname.startswith("/"):  # Debian's own settings lie in /etc
                    target.symlink_to(info.linkname)
            elif info.isreg():
                content = b"".join(iter(tar.read, b""))
                target.write_bytes(content)
                target.chmod(0o755 if info.mode & 0o111 else 0o644)
                license_text = content if path.endswith("/copyright") else license_text
    return debian_license(license_text.decode(errors="replace"))


def unpack_wheel(wheel: Path, root: Path) -> License:
    """Install a wheel, with its programs beside Python, and return its license."""
    found = License()
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            first, _, rest = info.filename.partition("/")
            path = f"{SITE}/{info.filename}"
            if first.endswith(".data"):
                kind, _, rest = rest.partition("/")
                path = f"usr/bin/{rest}" if kind == "scripts" else f"{SITE}/{rest}"
                if kind not in ("scripts", "purelib", "platlib"):
                    continue  # manual pages and headers
            if info.is_dir():
                continue
            content = archive.read(info)
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
            (root / path).chmod(
                0o755 if path.startswith("usr/bin/") or info.external_attr >> 16 & 0o111 else 0o644
            )
            if re.fullmatch(r"[^/]+\.dist-info/METADATA", info.filename):
                found = wheel_license(content)
    return found


def write_starts(root: Path, processor: Processor) -> None:
    libraries = f"lib/{processor.gnu}"
    loader = f"{libraries}/{Path(processor.loader).name}"
    text = START.format(loader=loader, libraries=libraries, python=PYTHON)
    for name, content in {"python3": text, "envbuilder": COMMAND}.items():
        (root / "usr/bin" / name).write_text(content, encoding="utf-8")
        (root / "usr/bin" / name).chmod(0o755)
    (root / "usr/bin/python").symlink_to("python3")
    (root / "usr/local").mkdir()
    (root / "usr/local/bin").symlink_to("../bin")  # where Debian's Python says that programs of packages are


def need_libraries(root: Path) -> None:
    """Remove the modules of Python whose libraries are not packed, such as readline: this machine's would be for another C library.

    A package that needs one is an error.
    """
    files = [path for path in root.rglob("*.so*") if path.is_file()]
    names = {path.name for path in files}
    for path in files:
        with path.open("rb") as stream:
            dynamic = ELFFile(stream).get_section_by_name(".dynamic")
            tags = dynamic.iter_tags("DT_NEEDED") if isinstance(dynamic, DynamicSection) else ()
            wanted = {tag.needed for tag in tags}  # type: ignore[attr-defined]
        if missing := wanted - names:
            if path.parent.name != "lib-dynload":
                sys.exit(
                    f"make_single_file.py: `{path.relative_to(root)}` needs {', '.join(sorted(missing))}: add its package to DEBS"
                )
            path.unlink()


def pack(root: Path) -> bytes:
    """Return a tar.gz of a folder as `app`."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, f"app/{path.relative_to(root)}")
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime, info.mode = EPOCH, 0o644 if info.isreg() and not info.mode & 0o100 else 0o755
            with path.open("rb") if info.isreg() else io.BytesIO() as content:
                tar.addfile(info, content if info.isreg() else None)
    return packed.getvalue()


def start_of(payload: bytes, processor: Processor) -> bytes:
    """Return the script that the file begins with."""
    text = (ROOT / "scripts/single_file.sh").read_text(encoding="utf-8")
    values = {
        "version": __version__, "machine": processor.machine, "digest": sha256(payload).hexdigest()[:16],
        "lines": str(text.count("\n") + 1),
    }  # fmt: skip
    return re.sub(r"@(\w+)@", lambda mark: values[mark[1]], text).encode()


def wheel_artifact(wheel: Path) -> Artifact:
    name, version, *_ = parse_wheel_filename(wheel.name)
    content = wheel.read_bytes()
    return Artifact(
        kind="wheel", name=str(name), version=str(version), sha256=Sha256(sha256(content).hexdigest()), size=len(content),
        source="pypi", path=f"{name}/{wheel.name}",
    )  # fmt: skip


def contents(processor: Processor, own: Path, wheels: Path, root: Path) -> Iterator[tuple[Artifact, License]]:
    """Write all files below `root`, and yield what they are from."""
    for deb, path in fetch_debs(processor).items():
        yield deb, unpack_deb(path, root)
    for wheel in (own, *download(processor, wheels / processor.machine)):
        yield wheel_artifact(wheel), unpack_wheel(wheel, root)


def main(own: str, folder: str, machine: str = "x86_64") -> None:
    if f"{sys.version_info[0]}.{sys.version_info[1]}" != PYTHON:
        sys.exit(
            f"make_single_file.py: expected Python {PYTHON}, which writes the byte code, found {sys.version.split()[0]}"
        )
    processor = next(known for known in PROCESSORS if known.machine == machine)
    with tempfile.TemporaryDirectory() as scratch:
        wheels, root = Path(os.environ.get("RELEASE_WHEELS", scratch)), Path(scratch, "app")
        licenses = dict(contents(processor, Path(own), wheels, root))
        write_starts(root, processor)
        need_libraries(root)
        compiled = compileall.compile_dir(
            root,
            maxlevels=40,
            quiet=1,
            stripdir=str(root),
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
        if not compiled:
            sys.exit("make_single_file.py: the modules named above have no byte code")
        payload = pack(root)
    file = Path(folder, f"envbuilder-hpc-{__version__}-{machine}.run")
    file.write_bytes(start_of(payload, processor) + payload)
    file.chmod(0o755)
    digest = sha256(file.read_bytes()).hexdigest()
    text = make_document(
        file.name, digest, epoch=EPOCH, purpose="APPLICATION", files=licenses, version=__version__,
    )  # fmt: skip
    Path(folder, f"{file.name}.spdx.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pins"]:
        sys.stdout.write("".join(f"{pin}\n" for pin in pins(load(Path(sys.argv[2])))))
    else:
        main(*sys.argv[1:])
