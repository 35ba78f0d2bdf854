"""The tables that we bring: they obey their own rules, and their loaders notice when they do not."""

import re
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from envbuilder.compat import tables
from envbuilder.compat.tables.cuda import architecture_key, capabilities, load_cudas, load_gpus
from envbuilder.compat.tables.distribution import (
    load_distributions,
    load_pythons,
    load_standalones,
    load_standards,
)
from envbuilder.compat.tables.table import cite, version_key
from envbuilder.compat.tables.toolkit import all_releases, load_toolkits
from envbuilder.compat.tables.torch import build_of, cuda_of, load_torches
from envbuilder.core.processor import AARCH64

GPUS = load_gpus().rows
TORCHES = {row.version: row for row in load_torches().rows}
CUDAS = {row.cuda: row for row in load_cudas().rows}
PYTHONS = {row.python: row for row in load_pythons().rows}
HEAD = 'sources: {here: {text: somewhere, read: "2026-11-21"}}\nread: "2026-11-21"\n'


LOADERS = [
    load_gpus, load_torches, load_distributions, load_cudas, load_pythons, load_standalones, load_standards,
]  # fmt: skip


@pytest.mark.parametrize("load", LOADERS)
def test_each_table_is_read_once(load):
    assert load() is load()


def test_the_head_of_each_table_names_the_module_that_reads_it():
    folder = Path(tables.__file__).parent
    readers = {
        path: re.search(r"; read by `tables/(\w+\.py)`", path.read_text()) for path in folder.glob("*.yaml")
    }
    named = {path.name: folder / match[1] for path, match in readers.items() if match}
    assert len(named) == len(readers) - 1  # overrides.yaml is no table
    assert [name for name, reader in named.items() if f'"{name}"' not in reader.read_text()] == []


@pytest.mark.parametrize("load", LOADERS)
def test_each_table_says_where_and_when_it_was_read(load):
    table = load()
    assert table.rows
    assert table.read >= "2026-11-21"
    assert all(source.text and source.read >= "2026-11-21" for source in table.sources)


@pytest.mark.parametrize("table", [load_torches(), load_cudas(), load_standalones()])
def test_each_row_of_a_release_says_where_and_when_it_was_read(table):
    for row in table.rows:
        assert re.search(r", read \d{4}-\d\d-\d\d$", cite(row.source)), row
        assert row.read >= "2026-11-21"


def test_there_is_a_standalone_build_of_each_python_that_a_suite_or_a_torch_may_have():
    rows = load_standalones().by_name
    assert {f"3.{minor}" for minor in range(8, 15)} <= set(rows)
    assert set(rows) <= set(PYTHONS)
    for row in rows.values():
        assert row.version.startswith(f"{row.python}."), row


def test_each_build_of_torch_has_its_cuda_and_only_architectures_of_that():
    oldest = min(CUDAS, key=version_key)
    for torch in TORCHES.values():
        for build in torch.builds:
            if version_key(build.cuda) >= version_key(oldest):
                assert set(build.architectures) <= set(CUDAS[build.cuda].architectures), (
                    torch.version,
                    build,
                )
            assert set(build.ptx) <= set(build.architectures)


def test_the_toolkit_package_that_a_torch_asks_for_is_that_of_its_build():
    for torch in TORCHES.values():
        if torch.cuda_toolkit:
            assert torch.cuda_toolkit.startswith(f"{torch.build.cuda}.")


def test_each_toolkit_that_can_be_laid_out_is_known():
    assert {release.rpartition(".")[0] for release in all_releases(load_toolkits().rows)} <= set(CUDAS)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_each_gpu_can_be_compiled_for(gpu):
    assert any(cuda.can_target(gpu.capability) for cuda in CUDAS.values())


def test_each_architecture_of_a_toolkit_is_known_to_a_torch_or_listed_as_special():
    named = set(TORCHES["2.15.0"].arch_names)
    assert {"8.0", "9.0a", "12.0"} <= named
    assert named - {"3.5"} <= {name for cuda in CUDAS.values() for name in cuda.architectures}


def test_each_suite_has_a_known_python_that_agrees_on_crypt_h():
    for suite in load_distributions().rows:
        assert suite.python in PYTHONS
    needing = [
        row.suite
        for row in load_distributions().rows
        if PYTHONS[row.python].needs_crypt_h(row.python_version)
    ]
    assert needing == ["bullseye", "focal"]


@pytest.mark.parametrize(
    ("version", "needs"),
    [
        ("3.8.20", True), ("3.8", True), ("3.9.2", True), ("3.9.7", True), ("3.9.8", False), ("3.10.0", True),
        ("3.10.1", False), ("3.10", False), ("3.11.0", False), ("2.7.18", True), ("3.15.0", False),
    ],
)  # fmt: skip
def test_old_pythons_need_crypt_h(version, needs):
    assert PYTHONS[".".join(version.split(".")[:2])].needs_crypt_h(version) is needs


@pytest.mark.parametrize(
    ("cuda", "gcc", "broken"),
    [
        ("11.5", "11.4.0", True), ("11.5", "11.1.0", False), ("11.5", "10.2.1", False), ("11.7", "11.4.0", False),
        ("12.4", "10.3.0", True), ("12.4", "10.4.0", False), ("11.6", "11.3.0", True),
    ],
)  # fmt: skip
def test_some_releases_of_gcc_are_broken_within_the_range(cuda, gcc, broken):
    assert any(one.holds(gcc) for one in CUDAS[cuda].broken_gccs) is broken


@pytest.mark.parametrize(
    ("cuda", "gcc", "std", "glibc", "driver", "floor"),
    [
        ("10.2", ("5", "8"), 14, "2.41", "440.33", "440.33"),
        ("11.2", ("5", "10"), 17, "2.41", "460.32.03", "450.80.02"),
        ("12.4", ("6", "13"), 20, "2.41", "550.54.15", "525.60.13"),
        ("13.0", ("6", "15"), 20, "2.42", "580.95.05", "580.65.06"),
        ("13.5", ("6", "16"), 23, "", "", "580.65.06"),
    ],
)
def test_a_toolkit_has_its_limits(cuda, gcc, std, glibc, driver, floor):
    row = CUDAS[cuda]
    assert ((row.gcc_min, row.gcc_max), row.std_max, row.glibc_below) == (gcc, std, glibc)
    assert (row.driver, row.driver_floor) == (driver, floor)


def test_a_toolkit_has_forward_compatible_drivers_or_says_unknown():
    assert CUDAS["12.4"].forward_branches == ("470", "525", "535")
    assert CUDAS["13.5"].forward_branches is None


def test_releases_of_the_toolkit_package_with_a_loose_compiler_are_known():
    loose = [version for cuda in CUDAS.values() for version in cuda.unpinned]
    assert loose == ["13.0.0", "13.0.1", "13.0.2", "13.1.0", "13.1.1", "13.2.0"]


def test_architectures_come_in_their_order():
    assert sorted(["10.0", "9.0a", "9.0", "8.6"], key=architecture_key) == ["8.6", "9.0", "9.0a", "10.0"]
    with pytest.raises(ValueError, match="expected an architecture"):
        architecture_key("sm_90")


def test_forward_compatibility_is_for_data_centres():
    having = {gpu.name: gpu.has_forward_compatibility for gpu in GPUS}
    assert having["A100"]
    assert not having["RTX 4090"]


def test_torch_limits_what_its_wheels_do_not_declare():
    assert (TORCHES["2.2.2"].numpy, TORCHES["2.3.0"].numpy) == ("<2", "")
    assert (TORCHES["2.1.2"].setuptools, TORCHES["2.2.0"].setuptools) == ("!=70.*,<82", "")
    assert (TORCHES["2.6.0"].glibc, TORCHES["2.7.0"].glibc) == ("2.17", "2.28")


@pytest.mark.parametrize(
    ("torch", "cuda", "gcc", "allowed"),
    [
        ("1.12.1", "11.3", "10.0.0", True), ("1.12.1", "11.3", "10.2.1", False), ("1.13.1", "11.2", "10.2.1", True),
        ("2.11.0", "12.8", "14.2.0", False), ("2.12.0", "12.8", "14.2.0", True), ("2.11.0", "12.4", "5.5.0", False),
    ],
)  # fmt: skip
def test_torch_has_its_own_bounds_of_gcc(torch, cuda, gcc, allowed):
    bound = dict(TORCHES[torch].gcc_bounds)[cuda]
    assert (gcc in SpecifierSet(bound)) is allowed


def test_a_cuda_that_torch_has_no_bound_for_is_not_checked_by_it():
    assert "13.2" not in dict(TORCHES["2.15.0"].gcc_bounds)


def test_a_build_is_found_by_its_cuda():
    build = TORCHES["2.6.0"].build_for("12.6")
    assert build is not None
    assert (build.name, build.architectures[-1]) == ("cu126", "9.0")
    assert TORCHES["2.6.0"].build_for("12.5") is None
    assert TORCHES["2.15.0"].other_builds[0].ptx == ("12.0",)
    assert TORCHES["1.11.0"].other_builds[1].architectures == ()  # cu115: not known


@pytest.mark.parametrize(
    ("name", "capability", "target"),
    [
        ("V100", "7.0", "sm_70"), ("T4", "7.5", "sm_75"), ("A10", "8.6", "sm_86"), ("A30", "8.0", "sm_80"),
        ("A40", "8.6", "sm_86"), ("A100", "8.0", "sm_80"), ("RTX 3090", "8.6", "sm_86"), ("RTX 4090", "8.9", "sm_89"),
        ("L4", "8.9", "sm_89"), ("L40S", "8.9", "sm_89"), ("RTX 5090", "12.0", "sm_120"), ("H100", "9.0", "sm_90"),
        ("H200", "9.0", "sm_90"), ("GH200", "9.0", "sm_90"), ("B100", "10.0", "sm_100"), ("B200", "10.0", "sm_100"),
        ("GB200", "10.0", "sm_100"), ("B300", "10.3", "sm_103"), ("RTX PRO 6000 Blackwell", "12.0", "sm_120"),
        ("GB300", "10.3", "sm_103"), ("Thor", "11.0", "sm_110"), ("GB10", "12.1", "sm_121"), ("Orin", "8.7", "sm_87"),
    ],
)  # fmt: skip
def test_a_gpu_has_its_compute_capability(name, capability, target):
    (gpu,) = (row for row in GPUS if row.name == name)
    assert (gpu.capability, gpu.target) == (capability, target)


def test_some_gpus_sit_beside_an_arm_processor_and_orin_is_refused():
    assert {gpu.name for gpu in GPUS if gpu.arm_host} == {"GH200", "GB200", "GB300", "Thor", "GB10"}
    assert [gpu.name for gpu in GPUS if gpu.refused] == ["Orin"]


@pytest.mark.parametrize(
    ("name", "first"), [("GH200", "11.8"), ("GB200", "12.8"), ("GB300", "12.9"), ("Thor", "13.0"), ("GB10", "12.9")]
)  # fmt: skip
def test_a_gpu_beside_an_arm_processor_has_a_first_cuda_that_compiles_for_it(name, first):
    (gpu,) = (row for row in GPUS if row.name == name)
    able = [row.cuda for row in CUDAS.values() if row.can_target(gpu.capability)]
    assert (able[0], able[-1]) == (first, list(CUDAS)[-1])


def test_wheels_of_torch_for_arm_have_cuda_from_2_11_on():
    arm = {version: row.on(AARCH64) for version, row in TORCHES.items()}
    cuda = {version: row.build.name for version, row in arm.items() if row and row.build.cuda}
    assert cuda == {
        "2.11.0": "cu130", "2.12.0": "cu130", "2.12.1": "cu130", "2.13.0": "cu130", "2.14.0": "cu130", "2.14.1": "cu130",
        "2.15.0": "cu132",
    }  # fmt: skip
    assert all(row is not None for version, row in arm.items() if version_key(version) >= (1, 10))
    newest = arm["2.15.0"]
    assert newest
    assert newest.build.architectures == ("8.0", "9.0", "10.0", "11.0", "12.0")
    assert newest.other_builds == ()


def test_capabilities_are_ascending_and_each_once():
    assert capabilities(["B200", "H100", "A100", "H200"], GPUS) == ("8.0", "9.0", "10.0")
    assert capabilities([], GPUS) == ()
    with pytest.raises(KeyError):
        capabilities(["Z9"], GPUS)


@pytest.mark.parametrize(("cuda", "build"), [("9.2", "cu92"), ("12.4", "cu124"), ("13.2", "cu132")])
def test_a_build_is_named_after_its_cuda(cuda, build):
    assert build_of(cuda) == build
    assert cuda_of(build) == cuda


def test_releases_of_torch_come_oldest_first_by_date_as_well():
    rows = load_torches().rows
    assert len(rows) == 42
    dates = {row.version: row.released for row in rows}
    assert [row.released for row in rows] == sorted(dates.values())


def test_a_torch_has_its_pythons_and_builds():
    (torch,) = (row for row in load_torches().rows if row.version == "2.6.0")
    assert torch.pythons == ("3.9", "3.10", "3.11", "3.12", "3.13")
    assert [build.name for build in torch.builds] == ["cu124", "cu118", "cu126"]


def test_a_suite_has_its_compilers():
    suites = {row.suite: (row.python, row.glibc, row.gcc, row.gccs) for row in load_distributions().rows}
    assert suites == {
        "bullseye": ("3.9", "2.31", "10", ("9", "10")),
        "bookworm": ("3.11", "2.36", "12", ("11", "12")),
        "trixie": ("3.13", "2.41", "14", ("12", "13", "14")),
        "forky": ("3.14", "2.43", "16", ("12", "13", "14", "15", "16")),
        "sid": ("3.14", "2.43", "16", ("11", "12", "13", "14", "15", "16")),
        "focal": ("3.8", "2.31", "9", ("9", "10")),
        "jammy": ("3.10", "2.35", "11", ("9", "10", "11", "12")),
        "noble": ("3.12", "2.39", "13", ("9", "10", "11", "12", "13", "14")),
        "resolute": ("3.14", "2.43", "15", ("11", "12", "13", "14", "15")),
    }


def refusal(tmp_path: Path, load: object, text: str) -> str:
    path = tmp_path / "table.yaml"
    path.write_text(text)
    assert callable(load)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what the tests compare
        load(path)
    return str(caught.value).replace(f"{path}:", "")


def gpu(name: str, capability: str) -> str:
    rest = "market: consumer, interconnect: PCIe, source: [here]"
    return f'  - {{name: {name}, capability: "{capability}", {rest}}}\n'


def test_unsorted_and_doubled_rows_are_refused(tmp_path):
    rows = gpu("T4", "7.5") + gpu("A100", "8.0") + gpu("V100", "7.0") + gpu("V100", "7.0")
    assert refusal(tmp_path, load_gpus, f"{HEAD}rows:\n{rows}").splitlines() == [
        "6:5: $.rows[2]: rows are sorted and unique, but (7, 0, 'V100') follows (8, 0, 'A100')",
        "7:5: $.rows[3]: rows are sorted and unique, but (7, 0, 'V100') follows (7, 0, 'V100')",
    ]


def test_every_mistake_of_a_table_is_told_at_once(tmp_path):
    rest = "market: consumer, interconnect: PCIe, source: [here]"
    rows = f"  - {{name: T4, capability: 7.5, {rest}}}\n  - {{nam: T4, capability: x, {rest}}}\n"
    assert len(refusal(tmp_path, load_gpus, f"{HEAD}rows:\n{rows}").splitlines()) == 4


def test_a_row_whose_source_is_not_known_is_refused(tmp_path):
    row = gpu("T4", "7.5")
    assert "`there` is not among the sources" in refusal(
        tmp_path, load_gpus, f"{HEAD}rows:\n{row.replace('here', 'there')}"
    )
    assert "says in `source` where it comes from" in refusal(
        tmp_path, load_gpus, f"{HEAD}rows:\n{row.replace('[here]', '[]')}"
    )


def test_a_gpu_of_an_unknown_market_is_refused(tmp_path):
    rows = gpu("T4", "7.5").replace("consumer", "gamers")
    assert 'expected data-center, workstation, consumer or embedded, found "gamers"' in refusal(
        tmp_path, load_gpus, f"{HEAD}rows:\n{rows}"
    )


def test_a_table_without_its_source_or_rows_is_refused(tmp_path):
    assert "`sources` is missing" in refusal(tmp_path, load_gpus, "rows: []\n")
    assert refusal(tmp_path, load_gpus, "").startswith("1:1: $: expected a map")
    assert "is not YAML" in refusal(tmp_path, load_gpus, "rows: [")


@pytest.mark.parametrize("gccs", ['"10.2.0", "9.3.0"', '"9.3.0", "10.1.0", "10.2.0"', '"9.3.0"'])
def test_a_suite_whose_compilers_are_not_in_order_or_lack_the_default_is_refused(tmp_path, gccs):
    row = (
        f'  - {{name: debian/x, release: "1", glibc: "2.1", python: "3.9.1", gcc: "10.2.0", gccs: [{gccs}],'
        ' libxcrypt: "4.4.1", crypt_h: true, components: [main], pockets: [], source: [here]}\n'
    )
    assert "`gccs` is ascending, has one of each major version and holds the default" in refusal(
        tmp_path, load_distributions, f"{HEAD}rows:\n{row}"
    )


def test_a_python_that_lost_crypt_h_before_it_existed_is_refused(tmp_path):
    row = '  - {python: "3.9", crypt_h_below: "3.8.1", source: [here]}\n'
    assert "above the row's Python" in refusal(tmp_path, load_pythons, f"{HEAD}rows:\n{row}")


TORCH = {
    "version": '"2.0.0"', "released": '"2023-01-01"', "read": '"2026-11-21"', "source": "[here]", "pythons": '["3.9"]',
    "pypi": "cu117", "architectures": '"8.0 9.0+PTX"', "glibc": '"2.17"', "cxx11_abi": "true", "std": "17",
    "std_min": "14", "arch_names": '"8.0"', "others": "{cu118: ~}",
}  # fmt: skip
CUDA = {
    "cuda": '"12.4"', "read": '"2026-11-21"', "source": "[here]", "gcc_min": '"6"', "gcc_max": '"13"',
    "std_max": "20", "architectures": '"8.0 9.0 9.0a"', "confidence": "verified",
}  # fmt: skip


def table(row: dict[str, str], **change: str) -> str:
    fields = ", ".join(f"{key}: {value}" for key, value in (row | change).items())
    return f"{HEAD}rows:\n  - {{{fields}}}\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"others": '{cu117: "8.0"}'}, "may appear once"),
        ({"others": '{cpu: "8.0"}'}, 'expected a build such as cu124, found "cpu"'),
        ({"std_min": "20"}, "`std_min` is not above `std`"),
        (
            {"architectures": '"9.0 8.0"'},
            "$.rows[0].architectures: expected ascending architectures, each once, found 9.0 8.0",
        ),
        ({"numpy": '"2"'}, "expected a PEP 440 specifier"),
        ({"gcc_bounds": '{"12.4": "14"}'}, "expected a PEP 440 specifier"),
        ({"cxx11_abi": '"yes"'}, "expected true or false, found yes"),
    ],
)
def test_a_torch_that_breaks_a_rule_is_refused(tmp_path, change, message):
    assert message in refusal(tmp_path, load_torches, table(TORCH, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gcc_min": '"14"'}, "`gcc_min` is not above `gcc_max`, found 14 and 13"),
        ({"driver": '"550.54"', "minor_driver": '"551.1"'}, "`minor_driver` is not above `driver`"),
        ({"compiler": '"12.5.1"'}, "the compiler 12.5.1 is not one of 12.4"),
        ({"confidence": "sure"}, 'expected verified, secondary or uncertain, found "sure"'),
        (
            {"broken_gccs": '[{from: "11.4", below: "11.2", certain: true, why: x}]'},
            "`from` is not below `below`",
        ),
    ],
)
def test_a_toolkit_that_breaks_a_rule_is_refused(tmp_path, change, message):
    assert message in refusal(tmp_path, load_cudas, table(CUDA, **change))


OVERRIDES = 'read: "2026-11-21"\nsources: {hand: {text: a person, read: "2026-11-22"}}\n'


def test_overrides_change_rows_and_add_their_sources(tmp_path):
    (tmp_path / "table.yaml").write_text(table(TORCH))
    (tmp_path / "overrides.yaml").write_text(
        OVERRIDES + 'torch:\n  - {for: "1.9 - 2.0.0", source: [hand], set: {numpy: "<2", std: 20}}\n'
        '  - {for: "2.0.0 -", source: [hand], set: {std: 17, others: {cu118: "9.0"}}}\n'
    )
    read = load_torches(tmp_path / "table.yaml")
    (row,) = read.rows
    assert (row.numpy, row.std, row.other_builds[0].architectures) == ("<2", 17, ("9.0",))
    assert [source.text for source in row.source] == ["somewhere", "a person"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('{for: "2.0.1 -", source: [hand], set: {}}', "no row of `torch` is in this range"),
        ('{for: "2.0.0", source: [hand], set: {nunpy: x}}', "unknown key `nunpy`"),
        ('{for: "2.0.0", source: [other], set: {}}', "`other` is not among the sources"),
        ('{for: "2.0.0 to", source: [hand], set: {}}', "expected a version,"),
        ('{for: "2.0.0", source: [hand]}', "the key `set` is missing"),
    ],
)
def test_an_override_that_means_nothing_is_refused(tmp_path, override, message):
    (tmp_path / "overrides.yaml").write_text(f"{OVERRIDES}torch:\n  - {override}\n")
    assert message in refusal(tmp_path, load_torches, table(TORCH))


def test_overrides_that_are_no_yaml_are_refused(tmp_path):
    (tmp_path / "overrides.yaml").write_text("[")
    assert "is not YAML" in refusal(tmp_path, load_torches, table(TORCH))
