"""Mirrors, indexes and archives that attack `lock`: what they send slowly, without end, or in another form."""

import io
import json
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.artifacts.statement import read_bundle
from envbuilder.core.errors import FetchError, VerifyError
from envbuilder.lock.resolve.apt import AptSource, open_suite
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.lock.resolve.held import read_requirements
from envbuilder.lock.resolve.toolkit import parse_manifest
from envbuilder.lock.resolve.uv_files import Question, UvAnswer
from envbuilder.lock.resolve.uv_resolver import Uv
from envbuilder.sources.git import check_out
from envbuilder.sources.names import Sources
from tests.support.attacker import ENDLESS, Attacker, attacker, reply, then
from tests.support.locks import make_means, make_recipe, make_task, make_wheel

QUESTION = Question(python="3.11", glibc="2.36", requirements=("tool",))


@pytest.fixture
def server() -> Iterator[Attacker]:
    with attacker() as state:
        yield state


def make_context(server: Attacker, tmp_path: Path) -> ResolveContext:
    sources = Sources(debian=(), indexes=(f"{server.url}simple/",))
    return replace(make_means(tmp_path, sources), patience=3.0)


@pytest.mark.programs
def test_an_index_that_sends_a_byte_now_and_then_ends_uv(server: Attacker, tmp_path: Path) -> None:
    server.answers["/simple/tool/"] = then(ENDLESS.replace(b"application/json", b"text/html"), b" ", 0.1)
    began = time.monotonic()
    with pytest.raises(FetchError, match="reading the package indexes was not done in 3 s"):
        Uv(make_task(make_recipe(tmp_path), make_context(server, tmp_path))).ask(QUESTION)
    assert time.monotonic() - began < 30


@pytest.mark.programs
def test_a_mirror_that_sends_a_byte_now_and_then_ends_apt(server: Attacker, tmp_path: Path) -> None:
    # apt ends what is larger than a Release file may be.
    server.answers["/debian/dists/bookworm/InRelease"] = then(
        ENDLESS.replace(b"000000000000", b"000000"), b" ", 0.1
    )
    (tmp_path / "key.gpg").touch()
    source = AptSource(
        name="debian",
        url=f"{server.url}debian/",
        suite="bookworm",
        components=("main",),
        keyrings=(tmp_path / "key.gpg",),
        hint="x",
    )
    began = time.monotonic()
    task = make_task(make_recipe(tmp_path), make_context(server, tmp_path))
    with pytest.raises(FetchError, match="reading the package lists of bookworm was not done in 3 s"):
        open_suite(task, (source,), tmp_path / "lists")
    assert time.monotonic() - began < 30


@pytest.mark.programs
def test_a_repository_that_sends_a_byte_now_and_then_ends_git(server: Attacker, tmp_path: Path) -> None:
    head = ENDLESS.replace(b"application/json", b"application/x-git-upload-pack-advertisement")
    server.answers["/repository/info/refs"] = then(head, b"0", 0.1)
    runner = make_context(server, tmp_path).runner
    began = time.monotonic()
    with pytest.raises(FetchError, match=r"fetching .* was not done in 2 s"):
        check_out(f"{server.url}repository", "a" * 40, tmp_path / "tree", runner, patience=2.0)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("digest", ["../../../x", "", "ab" * 31, "AB" * 32, "g" * 64])
def test_a_digest_that_is_none_becomes_no_path(server: Attacker, tmp_path: Path, digest: str) -> None:
    """The store has each file under its digest."""
    reader = UvAnswer(question=QUESTION, context=make_context(server, tmp_path), local={})
    with pytest.raises(FetchError, match="sha256"):
        reader.read(answer(f"{server.url}x", digest))


@pytest.mark.parametrize(
    "url", ["file://{}/tool-1.0-py3-none-any.whl", "ftp://127.0.0.1/tool-1.0-py3-none-any.whl"]
)
def test_an_index_locks_no_file_of_this_machine(server: Attacker, tmp_path: Path, url: str) -> None:
    (tmp_path / "tool-1.0-py3-none-any.whl").write_bytes(b"secret")
    reader = UvAnswer(question=QUESTION, context=make_context(server, tmp_path), local={})
    with pytest.raises(FetchError, match="expected an address of HTTP"):
        reader.read(answer(url.format(tmp_path), "ab" * 32))


def answer(url: str, digest: str) -> str:
    """Return an answer of uv, with what an index said."""
    name = "tool-1.0-py3-none-any.whl"
    url = url if url.endswith(name) else f"{url}/{name}"
    return (
        'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "tool"\nversion = "1.0"\n'
        f'wheels = [{{ url = "{url}", hashes = {{ sha256 = "{digest}" }} }}]\n'
    )


def wheel_of(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return out.getvalue()


METADATA = "tool-1.0.dist-info/METADATA"
WHEELS = {
    "nothing": b"",
    "bytes": b"PK\x03\x04" * 100,
    "empty": wheel_of(),
    "two": wheel_of((METADATA, b""), ("x.dist-info/METADATA", b"")),
    "bomb": wheel_of((METADATA, bytes(33 << 20))),
    "method": wheel_of((METADATA, b"x")).replace(b"\x08\x00", b"\x63\x00"),
    "cut": wheel_of((METADATA, bytes(range(256)) * 9))[20:],
}


@pytest.mark.parametrize("content", WHEELS.values(), ids=WHEELS)
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_wheel_that_is_none_is_told(
    server: Attacker, tmp_path: Path, content: bytes, *, is_stored: bool
) -> None:
    wheel = make_wheel(content)
    context = make_context(server, tmp_path)
    if is_stored:
        (tmp_path / "wheel").write_bytes(content)
        context.store.add_artifact(wheel.sha256, tmp_path / "wheel")
    else:
        server.answers["/simple/tool/"] = reply(
            200, b'<a href="/tool-1.0-py3-none-any.whl">tool-1.0-py3-none-any.whl</a>', kind="text/html"
        )
        # Every request gets the whole file, also one for its size, as parts of it.
        server.answers["/tool-1.0-py3-none-any.whl"] = reply(206, content)
    with pytest.raises(FetchError):
        read_requirements(wheel, context)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a": NaN}',
        b'{"release_date": ' + b"9" * 5_000 + b"}",
        b'{"release_date": [2026]}',
        b"\xff",
        b"3",
        b"",
    ],
)
def test_a_manifest_of_the_archive_that_is_none_is_told(text: bytes) -> None:
    with pytest.raises(FetchError, match=r"could not understand the manifest of CUDA 12\.4\.1"):
        parse_manifest("12.4.1", text)


def nested(depth: int) -> object:
    value: object = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "bundle",
    [b"[" * 100_000, b'{"dsseEnvelope": NaN}', b'{"dsseEnvelope": []}', b'{"dsseEnvelope": ' + b"9" * 5_000 + b"}", b"\xff", b"3",
     *(json.dumps({"dsseEnvelope": {"payloadType": nested(depth)}}).encode() for depth in range(700, 980, 40))],
)  # fmt: skip
def test_a_bundle_that_is_none_is_told(bundle: bytes) -> None:
    with pytest.raises(VerifyError, match="is not a signed statement"):
        read_bundle(bundle, "its bundle")
