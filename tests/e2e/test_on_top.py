"""`Dockerfile.extend` and `apptainer/extend.def`: a project of one's own on top of a built environment."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from workbench import NOBODY, NUMBERS, ROOT, WITH_ZSTD, Built, as_nobody, run

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


def test_the_definition_file_adds_a_project(cpu: Built, project: Path, spacious: Path):
    sif = spacious / "mine.sif"
    arguments = ("--build-arg", f"ENVIRONMENT={cpu.sif}", "--build-arg", f"PROJECT={project}")
    folders = {"APPTAINER_CACHEDIR": str(spacious / "cache"), "APPTAINER_TMPDIR": str(spacious)}
    run(
        "apptainer",
        "build",
        "--fakeroot",
        *WITH_ZSTD,
        *arguments,
        sif,
        ROOT / "apptainer/extend.def",
        env=folders,
    )
    inside = as_nobody("apptainer", "exec", sif, "python")
    assert run(*inside, "-c", "import mine; print(mine.ANSWER)", cwd=Path("/")) == "42\n"
    assert run(*inside, "/project/numbers_agree.py", cwd=Path("/")) == "numbers agree\n"
