"""The audits on real environments: what they say of them is known, and all of it is true."""

import json

import pytest

from tests.support.workbench import ENVBUILDER, Built, run

pytestmark = pytest.mark.builds

# Wheels that bring second copies of CUPTI; libraries of torch and NVIDIA with run paths of their builders' machines.
KNOWN = {"EB715", "EB720"}


def test_the_recipes_have_no_errors_and_only_known_warnings(built: Built):
    answer = json.loads(run(ENVBUILDER, "verify", built.name, "--output", built.output, "--json"))
    assert {finding["severity"] for finding in answer["findings"]} <= {"warning"}
    assert {finding["code"] for finding in answer["findings"]} <= KNOWN
    assert answer["data"]["plan"]


def test_an_older_host_is_told_what_it_could_not_load(cpu: Built):
    answer = json.loads(
        run(ENVBUILDER, "verify", "cpu", "--output", cpu.output, "--oldest-host", "debian/bullseye", "--json")
    )
    (finding,) = [one for one in answer["findings"] if one["code"] == "EB714"]
    assert "fused.so" in finding["where"]
