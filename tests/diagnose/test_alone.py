"""`diagnose` without the rest of envbuilder: the same answers, with Python's standard library alone."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder import cli
from envbuilder.diagnose import as_text, diagnose
from tests.support.excerpts import TEXTS, alone, answers_alone


@pytest.mark.programs
def test_every_log_has_the_same_answer_without_a_package(tmp_path: Path):
    ours = [as_text(diagnose(["-"], io.BytesIO(text))) for text in TEXTS]
    assert answers_alone(alone(tmp_path), sys.executable) == ours


@pytest.mark.programs
@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize("name", ["{}/a.log", "{}", "-", "{}/no.log", "{}/empty", ""])
def test_the_program_answers_and_ends_as_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
):
    log = b"pulled with HF_TOKEN=hf_0123456789abcdefghij\nRuntimeError: CUDA error: out of memory \x1b]0;x\x07\n"
    folder = tmp_path / "logs"
    (folder / "empty").mkdir(parents=True)
    (folder / "a.log").write_bytes(log)
    words = [name.format(folder)] if name else []
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "envbuilder.diagnose", *words],
        cwd=alone(tmp_path / "copy"), input=log, capture_output=True, check=False,
    )  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(log)))
    code = cli.run(["diagnose", *words])
    out, err = capsys.readouterr()
    assert (ended.returncode, ended.stdout.decode()) == (code, out)
    assert ended.stderr.decode() == err or not words  # how it is called differs


def test_the_ends_of_logs_are_read_with_the_numbers_of_their_lines(tmp_path: Path):
    """So that the answer at the end of a job comes in time, whatever the job wrote."""
    end = b"Traceback (most recent call last):\n  ...\nKeyError: 'x'\n"
    (tmp_path / "a.log").write_bytes(
        b"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n" + b"step\n" * 99_997 + end
    )
    for most, cause in ((0, "Xid"), (1 << 17, f"a.log:{100_001}: KeyError: 'x'\n")):
        text = as_text(diagnose([str(tmp_path)], io.BytesIO(), most))
        assert cause in text.partition("known by")[0]
