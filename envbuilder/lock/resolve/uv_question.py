"""What uv is asked: the requirements, its configuration and the local packages, as the files that uv reads."""

import contextlib
import json
import re
import venv
import zipfile
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

import uv

from envbuilder.core.archive import BoundedZip
from envbuilder.core.process import Command
from envbuilder.core.processor import NEWEST_MANYLINUX, X86_64, Processor
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.distributions import Distribution
from envbuilder.lock.resolve.sdists import SUFFIXES, SdistFacts
from envbuilder.recipe.packages import Hashed
from envbuilder.sources.names import Sources

LOCK, ANNOTATED = "pylock.toml", "requirements.txt"  # uv's formats, and the names of its output
LARGE: Final = 20_000_000  # bytes; a local wheel above this is not given to uv whole
# In the Python that uv asks for its version: it answers, and ends for a program of a project.
_NO_BUILD: Final = "import os, sys; sys.flags.isolated or os._exit(3)\n"

Facts = MutableMapping[tuple[str, str], SdistFacts]  # by name and version


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query to uv: the packages that meet these requirements on the target."""

    python: str
    glibc: str
    processor: Processor = X86_64
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    dependencies: bool = True
    build: str = ""  # PyTorch's own index to search as well, e.g. cu126
    prefer: tuple[Artifact, ...] = ()  # versions to keep where they fit
    before: date | None = None
    hashes: tuple[Hashed, ...] = ()  # a file that has one of them is taken before others
    parent: str = ""  # the recipe whose versions are the constraints
    wheels_only: bool = False
    finals: tuple[str, ...] = ()  # packages of which no pre-release is taken
    extensions: tuple[Distribution, ...] = ()  # they are there, and what they require is wanted

    def prefers(self, package: Artifact) -> bool:
        """Return whether a package has a version that was to be kept."""
        return (package.name, package.version) in {(kept.name, kept.version) for kept in self.prefer}

    @property
    def provided(self) -> tuple[Distribution, ...]:
        """Return the extensions that count for others; of the rest, only what they require is known."""
        return tuple(one for one in self.extensions if one.name and one.version)


def uv_settings(question: Question, sources: Sources, *, links: Sequence[str] = ()) -> list[str]:
    """Return uv's configuration. As arguments, the indexes' URLs could reveal passwords.

    `links` are folders of packages, by default those of the user.
    """
    folders = links or [str(folder.absolute()) for folder in sources.folders]
    main, *extra = map(_quoted, sources.indexes)
    more = [_quoted(f"{sources.pytorch}{question.build}")] if question.build else []
    return [
        f"find-links = [{', '.join(map(_quoted, folders))}]",
        'index-strategy = "unsafe-best-match"',  # as pip: all configured indexes count equally
        *(f"[[index]]\nurl = {url}" for url in (*extra, *more)),
        f"[[index]]\nurl = {main}\ndefault = true",
    ]


def uv_platform(glibc: str, processor: Processor) -> str:
    """Return uv's platform name for this glibc; for a newer one than uv knows, its newest."""
    return processor.uv_platform(min(int(glibc.split(".")[1]), NEWEST_MANYLINUX))


def show_folders(folders: Sequence[Path], links: Path) -> dict[Path, Path]:
    """Make a folder that shows uv every local package, large wheels by metadata alone. Returns shown → real path.

    uv unpacks a local wheel into its cache to read a few lines of it: 700 MB and 12 000 files for torch.
    """
    links.mkdir()
    local: dict[Path, Path] = {}
    files = (path for folder in reversed(folders) for path in folder.glob("*"))
    for file in sorted(path for path in files if path.name.endswith((".whl", *SUFFIXES))):
        shown = links / file.name
        shown.unlink(missing_ok=True)
        if file.suffix != ".whl" or file.stat().st_size < LARGE:
            shown.symlink_to(file.absolute())
        else:
            _write_metadata_only(file, shown)
        local[shown] = file
    return local


def write_python(folder: Path) -> None:
    """Make an environment whose Python tells uv what it is, and ends when uv would run a project's code with it."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "no_build.pth").write_text(_NO_BUILD, encoding="utf-8")


def _write_metadata_only(wheel: Path, shown: Path) -> None:
    """Write a wheel with only the `.dist-info` of another. A file that is no wheel is skipped."""
    with (
        contextlib.suppress(zipfile.BadZipFile),
        BoundedZip(wheel) as whole,
        zipfile.ZipFile(shown, "w") as part,
    ):
        for entry in whole.infolist():
            if re.fullmatch(r"[^/]+\.dist-info/(METADATA|WHEEL|RECORD)", entry.filename):
                part.writestr(entry, whole.read(entry))


def write_question(question: Question, sources: Sources, work: Path, facts: Facts) -> None:
    """Write uv's input files."""
    files: dict[str, Sequence[str]] = {
        "requirements.in": (
            *question.requirements,
            *(_extension_lines(question) if question.dependencies else ()),
        ),
        "constraints.in": question.constraints,
        "uv.toml": [
            *uv_settings(question, sources, links=("links",)),
            *(line for key, sdist in facts.items() for line in _metadata(*key, sdist)),
        ],
    }
    (work / LOCK).unlink(missing_ok=True)
    if question.prefer:  # uv prefers the versions in its output file
        preferred = [(_quoted(package.name), _quoted(package.version)) for package in question.prefer]
        packages = [f"[[packages]]\nname = {name}\nversion = {version}" for name, version in preferred]
        files[LOCK] = ['lock-version = "1.0"\ncreated-by = "envbuilder"', *packages]
    for name, lines in files.items():
        (work / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _extension_lines(question: Question) -> Iterator[str]:
    """Yield what the extensions are, or what they require if nobody knows their version."""
    for one in question.extensions:
        yield from (one.pin,) if one in question.provided else one.requires or ()


def _metadata(name: str, version: str, facts: SdistFacts) -> Iterator[str]:
    """Yield the lines that tell uv what a source distribution requires."""
    yield f"[[dependency-metadata]]\nname = {_quoted(name)}\nversion = {_quoted(version)}"
    yield f"requires-dist = [{', '.join(map(_quoted, facts.requires))}]"
    yield f"provides-extra = [{', '.join(map(_quoted, facts.extras))}]"
    if facts.python:
        yield f"requires-python = {_quoted(facts.python)}"


def _quoted(text: str) -> str:
    """Return a TOML string: a JSON string is one."""
    return json.dumps(text, ensure_ascii=False)


def make_command(question: Question, sources: Sources, *, work: Path, cache: Path, output: str) -> Command:
    argv = [
        uv.find_uv_bin(), "pip", "compile", "requirements.in",
        "--constraints", "constraints.in",
        "--config-file", "uv.toml",
        "--cache-dir", str(cache),
        "--python", "python/bin/python",
        "--python-version", question.python,
        "--python-platform", uv_platform(question.glibc, question.processor),
        "--no-build-isolation",
        "--format", output,
        "--output-file", output,
        "--annotation-style", "line", "--no-strip-extras",
        *(f"--prerelease-package={name}=disallow" for name in question.finals),
        "--no-python-downloads", "--no-header", "--quiet",
    ]  # fmt: skip
    if question.wheels_only:
        argv += ["--only-binary", ":all:"]
    if not question.dependencies:
        argv.append("--no-deps")
    if question.before is not None:
        argv += ["--exclude-newer", f"{question.before.isoformat()}T00:00:00Z"]
    patience = (("UV_HTTP_TIMEOUT", "15"), ("UV_HTTP_RETRIES", "1"))  # so a silent index takes 30 s
    env = (*patience, *((("SSL_CERT_FILE", str(sources.certificates)),) if sources.certificates else ()))
    return Command(argv=tuple(argv), cwd=work, env=env, why="resolve the recipe's Python packages")
