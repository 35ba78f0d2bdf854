"""A password for an index, planted where people keep one: it opens the index, and stands in nothing that comes out."""

import base64
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import zstandard

from envbuilder.lock.model import Lock
from tests.support.faults import Bench
from tests.support.serving import Manner, package_index
from tests.support.workbench import CACHE, ENVBUILDER, NO_ENGINE, attempt, build_command, findings

pytestmark = pytest.mark.builds

USER, PASSWORD = "reader", "tr0ub4dor-and-3-horses"
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode())
PLANTED = (PASSWORD.encode(), BASIC)


def guarded_index(lock: Lock, *, refusal: int = 401) -> AbstractContextManager[str]:
    """A package index on loopback that shows its wheels to that user alone."""
    return package_index(lock, CACHE, Manner(basic=BASIC, refusal=refusal))


@pytest.fixture
def without_wheels(bench: Bench) -> tuple[Path, Lock, Path]:
    """The tiny recipe, its lock, and a cache that lacks the wheels."""
    cache = bench.cache(1)
    for wheel in bench.lock.wheels:
        (cache / "artifacts" / wheel.sha256[:2] / wheel.sha256).unlink()
    return bench.recipe, bench.lock, cache


def environment(cache: Path, home: Path, index: str) -> dict[str, str]:
    return NO_ENGINE | {
        "ENVBUILDER_CACHE": str(cache), "ENVBUILDER_INDEX": index, "ENVBUILDER_PYTORCH_INDEX": index,
        "ENVBUILDER_FOLDERS": "/nonexistent", "HOME": str(home),
    }  # fmt: skip


def keep_password(home: Path, how: str, host: str) -> str:
    """Put the password where people keep one; returns the index's URL as it is then configured."""
    home.mkdir()
    if how == "in the address":
        return f"http://{USER}:{PASSWORD}@{host}/simple/"
    netrc = home / ".netrc"
    netrc.write_text(f"machine {host.partition(':')[0]} login {USER} password {PASSWORD}\n")
    netrc.chmod(0o600)
    return f"http://{host}/simple/"


def holding(*folders: Path) -> list[str]:
    """Every file below the folders that holds the password, in clear or as it is sent; layers and SIFs are unpacked."""
    holders = []
    for path in (path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()):
        content = path.read_bytes()
        if content.startswith(zstandard.FRAME_HEADER):
            content = zstandard.ZstdDecompressor().stream_reader(content).read()
        if any(secret in content for secret in PLANTED):
            holders.append(str(path))
    return holders


def command(verb: str, recipe: Path, output: Path) -> tuple[object, ...]:
    if verb == "build":
        return (*build_command(recipe, output), "-vv")
    return (ENVBUILDER, "lock", recipe, "--upgrade", "numpy", "--json", "-vv")


@pytest.mark.parametrize(("how", "verb"), [("in the address", "build"), ("in the netrc", "lock")])
def test_a_password_opens_the_index_and_stands_in_nothing(
    without_wheels, spacious: Path, how: str, verb: str
):
    recipe, lock, cache = without_wheels
    with guarded_index(lock) as host:
        env = environment(cache, spacious / "home", keep_password(spacious / "home", how, host))
        ended = attempt(*command(verb, recipe, spacious / "out"), env=env)
        opened = 0 if verb == "build" else 3  # the index has no torch, and says so to whom it lets in
        assert ended.returncode == opened, ended.stdout + ended.stderr[-3000:]
    printed = (ended.stdout + ended.stderr).encode()
    assert [secret for secret in PLANTED if secret in printed] == []
    assert holding(cache, spacious / "out", recipe.parent) == []
    assert verb == "lock" or (spacious / "out/tiny.log").stat().st_size > 0


@pytest.mark.parametrize(("verb", "refusal"), [("lock", 401), ("build", 403)])
def test_a_password_that_is_refused_is_said_to_be_and_not_told(
    without_wheels, spacious: Path, verb: str, refusal: int
):
    recipe, lock, cache = without_wheels
    with guarded_index(lock, refusal=refusal) as host:
        env = environment(cache, spacious, f"http://other:{PASSWORD}@{host}/simple/")
        ended = attempt(*command(verb, recipe, spacious / "out"), env=env)
    (finding,) = findings(ended)
    assert ended.returncode == 5
    assert f"http://{host}/simple/" in finding["message"]
    assert f"it refused access ({refusal})" in finding["message"]
    assert "~/.netrc" in finding["hint"]
    assert PASSWORD not in ended.stdout + ended.stderr
    assert holding(cache, spacious, recipe.parent) == []


@pytest.mark.parametrize("verb", ["lock", "build"])
def test_an_index_that_does_not_answer_is_not_told_the_password_of(without_wheels, spacious: Path, verb: str):
    recipe, _, cache = without_wheels
    nobody = f"http://{USER}:{PASSWORD}@127.0.0.1:1/simple/"
    ended = attempt(*command(verb, recipe, spacious / "out"), env=environment(cache, spacious, nobody))
    assert ended.returncode == 5
    assert PASSWORD not in ended.stdout + ended.stderr
    assert holding(cache, spacious, recipe.parent) == []


def test_the_search_for_a_secret_finds_one(spacious: Path):
    """Else the tests above could not fail."""
    for name, content in {"plain": PLANTED[0], "sent": PLANTED[1]}.items():
        (spacious / name).write_bytes(b"x" + content)
    (spacious / "layer").write_bytes(zstandard.ZstdCompressor().compress(b"y" * 9999 + PLANTED[0]))
    (spacious / "clean").write_bytes(b"nothing")
    assert [Path(path).name for path in holding(spacious)] == ["layer", "plain", "sent"]
