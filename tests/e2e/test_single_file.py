"""The single file of a release on machines without a new Python: other distributions, and one without Debian's programs.

`tests/project/test_release.py` holds its start in every run, with a payload of a few bytes.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny import make_tiny
from tests.support.workbench import (
    ENVBUILDER,
    ROOT,
    Built,
    Ended,
    attempt,
    cache_with_artifacts,
    cache_with_toolbox,
    open_folder,
    run,
)

pytestmark = [pytest.mark.builds, pytest.mark.release]
USER = 4242  # no machine has this user
PYTHON = ROOT / ".venv/bin/python"
UBUNTU = ("jammy", "noble")
SUITES = ("bullseye", "bookworm", "trixie", *UBUNTU)
KEYS = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"  # of `scripts/setup tests`
FOREIGN = re.compile(
    r"apt|debconf|dpkg|gpg|perl|python"
)  # programs that are not on Rocky 8, or too old there
ROCKY = 'NAME="Rocky Linux"\nID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="8.10"\n'


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    """The single file for x86-64, made twice."""
    with open_folder() as folder:
        build = ("build", "--wheel", "--offline", "--no-build-isolation", "--python", PYTHON)
        run(ROOT / ".venv/bin/uv", *build, "--out-dir", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        env = {"RELEASE_WHEELS": str(folder / "wheels")}
        places = folder / "one", folder / "a folder with spaces and ä"
        for place in places:
            place.mkdir()
            run(PYTHON, "-m", "scripts.make_single_file", wheel, place, cwd=ROOT, env=env)
        made, again = (next(place.glob("*.run")) for place in places)
        assert made.read_bytes() == again.read_bytes()
        yield made


def make_root(name: str, folder: Path) -> Path:
    """Return the root of a distribution without Python. Skips one whose archive does not answer."""
    root, suite = folder / "root", "bullseye" if name == "rocky" else name
    ubuntu = suite in UBUNTU
    source = (f"--keyring={KEYS}", f"deb http://archive.ubuntu.com/ubuntu {suite} main") if ubuntu else ()
    ended = attempt("mmdebstrap", "--variant=essential", *source[:1], suite, root, *source[1:])
    if ended.returncode and ubuntu:
        pytest.skip(f"Ubuntu's archive does not answer here: {ended.stderr.splitlines()[-1]}")
    assert ended.returncode == 0, ended.stderr
    if name == "rocky":
        for program in (root / "usr/bin").iterdir():
            if FOREIGN.match(program.name):
                program.unlink()
        shutil.rmtree(root / "var/lib/dpkg")
        (root / "usr/lib/os-release").write_text(ROCKY)
    assert not list((root / "usr/bin").glob("python*"))
    return root


@pytest.mark.parametrize("name", [*SUITES, "rocky"])
def test_it_builds_the_same_on_another_distribution(name: str, file: Path, tiny: Built, spacious: Path):
    root, place = make_root(name, spacious), spacious / "place"
    place.mkdir()
    recipe, _ = make_tiny(place / "recipes")
    cache = cache_with_toolbox(cache_with_artifacts(place, recipe, copy=True))
    run("chown", "-R", f"{USER}:{USER}", place)

    def start(*words: object) -> Ended:
        env = {
            "HOME": str(place),
            "PATH": "/usr/bin:/bin",
            "ENVBUILDER_CACHE": str(cache),
            "PYTHONHOME": "/nowhere",
        }
        return attempt(
            "bwrap", "--bind", root, "/", "--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc", "--perms", "1777",
            "--tmpfs", "/tmp", "--perms", "0755", "--tmpfs", "/var/tmp", "--perms", "0755", "--dir", place.parent,
            "--bind", place, place, "--ro-bind", file, f"/{file.name}", "--chdir", place, "--clearenv",
            *(word for pair in env.items() for word in ("--setenv", *pair)), "--",
            "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", f"/{file.name}", *words,
        )  # fmt: skip

    first = start("--version")
    assert (first.stdout, first.stderr.count("once")) == (run(ENVBUILDER, "--version"), 1), first.stderr
    assert start("init", "--example", "cpu").returncode == 0
    listed = start("list")
    assert (listed.stdout.split()[:3], listed.stderr) == (["cpu", "torch", "2.13.0"], "")
    assert start("check", "cpu").returncode == 0
    assert start("doctor", "--for", "build").stdout.startswith("to build environments\n")
    ended = start("build", recipe, "--output", place / "out", "--json", "--offline")
    data = json.loads(ended.stdout)["data"][0]
    assert (data["manifest"], data["sif_sha256"]) == tiny.digests
