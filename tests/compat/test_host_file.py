"""Host facts: a small file about another machine, read with every mistake at once."""

import json
from pathlib import Path

import pytest

from envbuilder.compat.host_file import HostFacts, find_name, load_host_facts
from envbuilder.core.errors import UsageError
from envbuilder.node.nccl.decide import decide
from envbuilder.node.nccl.facts import Facts, Gpu
from envbuilder.node.nccl.profile import Profile, profile_data


def written(folder: Path, text: str, name: str = "node.yaml") -> HostFacts:
    path = folder / name
    path.write_text(text)
    return load_host_facts(path)


def test_both_spellings_are_read(tmp_path):
    facts = written(tmp_path, 'driver: "535.104.05"\ngpus: [A100, NVIDIA L4]\n')
    assert (facts.driver, facts.gpus) == ("535.104.05", ("A100", "NVIDIA L4"))
    assert written(tmp_path, '{"driver": "580.65.06"}', "node.json").driver == "580.65.06"
    assert written(tmp_path, "gpus: [T4]\n").driver == ""


def test_every_mistake_is_told_at_once_with_its_place(tmp_path):
    with pytest.raises(UsageError) as caught:
        written(tmp_path, "driver: 535.1\ngpu: [A100]\n")
    assert [(one.code, one.where) for one in caught.value.findings] == [
        ("EB108", f"{tmp_path}/node.yaml:1:9"),
        ("EB105", f"{tmp_path}/node.yaml:2:1"),
    ]
    assert "did you mean `gpus`?" in caught.value.findings[1].hint


def test_a_profile_is_read_whole_and_its_mistakes_have_a_place(tmp_path):
    facts = Facts(
        gpus=(Gpu("Tesla T4", numa=0),) * 2,
        links=(("X", "SYS"), ("SYS", "X")),
        driver="535.104.05",
        shm=1 << 30,
        verbs=True,
    )
    profile = Profile(facts, decide(facts).settings)
    read = written(tmp_path, json.dumps(profile_data(profile)), "node.json")
    assert (read.driver, read.gpus, read.profile) == ("535.104.05", ("Tesla T4", "Tesla T4"), profile)
    with pytest.raises(UsageError) as caught:
        written(tmp_path, "facts: {links: [X]}\n")
    assert [(one.code, one.message) for one in caught.value.findings] == [
        ("EB109", "$.facts.links[0]: expected a list, found str")
    ]


@pytest.mark.parametrize("text", ["", "[1]", "driver: [", 'driver: "R535"'])
def test_what_is_no_such_file_is_refused(tmp_path, text):
    with pytest.raises(UsageError, match="cannot be used"):
        written(tmp_path, text)
    with pytest.raises(UsageError, match="cannot be used"):
        load_host_facts(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("A100", "A100"), ("NVIDIA A100-SXM4-80GB", "A100"), ("Tesla T4", "T4"), ("NVIDIA A10G", None),
        ("NVIDIA GeForce RTX 3060 Ti", "RTX 3060 Ti"), ("NVIDIA GH200 480GB", "GH200"), ("nvidia h200", "H200"),
        ("NVIDIA L40S", "L40S"), ("", None),
    ],
)  # fmt: skip
def test_a_gpu_is_known_by_the_name_that_nvidia_smi_prints(given, name):
    known = ("A10", "A100", "T4", "RTX 3060", "RTX 3060 Ti", "GH200", "H200", "L4", "L40S")
    assert find_name(given, known) == name
