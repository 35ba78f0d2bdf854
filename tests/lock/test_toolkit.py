"""Where a toolkit comes from: the manifests of NVIDIA's archive, and the choice among the sources."""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from envbuilder.compat.tables.toolkit import load_toolkits
from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.core.processor import AARCH64, X86_64
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import LockOptions, ResolveContext
from envbuilder.lock.resolve.toolkit import locked_toolkit, parse_manifest, resolve_toolkit, without_headers
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import CUDA, Sources
from tests.support.locks import make_artifact, make_parts, make_recipe, make_task, no_client
from tests.support.redist import write_small
from tests.support.runner import FakeRunner

DAY = date(2026, 11, 23)
OPTIONS = LockOptions(today=DAY)
# Manifests in the shape of NVIDIA's: of 11.4, of 12.4, and of 13.3, whose CCCL has another name.
OLD = {
    "release_date": "2022-02-01",
    "cuda_cccl": {
        "name": "CXX Core Compute Libraries", "license": "CUDA Toolkit", "version": "11.4.122",
        "linux-x86_64": {
            "relative_path": "cuda_cccl/linux-x86_64/cuda_cccl-linux-x86_64-11.4.122-archive.tar.xz",
            "sha256": "1" * 64, "md5": "2" * 32, "size": "951832",
        },
        "linux-ppc64le": {"relative_path": "cuda_cccl/x.tar.xz", "sha256": "3" * 64, "md5": "4" * 32, "size": "1"},
        "windows-x86_64": {"relative_path": "cuda_cccl/x.zip", "sha256": "5" * 64, "md5": "6" * 32, "size": "2"},
    },
    "cuda_nsight": {"name": "Nsight", "license": "CUDA Toolkit", "version": "11.4.120", "linux-ppc64le": {}},
}  # fmt: skip
MIDDLE = {
    "release_date": "2024-04-02", "release_label": "12.4.1", "release_product": "cuda",
    "cuda_nvcc": {
        "name": "CUDA NVCC", "license": "CUDA Toolkit", "license_path": "cuda_nvcc/LICENSE.txt", "version": "12.4.131",
        "linux-x86_64": {"relative_path": "cuda_nvcc/linux-x86_64/a.tar.xz", "sha256": "7" * 64, "md5": "8" * 32, "size": "44500000"},
        "linux-sbsa": {"relative_path": "cuda_nvcc/linux-sbsa/a.tar.xz", "sha256": "9" * 64, "md5": "a" * 32, "size": "40000000"},
        "linux-aarch64": {"relative_path": "cuda_nvcc/linux-aarch64/a.tar.xz", "sha256": "b" * 64, "md5": "c" * 32, "size": "3"},
    },
}  # fmt: skip
NEW = {
    "release_date": "2026-05-20", "release_label": "13.3.0", "release_product": "cuda",
    "cccl": {
        "name": "CXX Core Compute Libraries", "license": "CUDA Toolkit", "license_path": "cccl/LICENSE.txt",
        "version": "13.3.3.3.1",
        "linux-x86_64": {"relative_path": "cccl/linux-x86_64/a.tar.xz", "sha256": "d" * 64, "md5": "e" * 32, "size": "991284"},
    },
}  # fmt: skip


def parse(release: str, content: object) -> Mapping[str, Artifact]:
    manifest = parse_manifest(release, json.dumps(content).encode())
    return {
        name: manifest.component(name, X86_64)
        for name in ("cuda_cccl", "cuda_nvcc", "cccl")
        if name in manifest.content
    }


def test_a_component_is_named_by_path_digest_and_size() -> None:
    assert parse("11.4.4", OLD)["cuda_cccl"] == Artifact(
        kind="archive", name="cuda_cccl", version="11.4.122", sha256="1" * 64, size=951832, source=CUDA,
        path="cuda_cccl/linux-x86_64/cuda_cccl-linux-x86_64-11.4.122-archive.tar.xz",
    )  # fmt: skip
    assert parse("12.4.1", MIDDLE)["cuda_nvcc"].version == "12.4.131"
    assert parse("13.3.0", NEW)["cccl"].version == "13.3.3.3.1"


def test_an_arm_server_s_file_is_another_one() -> None:
    manifest = parse_manifest("12.4.1", json.dumps(MIDDLE).encode())
    assert manifest.component("cuda_nvcc", AARCH64).sha256 == "9" * 64
    assert manifest.released == "2024-04-02"


@pytest.mark.parametrize("name", ["cuda_nsight", "libnvvm", "release_date"])
def test_a_component_that_is_not_there_for_this_platform_is_named(name: str) -> None:
    with pytest.raises(
        IncompatibleError, match=f"the manifest of CUDA 11.4.4 has no `{name}` for linux-x86_64"
    ):
        parse_manifest("11.4.4", json.dumps(OLD).encode()).component(name, X86_64)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"relative_path": "../../etc/passwd"}, "relative_path"),
        ({"relative_path": "/etc/passwd"}, "relative_path"),
        ({"sha256": "0"}, "sha256"),
        ({"size": "large"}, "size"),
        ({"size": "-1"}, "size"),
    ],
)
def test_a_wrong_value_of_a_component_is_named(change: dict[str, str], place: str) -> None:
    entry = MIDDLE["cuda_nvcc"]
    assert isinstance(entry, dict)
    wrong = {"cuda_nvcc": entry | {"linux-x86_64": entry["linux-x86_64"] | change}}
    with pytest.raises(FetchError, match=f"`cuda_nvcc` has a wrong `{place}`"):
        parse("12.4.1", wrong)


@pytest.mark.parametrize("text", [b"<html>", b"[]", b""])
def test_what_is_no_manifest_is_said(text: bytes) -> None:
    with pytest.raises(FetchError, match=r"could not understand the manifest of CUDA 12\.4\.1"):
        parse_manifest("12.4.1", text)


# The choice among the sources.


def make_context(tmp_path: Path, folder: Path | None) -> ResolveContext:
    """Sources on disk: an archive or none, an empty package index, and no Debian mirror."""
    (tmp_path / "index").mkdir(exist_ok=True)
    sources = Sources(
        debian=(),
        indexes=((tmp_path / "index").as_uri() + "/",),
        cuda=folder.as_uri() + "/" if folder else "",
    )
    store = Store(tmp_path / "cache")
    return ResolveContext(
        store=store, runner=FakeRunner(), sources=lambda: sources, client=no_client,
        fetcher=Fetcher(store, lambda: sources), transfer=Console(quiet=True).step,
    )  # fmt: skip


def resolve(
    tmp_path: Path,
    cuda: str,
    folder: Path | None,
    *,
    old: tuple[Artifact, ...] = (),
    options: LockOptions = OPTIONS,
) -> tuple[Artifact, ...]:
    recipe = make_recipe(tmp_path, cuda=cuda, gpus=("A100",), pytorch="2.6.0")
    return resolve_toolkit(make_task(recipe, make_context(tmp_path, folder), options), old)


def versions(parts: tuple[Artifact, ...]) -> set[str]:
    return {part.version for part in parts}


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No digest of a manifest is known, so that a test's own may be of any release."""
    table = load_toolkits()
    rows = tuple(replace(row, manifests={}) for row in table.rows)
    monkeypatch.setattr("envbuilder.lock.resolve.toolkit.load_toolkits", lambda: replace(table, rows=rows))


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize(
    ("cuda", "there", "chosen"),
    [
        ("12.4", ("12.4.0", "12.4.1"), "12.4.1"),
        ("12.4.0", ("12.4.0", "12.4.1"), "12.4.0"),
        ("12.4", ("12.4.0",), "12.4.0"),
        ("12.4", ("12.4.0", "12.4.1", "12.4.2", "12.4.4"), "12.4.4"),  # 12.4.3 was never released
        ("13.9", ("13.9.1",), "13.9.1"),  # of a minor version that the table does not know
    ],
)
def test_a_minor_version_means_its_newest_release_in_the_archive(
    tmp_path: Path, cuda: str, there: tuple[str, ...], chosen: str
) -> None:
    parts = resolve(tmp_path, cuda, write_small(tmp_path / "redist", *there))
    assert versions(parts) == {chosen}
    assert [part.name for part in parts] == sorted(part.name for part in parts)


@pytest.mark.usefixtures("unknown")
def test_a_release_of_a_later_day_is_not_taken(tmp_path: Path) -> None:
    folder = write_small(tmp_path / "redist", "12.4.0", released="2024-03-05")
    write_small(folder, "12.4.1", released="2024-04-02")
    options = replace(OPTIONS, before=date(2024, 3, 31))
    assert versions(resolve(tmp_path, "12.4", folder, options=options)) == {"12.4.0"}


@pytest.mark.usefixtures("unknown")
def test_what_was_locked_can_be_fetched(tmp_path: Path) -> None:
    folder = write_small(tmp_path / "redist", "12.4.1")
    parts = resolve(tmp_path, "12.4.1", folder)
    context = make_context(tmp_path, folder)
    context.fetcher.fetch(parts)
    assert not context.fetcher.missing(parts)


def test_a_manifest_of_another_digest_than_the_known_one_is_refused(tmp_path: Path) -> None:
    folder = write_small(tmp_path / "redist", "12.6.3")
    digest = hashlib.sha256((folder / "redistrib_12.6.3.json").read_bytes()).hexdigest()
    with pytest.raises(IncompatibleError, match=f"its sha256 is {digest}, expected 9c598598457a"):
        resolve(tmp_path, "12.6.3", folder)


def test_a_manifest_whose_digest_is_not_known_is_taken_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        resolve(tmp_path, "13.4.2", write_small(tmp_path / "redist", "13.4.2"))
    assert "the digest of the manifest of CUDA 13.4.2 is not known" in caplog.text


@pytest.mark.usefixtures("unknown")
def test_the_source_of_the_old_lock_is_asked_first_and_that_it_was_in_vain_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_small(tmp_path / "redist", "12.4.1")
    with caplog.at_level(logging.WARNING):
        parts = resolve(tmp_path, "12.4", folder, old=make_parts("12.4"))
    assert {part.kind for part in parts} == {"archive"}
    assert "CUDA 12.4 comes from NVIDIA's archive: no mirror of Debian is known" in caplog.text


def test_what_each_source_has_is_said_if_none_has_the_release(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleError) as caught:
        resolve(tmp_path, "12.6", None)
    lines = caught.value.message.splitlines()
    assert "no source of this machine gives CUDA 12.6" in lines[0]
    assert re.fullmatch(
        r"  NVIDIA's archive has 11\.4 to 13\.\d+: switched off, because .* is empty", lines[1]
    )
    assert re.fullmatch(r"  the package index has 13\.0 to 13\.\d+: no 12\.6", lines[2])
    assert lines[3] == "  Debian has 11.2, 11.8 and 12.4: no 12.6"
    assert "ENVBUILDER_CUDA_REDIST names" in caught.value.hint
    assert '`cuda: "12.4"`' in caught.value.hint


HEADERS = {"cuda_nvrtc", "libcublas", "libcufft", "libcurand", "libcusolver", "libcusparse"}


@pytest.mark.parametrize(
    ("wheels", "missing"),
    [
        (("torch",), HEADERS),
        # torch 1.13 has the other libraries inside.
        (("nvidia-cublas-cu11", "nvidia-cuda-nvrtc-cu11"), HEADERS - {"libcublas", "cuda_nvrtc"}),
        (
            ("nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-cufft", "nvidia-curand", "nvidia-cusolver", "nvidia-cusparselt-cu13"),
            {"libcusparse"},
        ),
    ],
)  # fmt: skip
def test_components_for_headers_alone_go_with_wheels_that_have_none(
    tmp_path: Path, wheels: tuple[str, ...], missing: set[str]
) -> None:
    recipe = make_recipe(tmp_path, cuda="11.8", gpus=("A100",), pytorch="2.1.2")
    whole = resolve(tmp_path, "11.8.9", write_small(tmp_path / "redist", "11.8.9"))
    artifacts = tuple(map(make_artifact, wheels))
    fitting = without_headers(recipe, whole, artifacts)
    assert fitting
    assert {part.name for part in fitting} & HEADERS == missing
    assert {part.name for part in whole} - {part.name for part in fitting} == HEADERS - missing
    toolkit = locked_toolkit(recipe, fitting)
    assert toolkit
    assert {part.name for part in toolkit.parts} == {part.name for part in fitting}


def test_headers_that_wheels_no_longer_bring_have_to_be_resolved(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, cuda="11.8", gpus=("A100",), pytorch="2.1.2")
    whole = resolve(tmp_path, "11.8.9", write_small(tmp_path / "redist", "11.8.9"))
    lean = tuple(part for part in whole if part.name not in HEADERS)
    assert without_headers(recipe, lean, (make_artifact("torch"),)) is None
    debs = make_parts("11.8")
    assert without_headers(recipe, debs, (make_artifact("torch"),)) == debs  # Debian's have all headers
