"""A build that lacks a file which the folder has and the lock has not: the error names it, and how the build can name it."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.builder.extensions.compiler_errors import naming_left_out
from envbuilder.core.errors import BuildError
from envbuilder.lock.model import LockedExtension
from tests.support.projects import Machine, make_machine

pytestmark = pytest.mark.programs
OP = LockedExtension(name="op", sources=(), include=(), cflags=(), cuda_cflags=(), files=(), path="op")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return make_machine(tmp_path_factory.mktemp("machine"))


@pytest.mark.parametrize(
    ("code", "there", "named"),
    [
        ("open('gen/x.h')", "gen/x.h", True),
        ("import helpers.flags", "helpers/flags.py", True),
        ("subprocess.run(['gcc', '-c', 'a.c'], check=True)", "deep.h", True),
        ("subprocess.run(['gcc', '-c', 'a.c'], check=True)", "archive/deep.h", False),
        ("import packaging.nowhere", "docs/packaging/x.md", False),
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


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("csrc/a.cpp:3:10: fatal error: cusparse.h: No such file or directory", ""),
        ("fatal error: gen/x.h: No such file or directory", "op/gen/x.h"),
        ("No such file or directory: '../op/gen/x.h'", ""),
        ("ninja: error: 'op/gen/x.h', needed by 'a.o', missing and no known rule to make it", "op/gen/x.h"),
        ("\n".join([f"'{'a' * 10_000}' not found", f"{'a' * 10_000}: No such file"] * 20), ""),
    ],
)
def test_a_file_is_looked_for_by_its_whole_name_below_the_project(tmp_path: Path, text: str, named: str):
    for file in ("archive/csrc/a.cpp", "archive/cusparse.h", "gen/x.h"):
        (tmp_path / "op" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "op" / file).touch()
    before = time.process_time()
    with pytest.raises(BuildError) as caught, naming_left_out(OP, str(tmp_path / "x.yaml")):
        raise BuildError(text, hint="the first")
    assert caught.value.hint.startswith("the first")
    assert (f"the folder has `{named}`" in caught.value.hint) == bool(named)
    assert time.process_time() - before < 1
