"""A build that lacks a file which the folder has and the lock has not: the error names it, and how the build can name it."""

from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.core.errors import BuildError
from tests.support.projects import Machine, make_machine

pytestmark = pytest.mark.programs


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return make_machine(tmp_path_factory.mktemp("machine"))


@pytest.mark.parametrize(
    ("code", "there", "named"),
    [
        ("open('gen/x.h')", "gen/x.h", True),
        ("import helpers.flags", "helpers/flags.py", True),
        ("subprocess.run(['gcc', '-c', 'a.c'], check=True)", "inc/deep.h", True),
        ("raise SystemExit('nothing is lacking: gen/x.h')", "gen/x.h", False),
    ],
)
def test_the_file_that_is_not_in_the_lock_is_named(
    machine: Machine, tmp_path: Path, code: str, there: str, named: bool
):
    own = {"a.c": '#include "deep.h"\n'}
    project = machine.hostile("op", f"import subprocess, sys; sys.path.insert(0, '')\n{code}", **own)
    for file in (*(one.path for one in project.files), f"op/{there}"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    here = Machine(
        home=machine.home, job=replace(machine.job, origin=str(tmp_path / "x.yaml")), root=machine.root
    )
    with pytest.raises(BuildError) as caught:
        here.build(project)
    assert (f"the folder has `op/{there}` and the lock has not" in caught.value.hint) == named, (
        caught.value.message
    )
    assert (f"`include {there}`" in caught.value.hint) == named
