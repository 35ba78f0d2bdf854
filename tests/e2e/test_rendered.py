"""The rendered text, built from a base that has nothing of envbuilder: the same environment, path by path."""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from tiny import make_tiny
from workbench import ENVBUILDER, NO_ENGINE, ROOT, WITH_ZSTD, Built, as_nobody, build, open_folder, run

from envbuilder.entry import Entry, Kind
from envbuilder.image_reader import read_tree
from envbuilder.rendering import DIFFERS
from envbuilder.verify import BUILDER_ADDS, compare, sif_manifest

pytestmark = pytest.mark.builds
BASE = "envbuilder-e2e-render-base"
INCLUDE = "ca-certificates,curl,python3-pip"  # what fetches; a base without it installs it


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """What stands in for an image of Debian: one with apt."""
    with open_folder() as folder:
        run("mmdebstrap", "--variant=apt", f"--include={INCLUDE}", "bookworm", folder / "base.tar")
        run("docker", "import", folder / "base.tar", BASE)
    yield BASE
    run("docker", "image", "rm", "--force", BASE)


def vendor(recipe: object, place: Path) -> Path:
    """Write all that a lock names, and uv, into `place`: what a text would fetch."""
    uv = f"uv=={metadata.version('uv')}"
    run(ENVBUILDER, "cache", "vendor", recipe, place)
    pip = (ROOT / ".venv/bin/python", "-m", "pip", "download", "--quiet", "--no-deps")
    run(*pip, "--dest", place / "files", uv)
    return place


def test_a_rendered_dockerfile_builds_the_same_environment(cpu: Built, base: str, spacious: Path):
    vendored = vendor("cpu", spacious / "vendored")
    text = run(ENVBUILDER, "render", "cpu", "--as", "dockerfile")
    dockerfile, archive = spacious / "Dockerfile", spacious / "image.tar"
    dockerfile.write_text(text)
    epoch = re.search(r"SOURCE_DATE_EPOCH=(\d+)", text)
    assert epoch
    run(
        "docker", "buildx", "build", "--quiet", "--file", dockerfile, "--network", "none", "--build-arg", f"BASE={base}",
        "--build-arg", f"SOURCE_DATE_EPOCH={epoch[1]}", "--build-context", f"artefacts={vendored / 'files'}",
        "--output", f"type=oci,dest={archive},rewrite-timestamp=true,compression=uncompressed", vendored,
        timeout=1800,
    )  # fmt: skip
    mine, theirs = read_tree(cpu.layout), read_tree(archive)
    need_equal(mine.entries, theirs.entries)
    assert theirs.image.env == mine.image.env
    assert dict(theirs.image.labels) == dict(mine.image.labels)


def test_a_rendered_definition_file_builds_the_same_environment(base: str, spacious: Path):
    """Its steps are those of the Dockerfile; without torch, for Apptainer compresses all of it with one pass of its own."""
    recipe, _ = make_tiny(spacious / "recipe")
    built = build(str(recipe), spacious / "out", env=NO_ENGINE)
    vendored = vendor(recipe, spacious / "vendored")
    definition, archive, sif = spacious / "tiny.def", spacious / "base.tar", spacious / "tiny.sif"
    definition.write_text(run(ENVBUILDER, "render", recipe, "--as", "apptainer"))
    run("docker", "save", "--output", archive, base)
    folders = {"APPTAINER_CACHEDIR": str(spacious / "cache"), "APPTAINER_TMPDIR": str(spacious)}
    run(
        "apptainer", "build", "--fakeroot", *WITH_ZSTD,
        "--bind", f"{vendored / 'files'}:/artefacts:ro", "--bind", f"{vendored}:/context:ro",
        "--build-arg", "BOOTSTRAP=docker-archive", "--build-arg", f"BASE={archive}", sif, definition,
        env=folders, timeout=1800,
    )  # fmt: skip
    # mmdebstrap makes folders for an apt, and this environment has none.
    ignore = (*BUILDER_ADDS, "etc/apt")
    need_equal(read_tree(built.output / "tiny.oci").entries, sif_manifest(sif), ignore=ignore)
    script = "import markupsafe; print(markupsafe.escape('<'))"
    inside = ("apptainer", "exec", "--cleanenv", sif, "python", "-c", script)
    assert run(*as_nobody(*inside), cwd=Path("/")) == "&lt;\n"


def need_equal(mine: tuple[Entry, ...], theirs: tuple[Entry, ...], *, ignore: Collection[str] = ()) -> None:
    """Every path alike but for the documented list, and each path of that list is one that there is."""
    labels = ("build", "render")
    assert (
        compare(
            without_folder_times(mine), without_folder_times(theirs), labels, ignore=ignore, without=DIFFERS
        )
        == ()
    )
    assert DIFFERS.keys() <= {entry.path for entry in mine}


def without_folder_times(entries: tuple[Entry, ...]) -> list[Entry]:
    """A tar of Docker's has no entry for the root itself."""
    return [replace(one, mtime=0) if one.kind is Kind.DIRECTORY else one for one in entries if one.path]
