"""The tests of a recipe where Apptainer is missing."""

from pathlib import Path

import pytest

from envbuilder.builder.recipe_tests import run_recipe_tests
from envbuilder.recipe.load import load
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import Sources
from tests.support.plans import make_job


@pytest.mark.programs
def test_without_apptainer_the_tests_are_skipped_and_have_no_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "x.yaml").write_text(
        'base: debian/bookworm\npython: "3.11"\ngcc: "12"\nlibxcrypt: "4.4"\npytorch: "2.13.0"\ntests: ["python -V"]\n'
    )
    job = make_job(tmp_path)
    (finding,) = run_recipe_tests(
        load(tmp_path / "x.yaml"),
        tmp_path / "x.sif",
        job,
        fetcher=Fetcher(job.store, Sources, offline=True),
        docker=None,
        image="",
        environment={},
    )
    assert finding.message == "the recipe's tests were not run in the SIF: Apptainer is not installed"
    lines = capsys.readouterr().err.splitlines()
    assert [
        line
        for line in lines
        if line.startswith("- test in the SIF: python -V skipped: Apptainer is not installed")
    ]
    assert not [line for line in lines if line.startswith("✓")]
