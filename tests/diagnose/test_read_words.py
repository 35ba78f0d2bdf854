"""`scripts/read_words`: which releases were read, what was found in them, and how it reads."""

import io
import re
import struct
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from envbuilder.compat.tables.torch import load_torches
from envbuilder.sources.fetch.source_client import Index
from envbuilder.sources.names import Sources
from scripts import read_words
from scripts.read_words import Judge, Program
from tests.support import wheel_index
from tests.support.wheel_index import Site, zipped

site = wheel_index.site
READING, SOURCES, WORDS = (
    yaml.safe_load((read_words.TABLES / name).read_text())
    for name in ("reading.yaml", "sources.yaml", "words.yaml")
)
READ = [(row["program"], Version(row["version"])) for row in WORDS["releases"]]
RUN = "run `.venv/bin/python -m scripts.read_words`"
PYTHON = """
class StoreTimeout(TimeoutError): ...
def meet(store, rank):
    message = "rank " + f"{rank} waits for the store"
    logger.warning("lost the connection to %s", store)
    logger.info("all is well")
    raise StoreTimeout(f"rank {rank} timed out"
        " in the rendezvous") from None
"""
MEANT = [
    "StoreTimeout",
    "StoreTimeout: rank {rank} timed out in the rendezvous",
    "lost the connection to %s",
    "rank {rank} waits for the store",
]


def a_library() -> bytes:
    """The C library of this process."""
    maps = Path("/proc/self/maps").read_text()
    found = re.search(r"(\S+/libc(?:\.so\.6|[-.][\d.]*\.?so.*))$", maps, re.MULTILINE)
    assert found
    return Path(found[1]).read_bytes()


@pytest.mark.parametrize("row", load_torches().rows, ids=lambda row: row.version)
def test_the_words_of_every_torch_in_the_tables_are_read(row):
    """The last patch of each minor version stands for all of them."""
    version = Version(row.version)
    read = [one for name, one in READ if name == "PyTorch" and one.release[:2] == version.release[:2]]
    assert version < Version("2.0") or max(read, default=Version("0")) >= version, RUN


@pytest.mark.parametrize("nccl", sorted({row.nccl for row in load_torches().rows if row.nccl}))
def test_the_words_of_every_nccl_in_the_tables_are_read(nccl: str):
    assert ("NCCL", Version(nccl)) in READ, RUN


def test_every_message_of_every_release_is_known_or_has_a_reason():
    assert [row for row in WORDS["releases"] if row["unknown"]] == []


def test_every_program_was_read():
    assert {name for name, _ in READ} == {row["name"] for row in READING["programs"]}


def test_what_is_gone_is_a_string_of_the_sources():
    strings = {
        (one["name"], row["code"], row["says"]) for one in SOURCES["programs"] for row in one["strings"]
    }
    assert [row for row in WORDS["gone"] if (row["program"], row["code"], row["says"]) not in strings] == []


def test_python_tells_what_it_raises_warns_of_and_keeps():
    assert sorted(read_words.python_strings(PYTHON.encode())) == MEANT


def test_python_of_a_newer_version_has_no_words():
    assert read_words.python_strings(b"print(f'{\n") == set()


def test_a_library_tells_its_constants():
    assert "Address already in use" in read_words.library_strings(io.BytesIO(a_library()))


def test_a_library_is_read_up_to_its_code_for_gpus():
    library = a_library()
    place = library.index(b"\0Address already in use\0")
    begun = library[: place + 1] + b"\x50\xed\x55\xba" + struct.pack("<HH", 1, 16) + library[place + 9 :]
    assert "Address already in use" not in read_words.library_strings(io.BytesIO(begun))
    assert read_words.library_strings(io.BytesIO(begun)) < read_words.library_strings(io.BytesIO(library))


def test_a_wheel_is_read_once_and_only_where_words_are(site: Site, tmp_path: Path):
    members = {
        "x/store.py": PYTHON,
        "x/other.py": PYTHON,
        "x/lib/libx.so": a_library(),
        "x/data.bin": bytes(5 << 20),
    }
    for version in ("1.0.0", "1.0.2", "1.1.0", "1.2.0rc1"):
        site.put("x", f"x-{version}-py3-none-any.whl", zipped(members))
    program = Program(name="X", packages=["x"], since="1.0", python="x/store.py", libraries=["lib/libx.so"])
    index = Index(Sources(debian=(), indexes=(site.url,)))
    files = read_words.releases(program, index.files("x"), {"1.0.0"})
    assert list(map(str, files)) == ["1.0.0", "1.0.2", "1.1.0"]
    words = read_words.read(program, files[Version("1.1.0")], index, tmp_path)
    assert words["x/store.py"] == MEANT
    assert "Address already in use" in words["x/lib/libx.so"]
    site.files.clear()
    assert read_words.read(program, files[Version("1.1.0")], index, tmp_path) == words
    assert set(words) == {"x/store.py", "x/lib/libx.so"}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}) ran for {} ms", "matched"),
        ("The server socket has failed to bind to {} {}.", "matched"),
        ("ValueError: this process group has no store", "quoted"),
        ("The no-delay option cannot be enabled for the client socket. err={}", "silent"),
        ("the store has forgotten the rank", "unknown"),
    ],
)
def test_a_message_gets_the_verdict_of_the_catalogue(text: str, verdict: str):
    torch = next(Program(**row) for row in READING["programs"] if row["name"] == "PyTorch")
    assert Judge(READING, SOURCES).verdict(torch, text) == verdict


def test_a_warning_of_nccl_is_quoted():
    nccl = next(Program(**row) for row in READING["programs"] if row["name"] == "NCCL")
    assert Judge(READING, SOURCES).verdict(nccl, "a transport failed in a new way") == "quoted"


def test_only_messages_of_failure_about_its_subjects_are_kept():
    program = Program(name="X", packages=["x"], since="1.0", mixed=True)
    words = {
        "a.py": ["could not reach the rendezvous", "reached the rendezvous", "could not read a page"],
        "b.so": ["could not reach the other rank"],
    }
    assert Judge(READING, SOURCES).messages(program, words) == {"could not reach the rendezvous": "a.py"}
