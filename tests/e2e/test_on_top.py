"""`Dockerfile.extend` and `apptainer/extend.def`: a project of one's own on top of a built environment."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.workbench import NOBODY, NUMBERS, ROOT, WITH_ZSTD, Built, as_nobody, run

pytestmark = pytest.mark.builds


@pytest.fixture
def project(spacious: Path) -> Path:
    folder = spacious / "project"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine/__init__.py").write_text("import torch, fused\nANSWER = 42\n")
    (folder / "numbers_agree.py").write_text(NUMBERS)
    return folder


@pytest.fixture
def image(cpu: Built, project: Path) -> Iterator[str]:
    name = "envbuilder-e2e-on-top"
    options = (
        "--file",
        ROOT / "Dockerfile.extend",
        "--network",
        "none",
        "--build-arg",
        f"ENVIRONMENT={cpu.image}",
    )
    run("docker", "build", *options, "--tag", name, project)
    yield name
    run("docker", "image", "rm", "--force", name)


def test_the_dockerfile_adds_a_project(image: str):
    user = ("--user", f"{NOBODY}:{NOBODY}", "--read-only", "--network", "none")
    assert (
        run("docker", "run", "--rm", *user, image, "python", "-c", "import mine; print(mine.ANSWER)")
        == "42\n"
    )
    assert run("docker", "run", "--rm", *user, image, "python", "numbers_agree.py") == "numbers agree\n"


def test_the_dockerfile_adds_a_small_layer(cpu: Built, image: str):
    def layers(name: str) -> list[str]:
        return run("docker", "image", "inspect", "--format", r'{{join .RootFS.Layers "\n"}}', name).split()

    assert layers(image)[: len(layers(cpu.image))] == layers(cpu.image)


@pytest.mark.release
def test_the_definition_file_adds_a_project(cpu: Built, project: Path, spacious: Path):
    """Apptainer compresses torch again. For every change, the next test does the same with `tiny`."""
    inside = as_nobody("apptainer", "exec", extend(cpu.sif, project, spacious), "python")
    assert run(*inside, "-c", "import mine; print(mine.ANSWER)", cwd=Path("/")) == "42\n"
    assert run(*inside, "/project/numbers_agree.py", cwd=Path("/")) == "numbers agree\n"


def test_the_definition_file_fits_an_environment_without_torch_and_extensions(tiny: Built, spacious: Path):
    (spacious / "project").mkdir()
    (spacious / "project/plain.py").write_text("import filelock\n\nANSWER = 42\n")
    sif = extend(tiny.sif, spacious / "project", spacious)
    say = ("python", "-c", "import plain; print(plain.ANSWER)")
    assert run(*as_nobody("apptainer", "exec", sif, *say), cwd=Path("/")) == "42\n"


def extend(environment: Path, project: Path, folder: Path) -> Path:
    """The SIF that `apptainer/extend.def` makes of both."""
    sif = folder / "mine.sif"
    run(
        "apptainer", "build", "--fakeroot", *WITH_ZSTD,
        "--build-arg", f"ENVIRONMENT={environment}", "--build-arg", f"PROJECT={project}",
        sif, ROOT / "apptainer/extend.def",
        env={"APPTAINER_CACHEDIR": str(folder / "cache"), "APPTAINER_TMPDIR": str(folder)},
    )  # fmt: skip
    return sif
