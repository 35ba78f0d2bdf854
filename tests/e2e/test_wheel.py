"""The wheel alone, as users have it: in an environment of its own, away from the repository, with what it says that it needs."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.workbench import ENVBUILDER, NO_ENGINE, ROOT, Built, attempt, open_folder, run

pytestmark = pytest.mark.builds
UV = ROOT / ".venv/bin/uv"


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """The program, beside a folder of recipes."""
    with open_folder() as folder:
        python, venv = ROOT / ".venv/bin/python", folder / "venv"
        build = (UV, "build", "--wheel", "--offline", "--no-build-isolation")
        run(*build, "--python", python, "--out-dir", folder, ROOT)
        run(UV, "venv", "--python", "/usr/bin/python3", venv)
        (wheel,) = folder.glob("*.whl")
        pins = ("--constraints", ROOT / "requirements.lock")
        run(UV, "pip", "install", "--python", venv, *pins, wheel)
        for path in (ROOT / "recipes").glob("*.yaml"):
            run(venv / "bin/envbuilder", "init", "--example", path.stem, cwd=folder, env={"PYTHONPATH": ""})
        yield venv / "bin/envbuilder"


def call(installed: Path, *words: object, env: Mapping[str, str] | None = None) -> str:
    return run(installed, *words, cwd=installed.parents[2], env={"PYTHONPATH": "", **(env or {})})


def test_it_has_what_its_commands_read(installed: Path, tmp_path: Path):
    still = {"ENVBUILDER_CACHE": str(tmp_path)}  # other tests change the user's cache meanwhile
    assert call(installed, "cache", env=still) == run(ENVBUILDER, "cache", env=still)
    venv = installed.parents[1]
    (package,) = venv.glob("lib/python*/site-packages/envbuilder")
    for words in (
        ("--version",),
        ("list",),
        ("show", "t4"),
        ("check", "a100"),
        ("render", "cpu"),
        ("render", "cpu", "--as", "apptainer"),
        ("build", "cpu", "--dry-run"),
        ("--help",),
    ):
        # A dry run names the programs of the package that it would start.
        ours = (
            run(ENVBUILDER, *words)
            .replace(f"{ROOT}/envbuilder/", "PACKAGE/")
            .replace(f"{ROOT}/.venv/", "VENV/")
        )
        assert (
            call(installed, *words).replace(f"{package}/", "PACKAGE/").replace(f"{venv}/", "VENV/") == ours
        ), words


def test_it_diagnoses_and_looks_at_the_machine(installed: Path):
    log = installed.parents[2] / "train.log"
    log.write_text("RuntimeError: CUDA error: no kernel image is available for execution on the device\n")
    assert "no kernel image" in call(installed, "diagnose", log)
    looked = attempt(installed, "doctor", "--json", cwd=installed.parents[2])
    assert looked.returncode in (0, 8)
    assert json.loads(looked.stdout)["data"]


def test_it_builds_what_the_repository_builds(installed: Path, cpu: Built):
    """The start files, programs and tables in it are the same bytes, else the layers and digests would not be."""
    out = installed.parents[2] / "out"
    answer = json.loads(
        run(installed, "build", "cpu", "--offline", "--output", out, "--json", cwd=installed.parents[2], env=NO_ENGINE)
    )  # fmt: skip
    (data,) = answer["data"]
    assert (data["manifest"], data["sif_sha256"]) == cpu.digests
    for words in (("report", "cpu"), ("launch", "slurm", "cpu", "--smoke", "--write", out / "job.sh")):
        call(installed, *words, "--artifacts", out)
    assert "</html>" in (out / "cpu.html").read_text()
    run("bash", "-n", out / "job.sh")
