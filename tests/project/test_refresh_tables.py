"""`scripts/refresh_tables` against an index on this machine with tiny wheels: it is idempotent and never drops what it knows."""

import hashlib
import io
import shutil
import zipfile
from datetime import date
from pathlib import Path

import pytest

from envbuilder.compat.tables.cuda import Cuda, load_cudas
from envbuilder.compat.tables.distribution import load_standalones
from envbuilder.compat.tables.table import TABLES
from envbuilder.compat.tables.toolkit import ToolkitLayout, load_toolkits
from envbuilder.compat.tables.torch import Torch, load_torches
from envbuilder.core.errors import FetchError
from envbuilder.core.processor import AARCH64, X86_64
from envbuilder.sources.fetch.source_client import BLOCK, Index
from envbuilder.sources.names import Sources
from scripts.refresh_tables import __main__ as script
from scripts.refresh_tables import cuda, refresh, standalone, toolkits, torch
from scripts.refresh_tables.rows import Changes, parse_rows
from tests.support import wheel_index
from tests.support.runner import FakeRunner
from tests.support.wheel_index import (
    ALL_H,
    DAY,
    NVCC,
    PTXAS,
    Site,
    put_cuda,
    put_torch,
    put_uv,
    standalone_build,
    texts,
    zipped,
)

site, folder = wheel_index.site, wheel_index.newest_rows


def run(
    site: Site, folder: Path, *, day: date = DAY, releases: int = 1, save: bool = True, archive: str = ""
) -> Changes:
    index = Index(Sources(debian=(), indexes=(site.url,), cuda=archive and f"{site.url}{archive}/"))
    runner = FakeRunner({"ptxas": f"\n{PTXAS}", "nvcc": f"\n{NVCC}"})
    return refresh(index, runner, today=day, releases=releases, compilers=1, folder=folder, save=save)


def fresh(path: Path) -> Path:
    """Return a copy of the table's folder: the loader reads each path once."""
    copy = path.parent / f"copy-{len(list(path.parent.iterdir()))}"
    shutil.copytree(path.parent, copy, ignore=shutil.ignore_patterns("copy-*"))
    return copy / path.name


def torch_row(folder: Path, version: str) -> Torch:
    return next(row for row in load_torches(fresh(folder / "torch.yaml")).rows if row.version == version)


def cuda_row(folder: Path, version: str) -> Cuda:
    return next(row for row in load_cudas(fresh(folder / "cuda.yaml")).rows if row.cuda == version)


@pytest.mark.parametrize(
    ("name", "key", "order"),
    [
        ("torch.yaml", "version", torch.ORDER),
        ("cuda.yaml", "cuda", cuda.ORDER),
        ("standalone.yaml", "python", standalone.ORDER),
    ],
)
def test_our_tables_are_as_a_refresh_writes_them(name, key, order):
    text = (TABLES / name).read_text()
    assert parse_rows(text, TABLES / name, key).text(order) == text


def test_a_new_torch_gets_a_row_out_of_its_wheel(site, folder):
    put_torch(site, "2.16.0", pythons=("cp312", "cp313", "cp313t"))
    changes = run(site, folder)
    assert "+ torch 2.16.0" in changes.done
    row = torch_row(folder, "2.16.0")
    assert row.pythons == ("3.12", "3.13", "3.13t")
    assert (row.build.name, row.build.ptx) == ("cu132", ("12.0",))
    assert row.build.architectures == ("7.5", "9.0", "12.0")
    assert (row.nccl, row.cudnn, row.cuda_toolkit) == ("2.31.1", "9.27.0.1", "13.2.2")
    assert (row.setuptools, row.numpy) == (">=77", "")
    assert (row.std, row.std_min, row.gcc_min, row.glibc) == (20, 17, "9", "2.28")
    assert row.cxx11_abi
    assert row.arch_names == ("3.5", "9.0", "9.0a", "12.0")
    assert row.gcc_bounds == (("11.2", ">=5,<11"), ("12.4", ">=6,<13.2.1"))
    assert (row.released, row.read) == ("2026-11-30", "2026-12-01")
    assert [source.name for source in row.source] == ["index", "wheels"]


def test_a_wheel_for_arm_tells_its_own_python_cuda_gpus_and_glibc(site, folder):
    put_torch(
        site, "2.16.0",
        arm={"torch/version.py": "cuda = '13.0'\n", "torch/lib/libtorch_python.so": b"sm_80 sm_90 sm_110\0"},
    )  # fmt: skip
    run(site, folder)
    row = torch_row(folder, "2.16.0")
    on_arm = row.on(AARCH64)
    assert on_arm
    assert (on_arm.pythons, on_arm.glibc) == (("3.14",), "2.35")
    assert (on_arm.build.name, on_arm.build.architectures) == ("cu130", ("8.0", "9.0", "11.0"))
    assert (row.pythons, row.glibc, row.build.name) == (("3.12", "3.13"), "2.28", "cu132")
    assert on_arm.companions == row.companions


def test_a_wheel_for_arm_without_cuda_is_the_cpus(site, folder):
    run(site, folder)
    on_arm = torch_row(folder, "2.16.0").on(AARCH64)
    assert on_arm
    assert (on_arm.pypi, on_arm.build.cuda, on_arm.build.architectures) == ("cpu", "", ())


def test_a_torch_without_a_wheel_for_arm_is_not_there(site, folder):
    site.drop("2.16.0-cp314-cp314-manylinux_2_35_aarch64.whl")
    run(site, folder)
    assert torch_row(folder, "2.16.0").on(AARCH64) is None


def test_the_newest_companions_that_require_exactly_a_torch_are_in_its_row(site, folder):
    put_torch(site, "2.16.0")
    for version, needs in (("0.31.0", "torch==2.16.0"), ("0.31.1", "torch (==2.16.0)"), ("0.32.0", "torch")):
        metadata = {f"torchvision-{version}.dist-info/METADATA": f"Requires-Dist: {needs}\n".encode()}
        name = f"torchvision-{version}-cp313-cp313-manylinux_2_28_x86_64.whl"
        site.put("torchvision", name, zipped(metadata))
    run(site, folder, releases=3)
    assert torch_row(folder, "2.16.0").companions == (("torchvision", "0.31.1"),)


def test_a_new_compiler_gets_a_row_out_of_its_headers_and_programs(site, folder):
    changes = run(site, folder)
    assert "+ cuda 13.6" in changes.done
    row = cuda_row(folder, "13.6")
    assert (row.compiler, row.gcc_max, row.std_max) == ("13.6.10", "15", 20)
    assert row.architectures == ("7.5", "9.0a", "10.0", "10.0f")
    assert (row.glibc_below, row.unpinned) == ("2.42", ("13.6.0",))
    assert row.read == "2026-12-01"


def test_a_new_python_gets_a_row_out_of_uvs_table(site, folder):
    changes = run(site, folder)
    assert "+ standalone 3.16" in changes.done
    row = load_standalones(folder / "standalone.yaml").by_name["3.16"]
    name = "cpython-3.16.1+20261201-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
    assert (row.version, row.release, row.path(X86_64)) == ("3.16.1", "20261201", f"20261201/{name}")
    for machine in ("x86_64", "aarch64"):
        assert getattr(row, machine) == f"20261201{machine}".encode().hex().ljust(64, "0")
    assert row.read == "2026-12-01"


def test_the_newest_uv_is_the_one_that_is_read(site, folder):
    newer = (standalone_build("3.16.9", "20261224", machine) for machine in ("x86_64", "aarch64"))
    put_uv(site, *newer, version="0.20.0")
    run(site, folder)
    assert load_standalones(folder / "standalone.yaml").by_name["3.16"].version == "3.16.9"


def test_a_python_for_one_processor_alone_is_an_error(site, folder):
    put_uv(site, standalone_build("3.17.0", "20271010", "x86_64"))
    with pytest.raises(FetchError, match=r"Python 3.17 has no newest build for both x86_64 and aarch64"):
        run(site, folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"arch": "x86_64"}, "TypeError"), ({"build": "2026"}, None), ({"major": "3"}, "TypeError")],
)
def test_a_table_of_uv_of_another_form_is_an_error(site, folder, change, words):
    put_uv(site, standalone_build("3.17.0", "20271010", "x86_64", **change))
    if words is None:  # the address disagrees with the rest, so the build is none of ours
        assert "+ standalone 3.16" in run(site, folder).done
        return
    with pytest.raises(
        FetchError, match=f"could not understand uv: its table of builds has another form: {words}"
    ):
        run(site, folder)


def test_an_index_without_a_source_distribution_of_uv_is_an_error(site, folder):
    site.drop("uv-0.13.9.tar.gz")
    site.put("uv", "uv-0.14.0rc1.tar.gz", b"never read")
    with pytest.raises(FetchError, match="could not understand uv: the index lists no source distribution"):
        run(site, folder)


def test_our_toolkits_are_as_a_refresh_writes_them():
    index = Index(Sources(debian=(), cuda=""))
    assert toolkits.renew(TABLES / "toolkits.yaml", index, (), (), DAY) == (
        (TABLES / "toolkits.yaml").read_text(),
        Changes(),
    )


def releases_of(folder: Path, source: str) -> ToolkitLayout:
    rows = load_toolkits(fresh(folder / "toolkits.yaml")).rows
    return next(row for row in rows if row.source == source and row.further)


def test_a_new_toolkit_of_the_index_is_added_to_the_releases(site, folder):
    before = releases_of(folder, "wheels").releases
    done = run(site, folder).done
    assert releases_of(folder, "wheels").releases == (*before, "13.6.0", "13.6.1")
    added = [line for line in done if line.startswith("+ wheels")]
    assert added == ["+ wheels: CUDA 13.6.0", "+ wheels: CUDA 13.6.1"]


def test_the_archive_s_new_releases_and_digests_are_added(site, folder):
    before = releases_of(folder, "archive")
    gap = next(release for release in before.releases if release not in before.manifests)
    for release in (gap, "13.6.1"):  # the first of a minor version may not be .0
        site.put("redist", f"redistrib_{release}.json", release.encode())
    comments = [line for line in (folder / "toolkits.yaml").read_text().splitlines() if "#" in line]
    done = run(site, folder, archive="redist").done
    assert "+ archive: CUDA 13.6.1" in done
    after = releases_of(folder, "archive")
    digests = {release: hashlib.sha256(release.encode()).hexdigest() for release in (gap, "13.6.1")}
    assert after.manifests == {**before.manifests, **digests}
    assert after.releases == (*before.releases, "13.6.1")
    assert [line for line in (folder / "toolkits.yaml").read_text().splitlines() if "#" in line] == comments
    assert run(site, folder, archive="redist").done == ()


def test_an_archive_that_does_not_answer_is_told_and_its_releases_stay(site, folder):
    site.failing_below = "/redist/"
    before = releases_of(folder, "archive")
    changes = run(site, folder, archive="redist")
    assert "could not read NVIDIA's archive" in changes.notes[-1]
    assert releases_of(folder, "archive") == before


def test_a_second_run_changes_nothing(site, folder):
    run(site, folder, releases=2)
    before = texts(folder)
    assert run(site, folder, releases=2).done == ()
    assert texts(folder) == before


def test_a_day_later_only_the_day_of_reading_changes(site, folder):
    run(site, folder)
    before = texts(folder)
    assert run(site, folder, day=date(2026, 12, 2)).done == ("read on 2026-12-02",) * 3
    after = texts(folder)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"torch.yaml", "cuda.yaml", "standalone.yaml"}
    lines = set(after["torch.yaml"].splitlines()) - set(before["torch.yaml"].splitlines())
    assert all('"2026-12-02"' in line and not line.startswith("    ") for line in lines)


def test_no_row_is_dropped_and_one_that_is_gone_upstream_is_told(site, folder):
    changes = run(site, folder)
    assert "torch 2.14.1 is no longer in the index; its row stays" in changes.notes
    assert "nvcc 13.5.37 is no longer in the index; its row stays" in changes.notes
    assert not any("2.15.0 is no longer" in note for note in changes.notes)
    rows = parse_rows((folder / "torch.yaml").read_text(), folder, "version").rows
    assert [row["version"] for row in rows] == ["2.14.1", "2.15.0", "2.16.0"]


def test_what_an_artifact_no_longer_shows_is_kept_and_told(site, folder):
    run(site, folder)
    put_torch(site, "2.16.0", **{"torch/include/c10/util/C++17.h": "// nothing"})
    changes = run(site, folder)
    assert 'torch 2.16.0: `gcc_min` was not found now, "9" is kept' in changes.notes
    assert changes.done == ()
    assert torch_row(folder, "2.16.0").gcc_min == "9"


def test_what_changed_in_a_release_is_told_key_by_key(site, folder):
    run(site, folder)
    put_torch(site, "2.16.0", pythons=("cp312", "cp313", "cp314"))
    assert run(site, folder).done == ('torch 2.16.0: pythons: ["3.12", "3.13"] → ["3.12", "3.13", "3.14"]',)


def test_the_hand_written_file_is_not_touched_and_wins(site, folder):
    path = folder / "overrides.yaml"
    text = path.read_text() + '  - {for: "2.16.0", source: [hand], set: {gcc_min: "11"}}\n'
    path.write_text(text)
    put_torch(site, "2.16.0")
    with pytest.raises(FetchError, match=r"no row of `torch` is in this range"):
        run(site, folder, releases=0)
    run(site, folder)
    assert path.read_text() == text
    assert torch_row(folder, "2.16.0").gcc_min == "11"


def test_without_saving_nothing_is_written(site, folder):
    before = texts(folder)
    assert "+ torch 2.16.0" in run(site, folder, save=False).done
    assert texts(folder) == before


def test_previews_yanked_and_foreign_files_are_no_releases(site, folder):
    for name in ("torch-2.17.0rc1-cp313-cp313", "torch-2.17.0+cpu-cp313-cp313"):
        site.put("torch", f"{name}-manylinux_2_28_x86_64.whl", b"never read")
    site.put("torch", "torch-2.17.0.tar.gz", b"never read")
    site.put("torch", "torch-2.17.0-cp313-none-win_amd64.whl", b"never read")
    assert "+ torch 2.16.0" in run(site, folder).done


def test_a_second_upload_of_a_release_is_the_one_that_is_read(site, folder):
    put_torch(site, "2.16.0", pythons=("cp313",))
    (path,) = (path for path in site.files if "2.16.0-cp313-cp313-many" in path)
    old = zipped({"torch/version.py": "made otherwise"})
    site.files[path.replace("2.16.0-", "2.16.0-3-")] = site.files[path]
    site.files[path] = old
    assert "+ torch 2.16.0" in run(site, folder).done


@pytest.mark.parametrize(
    ("member", "content", "words"),
    [
        ("torch/lib/libtorch_python.so", b"no flags", "expected one list of architectures"),
        ("torch/version.py", "cuda = None", "its CUDA is written in another way"),
        ("arm", {"torch/version.py": "cuda = ''"}, "its CUDA is written in another way"),
        (
            "arm",
            {"torch/version.py": "cuda = '13.0'", "torch/lib/libtorch_python.so": b"x"},
            "expected one list",
        ),
        ("torch/utils/cpp_extension.py", "cpp_flag_prefix + 'c++17'", "`supported_arches` is not in"),
    ],
)
def test_a_wheel_of_a_new_form_is_an_error_and_nothing_is_written(site, folder, member, content, words):
    before = texts(folder)
    put_torch(site, "2.16.0", **{member: content})
    with pytest.raises(FetchError, match=f"could not understand torch 2.16.0: {words}"):
        run(site, folder)
    assert texts(folder) == before


def test_a_reading_that_breaks_the_tables_rules_is_not_written(site, folder):
    before = texts(folder)
    put_torch(
        site, "2.16.0", **{"torch/include/torch/csrc/api/include/torch/all.h": ALL_H.replace("17", "26")}
    )
    with pytest.raises(FetchError, match=r"(?s)nothing was written.*`std_min` is not above `std`"):
        run(site, folder)
    assert texts(folder) == before


def test_a_wheel_without_a_member_or_that_is_no_zip_is_an_error(site, folder):
    put_cuda(site, "13.6.11", **{"nvidia/cu13/include/other/crt/host_config.h": ""})
    with pytest.raises(FetchError, match="expected one"):
        run(site, folder)
    put_cuda(site, "13.6.11")
    put_torch(site, "2.16.0", pythons=("cp313",))
    (path,) = (path for path in site.files if "2.16.0-cp313-cp313-many" in path)
    site.files[path] = b"no zip file at all"
    with pytest.raises(FetchError, match=r"could not read `torch-2.16.0.*not a zip file"):
        run(site, folder)


def test_only_parts_of_a_wheel_are_fetched(site, folder):
    path = "/torch/torch-2.16.0-cp313-cp313-manylinux_2_28_x86_64.whl"
    padding = zipfile.ZipInfo("torch/lib/libtorch_cuda.so")
    stream = io.BytesIO(site.files[path])
    with zipfile.ZipFile(stream, "a") as wheel:
        wheel.writestr(padding, bytes(8 * BLOCK))
    site.files[path] = stream.getvalue()
    run(site, folder)
    ranges = [wanted for asked, wanted in site.asked if asked == path and wanted]
    assert sorted(ranges) == [f"bytes=0-{BLOCK - 1}", f"bytes={8 * BLOCK}-{len(stream.getvalue()) - 1}"]


def test_a_busy_server_is_asked_again_and_one_without_ranges_is_told(site, folder):
    site.failing = 2
    run(site, folder)
    site.ranges = False
    with pytest.raises(FetchError, match="the server does not give parts of a file"):
        run(site, folder)


def test_an_index_on_disk_serves_as_well(site, folder, tmp_path):
    disk = tmp_path / "index"
    for path, content in site.files.items():
        (disk / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (disk / path[1:]).write_bytes(content)
    for project in disk.iterdir():
        links = "".join(f'<a href="{file.name}">{file.name}</a>\n' for file in sorted(project.iterdir()))
        (project / "index.html").write_text(links)
    site.url = f"{disk.as_uri()}/"
    assert "+ torch 2.16.0" in run(site, folder).done


def test_a_table_of_another_form_is_no_table(tmp_path):
    with pytest.raises(ValueError, match="is no table of rows"):
        parse_rows("rows: []", tmp_path, "version")


@pytest.fixture
def maintained(site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of tables that the script writes, with an index that has newer releases."""
    monkeypatch.setenv("ENVBUILDER_INDEX", site.url)
    monkeypatch.setenv("ENVBUILDER_DEBIAN_MIRROR", site.url)
    answers = {"ptxas": f"\n{PTXAS}", "nvcc": f"\n{NVCC}"}
    monkeypatch.setattr(script, "ProcessRunner", lambda _environment: FakeRunner(answers))
    monkeypatch.setattr(script, "TABLES", folder)
    return folder


def test_the_script_prints_changes_and_notes_and_then_has_none(
    maintained: Path, capsys: pytest.CaptureFixture[str]
):
    assert script.main(["--releases=1", "--compilers=1"]) == 0
    out = capsys.readouterr().out
    assert {"+ torch 2.16.0", "+ cuda 13.6"} <= set(out.splitlines())
    assert "note: torch 2.14.1 is no longer in the index; its row stays" in out
    assert "2.16.0" in (maintained / "torch.yaml").read_text()
    written = texts(maintained)
    assert script.main(["--releases=1", "--compilers=1"]) == 0
    assert capsys.readouterr().out.startswith("the tables are as they were\n")
    assert texts(maintained) == written


def test_the_script_can_be_told_to_write_nothing(maintained: Path, capsys: pytest.CaptureFixture[str]):
    before = texts(maintained)
    assert script.main(["--releases=1", "--check"]) == 0
    assert "+ torch 2.16.0" in capsys.readouterr().out
    assert texts(maintained) == before


def test_the_script_ends_with_5_when_an_artifact_is_not_understood(
    maintained: Path, site: Site, capsys: pytest.CaptureFixture[str]
):
    put_torch(site, "2.16.0", **{"torch/version.py": "cuda = None"})
    assert script.main(["--releases=1"]) == 5
    out, err = capsys.readouterr()
    assert (out, "could not understand torch 2.16.0" in err) == ("", True)
