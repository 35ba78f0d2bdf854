"""Artifacts that envbuilder did not write: images of the Docker engine, and SIFs that Apptainer built from them."""

import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard

from envbuilder.artifacts.docker_engine import connect
from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.console import Console
from tests.support.faults import Bench
from tests.support.workbench import ENVBUILDER, Built, attempt, findings, open_folder, run

pytestmark = pytest.mark.builds

NAME = "envbuilder-test/foreign:1"
DOCKERFILE = """\
FROM scratch
COPY root/ /
COPY --chown=3:7 --chmod=4755 changed /opt/one
COPY changed /opt/two
ENV GREETING=hello
"""


@dataclass(frozen=True)
class Foreign:
    """One image, as a name in the engine and as an archive, and what Apptainer made of it."""

    archive: Path
    sif: Path
    context: Path


@pytest.fixture(scope="module")
def foreign() -> Iterator[Foreign]:
    with open_folder() as folder:
        root = folder / "context/root"
        for name in ("bin", "etc", "opt", "tmp"):
            (root / name).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        (root / "opt/one").write_text("one\n")
        (root / "opt/large").write_bytes(bytes(range(256)) * 8192)
        (root / "bin/link").symlink_to("../opt/one")
        (root / "opt/hard").hardlink_to(root / "opt/large")
        (folder / "context/changed").write_text("changed\n")
        (folder / "context/Dockerfile").write_text(DOCKERFILE)
        run("docker", "build", "--quiet", "--tag", NAME, folder / "context")
        run("docker", "save", "--output", folder / "image.tar", NAME)
        run("apptainer", "build", folder / "image.sif", f"docker-archive:{folder / 'image.tar'}")
        yield Foreign(folder / "image.tar", folder / "image.sif", folder / "context")
        run("docker", "image", "rm", "--force", NAME)


@pytest.mark.parametrize("form", ["archive", "name"])
def test_an_image_and_the_sif_that_apptainer_built_of_it_are_equal(foreign: Foreign, form: str):
    image = foreign.archive if form == "archive" else NAME
    answer = json.loads(run(ENVBUILDER, "verify", image, foreign.sif, "--json"))["data"]
    assert answer["paths"] >= 10
    assert ".singularity.d" in answer["passed_over"]
    assert "etc/hosts" in answer["passed_over"]
    assert not [path for path in answer["passed_over"] if path.startswith(("opt", "bin"))]


@pytest.fixture(scope="module")
def changed(foreign: Foreign) -> Path:
    """A SIF of the image with another byte in one file and without another file."""
    sandbox = foreign.sif.with_name("sandbox")
    run("apptainer", "build", "--sandbox", sandbox, foreign.sif)
    with (sandbox / "opt/large").open("r+b") as stream:
        stream.seek(1_000_000)
        stream.write(b"?")
    (sandbox / "opt/two").unlink()
    run("apptainer", "build", foreign.sif.with_name("changed.sif"), sandbox)
    return foreign.sif.with_name("changed.sif")


def test_the_difference_of_an_image_and_a_sif_is_told_in_words_and_as_data(foreign: Foreign, changed: Path):
    answer = json.loads(run(ENVBUILDER, "diff", foreign.archive, changed, "--json"))["data"]
    files = {file["name"]: file for file in answer["files"]}
    assert files["/opt/two"]["after"] is None
    assert "2097152 bytes" in files["/opt/large"]["after"]
    assert [subject["kind"] for subject in answer["subjects"]] == ["image", "sif"]
    text = run(ENVBUILDER, "diff", foreign.sif, changed)
    assert "  -  /opt/two" in text
    assert re.search(r"^  ~  /opt/large +2097152 bytes", text, re.MULTILINE)
    assert "packages: the same" in text


def test_an_image_and_its_sif_differ_in_nothing(tiny: Built):
    said = json.loads(run(ENVBUILDER, "diff", tiny.layout, tiny.sif, "--json"))["data"]
    assert (said["packages"], said["files"], said["environment"], said["nccl"]) == ([], [], [], [])


def test_a_file_that_changed_in_between_is_named(foreign: Foreign, changed: Path):
    ended = attempt(ENVBUILDER, "verify", foreign.archive, changed, "--json")
    assert ended.returncode == 7
    seen = {(finding["where"], finding["code"]) for finding in findings(ended)}
    assert ("/opt/large", "EB703") in seen
    assert ("/opt/two", "EB701") in seen
    assert not [where for where, _ in seen if where.startswith("/.singularity")]


def test_the_image_in_the_engine_is_the_layout_that_was_built(tiny: Built):
    answer = json.loads(run(ENVBUILDER, "verify", tiny.image, tiny.sif, "--json"))["data"]
    assert answer["passed_over"] == []


# What people leave in images, each with a word of its own, and where `verify` finds it.
LEAKY = """\
FROM scratch
COPY --from=tools / /
ARG PIP_TOKEN
RUN true
ENV WANDB_API_KEY=envvalue-0123456789
LABEL build.password=labelvalue-0123456789
COPY netrc /root/.netrc
RUN rm /root/.netrc
RUN : https://reader:historyvalue-0123456789@index.example/simple
"""
LEAKS = {
    "envvalue-0123456789": "the environment's WANDB_API_KEY",
    "labelvalue-0123456789": "the image's config.Labels.build.password",
    "netrcvalue-0123456789": "/root/.netrc of a lower layer",
    "historyvalue-0123456789": ".created_by",
    "argvalue-0123456789": ".created_by",
}


def test_what_a_docker_build_leaves_of_secrets_is_found_and_not_shown(spacious: Path):
    """In the environment, a label, the history, a build argument and a file that a later step removed."""
    for name in ("/bin/sh", "/bin/rm", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"):
        (spacious / f"tools{name}").parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, spacious / f"tools{name}")
    (spacious / "Dockerfile").write_text(LEAKY)
    (spacious / "netrc").write_text("machine index.example login reader password netrcvalue-0123456789\n")
    try:
        run(
            "docker", "buildx", "build", "--quiet", "--load", "--tag", "envbuilder-test/leaky:1", "--build-context",
            f"tools={spacious}/tools", "--build-arg", "PIP_TOKEN=argvalue-0123456789", spacious,
        )  # fmt: skip
        run("docker", "save", "--output", spacious / "image.tar", "envbuilder-test/leaky:1")
        run("apptainer", "build", spacious / "image.sif", f"docker-archive:{spacious / 'image.tar'}")
    finally:
        run("docker", "image", "rm", "--force", "envbuilder-test/leaky:1")
    ended = attempt(ENVBUILDER, "verify", spacious / "image.tar", spacious / "image.sif", "--json")
    assert ended.returncode == 7, ended.stderr
    places = [finding["where"] for finding in findings(ended) if finding["code"] == "EB718"]
    assert places, ended.stdout
    for value, place in LEAKS.items():
        assert any(place in where for where in places), (place, places)
        assert value not in ended.stdout + ended.stderr
    # Of ARG, of ENV or LABEL, and of the last RUN.
    assert sum(".created_by" in where for where in places) >= 3


def test_an_image_whose_layers_are_packed_in_another_way_is_loaded_whole(bench: Bench):
    """The engine has the same layers under other digests, as of an older envbuilder: these must not be left out."""
    name, engine = "envbuilder-test/packed:1", connect(os.environ)
    assert engine is not None
    with open_folder() as folder:
        layouts = (bench.output / "tiny.oci", folder / "other.oci")
        shutil.copytree(*layouts)
        repack(layouts[1])
        try:
            for layout in layouts:
                engine.load(read_layout(layout), name=name, console=Console(quiet=True))
                run("docker", "save", "--output", folder / "saved.tar", name)
                with tarfile.open(folder / "saved.tar") as tar:
                    saved = set(tar.getnames())
                assert {f"blobs/sha256/{blob.name}" for blob in (layout / "blobs/sha256").iterdir()} <= saved
        finally:
            run("docker", "image", "rm", "--force", name)


def test_the_part_that_a_failed_build_left_goes_also_where_the_whole_image_is_there(bench: Bench):
    """As when the edit that did not compile was taken back."""
    outputs = Outputs(folder=bench.output, name="tiny")
    layout, engine = read_layout(outputs.image), connect(os.environ, "1")
    part = outputs.image_name.replace(":latest", ":part-1")
    assert engine is not None
    engine.load(layout, name=outputs.image_name, console=Console(quiet=True))
    run("docker", "tag", outputs.image_name, part)
    try:
        engine.load(layout, name=outputs.image_name, console=Console(quiet=True))
        assert run("docker", "images", "--quiet", part) == ""
    finally:
        attempt("docker", "image", "rm", part)


def repack(layout: Path) -> None:
    """Compress the layers of an OCI layout in another way."""
    blobs, index = layout / "blobs/sha256", json.loads((layout / "index.json").read_text())

    def replace(descriptor: dict[str, object], content: bytes) -> None:
        (blobs / str(descriptor["digest"]).removeprefix("sha256:")).unlink()
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        descriptor |= {"digest": f"sha256:{digest}", "size": len(content)}

    (described,) = index["manifests"]
    manifest = json.loads((blobs / described["digest"].removeprefix("sha256:")).read_text())
    for layer in manifest["layers"]:
        with (blobs / layer["digest"].removeprefix("sha256:")).open("rb") as stream:
            content = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True).read()
        replace(layer, zstandard.ZstdCompressor(level=1).compress(content))
    replace(described, json.dumps(manifest).encode())
    (layout / "index.json").write_text(json.dumps(index))
