"""A small conda channel: packages in the shape of conda-build's and rattler-build's, and the lists of a channel, written without conda."""

import bz2
import hashlib
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zstandard

from envbuilder.compat.repositories import addresses
from envbuilder.core.cache import save_text
from envbuilder.lock.file import lock_text
from envbuilder.lock.model import Artifact, Lock
from envbuilder.lock.resolve.conda_solver import resolve_conda
from envbuilder.recipe.load import load
from tests.support.debs import Member, header, make_tar
from tests.support.locks import make_task
from tests.support.serving import served
from tests.support.tiny import make_tiny
from tests.support.workbench import CACHE, resolve_context, run

PLACEHOLDER = "/home/builder/feedstock_root/" + "_placehold" * 22
NAME = "some/conda-test"  # the path of its address
SOURCE = "channel-some-conda-test"
OLD_PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3"


@dataclass(frozen=True, kw_only=True)
class CondaPackage:
    """A package to write. A text in `files` whose content has the placeholder is listed as such."""

    name: str
    version: str = "1.0"
    build: str = "h0_0"
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    runnable: tuple[str, ...] = ()
    links: tuple[Member, ...] = ()
    depends: tuple[str, ...] = ()
    noarch: str = ""
    entry_points: tuple[str, ...] = ()
    old: bool = False  # a .tar.bz2 without `paths.json`
    index: Mapping[str, Any] = field(default_factory=dict)

    @property
    def subdir(self) -> str:
        return "noarch" if self.noarch else "linux-64"

    @property
    def filename(self) -> str:
        return f"{self.name}-{self.version}-{self.build}" + (".tar.bz2" if self.old else ".conda")

    @property
    def about(self) -> dict[str, Any]:
        more = {"noarch": self.noarch} if self.noarch else {}
        return {
            "name": self.name, "version": self.version, "build": self.build, "build_number": 0, "license": "MIT",
            "depends": list(self.depends), "subdir": self.subdir, "timestamp": 1_700_000_000_000, **more, **self.index,
        }  # fmt: skip


def content_of(package: CondaPackage) -> bytes:
    files = {path: text.encode() if isinstance(text, str) else text for path, text in package.files.items()}
    placed = {path: placeholder_in(content) for path, content in files.items()}
    link_names = [link.name for link in package.links if not isinstance(link, tuple)]
    info = {"info/index.json": json.dumps(package.about)}
    if package.noarch == "python":
        link = {
            "noarch": {"type": "python", "entry_points": list(package.entry_points)},
            "package_metadata_version": 1,
        }
        info["info/link.json"] = json.dumps(link)
    if package.old:
        info["info/files"] = "".join(f"{path}\n" for path in (*files, *link_names))
        info["info/has_prefix"] = "".join(
            f"{path}\n"
            if placeholder == OLD_PLACEHOLDER
            else f"{placeholder} {mode_of(files[path])} {path}\n"
            for path, placeholder in placed.items()
            if placeholder
        )
    else:
        rows: list[dict[str, Any]] = [{"_path": name, "path_type": "softlink"} for name in link_names]
        for path, content in files.items():
            row = {
                "_path": path,
                "path_type": "hardlink",
                "sha256": hashlib.sha256(content).hexdigest(),
                "size_in_bytes": len(content),
            }
            place = {"prefix_placeholder": placed[path], "file_mode": mode_of(content)}
            rows.append(row | (place if placed[path] else {}))
        info["info/paths.json"] = json.dumps({"paths": rows, "paths_version": 1})
    modes = {path: 0o755 if path in package.runnable else 0o644 for path in files}
    payload = [*((path, content, modes[path]) for path, content in files.items()), *package.links]
    about = [(path, text, 0o644) for path, text in info.items()]
    if package.old:
        return bz2.compress(make_tar([*payload, *about]))
    data, stem = io.BytesIO(), package.filename.removesuffix(".conda")
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("metadata.json"), '{"conda_pkg_format_version": 2}')
        archive.writestr(zipfile.ZipInfo(f"pkg-{stem}.tar.zst"), zstandard.compress(make_tar(payload)))
        archive.writestr(zipfile.ZipInfo(f"info-{stem}.tar.zst"), zstandard.compress(make_tar(about)))
    return data.getvalue()


def mode_of(content: bytes) -> str:
    return "binary" if b"\0" in content else "text"


def placeholder_in(content: bytes) -> str:
    return next((known for known in (PLACEHOLDER, OLD_PLACEHOLDER) if known.encode() in content), "")


def write_channel(folder: Path, packages: Iterable[CondaPackage], *, packed: bool = True) -> None:
    """Write packages and lists below `folder/NAME`. The list is compressed as most channels have it, with `packed`."""
    lists: dict[str, dict[str, Any]] = {
        subdir: {"info": {"subdir": subdir}, "packages": {}, "packages.conda": {}, "repodata_version": 1}
        for subdir in ("linux-64", "noarch")
    }
    for package in packages:
        content = content_of(package)
        file = folder / NAME / package.subdir / package.filename
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        row = package.about | {
            "sha256": hashlib.sha256(content).hexdigest(),
            "md5": "0" * 32,
            "size": len(content),
        }
        lists[package.subdir]["packages" if package.old else "packages.conda"][package.filename] = row
    for subdir, listed in lists.items():
        text = json.dumps(listed).encode()
        place = folder / NAME / subdir
        place.mkdir(parents=True, exist_ok=True)
        (place / ("repodata.json.zst" if packed else "repodata.json")).write_bytes(
            zstandard.compress(text) if packed else text
        )


SITE = "import site, sys\nsite.addsitedir(sys.prefix + '/lib/python3.11/site-packages')\n"  # which Debian's Python does not look into
HOOK = 'cat "$PREFIX/share/word" >"$PREFIX/share/made"\n'


def stand_in_python(debs: Iterable[Artifact]) -> CondaPackage:
    """Return the Python of Debian's packages as a package of conda."""
    names = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib")
    files: dict[str, str | bytes] = {"lib/python3.11/sitecustomize.py": SITE}
    with tempfile.TemporaryDirectory() as folder:
        for deb in debs:
            if deb.name in names:
                run("dpkg-deb", "--extract", CACHE / "artifacts" / deb.sha256[:2] / deb.sha256, folder)
        top = Path(folder, "usr")
        for path in sorted(top.glob("lib/python3.11/**/*")):
            if path.is_file() and path.name != "sitecustomize.py":
                files[path.relative_to(top).as_posix()] = path.read_bytes()
        files["bin/python3.11"] = (top / "bin/python3.11").read_bytes()
    stale = {"lib/python3.11/__pycache__/os.cpython-311.pyc": b"stale\0"}
    return CondaPackage(
        name="python", version="3.11.2", files=files | stale, runnable=("bin/python3.11",),
        links=(header("bin/python", tarfile.SYMTYPE, target="python3.11"),),
    )  # fmt: skip


def make_conda(folder: Path) -> Path:
    """Write a recipe and its lock with packages of each kind out of a channel on loopback, and fetch them. Returns the recipe."""
    script = f"#!/bin/sh\nexec cat {PLACEHOLDER}/share/word\n"
    library = b"\x7fBIN\0" + PLACEHOLDER.encode() + b"/share\0end"
    say = "import sys\n\n\ndef main():\n    print('said by', sys.prefix)\n"
    more = """\
conda: {channels: ["%s"], packages: [tool=1, hook, app>=1], allow_scripts: [hook]}
tests: [tool, app, "grep -qx hello /opt/conda-env/share/made"]
"""
    with served(folder / "web") as url:
        path, lock = make_tiny(folder / "recipes", "conda", (), pytorch="none", more=more % f"{url}{NAME}")
        lock_conda(path, lock, folder / "web", (
            CondaPackage(name="tool", depends=("_words >=1", "__glibc >=2.17"), files={"bin/tool": script, "lib/tool.bin": library}, runnable=("bin/tool",)),
            CondaPackage(name="_words", old=True, files={"share/word": "hello\n"}),
            CondaPackage(name="hook", files={"bin/.hook-post-link.sh": HOOK}, depends=("_words",)),
            CondaPackage(name="app", noarch="python", files={"site-packages/app.py": say}, entry_points=("app = app:main",), depends=("python",)),
            stand_in_python(lock.debs),
        ))  # fmt: skip
    return path


def lock_conda(path: Path, lock: Lock, web: Path, packages: Iterable[CondaPackage]) -> None:
    """Write the packages into the channel that is served, and those that the recipe takes into its lock and the cache."""
    write_channel(web, packages)
    recipe, context = load(path), resolve_context()
    context.fetcher.know(addresses(recipe, None))
    conda = resolve_conda(make_task(recipe, context))
    context.fetcher.fetch(conda)
    save_text(path.with_suffix(".lock"), lock_text(replace(lock, conda=conda)))
