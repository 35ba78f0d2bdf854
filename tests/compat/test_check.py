"""The rules before building: each refuses what cannot work, names what can, and leaves the rest alone."""

import dataclasses
from pathlib import Path

import pytest

from envbuilder.compat.check import CheckCode, CheckReport, Tables, examine, judge, load_tables
from envbuilder.compat.context import PinChange, can_run, is_ahead, make_context
from envbuilder.compat.host_file import HostFacts, load_host_facts
from envbuilder.compat.rules import RULES
from envbuilder.compat.rules.compiler import asked_standard
from envbuilder.compat.suggest import apply, find_on_package_index
from envbuilder.compat.tables.table import cite
from envbuilder.compat.tables.torch import ArmWheels, index_build
from envbuilder.core.findings import Finding, Severity
from envbuilder.recipe.load import find_recipe, list_recipes, load
from envbuilder.recipe.model import Extension
from tests.support.locks import RECIPE, TABLES

RECIPES = Path(__file__).parents[2] / "recipes"
CPU = {"cuda": "", "gpus": ()}
BULLSEYE = {"base": "debian/bullseye", "python": "3.9", "gcc": "9"}
T4 = BULLSEYE | {"gpus": ("T4",), "cuda": "11.2", "pytorch": "1.13.1"}
ARM = {"gpus": ("GH200",), "cuda": "13.2", "pytorch": "2.15.0"}
CUDA_SOURCE = (Extension(name="a", sources=("a.cu",)),)


def report(host: HostFacts | None = None, tables: Tables = TABLES, **change: object) -> CheckReport:
    return examine(dataclasses.replace(RECIPE, **change), tables, host)


def findings(host: HostFacts | None = None, tables: Tables = TABLES, **change: object) -> tuple[Finding, ...]:
    return report(host, tables, **change).findings


def with_row(table: str, key: str, value: str, **change: object) -> Tables:
    """The tables with one row that is a little different."""
    old = getattr(TABLES, table)
    rows = tuple(
        dataclasses.replace(row, **change) if getattr(row, key) == value else row for row in old.rows
    )
    assert rows != old.rows
    return dataclasses.replace(TABLES, **{table: dataclasses.replace(old, rows=rows)})


def test_a_recipe_that_works_has_no_findings():
    assert findings() == ()
    assert findings(**CPU) == ()
    assert findings(libxcrypt="") == ()
    assert findings(libxcrypt="4.4.33") == ()
    assert examine(RECIPE, TABLES).findings == ()


@pytest.mark.parametrize("name", list_recipes(RECIPES))
def test_each_recipe_of_ours_can_work(name):
    found = examine(load(find_recipe(name, RECIPES)), load_tables()).findings
    assert [finding for finding in found if finding.severity is Severity.ERROR] == []


@pytest.mark.parametrize(
    ("change", "code", "message", "hint"),
    [
        (
            {"base": "debian/bookwrm"},
            CheckCode.BASE,
            "$.base: no suite `debian/bookwrm` is known",
            "write `base: debian/bookworm`; suites: debian/bullseye, debian/bookworm, debian/trixie",
        ),
        (
            {"base": "ubuntu/22.04", "gcc": "11"},
            CheckCode.BASE,
            "$.base: no suite `ubuntu/22.04` is known; the closest is `ubuntu/jammy`",
            "write `base: ubuntu/jammy`; suites: debian/bullseye",
        ),
        (
            {"gpus": ("a100",)},
            CheckCode.GPU,
            "$.gpus[0]: no GPU `a100` is known; the closest is `A100`",
            "write `gpus: [A100]`",
        ),
        (
            {"gpus": ("NVIDIA GeForce RTX 3060 Ti",)},
            CheckCode.GPU,
            "the closest is `RTX 3060 Ti`",
            "write `gpus: [RTX 3060 Ti]`",
        ),
        (
            {"gpus": ("A10O",)},
            CheckCode.GPU,
            "$.gpus[0]: no GPU `A10O` is known; the closest are `A10` and `A100`",
            "write `gpus: [A10]`; or `gpus: [A100]`",
        ),
        (
            {"gpus": ("A100", "A10O")},
            CheckCode.GPU,
            "$.gpus[1]: no GPU `A10O` is known; the closest is `A10`",
            "write `gpus: [A100, A10]`",
        ),
        (
            {"python": "3.19", "pytorch": "2.15.0", "cuda": "13.2"},
            CheckCode.PYTHON,
            "there is no standalone build of 3.19, but of 3.8, ",
            'write `python: "3.',
        ),
        (
            {"gcc": "9"},
            CheckCode.GCC,
            "$.gcc: debian/bookworm has gcc 11 or 12, not 9",
            'write `gcc: "11"`; or `base: debian/bullseye` and `python: "3.9"`',
        ),
        (
            {"libxcrypt": "4.5"},
            CheckCode.LIBXCRYPT,
            "$.libxcrypt: debian/bookworm has libxcrypt 4.4.33, not 4.5",
            'write `libxcrypt: "4.4"`',
        ),
        (
            {"libxcrypt": "4.4.3"},
            CheckCode.LIBXCRYPT,
            "$.libxcrypt: debian/bookworm has libxcrypt 4.4.33, not 4.4.3",
            'write `libxcrypt: "4.4"`',
        ),
        (
            T4 | {"libxcrypt": ""},
            CheckCode.CRYPT_H,
            "$.libxcrypt: Python.h of Python 3.9.2 includes crypt.h",
            'write `libxcrypt: "4.4"`',
        ),
        (
            {"pytorch": "2.6.1"},
            CheckCode.TORCH,
            "$.pytorch: there is no torch 2.6.1; the closest is 2.6.0",
            'write `pytorch: "2.6.0"`; the newest on ',
        ),
        (
            {"pytorch": "2.99.0", "cuda": "13.2"},
            CheckCode.TORCH,
            "$.pytorch: there is no torch 2.99.0; the closest is 2.15.0",
            'write `pytorch: "2.15.0"`; the newest on ',
        ),
        (
            {"pytorch": "1.12.1"} | CPU,
            CheckCode.TORCH_PYTHON,
            "$.pytorch: torch 1.12.1 has no wheel for Python 3.11; it has 3.7, 3.8, 3.9, 3.10",
            'write `pytorch: "1.13.1"`',
        ),
        (
            {"pytorch": "2.15.0"},
            CheckCode.TORCH_CUDA,
            "$.cuda: torch 2.15.0 is built against CUDA 13.2 or 13.0, not 12.4; the package index's build, for 13.2,",
            'write `cuda: "13.2"`; or `pytorch: "2.6.0"`',
        ),
        (
            {"cuda": "12.3"},
            CheckCode.TOOLKIT,
            "$.cuda: no source of packages has CUDA 12.3; the nearest that one has are 12.4 and 12.6",
            'write `cuda: "12.4"`',
        ),
        (
            {"cuda": "12.7"},
            CheckCode.CUDA,
            "$.cuda: there is no CUDA 12.7; the closest is ",
            'write `cuda: "12.6"`',
        ),
        (
            CPU | {"extensions": (Extension(name="a", sources=("a.cpp", "a.cu")),)},
            CheckCode.CUDA_SOURCE,
            "$.extensions[0].sources[1]: `a.cu` needs CUDA, and the recipe has none",
            "add `cuda` and `gpus`, or leave this source out",
        ),
        (
            {"base": "debian/trixie", "python": "3.13", "gcc": "13"},
            CheckCode.NVCC_GLIBC,
            "$.base: the headers of CUDA 12.4 clash with glibc 2.41 and newer",
            'write `cuda: "13.2"` and `pytorch: "2.12.1"`; or `base: debian/bookworm`, `gcc: "12"` and `python: "3.11"`',
        ),
        (
            {"base": "debian/trixie", "python": "3.13", "gcc": "14", "cuda": "12.4"},
            CheckCode.NVCC_GCC_NEW,
            "$.gcc: nvcc 12.4 takes gcc 6 to 13, not 14 (`unsupported GNU version`) (source: crt/host_config.h in ",
            'write `cuda: "13.2"` and `pytorch: "2.12.1"`',
        ),
        (
            {"gpus": ("H100", "V100"), "cuda": "13.2", "pytorch": "2.15.0"},
            CheckCode.KERNELS,
            "(sm_70), only sm_75 sm_80 sm_86 sm_90 sm_100 sm_120; the first that has is 1.7.0+cu102, the last 2.14.1+cu126",
            'write `cuda: "12.6"` and `pytorch: "2.14.1"`',
        ),
        (
            T4 | {"gpus": ("L4",)},
            CheckCode.ARCHITECTURE,
            "$.gpus[0]: nvcc 11.2 does not compile for L4 (sm_89), only for sm_35 to sm_86: CUDA 11.8 to ",
            'write `cuda: "12.4"` and `pytorch: "2.4.1"`',
        ),
        (
            T4 | {"pytorch": "2.2.2", "packages": ("rich", "numpy>=2")} | CPU,
            CheckCode.NUMPY,
            "$.packages[1]: torch 2.2.2 works with numpy<2, and the recipe asks for numpy>=2",
            'write `packages: [rich, "numpy<2"]`; or `pytorch: "2.3.1"`',
        ),
        (
            T4 | {"packages": ("setuptools==70.0.0",)},
            CheckCode.SETUPTOOLS,
            "$.packages[0]: torch 1.13.1 compiles extensions with setuptools!=70.*,<82, and the recipe asks for setuptools==",
            'write `packages: ["setuptools!=70.*,<82"]`',
        ),
        (
            {"extensions": (Extension(name="a", sources=("a.cu",), cflags=("-O2", "-std=c++14")),)},
            CheckCode.STANDARD_TORCH,
            "$.extensions[0].cflags[1]: the headers of torch 2.6.0 need C++17 or newer, not C++14",
            'write `extensions[0].cflags: ["-O2", "-std=c++17"]`; or leave the flag out: torch adds the right one',
        ),
        (
            {"extensions": (Extension(name="a", sources=("a.cu",), cuda_cflags=("-std=gnu++2b",)),)},
            CheckCode.STANDARD_NVCC,
            "$.extensions[0].cuda_cflags[0]: nvcc 12.4 knows C++20 at most, not C++23",
            'write `extensions[0].cuda_cflags: ["-std=c++20"]`',
        ),
        (
            T4 | {"extensions": (Extension(name="a", sources=("a.cpp",), cflags=("-std=c++20",)),)},
            CheckCode.STANDARD_GCC,
            "$.extensions[0].cflags[0]: gcc knows C++20 from 10 on, not 9.3.0",
            'write `extensions[0].cflags: ["-std=c++14"]`; or `gcc: "10"`',
        ),
        (
            {"pytorch": "2.11.0", "cuda": "13.2", "packages": ("cuda-toolkit[nvcc]",)},
            CheckCode.COMPILER_PARTS,
            "$.packages[0]: `cuda-toolkit[nvcc]`, of which torch and the recipe make 13.0.2, leaves nvidia-nvvm",
            'write `packages: ["cuda-toolkit[nvcc]", "nvidia-nvvm==13.0.',
        ),
        (
            {"packages": ("nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm==13.0.88")},
            CheckCode.COMPILER_PARTS,
            "$.packages[0]: `nvidia-cuda-nvcc==13.0.88` leaves",
            'write `packages: ["nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm==13.0.88", "nvidia-cuda-crt==13.0.88"]`',
        ),
        (
            {"packages": ("nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm", "nvidia-cuda-crt")},
            CheckCode.COMPILER_PARTS,
            "$.packages[0]: `nvidia-cuda-nvcc==13.0.88` leaves",
            "hold nvidia-nvvm and nvidia-cuda-crt at the compiler's own version",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_what_can(change, code, message, hint):
    found = next(finding for finding in findings(**change) if finding.code == code)
    assert found.severity is Severity.ERROR
    assert message in found.message
    assert found.hint.startswith(hint)


@pytest.mark.parametrize(
    "change",
    [
        {"base": "debian/trixi"},
        {"gpus": ("Z9",)},
        {"libxcrypt": "3.1"},
        {"pytorch": "2.6.1"},
        {"pytorch": "2.15.0"},
        {"cuda": "12.7"},
        {"cuda": "99.9"},
        {"cuda": "12.3"},
    ],
)
def test_what_is_refused_once_is_refused_by_one_rule(change):
    assert len(findings(**change)) == 1


def test_hints_stay_with_released_suites_of_the_same_distribution():
    (found,) = findings(base="ubuntu/nobl", python="3.12")
    assert found.hint.startswith("write `base: ubuntu/noble`")
    clash = next(one for one in findings(base="debian/trixie") if one.code == CheckCode.NVCC_GLIBC)
    assert "base: debian/bookworm" in clash.hint
    assert "ubuntu" not in clash.hint


def test_a_gpu_unlike_any_other_gets_the_list():
    (found,) = findings(gpus=("Voodoo 2",))
    assert found.hint.startswith("GPUs: V100, T4, A100")


def test_a_python_that_no_suite_and_no_torch_has_is_refused_by_both():
    assert [found.code for found in findings(python="3.99")] == [CheckCode.PYTHON, CheckCode.TORCH_PYTHON]


def test_a_torch_newer_than_the_tables_is_a_warning_with_the_newest_and_their_age():
    (found,) = findings(pytorch="2.17.0")
    assert (found.code, found.severity) == (CheckCode.TORCH_NEWER, Severity.WARNING)
    assert found.hint.startswith(f"the newest on {TABLES.torches.read} were 2.15.0, ")


def test_a_cuda_newer_than_the_tables_is_a_warning_with_the_newest_and_their_age():
    found = findings(cuda="13.9", pytorch="2.15.0")
    assert [one.code for one in found] == [CheckCode.CUDA_NEWER, CheckCode.TORCH_CUDA_MINOR]
    assert {one.severity for one in found} == {Severity.WARNING}
    newest = f"the newest on {TABLES.cudas.read} were {TABLES.cudas.rows[-1].cuda}, "
    assert found[0].hint.startswith(newest)


def test_a_next_major_version_of_cuda_does_not_go_with_a_torch_of_this_one():
    assert [one.code for one in findings(cuda="14.0")] == [CheckCode.CUDA_NEWER, CheckCode.TORCH_CUDA]


def test_nonsense_is_not_newer_than_the_tables():
    assert is_ahead("13.9", "13.5")
    assert is_ahead("14.0", "13.5")
    assert not is_ahead("13.99", "13.5")
    assert not is_ahead("99.9", "13.5")
    assert not is_ahead("12.7", "13.5")


def test_another_minor_version_of_cuda_is_a_warning_with_the_exact_match():
    (found,) = findings(cuda="12.6", pytorch="2.5.1")
    assert (found.code, found.severity) == (CheckCode.TORCH_CUDA_MINOR, Severity.WARNING)
    assert found.hint == 'write `cuda: "12.4"`'


def test_a_warning_without_an_exact_match_has_no_hint():
    (found,) = findings(**T4)
    assert (found.code, found.hint) == (CheckCode.TORCH_CUDA_MINOR, "")


def test_another_build_of_the_same_torch_is_fine():
    assert findings(cuda="12.6") == ()


@pytest.mark.parametrize("gpu", ["GH200", "GB200", "GB300", "GB10", "Thor"])
def test_a_recipe_for_arm_is_told_what_is_possible(gpu):
    (found,) = findings(**ARM | {"gpus": (gpu,)})
    assert (found.code, found.severity) == (CheckCode.ARM_HOST, Severity.WARNING)
    assert (
        f"$.gpus[0]: {gpu} sits beside a 64-bit Arm processor: on x86-64, `build` makes it with an emulator"
        in found.message
    )


def test_what_is_possible_for_arm_is_said_once():
    assert [one.code for one in findings(**ARM | {"gpus": ("GB200", "GH200")})] == [CheckCode.ARM_HOST]
    (found,) = findings(**ARM | {"gpus": ("H100",), "platform": "linux/arm64"})
    assert (found.code, found.severity) == (CheckCode.ARM_HOST, Severity.WARNING)
    assert found.message.startswith("$.platform: the recipe is for a 64-bit Arm processor: on x86-64,")
    assert findings(**ARM | {"gpus": ("H100",), "platform": "linux/amd64"}) == ()


def test_a_gpu_for_which_the_wheel_for_arm_has_no_code_is_refused():
    t4 = ARM | {"gpus": ("T4",)}
    assert findings(**t4) == ()
    (_, error) = findings(**t4 | {"platform": "linux/arm64"})
    assert error.code == CheckCode.KERNELS
    assert (
        "torch 2.15.0+cu132 has no code for T4 (sm_75), only sm_80 sm_90 sm_100 sm_110 sm_120"
        in error.message
    )


@pytest.mark.parametrize(("torch", "cuda"), [("2.10.0", "12.6"), ("2.9.0", "12.6"), ("2.6.0", "12.4")])
def test_a_torch_whose_wheel_for_arm_is_the_cpus_names_the_first_with_cuda(torch, cuda):
    found = report(**ARM | {"pytorch": torch, "cuda": cuda})
    (error,) = (one for one in found.findings if one.severity is Severity.ERROR)
    assert error.code == CheckCode.TORCH_PROCESSOR
    assert (
        f"the package index has no wheel of torch {torch} for 64-bit Arm with CUDA, only one for the CPU; "
        "the first that it has is 2.11.0+cu130"
    ) in error.message
    assert 'write `cuda: "13.2"` and `pytorch: "2.11.0"`' in error.hint
    assert not examine(found.repairs[0].recipe, TABLES).has_errors
    assert CheckCode.TORCH_PROCESSOR not in [one.code for one in findings(pytorch=torch, cuda=cuda)]


def test_a_torch_without_any_wheel_for_arm_is_refused():
    tables = with_row("torches", "version", "2.15.0", aarch64=None)
    found = findings(tables=tables, **ARM)
    (error,) = (one for one in found if one.severity is Severity.ERROR)
    assert error.code == CheckCode.TORCH_PROCESSOR
    assert (
        "the package index has no wheel of torch 2.15.0 for 64-bit Arm; the first that it has is"
        in error.message
    )


def test_wheels_for_arm_are_judged_by_their_own_facts():
    arm = ArmWheels(pythons=("3.12",), pypi="cu126", targets="10.0", glibc="2.39")
    tables = with_row("torches", "version", "2.15.0", aarch64=arm)
    codes = {one.code for one in findings(tables=tables, **ARM)}
    assert codes >= {
        CheckCode.TORCH_PYTHON, CheckCode.TORCH_GLIBC, CheckCode.TORCH_CUDA, CheckCode.KERNELS, CheckCode.ARM_HOST,
    }  # fmt: skip
    assert findings(tables=tables, **ARM | {"gpus": ("H100",)}) == ()


def test_a_requirement_for_arm_alone_counts_beside_arm_alone():
    packages = ('numpy<1.20; platform_machine == "aarch64"',)
    tables = with_row("torches", "version", "2.15.0", numpy=">=2")
    assert CheckCode.NUMPY in [one.code for one in findings(tables=tables, **ARM, packages=packages)]
    assert findings(tables=tables, **ARM | {"gpus": ("H100",), "packages": packages}) == ()


def test_orin_is_refused_with_the_reason():
    (found,) = findings(gpus=("Orin",))
    assert (found.code, found.severity) == (CheckCode.GPU_REFUSED, Severity.ERROR)
    assert "Orin is refused: NVIDIA's CUDA for it is neither" in found.message
    assert found.hint == "NVIDIA's images of JetPack are made for it"
    (unknown,) = findings(gpus=("Warp",))
    assert "Orin" not in unknown.hint


def test_a_gpu_in_the_wrong_case_is_written_as_it_is_spelt_even_beside_arm():
    (found,) = (one for one in findings(**ARM | {"gpus": ("gh200",)}) if one.code == CheckCode.GPU)
    assert found.hint == "write `gpus: [GH200]`"


def refused_platforms(**change: object) -> list[tuple[str, str, str]]:
    found = (one for one in findings(**change) if one.code == CheckCode.PLATFORM)
    return [(one.severity, one.message.partition(" (source")[0], one.hint) for one in found]


def test_gpus_beside_an_arm_processor_decide_the_platform():
    def processor(**change: object) -> str:
        return make_context(dataclasses.replace(RECIPE, **change), TABLES).processor.platform

    assert processor() == processor(platform="linux/amd64") == processor(**CPU) == "linux/amd64"
    assert processor(gpus=("GH200",)) == processor(gpus=("GB200", "GH200")) == "linux/arm64"
    assert processor(platform="linux/arm64") == processor(platform="linux/arm64", **CPU) == "linux/arm64"


def test_gpus_that_are_never_beside_the_named_processor_are_refused():
    (found,) = refused_platforms(gpus=("A100", "GH200"), platform="linux/amd64")
    message = "$.platform: GH200 exists only beside an Arm processor, and the recipe is for linux/amd64"
    assert found == (Severity.ERROR, message, "leave out `platform`")
    assert (
        refused_platforms(platform="linux/amd64")
        == refused_platforms(gpus=("A100", "GH200"), platform="linux/arm64")
        == []
    )


def test_an_image_as_base_is_refused_for_an_arm_processor():
    (found,) = refused_platforms(base="", image="site/cuda:1", platform="linux/arm64")
    message = "$.base.image: a base image for linux/arm64 is not possible yet"
    assert found == (Severity.ERROR, message, "take a suite such as `base: debian/bookworm`")
    assert refused_platforms(base="", image="site/cuda:1") == []


def test_a_build_whose_architectures_are_not_known_is_not_judged():
    tables = with_row("torches", "version", "2.6.0", targets="")
    assert CheckCode.KERNELS not in [one.code for one in findings(tables=tables, gpus=("RTX 5090",))]


def test_the_words_of_torchs_architecture_list_matter_where_something_is_compiled():
    assert CheckCode.ARCHITECTURE_NAME not in [one.code for one in findings(**T4 | {"gpus": ("L4",)})]
    found = findings(**T4 | {"gpus": ("L4",), "extensions": CUDA_SOURCE})
    (one,) = (one for one in found if one.code == CheckCode.ARCHITECTURE_NAME)
    assert "TORCH_CUDA_ARCH_LIST does not know 8.9; torch 2.0.0 was the first that does" in one.message


# Rules that none of the suites that can be built on breaks by itself


def test_a_gcc_below_the_range_of_nvcc_is_refused():
    tables = with_row("cudas", "cuda", "12.4", gcc_min="13")
    (found,) = findings(tables=tables)
    assert (found.code, found.message.partition(" (")[0]) == (
        CheckCode.NVCC_GCC_OLD,
        "$.gcc: nvcc 12.4 takes gcc 13 to 13, not 12",
    )


@pytest.mark.parametrize(("certain", "severity"), [(True, Severity.ERROR), (False, Severity.WARNING)])
def test_a_broken_patch_release_inside_the_range_is_told(certain, severity):
    broken = dataclasses.replace(
        TABLES.cudas.by_name["11.5"].broken_gccs[1], first="12.1", below="13.0", certain=certain
    )
    tables = with_row("cudas", "cuda", "12.4", broken_gccs=(broken,))
    (found,) = findings(tables=tables)
    assert (found.code, found.severity) == (CheckCode.NVCC_GCC_BROKEN, severity)
    assert "nvcc 12.4 accepts gcc 12.2.0 and fails with it: its std_function.h" in found.message
    assert findings(tables=tables, gcc="11") == ()


def test_ubuntus_own_compiler_with_ubuntus_own_cuda_is_known_to_fail():
    found = findings(base="ubuntu/jammy", python="3.10", gcc="11", cuda="11.5", pytorch="1.12.1")
    assert CheckCode.NVCC_GCC_BROKEN in [one.code for one in found]


def test_a_gcc_below_what_torchs_headers_take_is_refused():
    (found,) = findings(tables=with_row("torches", "version", "2.6.0", gcc_min="13"))
    assert (found.code, found.severity) == (CheckCode.TORCH_GCC, Severity.ERROR)


def test_torchs_own_bound_on_gcc_is_a_warning_with_another_gcc():
    (found,) = findings(tables=with_row("torches", "version", "2.6.0", gcc_bounds=(("12.4", "<12"),)))
    assert (found.code, found.severity) == (CheckCode.TORCH_GCC_BOUND, Severity.WARNING)
    assert found.hint.startswith('write `gcc: "11"`; ')


def test_a_suite_older_than_torchs_wheel_is_refused():
    (found,) = findings(tables=with_row("torches", "version", "2.6.0", glibc="2.99"))
    assert (found.code, found.severity) == (CheckCode.TORCH_GLIBC, Severity.ERROR)


def test_what_torch_compiles_with_must_be_known_to_nvcc_and_gcc():
    tables = with_row("torches", "version", "2.6.0", std=26)
    assert [one.code for one in findings(tables=tables)] == [CheckCode.STANDARD_NVCC, CheckCode.STANDARD_GCC]
    assert [one.code for one in findings(tables=with_row("torches", "version", "2.6.0", std=29), **CPU)] == []


@pytest.mark.parametrize("cuda", ["12.6", "12.6.3"])
def test_a_minor_version_of_cuda_and_a_release_of_it_are_judged_alike(cuda: str):
    assert [one.code for one in findings(cuda=cuda)] == []
    assert [one.code for one in findings(cuda=cuda, pytorch="2.5.1")] == [CheckCode.TORCH_CUDA_MINOR]


@pytest.mark.parametrize(
    ("cuda", "code", "severity", "words"),
    [
        ("12.7", CheckCode.CUDA, Severity.ERROR, "there is no CUDA 12.7; the closest is 12.8"),
        ("12.7.1", CheckCode.CUDA, Severity.ERROR, "there is no CUDA 12.7; the closest is 12.8"),
        ("9.2", CheckCode.CUDA, Severity.ERROR, "CUDA 9.2 is older than 10.2, the oldest possible"),
        ("12.4.0", CheckCode.TOOLKIT, Severity.ERROR, "no source of packages has CUDA 12.4.0; of 12.4 there is 12.4.1"),
        ("12.4.2", CheckCode.CUDA_NEWER, Severity.WARNING, "CUDA 12.4.2 is newer than 12.4.1, the newest known: `lock` asks"),
        ("12.5", CheckCode.TOOLKIT, Severity.ERROR, "no source of packages has CUDA 12.5; the nearest that one has are 12.4 and 12.6"),
    ],
)  # fmt: skip
def test_a_release_that_no_source_has_is_told_from_one_that_never_was(
    cuda: str, code: str, severity: Severity, words: str
):
    found = {one.code: one for one in findings(cuda=cuda)}
    assert found[code].severity is severity
    assert found[code].message.startswith(f"$.cuda: {words}")


def test_parts_of_a_compiler_that_are_held_are_fine():
    held = ("nvidia-nvvm==13.0.88", "nvidia-cuda-crt==13.0.88")
    assert findings(packages=("nvidia-cuda-nvcc==13.0.88", *held)) == ()
    assert findings(packages=("nvidia-cuda-nvcc",)) == ()
    assert findings(packages=("cuda-toolkit[nvcc]",)) == ()


# Requirements


@pytest.mark.parametrize(
    ("asked", "bound", "meets"),
    [
        (">=2", "<2", False), (">=1.21,<3", "<2", True), ("==1.26.*", "<2", True), ("~=2.1", "<2", False),
        (">1.26", "<2", True), ("", "<2", True), ("==70.0.0", "!=70.*,<82", False), (">=82", "!=70.*,<82", False),
        (">=70,<71", "!=70.*,<82", False), (">=70", "!=70.*,<82", True), ("<70", ">=77.0.3", False),
        ("===wild", "<2", False), ("==0", "<2", True), ("<0", ">=0", False),
    ],
)  # fmt: skip
def test_two_bounds_meet_or_do_not(asked, bound, meets):
    found = findings(tables=with_row("torches", "version", "2.6.0", numpy=bound), packages=(f"numpy{asked}",))
    assert [one.code for one in found] == ([] if meets else [CheckCode.NUMPY])


def test_a_requirement_for_another_python_does_not_count():
    assert CheckCode.NUMPY not in [
        one.code for one in findings(**T4, packages=('numpy>=2; python_version >= "3.12"', "no requirement!"))
    ]


def test_of_two_requirements_the_one_that_asks_too_much_is_named():
    (found,) = findings(pytorch="2.0.1", packages=("numpy>1", "numpy>=2"), **CPU)
    assert found.message.startswith("$.packages[1]: ")
    (found,) = findings(pytorch="2.0.1", packages=("numpy<1.5,>=1", "numpy>=1.7"), **CPU)
    assert found.message.startswith("$.packages[1]: ")


# Standards


@pytest.mark.parametrize(
    ("flags", "standard"),
    [
        ((), (0, 0)), (("-O3",), (0, 0)), (("-std=c++17",), (0, 17)), (("-O3", "--std=gnu++20"), (1, 20)),
        (("-std=c++14", "-std=c++2b"), (1, 23)), (("-std=c++98",), (0, 3)), (("-std=c++9z",), (0, 0)),
    ],
)  # fmt: skip
def test_the_last_standard_among_the_flags_counts(flags, standard):
    assert asked_standard(flags) == standard


def test_flags_are_not_judged_by_a_torch_that_is_not_known():
    ask = (Extension(name="a", sources=("a.cpp",), cflags=("-std=c++26",)),)
    codes = [one.code for one in findings(pytorch="2.17.0", extensions=ask, **CPU)]
    assert codes == [CheckCode.TORCH_NEWER, CheckCode.STANDARD_GCC]


# GPUs


@pytest.mark.parametrize(
    ("capability", "architectures", "ptx", "runs"),
    [
        ("8.0", ("8.0",), (), True), ("8.6", ("8.0",), (), True), ("8.0", ("8.6",), (), False),
        ("8.9", ("7.5", "8.6", "9.0"), (), True), ("9.0", ("8.0",), (), False), ("9.0", ("8.0",), ("8.0",), True),
        ("9.0", ("9.0a",), (), True), ("10.3", ("10.0a",), (), False), ("10.3", ("10.0f",), (), True),
        ("10.0", (), ("9.0a",), False), ("7.0", (), ("7.5",), False), ("12.1", ("12.0",), (), True),
    ],
)  # fmt: skip
def test_a_gpu_runs_code_of_its_major_version_and_older_ptx(capability, architectures, ptx, runs):
    assert can_run(capability, architectures, ptx) == runs


# The host


def host(driver: str = "", *gpus: str) -> HostFacts:
    return HostFacts(path=Path("node.json"), driver=driver, gpus=gpus or None)


@pytest.mark.parametrize(
    ("facts", "codes"),
    [
        (host(), []),
        (host("550.54.15"), []),
        (host("999.0"), []),
        (host("535.104.05"), [CheckCode.DRIVER_MINOR]),
        (host("525.60.13", "A100"), [CheckCode.DRIVER_MINOR]),
        (host("470.256.02"), [CheckCode.DRIVER_FORWARD]),
        (host("470.256.02", "NVIDIA A100-SXM4-80GB"), [CheckCode.DRIVER_FORWARD]),
        (host("470.256.02", "NVIDIA GeForce RTX 3090"), [CheckCode.DRIVER]),
        (host("510.47.03"), [CheckCode.DRIVER]),
        (host("", "A10"), []),
        (host("", "NVIDIA H100 80GB HBM3"), [CheckCode.HOST_GPU]),
        (host("", "NVIDIA A10G", "A100"), [CheckCode.HOST_GPU_UNKNOWN]),
    ],
)
def test_the_machine_that_it_is_to_run_on_is_judged(facts, codes):
    assert [one.code for one in findings(facts)] == codes


def test_a_recipe_without_cuda_runs_on_any_driver_and_gpu():
    assert findings(host("1.0", "H100"), **CPU) == ()
    assert findings(HostFacts(path=Path("node.json"), gpus=()), **CPU) == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"version": 1, "gpus": []}', "`HERE` has no GPU and no driver, as on a login node: whether "),
        ('{"gpus": [], "driver": "550.54.15"}', "`HERE` has no GPU, as on a login node: whether "),
        ('{"driver": "550.54.15"}', ""),  # nobody said that there is none
    ],
)
def test_a_host_without_a_gpu_is_no_proof_that_the_environment_runs(tmp_path, text, told):
    file = tmp_path / "login.json"
    file.write_text(text)
    found = findings(load_host_facts(file))
    assert [one.code for one in found] == ([CheckCode.HOST_EMPTY] if told else [])
    assert [one.severity for one in found] == ([Severity.WARNING] if told else [])
    assert all(told.replace("HERE", str(file)) in one.message and "compute node" in one.hint for one in found)


def test_the_driver_finding_says_whether_forward_compatibility_applies():
    (found,) = findings(host("470.256.02"))
    assert "CUDA 12.4 needs driver 525.60.13 or newer, and `node.json` says 470.256.02" in found.message
    assert "cuda-compat-12-4, which takes the branch R470" in found.message
    (found,) = findings(host("470.256.02", "RTX 3090"))
    assert "forward compatibility (cuda-compat-12-4) is not for RTX 3090" in found.message
    (found,) = findings(host("510.47.03"))
    assert "takes R470, R525, R535, not R510" in found.message
    (found,) = findings(host("535.1"), cuda="13.2", pytorch="2.15.0", gpus=("H100",))
    assert "is not known" in found.message


def test_a_driver_too_old_gets_the_pins_that_run_on_it():
    (found,) = findings(host("535.104.05"), cuda="13.2", pytorch="2.15.0")
    assert found.hint.startswith('write `cuda: "12.6"` and `pytorch: "2.14.1"`')


def test_a_gpu_of_the_host_is_added_to_the_recipe():
    (found,) = findings(host("", "H100"))
    assert found.hint == "write `gpus: [A100, H100]`"


def test_no_gpu_that_is_known_says_nothing_of_the_hosts():
    assert [one.code for one in findings(host("", "H100"), gpus=("Voodoo 2",))] == [CheckCode.GPU]


# Repairs


def test_repairs_are_data_as_well():
    (first, second) = report(gcc="9").repairs
    assert first.data() == {"gcc": "11"}
    assert second.data() == {"base": "debian/bullseye", "python": "3.9"}
    (only,) = report(pytorch="2.0.1", packages=("rich", "numpy>=2"), **CPU).repairs[:1]
    assert only.data() == {"packages": ["rich", "numpy<2"]}


def test_several_mistakes_get_one_repair_of_them_all():
    found = report(gpus=("a100",), gcc="99", libxcrypt="5", pytorch="2.6.1", cuda="12.7")
    assert found.has_errors
    assert not examine(found.repairs[0].recipe, TABLES).has_errors
    assert {"gpus", "gcc", "libxcrypt", "pytorch", "cuda"} <= set(found.repairs[0].data())


def test_what_no_pins_repair_has_no_repair():
    assert report(gpus=("Voodoo 2",)).repairs == ()
    assert report(host("100.0")).repairs == ()


def test_what_is_sound_needs_no_repair():
    assert report().repairs == ()
    assert report(cuda="12.6", pytorch="2.5.1").repairs == ()


def test_changes_reach_every_part_of_a_recipe():
    recipe = dataclasses.replace(RECIPE, packages=("a",), extensions=(*CUDA_SOURCE, *CUDA_SOURCE))
    changes = {
        "gcc": "11",
        "gpus[0]": "T4",
        "packages[1]": "b",
        "extensions[1].cflags[0]": "-O1",
        "extensions[0].cuda_cflags[0]": "-O2",
    }
    changed = apply(recipe, [PinChange(key, value) for key, value in changes.items()])
    assert (changed.gcc, changed.gpus, changed.packages) == ("11", ("T4",), ("a", "b"))
    assert [(one.cflags, one.cuda_cflags) for one in changed.extensions] == [((), ("-O2",)), (("-O1",), ())]


# The report as a whole


def test_a_finding_points_at_the_line_of_the_recipe():
    assert [found.where for found in findings(cuda="14.0")] == ["x.yaml:5:7", "x.yaml:5:7"]
    assert [found.where for found in findings(gpus=("Z9",))] == ["x.yaml:2:8"]
    assert {found.where for found in findings(gcc="13")} == {"x.yaml:1:1"}


def test_every_finding_comes_at_once():
    found = findings(
        base="debian/trixie",
        python="3.7",
        gpus=("A10000",),
        gcc="9",
        libxcrypt="5",
        pytorch="1.0.0",
        cuda="9.9",
    )
    assert [finding.code for finding in found] == [
        CheckCode.GPU,
        CheckCode.PYTHON,
        CheckCode.GCC,
        CheckCode.LIBXCRYPT,
        CheckCode.CUDA,
        CheckCode.TORCH,
    ]


def every_pin() -> list[dict[str, object]]:
    suites = [(row, gcc) for row in TABLES.distributions.rows for gcc in row.gccs]
    return [
        {"base": row.name, "python": row.python, "gcc": gcc, "pytorch": torch.version, "libxcrypt": row.short_libxcrypt} | CPU
        for row, gcc in suites
        for torch in TABLES.torches.rows
        if row.python in torch.pythons and not (torch.std >= 20 and int(gcc) < 10)
    ]  # fmt: skip


def test_every_sound_combination_of_the_tables_passes():
    pins = every_pin()
    assert len(pins) > 100
    assert [pin for pin in pins if findings(**pin)] == []


def test_a_build_of_pytorchs_own_index_has_a_neighbour_in_the_package_index():
    recipe = dataclasses.replace(RECIPE, pytorch="2.13.0", cuda="13.2")
    context = make_context(recipe, TABLES)
    assert index_build(context.torch, recipe.cuda) == "cu132"
    repair = find_on_package_index(context)
    assert repair is not None
    found = make_context(repair.recipe, TABLES)
    assert index_build(found.torch, repair.recipe.cuda) == ""
    assert found.build is found.torch.build
    assert {one.code for one in judge(repair.recipe, TABLES)} <= {one.code for one in judge(recipe, TABLES)}


def test_rules_and_codes_stand_each_once():
    assert len(set(RULES)) == len(RULES)
    assert len({code.value for code in CheckCode}) == len(CheckCode)


def test_a_source_is_named_with_its_day():
    row = TABLES.cudas.by_name["12.4"]
    assert cite(row.source, "math_functions").startswith("crt/math_functions.h")
    assert cite(row.source, "nowhere") == cite(row.source)
    assert cite(TABLES.standards.sources).endswith(f"read {TABLES.standards.read}")


def test_a_suite_without_the_pinned_compiler_or_python_is_compared_by_the_pins():
    context = make_context(dataclasses.replace(RECIPE, gcc="9", python="3.7"), TABLES)
    assert (context.gcc, context.python) == ("9", "3.7")


NCCL = {"cuda": "12.8", "pytorch": "2.8.0"}


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"nccl_version": "2.25.1"}, "EB358", "$.nccl.version: NCCL 2.25.1 has a known fault: `ncclCommAbort` hangs"),
        ({"nccl_version": "2.30.4", "gpus": ("B200",)}, "EB358", "NVLink SHARP hangs"),
        ({"nccl_version": "2.28.9", "gpus": ("GH200",), "cuda": "13.0", "pytorch": "2.12.0"}, "EB358", "every rank hangs"),
        ({"nccl_version": "2.27.5", "pytorch": "1.13.1", "cuda": "11.7"}, "EB357", "torch 1.13.1 contains NCCL in its own libraries"),
    ],
)  # fmt: skip
def test_an_nccl_that_the_recipe_chooses_is_judged(change: dict[str, object], code: str, words: str):
    (finding,) = [one for one in findings(**(NCCL | change)) if one.code == code]
    assert words in finding.message
    assert "(source: " in finding.message


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ("spconv", "has code for the CPU alone"),
        ("spconv==2.3.8", "has code for the CPU alone"),
        ("fbgemm_gpu", "whichever torch that is for"),
        ("sgl-kernel>=0.1", "whichever torch that is for"),
        ("fbgemm-gpu==1.1.0", ""),
        ("sgl-kernel<0.2", ""),
        ("spconv-cu120", ""),
    ],
)
def test_a_name_that_alone_brings_what_does_not_fit_is_a_warning(requirement: str, words: str):
    alone = [one for one in findings(packages=(requirement,)) if one.code == "EB359"]
    assert [(words in one.message, one.severity) for one in alone] == [(True, Severity.WARNING)] * bool(words)
    assert all("is for one release of torch" in one.hint or "spconv-cu126" in one.hint for one in alone)
    assert not findings(packages=(requirement,), cuda="", gpus=(), base="debian/bookworm")


def test_a_release_of_nccl_without_a_known_fault_has_no_finding():
    assert [one.code for one in findings(**NCCL, nccl_version="2.27.5") if "nccl" in one.message] == []
    assert [one.code for one in findings(**NCCL, nccl_version="2.30.4") if "nccl" in one.message] == []
