"""Versions of a SIF: kept, listed, switched by one rename, and never taken from a running job."""

import hashlib
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from envbuilder.artifacts import history
from tests.support import command_line
from tests.support.command_line import Call

call = command_line.call


def put(folder: Path, content: bytes, keep: int, time: int) -> Path:
    """Install a new version of `toy.sif`, made at that second."""
    new, sif = folder / "new", folder / "toy.sif"
    new.write_bytes(content)
    os.utime(new, (time, time))
    history.install(new, sif, hashlib.sha256(content).hexdigest(), keep)
    return sif


def kept(sif: Path) -> list[tuple[bytes, bool]]:
    return [(history.path_of(sif, one.version).read_bytes(), one.current) for one in history.versions(sif)]


def test_the_last_versions_are_kept_the_newest_first(tmp_path: Path):
    for number in range(5):
        sif = put(tmp_path, b"%d" % number, 3, 1000 + number)
    assert sif.read_bytes() == b"4"
    assert kept(sif) == [(b"4", True), (b"3", False), (b"2", False)]
    assert len(list(tmp_path.iterdir())) == 4


def test_without_the_setting_nothing_is_kept_and_nothing_is_lost(tmp_path: Path):
    sif = put(tmp_path, b"0", 1, 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["toy.sif"]
    put(tmp_path, b"1", 2, 1001)
    assert kept(sif) == [(b"1", True), (b"0", False)]  # the file from before the setting too
    put(tmp_path, b"2", 1, 1002)
    assert kept(sif) == [(b"1", False), (b"0", False)]


def test_the_same_bytes_are_one_version(tmp_path: Path):
    put(tmp_path, b"same", 3, 1000)
    sif = put(tmp_path, b"same", 3, 1001)
    assert kept(sif) == [(b"same", True)]


def test_other_names_and_links_are_no_versions(tmp_path: Path):
    sif = put(tmp_path, b"0", 3, 1000)
    (tmp_path / ".toy.tiny.0123456789abcdef.sif").write_bytes(b"of another name")
    (tmp_path / ".toy.0123456789abcdef.sif").symlink_to("toy.sif")
    assert kept(sif) == [(b"0", True)]


def test_a_file_system_without_hard_links_has_the_current_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise OSError(95, "no hard links")

    monkeypatch.setattr(os, "link", refuse)
    put(tmp_path, b"0", 3, 1000)
    assert put(tmp_path, b"1", 3, 1001).read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["toy.sif"]


def test_a_switch_never_leaves_the_name_without_a_whole_file_and_jobs_keep_theirs(tmp_path: Path):
    contents = [bytes([number]) * 500_000 for number in range(2)]
    for number, content in enumerate(contents):
        sif = put(tmp_path, content, 3, 1000 + number)
    found, wrong, done = history.versions(sif), [], threading.Event()

    def read() -> None:
        while not done.is_set():
            with sif.open("rb") as stream:
                head = stream.read(100_000)
                if head + stream.read() not in contents:
                    wrong.append(head[:1])

    jobs = [threading.Thread(target=read) for _ in range(4)]
    with sif.open("rb") as running:
        for job in jobs:
            job.start()
        for number in range(200):
            history.switch(sif, found[number % 2])
        history.prune(sif, 1)
        done.set()
        for job in jobs:
            job.join()
        assert running.read() == contents[1]
    assert wrong == []
    assert len(list(tmp_path.iterdir())) == 2


def test_a_copy_of_a_kept_version_is_rolled_back_from_that_version(call: Call, tmp_path: Path):
    for number in range(3):
        sif = put(tmp_path, b"%d" % number, 3, 1_700_000_000 + number)
    kept_version = history.versions(sif)[1].version
    sif.unlink()
    shutil.copy2(history.path_of(sif, kept_version), sif)
    assert call("history", sif, "--rollback").code == 0
    assert sif.read_bytes() == b"0"


def test_history_lists_switches_rolls_back_and_prunes(call: Call, tmp_path: Path):
    for number in range(3):
        sif = put(tmp_path, b"%d" % number, 3, 1_700_000_000 + number)

    def ask(*options: str) -> list[tuple[str, bool]]:
        answer = json.loads(call("history", "toy", "--artifacts", str(tmp_path), "--json", *options).out)[
            "data"
        ]
        return [(one["version"], one["current"]) for one in answer["versions"]]

    names = [hashlib.sha256(b"%d" % number).hexdigest()[:16] for number in (2, 1, 0)]
    assert ask() == list(zip(names, (True, False, False), strict=True))
    lines = [line.split() for line in call("history", sif).out.splitlines()]
    assert lines[1] == ["*", names[0], "2023-11-14", "22:13", "UTC", "0.00", "GB"]
    assert lines[2][0] == names[1]
    assert ask("--rollback") == list(zip(names, (False, True, False), strict=True))
    assert sif.read_bytes() == b"1"
    ask("--rollback")
    assert sif.read_bytes() == b"0"
    last = call("history", "toy", "--artifacts", str(tmp_path), "--rollback")
    assert (last.code, "no version before the current one" in last.err) == (2, True)
    ask("--switch", names[0][:6])
    assert sif.read_bytes() == b"2"
    assert ask("--prune", "1") == [(names[0], True)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--switch", "zz"), "no version begins with `zz`"),
        (("--switch", ""), ""),
        (("--rollback", "--prune", "1"), "exclude each other"),
    ],
)
def test_what_history_cannot_do_is_wrong_use(call: Call, tmp_path: Path, options: tuple[str, ...], said: str):
    put(tmp_path, b"0", 2, 1000)
    answer = call("history", "toy", "--artifacts", str(tmp_path), *options)
    assert answer.code == (2 if said else 0)
    assert said in answer.err


@pytest.mark.parametrize("word", ["switch", "rollback", "prune"])
def test_the_words_of_other_programs_lead_to_history(call: Call, word: str):
    assert "did you mean `history`?" in call(word, "a100").err


def test_a_setting_that_is_no_number_is_wrong_use(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ENVBUILDER_VERSIONS", "many")
    answer = call("pull", "127.0.0.1:9/team/toy", "--output", str(tmp_path))
    assert (answer.code, "ENVBUILDER_VERSIONS is `many`" in answer.err) == (2, True)
