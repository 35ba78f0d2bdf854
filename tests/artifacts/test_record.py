"""The record of a build: whatever is done to an artifact afterwards, a build does not call it up to date."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.artifacts.outputs import Outputs, Record, load_record
from envbuilder.core.cache import Sha256, sha256_file, sha256_text
from tests.support.damage import flip

MANIFEST, LAYER = sha256_text("manifest"), sha256_text("layer")


@pytest.fixture
def outputs(tmp_path: Path) -> Outputs:
    """Artifacts with their record. What they hold does not matter to it."""
    outputs = Outputs(folder=tmp_path / "out", name="x")
    blobs = outputs.image / "blobs/sha256"
    blobs.mkdir(parents=True)
    (blobs / MANIFEST).write_text("manifest")
    (blobs / LAYER).write_text("layer")
    (outputs.image / "index.json").write_text("index")
    (outputs.image / "oci-layout").write_text("layout")
    outputs.sif.write_text("a SIF")
    record = Record(key="k", manifest=MANIFEST, sif=sha256_file(outputs.sif), sif_size=5, content_size=1)
    record.of_files(outputs).save(outputs.record)
    return outputs


def link_elsewhere(path: Path) -> None:
    path.rename(path.with_suffix(".away"))
    path.symlink_to(path.with_suffix(".away"))


FILES = ("x.sif", "x.oci/index.json", "x.oci/oci-layout", f"x.oci/blobs/sha256/{LAYER}")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "do", [flip, lambda path: os.truncate(path, 0), Path.unlink, lambda path: path.write_text("other"), link_elsewhere]
)  # fmt: skip
def test_a_file_that_changed_is_named(outputs: Outputs, name: str, do: Callable[[Path], object]):
    changes: list[str] = []
    assert load_record(outputs, changes.append) is not None
    do(outputs.folder / name)
    assert load_record(outputs, changes.append) is None
    assert len(changes) == 1
    assert "`x." in changes[0]


def test_the_sif_that_was_written_a_moment_ago_is_not_hashed(
    outputs: Outputs, monkeypatch: pytest.MonkeyPatch
):
    hashed: list[Path] = []

    def note(path: Path) -> Sha256:
        hashed.append(path)
        return sha256_file(path)

    monkeypatch.setattr("envbuilder.artifacts.outputs.sha256_file", note)
    record = Record(key="k", manifest=MANIFEST, sif=sha256_file(outputs.sif), sif_size=5, content_size=1)
    assert record.of_files(outputs).compare(outputs) == record.of_files(outputs)
    assert {path.name for path in hashed} == {"index.json", "oci-layout"}


def test_a_file_that_was_added_to_the_layout_is_named(outputs: Outputs):
    changes: list[str] = []
    (outputs.image / "blobs/sha256" / ("0" * 64)).touch()
    assert load_record(outputs, changes.append) is None
    assert changes == [f"`x.oci/blobs/sha256/{'0' * 64}` was added"]


def test_a_new_hard_link_changes_nothing_and_is_noted(outputs: Outputs, tmp_path: Path):
    before = outputs.record.read_text()
    (tmp_path / "link").hardlink_to(outputs.sif)
    assert load_record(outputs) is not None
    assert outputs.record.read_text() != before
    noted = outputs.record.read_text()
    assert load_record(outputs) is not None
    assert outputs.record.read_text() == noted


@pytest.mark.parametrize("text", ["", "{}", "[]", "null"])
def test_a_record_that_cannot_be_read_is_none(outputs: Outputs, text: str):
    outputs.record.write_text(text)
    assert load_record(outputs) is None


def test_a_record_of_an_older_version_counts_as_absent(outputs: Outputs):
    text = outputs.record.read_text()
    outputs.record.write_text(text[: text.index('"files"')] + '"files": []}')
    assert load_record(outputs) is None
    outputs.record.write_text(text.replace('"sif_size"', '"sif_time"'))
    assert load_record(outputs) is None


def test_a_record_with_a_key_of_another_version_is_none(outputs: Outputs):
    text = outputs.record.read_text()
    outputs.record.write_text(text.replace("{", '{"later": 1,', 1))
    assert load_record(outputs) is None
    outputs.record.write_text(text)
    assert load_record(outputs) is not None
