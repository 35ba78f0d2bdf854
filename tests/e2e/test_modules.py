"""Modules with the real Lmod and the real SIF: what a person types after `module load`."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.workbench import ENVBUILDER, Built, Ended, attempt, open_folder, run

pytestmark = pytest.mark.builds

LMOD = "/usr/share/lmod/lmod/init/bash"
RANKS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
os.write(1, f"rank {os.environ['RANK']} of {int(value)}\\n".encode())  # at once: two ranks share the pipe
"""


@pytest.fixture(scope="module")
def modules(cpu: Built) -> Iterator[Path]:
    with open_folder() as outer:
        folder = outer / "my modules"
        printed = run(ENVBUILDER, "module", "cpu", "--artifacts", cpu.output, "--write", folder)
        assert printed == f"module use '{folder}/modulefiles' && module load cpu\n"
        yield folder


def test_versions_are_loaded_by_name_and_the_newest_is_the_default(cpu: Built):
    with open_folder() as folder:
        sif = folder / "site.sif"
        os.link(cpu.sif, sif)
        for version in ("2026.9", "2026.11"):
            run(ENVBUILDER, "module", sif, "--version", version, "--write", folder)
        load = f". {LMOD}; module use '{folder}/modulefiles'; module load site"
        for name, version in (("", "2026.11"), ("/2026.9", "2026.9")):
            printed = run("bash", "-c", f"{load}{name}; type -P python; python -c 'print(6 * 7)'")
            assert printed == f"{folder}/commands/site/{version}/python\n42\n"


@pytest.fixture
def work() -> Iterator[Path]:
    """A project whose name needs quoting, outside of what Apptainer shares by itself."""
    with open_folder() as outer:
        folder = outer / "a project"
        folder.mkdir()
        yield folder


def script(modules: Path, line: str) -> tuple[str, ...]:
    """A shell with Lmod that has loaded the module and runs a line."""
    load = f". {LMOD}; module use '{modules}/modulefiles'; module load cpu; "
    return ("bash", "-c", load + line)


def load(modules: Path, work: Path, line: str, **more: object) -> Ended:
    return subprocess.run(
        script(modules, line), cwd=work, text=True, capture_output=True, timeout=120, check=False, **more
    )  # type: ignore[call-overload,no-any-return]


def test_python_is_the_environments_and_can_be_unloaded(modules: Path, work: Path):
    ended = load(
        modules,
        work,
        'python -c "import torch, fused; print(torch.__version__)"; module unload cpu; type -P python3',
    )
    version, python = ended.stdout.split()
    assert version.startswith("2.13.0")
    assert str(modules) not in python


def test_words_arrive_as_they_were_typed_and_the_exit_code_comes_back(modules: Path, work: Path):
    words = "'a b' \"it's\" '$HOME' '' '*' '\"'"
    ended = load(modules, work, f"python -c 'import sys; print(sys.argv[1:]); sys.exit(7)' {words}")
    assert (ended.returncode, ended.stdout) == (7, str(["a b", "it's", "$HOME", "", "*", '"']) + "\n")


def test_a_program_that_is_not_there_ends_as_in_a_shell(modules: Path, work: Path):
    ended = load(modules, work, "cpu-exec nothing-of-that-name")
    assert (ended.returncode, "nothing-of-that-name" in ended.stderr) == (127, True)


def test_input_passes_through_a_pipe(modules: Path, work: Path):
    line = "cat | python -c 'import sys; print(len(sys.stdin.read()))' | cat"
    ended = load(modules, work, line, input="x" * 300_000)
    assert ended.stdout == "300000\n"


def test_a_signal_reaches_the_program(modules: Path, work: Path):
    program = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); print(1, flush=True); time.sleep(60)"
    argv = script(modules, f"exec python -c '{program}'")
    running = subprocess.Popen(argv, cwd=work, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "1\n"
    # One signal in about fifty did not pass Apptainer. A shell that kept it would keep all of them.
    for _ in range(6):
        running.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(5)
            break
    assert running.returncode == 9
    running.stdout.close()


def test_torchrun_starts_two_ranks_that_speak(modules: Path, work: Path):
    (work / "train.py").write_text(RANKS)
    ended = load(modules, work, "torchrun --standalone --nproc-per-node 2 train.py")
    assert sorted(ended.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"], ended.stderr


def test_any_other_program_runs_by_the_commands_own_name(modules: Path, work: Path):
    ended = load(modules, work, "cpu-exec sh -c 'echo \"$APPTAINER_NAME\"; pwd; exit 3'")
    assert (ended.returncode, ended.stdout) == (3, f"cpu.sif\n{work}\n")


def test_the_file_in_tcl_does_the_same(modules: Path, work: Path, tmp_path: Path):
    """Lmod reads Tcl as well, where there is no file in Lua."""
    (tmp_path / "cpu").write_text((modules / "modulefiles/cpu").read_text())
    line = f". {LMOD}; module use {tmp_path}; module load cpu; python -c 'import torch; print(1)'; module whatis cpu"
    ended = attempt("bash", "-c", line, cwd=work)
    assert ended.stdout.startswith("1\n"), ended.stderr
    assert "PyTorch 2.13.0 without CUDA" in ended.stdout + ended.stderr


def test_lmod_shows_what_it_is(modules: Path, work: Path):
    ended = load(modules, work, "module --redirect whatis cpu; module --redirect help cpu")
    assert "PyTorch 2.13.0 without CUDA" in ended.stdout
    assert "other programs through cpu-exec" in ended.stdout
    assert os.path.realpath(modules) in load(modules, work, "type -P torchrun").stdout
