"""The corpus: recipes that are sound or broken in one way. All broken ones are refused, and what is suggested works."""

import json
import re
import sys
from pathlib import Path

import pytest

from envbuilder.compat.check import CheckReport, examine
from envbuilder.compat.host_file import load_host_facts
from envbuilder.core.findings import Severity
from envbuilder.recipe.load import load

sys.path.insert(0, str(Path(__file__).parent / "corpus"))
from generate import HERE, TABLES, Sample, generated, written

WRITTEN = tuple(written())
GENERATED = tuple(generated())
SAMPLES = (*WRITTEN, *GENERATED)
BROKEN = [sample for sample in SAMPLES if not sample.is_sound]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where recipes find the sources that they name."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "src").mkdir()
    for source in (HERE / "src").iterdir():
        (folder / "src" / source.name).write_bytes(source.read_bytes())
    return folder


def report(sample: Sample, folder: Path, changes: dict[str, object] | None = None) -> CheckReport:
    path = folder / f"{sample.name}.yaml"
    path.write_text(rewritten(sample.text, changes) if changes else sample.text)
    host = load_host_facts(HERE / sample.host) if sample.host else None
    return examine(load(path), TABLES, host)


def rewritten(text: str, changes: dict[str, object]) -> str:
    """The recipe as a person who follows the hint would write it; JSON is YAML."""
    for key, value in changes.items():
        written = json.dumps(value)
        inner = re.fullmatch(r"extensions\[0\]\.(\w+)", key)
        if inner:
            text = re.sub(rf'("{inner[1]}": )\[[^\]]*\]', rf"\g<1>{written}", text)
        else:
            text = re.sub(rf"^{key}:.*\n", "", text, flags=re.MULTILINE) + f"{key}: {written}\n"
    return text


def test_the_corpus_is_large_enough_and_its_names_are_unique():
    names = [sample.name for sample in SAMPLES]
    assert len(names) == len(set(names))
    assert len(WRITTEN) >= 60
    assert len(BROKEN) >= 120
    assert len(SAMPLES) - len(BROKEN) >= 60


def test_every_error_code_is_met_by_a_written_recipe_or_is_unreachable():
    due = {code for sample in WRITTEN for code in sample.codes}
    warnings = {"EB307", "EB310", "EB314", "EB326", "EB333", "EB334", "EB336", "EB337"}
    # Every compiler and C library of a suite that can be built on is new enough.
    unreachable = {"EB316", "EB325", "EB327"}
    every = {f"EB{number}" for number in range(301, 338)}
    assert every - due == warnings | unreachable


@pytest.mark.parametrize(
    "sample", [sample for sample in SAMPLES if sample.is_sound], ids=lambda sample: sample.name
)
def test_what_is_sound_is_not_refused(sample: Sample, folder: Path):
    found = report(sample, folder)
    assert [one for one in found.findings if one.severity is Severity.ERROR] == []


@pytest.mark.parametrize("sample", BROKEN, ids=lambda sample: sample.name)
def test_what_is_broken_is_refused_for_its_reason_and_the_hint_repairs_it(sample: Sample, folder: Path):
    found = report(sample, folder)
    codes = {one.code for one in found.findings if one.severity is Severity.ERROR}
    if sample in WRITTEN:
        assert codes == set(sample.codes)
    assert set(sample.codes) <= codes
    assert bool(found.repairs) == sample.has_repair
    errors = [one for one in found.findings if one.severity is Severity.ERROR]
    for one in errors:
        assert one.where.startswith(str(folder))
        assert one.message.startswith("$.")
        assert one.hint
    for repair in found.repairs:
        assert any(repair.words() in one.hint for one in errors)
        assert not report(sample, folder, repair.data()).has_errors, repair.words()
