"""The tables that we bring: they obey their own rules, and their loaders notice when they do not."""

from pathlib import Path

import pytest

from envbuilder.tables.distribution import load_distributions
from envbuilder.tables.gpu import capabilities, load_gpus
from envbuilder.tables.torch import build_of, cuda_of, load_torches

GPUS = load_gpus().rows
HEAD = 'source: here\nread: "2026-11-21"\n'


def test_each_table_is_read_once():
    assert load_gpus() is load_gpus()
    assert load_torches() is load_torches()
    assert load_distributions() is load_distributions()


@pytest.mark.parametrize("table", [load_gpus(), load_torches(), load_distributions()])
def test_each_table_says_where_and_when_it_was_read(table):
    assert table.source
    assert table.read >= "2026-11-21"
    assert table.rows


@pytest.mark.parametrize(
    ("name", "capability", "target"),
    [
        ("V100", "7.0", "sm_70"), ("T4", "7.5", "sm_75"), ("A10", "8.6", "sm_86"), ("A30", "8.0", "sm_80"),
        ("A40", "8.6", "sm_86"), ("A100", "8.0", "sm_80"), ("RTX 3090", "8.6", "sm_86"), ("RTX 4090", "8.9", "sm_89"),
        ("L4", "8.9", "sm_89"), ("L40S", "8.9", "sm_89"), ("RTX 5090", "12.0", "sm_120"), ("H100", "9.0", "sm_90"),
        ("H200", "9.0", "sm_90"), ("GH200", "9.0", "sm_90"), ("B100", "10.0", "sm_100"), ("B200", "10.0", "sm_100"),
        ("GB200", "10.0", "sm_100"), ("B300", "10.3", "sm_103"), ("RTX PRO 6000 Blackwell", "12.0", "sm_120"),
    ],
)  # fmt: skip
def test_a_gpu_has_its_compute_capability(name, capability, target):
    (gpu,) = (row for row in GPUS if row.name == name)
    assert (gpu.capability, gpu.target) == (capability, target)


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
    assert torch.builds == ("cu124", "cu118", "cu126")


def test_a_suite_has_its_compilers():
    suites = {row.suite: (row.python, row.glibc, row.gcc, row.gccs) for row in load_distributions().rows}
    assert suites == {
        "bullseye": ("3.9", "2.31", "10", ("9", "10")),
        "bookworm": ("3.11", "2.36", "12", ("11", "12")),
        "trixie": ("3.13", "2.41", "14", ("12", "13", "14")),
    }


def refusal(tmp_path: Path, load: object, text: str) -> str:
    path = tmp_path / "table.yaml"
    path.write_text(text)
    assert callable(load)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what the tests compare
        load(path)
    return str(caught.value).replace(f"{path}:", "")


def gpu(name: str, capability: str) -> str:
    return f'  - {{name: {name}, capability: "{capability}"}}\n'


def test_unsorted_and_doubled_rows_are_refused(tmp_path):
    rows = gpu("T4", "7.5") + gpu("A100", "8.0") + gpu("V100", "7.0") + gpu("V100", "7.0")
    assert refusal(tmp_path, load_gpus, f"{HEAD}rows:\n{rows}").splitlines() == [
        "6:5: $.rows[2]: rows are sorted and unique, but (7, 0, 'V100') follows (8, 0, 'A100')",
        "7:5: $.rows[3]: rows are sorted and unique, but (7, 0, 'V100') follows (7, 0, 'V100')",
    ]


def test_every_mistake_of_a_table_is_told_at_once(tmp_path):
    text = f"{HEAD}rows:\n  - {{name: T4, capability: 7.5}}\n  - {{nam: T4, capability: x}}\n"
    assert len(refusal(tmp_path, load_gpus, text).splitlines()) == 4


def test_a_table_without_its_source_or_rows_is_refused(tmp_path):
    assert "`source` is missing" in refusal(tmp_path, load_gpus, "rows: []\n")
    assert refusal(tmp_path, load_gpus, "").startswith("1:1: $: expected a map")
    assert "is not YAML" in refusal(tmp_path, load_gpus, "rows: [")


def test_a_suite_whose_default_compiler_is_not_packaged_is_refused(tmp_path):
    row = (
        '  - {name: debian/x, release: "1", glibc: "2.1", python: "3.9", gcc: "8", gccs: ["10", "9"],'
        ' libxcrypt: "4.4.1", components: [main]}\n'
    )
    assert "`gccs` is ascending and holds the default" in refusal(
        tmp_path, load_distributions, f"{HEAD}rows:\n{row}"
    )


def test_a_torch_with_a_build_twice_is_refused(tmp_path):
    row = '  - {version: "2.0.0", released: "2023-01-01", pythons: ["3.9"], pypi: cu117, others: [cu117]}\n'
    assert "stands there once" in refusal(tmp_path, load_torches, f"{HEAD}rows:\n{row}")
