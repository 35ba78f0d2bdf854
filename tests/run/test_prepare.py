"""What `launch` reads of a SIF before it writes the script: the versions in it, and its sha256 once."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from envbuilder.artifacts.outputs import Outputs, Record
from envbuilder.core.cache import Sha256
from envbuilder.core.errors import ForeignError, UsageError
from envbuilder.run.environment_pins import probe_pins
from envbuilder.run.launch.job import LaunchJob, LaunchOptions
from envbuilder.run.launch.prepare import prepare
from tests.support.toys import write_recipe_sif

RECIPE = json.dumps({"python": "3.11", "pytorch": "2.13.0", "cuda": "12.4", "gpus": ["a100"]})
SIZE = 4 << 20


@pytest.fixture
def sif(tmp_path: Path) -> Path:
    return write_recipe_sif(tmp_path / "mine.sif", RECIPE, filler=SIZE)


def launch(sif: Path, cache: Path) -> tuple[LaunchJob, int]:
    """Return the job of a SIF without a build record, and the bytes that were read for it."""
    options = LaunchOptions(
        name=str(sif), program=("train.py",), where="slurm", folder=sif.parent, logs=Path("logs"), output=sif.parent,
        grace=1, smoke=False,
    )  # fmt: skip
    before = bytes_read()
    job = prepare(options, {"ENVBUILDER_CACHE": str(cache)})
    return job, bytes_read() - before


def bytes_read() -> int:
    """Return the bytes that this process has read so far, also from the page cache."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def digest(sif: Path) -> str:
    return hashlib.sha256(sif.read_bytes()).hexdigest()


def test_a_sif_without_a_record_is_read_once(sif, tmp_path):
    first, second = launch(sif, tmp_path / "cache"), launch(sif, tmp_path / "cache")
    assert (first[0].environment, first[0].environment.sha256) == (second[0].environment, digest(sif))
    assert first[1] > SIZE > second[1]


def test_a_sif_that_is_not_as_its_build_left_it_is_said(sif, tmp_path, caplog):
    outputs = Outputs(folder=sif.parent, name=sif.stem)
    record = Record(key="k", manifest=Sha256("0" * 64), sif=Sha256(digest(sif)), sif_size=1, content_size=1)
    record.of_files(outputs).save(outputs.record)
    launch(sif, tmp_path / "cache")
    assert "as the last build here left it" not in caplog.text
    with sif.open("r+b") as stream:
        stream.seek(-100, os.SEEK_END)
        stream.write(b"x")
    launch(sif, tmp_path / "cache")
    assert (
        f"`{sif}` is not as the last build here left it: its sha256 is {digest(sif)[:12]}, not {record.sif[:12]}"
        in caplog.text
    )


def test_a_profile_beside_another_site_is_refused_unless_it_is_the_users_own(sif, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.yaml").write_text("sifs: /s\nprojects: /p\n")
    options = LaunchOptions(
        name=str(sif), program=("train.py",), where="ssh", folder=tmp_path, logs=Path("logs"), output=tmp_path, grace=1,
        smoke=False, hosts=("n1",), profile="a.yaml", for_site="b.yaml",
    )  # fmt: skip
    with pytest.raises(UsageError, match="`--for` and `--profile` name two sites"):
        prepare(options, {"ENVBUILDER_CACHE": str(tmp_path / "cache")})
    assert prepare(
        options, {"ENVBUILDER_CACHE": str(tmp_path / "cache"), "ENVBUILDER_SITE": "a.yaml"}
    ).for_site


def test_a_sif_that_changed_is_read_again_also_with_its_old_size_and_time(sif, tmp_path):
    before, times = launch(sif, tmp_path / "cache")[0], sif.stat()
    with sif.open("r+b") as stream:
        stream.seek(-100, os.SEEK_END)
        stream.write(b"changed")
    os.utime(sif, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = launch(sif, tmp_path / "cache")[0]
    assert after.environment.sha256 == digest(sif) != before.environment.sha256


def test_a_damaged_note_of_a_digest_is_not_taken(sif, tmp_path):
    cache = tmp_path / "cache"
    launch(sif, cache)
    (note,) = (cache / "proofs").iterdir()
    note.write_text(note.read_text().replace(digest(sif), "0" * 64))
    assert launch(sif, cache)[0].environment.sha256 == digest(sif)


def test_a_cache_that_cannot_be_used_forbids_no_launch(sif, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert launch(sif, tmp_path / "cache")[0].environment.sha256 == digest(sif)


@pytest.mark.parametrize("recipe", ["", "[]", '{"cuda": ""}', b"\xff"])
def test_a_sif_of_others_is_refused(tmp_path, recipe):
    with pytest.raises(ForeignError, match="was not made by envbuilder"):
        probe_pins(write_recipe_sif(tmp_path / "x.sif", recipe))
