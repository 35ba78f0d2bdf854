"""The toolkit table, and the program that lays a toolkit out of packages."""

import json
import os
import re
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from envbuilder.compat.tables.toolkit import (
    SOURCES,
    Part,
    Toolkit,
    ToolkitLayout,
    load_toolkits,
    toolkit_of,
)
from envbuilder.core.errors import BuildError
from envbuilder.core.processor import PROCESSORS, X86_64
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import CudaStep
from envbuilder.steps.toolkit import ToolkitError, install, stub
from tests.support import redist
from tests.support.debs import header, write_package
from tests.support.locks import make_artifact

ROWS = load_toolkits().rows
SITE = "opt/env/lib/python3.11/site-packages"
ROW = """
sources: {trial: {text: these tests, read: "2026-11-21"}}
read: "2026-11-21"
rows:
  - source: wheels
    releases: ["9.9.1"]
    constraints: []
    header_wheels: []
    links: {}
    files: {}
    parts:
      - wheel: nvcc==1.0
        take:
          - {from: pkg/bin/*, to: bin/}
"""


def load_row(text: str, folder: Path) -> ToolkitLayout:
    (folder / "toolkits.yaml").write_text(text)
    (row,) = load_toolkits(folder / "toolkits.yaml").rows
    return row


def load(text: str, folder: Path) -> Toolkit:
    row = load_row(text, folder)
    toolkit = row.toolkit("9.9", [locked(part) for part in row.parts_of("9.9")])
    assert toolkit
    return toolkit


def locked(part: Part) -> Artifact:
    return make_artifact(part.name, part.version or "1", kind=part.kind)


def changed(**values: str) -> str:
    """The row with other values, e.g. `links="{lib: lib64}"`."""
    text = ROW
    for key, value in values.items():
        text = re.sub(rf"(?m)^    {key}: .*$", lambda _, key=key, value=value: f"    {key}: {value}", text)
    return text


def wheel(path: Path, files: dict[str, str], *, modes: dict[str, int] | None = None) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (modes or {}).get(name, stat.S_IFREG | 0o644) << 16
            archive.writestr(info, text)
    return path


def lay(tmp_path: Path, toolkit: Toolkit, *packages: Path) -> Path:
    artifacts = tuple(map(locked, toolkit.parts[: len(packages)]))
    rules = CudaStep(toolkit=toolkit, artifacts=artifacts).rules() | {
        "site": f"/{SITE}",
        "machine": X86_64.elf,
    }
    inputs = tmp_path / "inputs"
    inputs.mkdir(parents=True)
    for artifact, package in zip(artifacts, packages, strict=True):
        (inputs / artifact.filename).hardlink_to(package)
    given = json.loads(json.dumps(rules))
    install(given, str(inputs), str(tmp_path / "root"), root=str(tmp_path / "python"))
    return tmp_path / "root/usr/local/cuda-9.9"


def lay_wheel(
    tmp_path: Path, files: dict[str, str], *, text: str = ROW, modes: dict[str, int] | None = None
) -> Path:
    return lay(tmp_path, load(text, tmp_path), wheel(tmp_path / "nvcc.whl", files, modes=modes))


# The table.


def toolkits() -> Iterator[tuple[ToolkitLayout, Toolkit]]:
    """Each row's toolkit of its newest release."""
    for row in ROWS:
        minor = row.releases[-1].rpartition(".")[0]
        toolkit = row.toolkit(minor, [locked(part) for part in row.parts_of(minor)])
        assert toolkit
        yield row, toolkit


def test_every_toolkit_has_a_compiler_a_runtime_link_and_its_license() -> None:
    for row, toolkit in toolkits():
        places = {take.target for part in toolkit.parts for take in part.take}
        assert {"bin/", "nvvm/bin/"} <= places or {"bin/", "nvvm/"} <= places, row.source
        assert {"lib64/libcudart.so", "lib64/*"} & dict(toolkit.links).keys()
        assert any("EULA" in place or "copyright" in place for place in places)


def test_profiles_find_everything_from_where_nvcc_lies() -> None:
    for row, toolkit in toolkits():
        if row.source == "debs" or row.kept:  # others have NVIDIA's own
            profile = next(text for path, text in toolkit.files if path.endswith("/nvcc.profile"))
            assert profile.startswith("TOP                = $(_HERE_)/..\n")
            assert "/usr" not in profile


def test_library_names_and_versions_of_a_link_agree() -> None:
    for _, toolkit in toolkits():
        for path, target in toolkit.links:
            if path.startswith("lib64/") and path != "lib64/*":
                assert PurePosixPath(target).name.startswith(PurePosixPath(path).name), path


def test_no_row_takes_a_debugger_or_a_static_library_that_nvcc_does_not_need() -> None:
    for _, toolkit in toolkits():
        sources = [take.source for part in toolkit.parts for take in part.take]
        static = {PurePosixPath(source).name for source in sources if source.endswith(".a")}
        assert static <= {"libcudadevrt.a", "libcudart_static.a", "*.a"}
        assert not [source for source in sources if "nvdisasm" in source]


def test_the_substitute_for_libcudadevrt_is_an_archive_with_one_empty_object() -> None:
    files = next(row.files for row in ROWS if row.releases == ("12.4.1",))
    archive = next(text for path, text in files if path.endswith("/libcudadevrt.a")).encode()
    index, member = archive[8:72], archive[72:]
    assert archive.startswith(b"!<arch>\n/ ")
    assert int(index[48:58]) == len(index[60:]) == 4
    assert int(member[48:58]) == len(member[60:]) == 64
    assert member[60:64] == b"\x7fELF"


def test_wheel_parts_of_one_version_are_of_the_row_s_own_cuda_version() -> None:
    for row in ROWS:
        for part in row.parts:
            if part.version:
                assert part.version.startswith(row.releases[0].rpartition(".")[0] + "."), part.name


def test_the_table_names_no_host() -> None:
    for _, toolkit in toolkits():
        for part in toolkit.parts:
            if part.deb:
                assert part.suite.isalpha()
                assert part.component in {"main", "contrib", "non-free"}


def test_components_follow_the_release_that_moved_or_renamed_them() -> None:
    row = next(row for row in ROWS if row.source == "archive")
    assert [row.source for row in ROWS] == sorted((row.source for row in ROWS), key=SOURCES.index)
    names = {
        cuda: {part.name for part in row.parts_of(cuda)} for cuda in ("11.4", "11.8", "12.9", "13.2", "13.3")
    }
    assert "cuda_nvprof" in names["11.4"] - names["11.8"]
    assert "cuda_profiler_api" in names["11.8"] - names["11.4"]
    assert {"libnvvm", "cuda_crt"} <= names["13.2"] - names["12.9"]
    assert ({"cccl"}, {"cuda_cccl"}) == (names["13.3"] - names["13.2"], names["13.2"] - names["13.3"])


def test_a_lock_s_packages_make_the_toolkit_of_the_row_that_has_exactly_them() -> None:
    kept, row = (one for one in ROWS if one.source == "wheels")
    for one in (kept, row):
        parts = [locked(part) for part in one.parts_of("13.2")]
        assert toolkit_of("13.2", parts, ROWS) == (one, one.toolkit("13.2", parts))
        assert toolkit_of("13.2", parts[1:], ROWS) is None
    assert not kept.may_have("13.2")  # a new lock takes the other


def test_parts_that_bring_headers_come_one_by_one() -> None:
    row = next(row for row in ROWS if row.source == "archive")
    parts = [locked(part) for part in row.parts_of("12.4")]
    headers = [locked(part) for part in row.parts_of("12.4", headers=True)]
    for some in (headers, headers[1:], []):
        whole = row.toolkit("12.4", [*parts, *some])
        assert whole
        assert {part.name for part in whole.parts} == {one.name for one in (*parts, *some)}
    assert row.toolkit("12.4", [*parts[1:], *headers]) is None


def test_a_wheel_s_version_is_the_lock_s() -> None:
    row = next(row for row in ROWS if row.source == "wheels" and not row.kept)
    parts = [make_artifact(part.name, "13.0.88") for part in row.parts_of("13.0")]
    toolkit = row.toolkit("13.0", parts)
    assert toolkit
    nvcc = next(part for part in toolkit.parts if part.name == "nvidia-cuda-nvcc")
    assert nvcc.version == "13.0.88"
    assert nvcc.take[-1].source == "nvidia_cuda_nvcc-13.0.88.dist-info/licenses/License.txt"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"9.9.1"', "9.9", "expected text, found a number (9.9)"),
        ('"9.9.1"', '"9.9"', 'expected a release such as "12.4.1"'),
        ("source: wheels", "source: discs", "expected"),
        (
            "constraints: []",
            'manifests: {"9.9.2": ' + "a" * 64 + "}",
            "9.9.2, which is not among the releases",
        ),
        ("parts:", "part:", "unknown key `part`"),
        ("    links: {}\n", "", "the key `links` is missing"),
        ("nvcc==1.0", "nvcc>=1.0", "expected `name==version` or `name`"),
        ("wheel:", "weel:", "unknown key `weel`"),
        ("wheel: nvcc==1.0", "deb: nvcc", "a deb, and nothing else, has a suite and a component"),
        ("wheel: nvcc==1.0", "archive: NVCC", "expected the name of a component"),
        ("pkg/bin/*", "../bin/*", "expected a path below the folder"),
        ("pkg/bin/*", "/bin/*", "expected a path below the folder"),
        ("pkg/bin/*", "pkg/**/bin/*", "`**` at the end only"),
        ("to: bin/", "to: bin", "so `to` must be a folder"),
        ("to: bin/", "to: bin/../../x/", "expected a path below the folder"),
        ("to: bin/", 'to: bin/, mode: "7"', "unknown key `mode`"),
        ("{from: pkg/bin/*, to: bin/}", "[]", "expected a map"),
        ("links: {}", "links: {lib: /usr/lib}", "expected a relative target or one that begins with {site}"),
        ("links: {}", "links: {../lib: x}", "expected a path below the folder"),
        ("links: {}\n    files: {}", "links: {lib: x}\n    files: {lib: y}", "`lib` is there twice"),
        ("header_wheels: []", "header_wheels: cublas", "expected a list"),
        ("constraints: []", "constraints: [cccl]", "expected `name==version`"),
    ],
)
def test_a_wrong_row_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in ROW
    with pytest.raises(ValueError, match=re.escape(message)):
        load_row(ROW.replace(old, new, 1), tmp_path)


def test_a_part_may_be_there_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`nvcc` is there twice"):
        load_row(ROW + ROW.split("parts:\n")[1], tmp_path)


# The layout.


def test_a_wheel_is_laid_out_below_a_versioned_folder_with_a_link_to_it(tmp_path: Path) -> None:
    home = lay_wheel(tmp_path, {"pkg/bin/nvcc": "compiler", "pkg/bin/deep/x": "", "other": ""})
    assert (home / "bin/nvcc").read_text() == "compiler"
    assert [path.name for path in (home / "bin").iterdir()] == ["nvcc"]
    assert (home.parent / "cuda").readlink() == Path("cuda-9.9")


def test_modes_are_0755_and_0644_whatever_the_package_says(tmp_path: Path) -> None:
    modes = {"pkg/bin/tool": stat.S_IFREG | 0o4700, "pkg/bin/text": stat.S_IFREG | 0o666}
    before = os.umask(0o077)
    try:
        home = lay_wheel(tmp_path, {"pkg/bin/tool": "", "pkg/bin/text": ""}, modes=modes)
    finally:
        os.umask(before)
    found = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (home, home / "bin", *(home / "bin").iterdir())
    }
    assert found == {"cuda-9.9": 0o755, "bin": 0o755, "tool": 0o755, "text": 0o644}


def test_a_tree_keeps_its_folders_and_loses_what_is_excluded(tmp_path: Path) -> None:
    text = ROW.replace(
        "{from: pkg/bin/*, to: bin/}", "{from: pkg/**, to: include/, exclude: ['pkg/a/**', 'pkg/x?.h']}"
    )
    home = lay_wheel(tmp_path, {"pkg/a/1.h": "", "pkg/b/c/2.h": "", "pkg/x1.h": "", "pkg/x.h": ""}, text=text)
    found = sorted(str(path.relative_to(home / "include")) for path in home.rglob("*.h"))
    assert found == ["b/c/2.h", "x.h"]


def test_one_file_can_be_renamed(tmp_path: Path) -> None:
    text = ROW.replace("{from: pkg/bin/*, to: bin/}", "{from: pkg/License.txt, to: EULA.txt}")
    assert (lay_wheel(tmp_path, {"pkg/License.txt": "law"}, text=text) / "EULA.txt").read_text() == "law"


def test_a_rule_that_takes_nothing_is_an_error_that_names_part_and_rule(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"`nvcc`: the rule `pkg/bin/\*` matches nothing in the package"):
        lay_wheel(tmp_path, {"pkg/lib/x": ""})


def test_a_package_that_was_not_fetched_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="needs the package `nvcc`"):
        lay(tmp_path, load(ROW, tmp_path))


TWO = ROW + "      - wheel: more==1.0\n        take: [{from: 'bin/*', to: bin/}]\n"


def two_wheels(folder: Path, first: str, second: str) -> tuple[Path, Path]:
    """Write wheels that both bring `bin/a`."""
    return wheel(folder / "1.whl", {"pkg/bin/a": first}), wheel(folder / "2.whl", {"bin/a": second})


def test_two_parts_may_bring_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = two_wheels(tmp_path, "same", "same")
    home = lay(tmp_path, load(TWO, tmp_path), first, second)
    assert capsys.readouterr().out == "0/2 nvcc\n1/2 more\n"  # the progress of the step
    assert [path.read_text() for path in (home / "bin").rglob("*") if path.is_file()] == ["same"]


def test_two_parts_that_disagree_about_a_path_are_both_named(tmp_path: Path) -> None:
    first, second = two_wheels(tmp_path, "one", "two")
    with pytest.raises(ToolkitError, match="`nvcc` and `more` both install `bin/a`"):
        lay(tmp_path, load(TWO, tmp_path), first, second)


def test_a_file_cannot_be_another_part_s_folder(tmp_path: Path) -> None:
    text = TWO.replace("{from: 'bin/*', to: bin/}", "{from: 'bin/*', to: bin/a/}")
    first, second = two_wheels(tmp_path, "one", "two")
    with pytest.raises(ToolkitError, match="`bin/a` is already there from `nvcc`"):
        lay(tmp_path, load(text, tmp_path), first, second)


def test_the_same_packages_give_the_same_tree(tmp_path: Path) -> None:
    package = wheel(tmp_path / "nvcc.whl", {"pkg/bin/a": "1", "pkg/bin/b": "2"})
    trees = []
    for name in "xy":
        (tmp_path / name).mkdir()
        lay(tmp_path / name, load(ROW, tmp_path), package)
        root = tmp_path / name / "root"
        trees.append(sorted((str(path.relative_to(root)), path.lstat().st_mode) for path in root.rglob("*")))
    assert trees[0] == trees[1]


# What the Python environment already has.

LINKED = changed(
    header_wheels="[cublas]",
    links="{lib64/libcublas.so: '{site}/nvidia/cublas/lib/libcublas.so.12', lib: lib64}",
)


def installed(tmp_path: Path) -> None:
    for name in ("include/cublas.h", "include/__init__.py", "include/crt/x.h", "lib/libcublas.so.12"):
        path = tmp_path / "python" / SITE / "nvidia/cublas" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_links_to_headers_and_libraries_are_valid_below_any_root(
    tmp_path: Path,
) -> None:
    installed(tmp_path)
    home = lay_wheel(tmp_path, {"pkg/bin/nvcc": ""}, text=LINKED)
    assert sorted(path.name for path in (home / "include").iterdir()) == ["crt", "cublas.h"]
    inside = tmp_path / "root" / SITE
    (tmp_path / "python/opt").rename(tmp_path / "root/opt")
    assert (home.parent / "cuda/include/cublas.h").resolve() == inside / "nvidia/cublas/include/cublas.h"
    assert (home / "lib/libcublas.so").resolve() == inside / "nvidia/cublas/lib/libcublas.so.12"


def test_a_part_s_header_wins_over_a_wheel_s(tmp_path: Path) -> None:
    installed(tmp_path)
    text = LINKED.replace("{from: pkg/bin/*, to: bin/}", "{from: pkg/**, to: include/}")
    home = lay_wheel(tmp_path, {"pkg/crt/mine.h": "mine"}, text=text)
    assert not (home / "include/crt").is_symlink()
    assert (home / "include/cublas.h").is_symlink()


def test_a_missing_header_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="headers in `nvidia/cublas/include`"):
        lay_wheel(tmp_path, {"pkg/bin/nvcc": ""}, text=LINKED)


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    installed(tmp_path)
    (tmp_path / "python" / SITE / "nvidia/cublas/lib/libcublas.so.12").unlink()
    with pytest.raises(
        ToolkitError, match=r"links `lib64/libcublas\.so` to `nvidia/cublas/lib/libcublas\.so\.12`"
    ):
        lay_wheel(tmp_path, {"pkg/bin/nvcc": ""}, text=LINKED)


@pytest.mark.parametrize("target", ["../../../etc", "nowhere"])
def test_a_relative_link_stays_inside_and_points_at_something(tmp_path: Path, target: str) -> None:
    with pytest.raises(ToolkitError, match="points at nothing in the toolkit"):
        lay_wheel(tmp_path, {"pkg/bin/nvcc": ""}, text=changed(links=f"{{lib: {target}}}"))


ALL = changed(header_wheels='["*"]').replace(
    "    files: {}", "    libraries: [nvidia/*/lib/lib*.so.*, torch/lib/libcu*.so.*]\n    files: {}"
)


def bring(tmp_path: Path, *names: str) -> None:
    for name in names:
        path = tmp_path / "python" / SITE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_every_header_and_library_of_torch_s_wheels_is_linked_that_no_part_brings(tmp_path: Path) -> None:
    bring(
        tmp_path,
        "nvidia/cublas/include/cublas.h",
        "nvidia/cuda_runtime/include/mine.h",
        "nvidia/cuda_runtime/lib/libcudart.so.12",
        "nvidia/cuda_runtime/lib/__init__.py",
        "torch/lib/libtorch.so",
    )
    text = ALL.replace("{from: pkg/bin/*, to: bin/}", "{from: pkg/**, to: include/}")
    home = lay_wheel(tmp_path, {"pkg/mine.h": "mine"}, text=text)
    assert {path.name: path.is_symlink() for path in (home / "include").iterdir()} == {
        "cublas.h": True,
        "mine.h": False,
    }
    assert {path.name for path in (home / "lib64").iterdir()} == {"libcudart.so", "libcudart.so.12", "stubs"}
    assert (home / "lib64/libcudart.so").readlink().name == "libcudart.so.12"


def test_a_library_inside_torch_itself_is_found_by_its_plain_name(tmp_path: Path) -> None:
    bring(tmp_path, "torch/lib/libcudart-d0da41ae.so.11.0", "torch/lib/libgomp-a34b3233.so.1")
    home = lay_wheel(tmp_path, {"pkg/bin/nvcc": ""}, text=ALL)
    assert {path.name for path in (home / "lib64").iterdir()} == {
        "libcudart.so",
        "libcudart-d0da41ae.so.11.0",
        "stubs",
    }


def test_a_python_environment_without_cuda_s_runtime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ToolkitError, match=r"CUDA's runtime library \(libcudart\), and the Python environment has none"
    ):
        lay_wheel(tmp_path, {"pkg/bin/nvcc": ""}, text=ALL)


CUDA_H = """
#define cuMemAlloc                          cuMemAlloc_v2
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
"""


@pytest.mark.programs
@pytest.mark.parametrize("is_wheels", [True, False], ids=["a wheel's header", "a part's header"])
def test_a_program_links_with_a_driver_that_is_not_there(tmp_path: Path, *, is_wheels: bool) -> None:
    bring(tmp_path, "nvidia/cuda_runtime/lib/libcudart.so.12", "nvidia/cuda_runtime/include/cuda.h")
    (tmp_path / "python" / SITE / "nvidia/cuda_runtime/include/cuda.h").write_text(
        CUDA_H if is_wheels else ""
    )
    text = ALL.replace("{from: pkg/bin/*, to: bin/}", "{from: pkg/**, to: include/}")
    home = lay_wheel(tmp_path, {"pkg/none.h": ""} if is_wheels else {"pkg/cuda.h": CUDA_H}, text=text)
    stubs, program = home / "lib64/stubs", tmp_path / "program"
    source = "int cuInit(int); int cuMemAlloc_v2(); int main() { return cuInit(0) - cuMemAlloc_v2(); }"
    words = ["gcc", "-x", "c", "-", "-Wl,--no-undefined", "-lcuda", "-lnvidia-ml", "-o", str(program)]
    env = {"PATH": "/usr/bin:/bin", "LIBRARY_PATH": str(stubs)}
    subprocess.run(words, input=source.encode(), check=True, env=env)
    assert subprocess.run([program], check=False, capture_output=True).returncode == 127, (
        "no program runs by it"
    )
    (stubs / "libcuda.so.1").symlink_to("libcuda.so")
    (stubs / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so")
    subprocess.run([program], check=True, env={"LD_LIBRARY_PATH": str(stubs)})


@pytest.mark.programs
def test_nvml_h_of_a_recipes_own_wheel_is_linked_and_gives_the_stub_its_functions(tmp_path: Path) -> None:
    """Debian's gcc forgets a library that defines nothing, and the module that calls NVML then does not load."""
    bring(tmp_path, "nvidia/nvml_dev/include/nvml.h")
    header = tmp_path / "python" / SITE / "nvidia/nvml_dev/include/nvml.h"
    header.write_text("nvmlReturn_t DECLDIR nvmlInit_v2(void);\n")
    home = lay_wheel(tmp_path, {"pkg/bin/nvcc": ""})
    assert (home / "include/nvml.h").is_symlink()
    module, source = (
        tmp_path / "module.so",
        b"int nvmlInit_v2(void); int begin(void) { return nvmlInit_v2(); }",
    )
    words = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-lnvidia-ml", "-o", str(module)]
    env = {"PATH": "/usr/bin:/bin", "LIBRARY_PATH": str(home / "lib64/stubs")}
    subprocess.run(words, input=source, check=True, env=env)
    read = subprocess.run(["readelf", "--dynamic", module], check=True, capture_output=True, text=True)
    assert "[libnvidia-ml.so.1]" in read.stdout


@pytest.mark.programs
def test_a_stub_of_each_processor_is_read_by_its_tools(tmp_path: Path) -> None:
    for processor in PROCESSORS:
        (tmp_path / "libcuda.so").write_bytes(stub("libcuda.so.1", ["cuInit"], processor.elf, 34))
        words = ["readelf", "--wide", "--dynamic", "--dyn-syms", str(tmp_path / "libcuda.so")]
        read = subprocess.run(words, check=True, capture_output=True, text=True)
        assert "[libcuda.so.1]" in read.stdout
        assert "cuInit" in read.stdout
        assert not read.stderr


def test_a_stub_that_a_part_brings_is_taken_as_it_is(tmp_path: Path) -> None:
    text = ROW.replace("{from: pkg/bin/*, to: bin/}", "{from: pkg/stubs/*, to: lib64/stubs/}")
    home = lay_wheel(tmp_path, {"pkg/stubs/libcuda.so": "theirs"}, text=text)
    assert (home / "lib64/stubs/libcuda.so").read_text() == "theirs"
    assert (home / "lib64/stubs/libnvidia-ml.so").read_bytes().startswith(b"\x7fELF")


# Components of NVIDIA's archive.

COMPONENT = ROW.replace("source: wheels", "source: archive").replace("wheel: nvcc==1.0", "archive: nvcc")


def lay_archive(tmp_path: Path, tree: redist.Tree, *, take: str = "{from: pkg/**, to: ./}") -> Path:
    entry = redist.write_component(tmp_path, "nvcc", "1.0", tree)
    file = entry[X86_64.redist]
    assert isinstance(file, dict)
    toolkit = load(COMPONENT.replace("{from: pkg/bin/*, to: bin/}", take), tmp_path)
    return lay(tmp_path, toolkit, tmp_path / file["relative_path"])


def test_a_component_is_laid_out_without_the_folder_of_its_name(tmp_path: Path) -> None:
    home = lay_archive(tmp_path, {"pkg/bin/nvcc": b"compiler", "pkg/lib/x.a": b"", "LICENSE": b""})
    assert (home / "bin/nvcc").read_bytes() == b"compiler"
    assert stat.S_IMODE((home / "bin/nvcc").stat().st_mode) == 0o755
    assert not (home / "LICENSE").exists()


def test_a_link_to_a_file_beside_it_is_kept(tmp_path: Path) -> None:
    home = lay_archive(tmp_path, {"pkg/lib/liba.so": "liba.so.1", "pkg/lib/liba.so.1": b"a"})
    assert (home / "lib/liba.so").readlink() == Path("liba.so.1")


def test_a_link_of_a_component_to_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"the link `lib/liba\.so` to `liba\.so\.1` points at nothing"):
        lay_archive(tmp_path, {"pkg/lib/liba.so": "liba.so.1"})


@pytest.mark.parametrize("target", ["../../../etc/passwd", "/etc/passwd", "../lib/a"])
def test_a_link_of_a_component_to_another_folder_is_refused(tmp_path: Path, target: str) -> None:
    with pytest.raises(ToolkitError, match="takes the link `pkg/lib/a`"):
        lay_archive(tmp_path, {"pkg/lib/a": target, "pkg/lib/b": b""})


@pytest.mark.parametrize("name", ["../../evil", "pkg/../../evil"])
def test_a_component_that_would_leave_the_tree_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolkitError, match="would leave its folder"):
        lay_archive(tmp_path, {"pkg/bin/nvcc": b"", name: b"evil"})


def test_an_archive_that_is_cut_short_or_is_none_is_refused(tmp_path: Path) -> None:
    toolkit = load(COMPONENT, tmp_path)
    whole = redist.write_component(tmp_path, "nvcc", "1.0", {"pkg/bin/nvcc": b"x" * 9999})
    file = whole[X86_64.redist]
    assert isinstance(file, dict)
    path = tmp_path / file["relative_path"]
    for name, content in (("cut", path.read_bytes()[:100]), ("other", b"no archive")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ToolkitError, match="`nvcc` is not a readable archive"):
            lay(tmp_path / f"{name}-root", toolkit, tmp_path / name)


def test_a_second_folder_in_an_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        for name in ("one/pkg/bin/a", "two/pkg/bin/b"):
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(ToolkitError, match="`two/pkg/bin/b` is not in `one`"):
        lay(tmp_path, load(COMPONENT, tmp_path), path)


# Hostile archives.


@pytest.mark.parametrize("name", ["../evil", "pkg/bin/../../../evil", "/etc/evil", "pkg/bin/..\\evil"])
def test_a_wheel_member_that_would_leave_the_tree_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolkitError, match="would leave its folder"):
        lay_wheel(tmp_path, {"pkg/bin/nvcc": "", name: "evil"})
    assert not list(tmp_path.rglob("evil"))


def test_a_link_in_a_wheel_is_refused_when_a_rule_takes_it(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="takes the link `pkg/bin/nvcc`"):
        lay_wheel(tmp_path, {"pkg/bin/nvcc": "/etc/passwd"}, modes={"pkg/bin/nvcc": stat.S_IFLNK | 0o777})


def test_a_device_in_a_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="device or pipe `null`"):
        lay_wheel(tmp_path, {"null": ""}, modes={"null": stat.S_IFCHR | 0o666})


def test_a_broken_wheel_is_an_error_of_the_family(tmp_path: Path) -> None:
    (tmp_path / "nvcc.whl").write_bytes(b"not a zip file")
    with pytest.raises(ToolkitError, match="not a readable wheel"):
        lay(tmp_path, load(ROW, tmp_path), tmp_path / "nvcc.whl")


DEB = ROW.replace("wheel: nvcc==1.0", "deb: nvcc\n        suite: trixie\n        component: main").replace(
    "pkg/bin", "usr/bin"
)


@pytest.mark.programs
def test_a_deb_is_read_with_its_modes(tmp_path: Path) -> None:
    unwanted = header("./usr/lib/profile", tarfile.SYMTYPE, target="/etc/profile")
    package = write_package(
        tmp_path / "nvcc.deb", [("./usr/bin/nvcc", "tool", 0o4755), ("./usr/bin/text", "t", 0o600), unwanted]
    )
    home = lay(tmp_path, load(DEB, tmp_path), package)
    assert sorted(path.name for path in (home / "bin").iterdir()) == ["nvcc", "text"]
    assert stat.S_IMODE((home / "bin/nvcc").stat().st_mode) == 0o755
    assert stat.S_IMODE((home / "bin/text").stat().st_mode) == 0o644


@pytest.mark.programs
@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("./usr/bin/../../../evil", "", 0o644), "would leave its folder"),
        (("/usr/bin/evil", "", 0o644), "would leave its folder"),
        (header("./dev/null", tarfile.CHRTYPE), "device or pipe"),
        (header("./usr/bin/pipe", tarfile.FIFOTYPE), "device or pipe"),
        (
            header("./usr/bin/evil", tarfile.SYMTYPE, target="../../../etc/passwd"),
            "takes the link `usr/bin/evil`",
        ),
        (header("./usr/bin/evil", tarfile.LNKTYPE, target="./etc/passwd"), "takes the link `usr/bin/evil`"),
    ],
)
def test_a_hostile_deb_is_refused(
    tmp_path: Path, member: tarfile.TarInfo | tuple[str, str, int], message: str
) -> None:
    with pytest.raises(ToolkitError, match=message):
        lay(
            tmp_path,
            load(DEB, tmp_path),
            write_package(tmp_path / "nvcc.deb", [member, ("./usr/bin/nvcc", "", 0o755)]),
        )
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.programs
def test_a_broken_deb_is_named(tmp_path: Path) -> None:
    (tmp_path / "nvcc.deb").write_bytes(b"not an archive")
    with pytest.raises(ToolkitError, match="`nvcc`: `dpkg-deb` ended with exit code 2"):
        lay(tmp_path, load(DEB, tmp_path), tmp_path / "nvcc.deb")
