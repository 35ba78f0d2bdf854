"""Names and folders that others chose, in every script and settings file: refused, or data. The scripts run for real."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.artifacts.outputs import find_outputs
from envbuilder.core.errors import EnvbuilderError, LaunchError, UsageError
from envbuilder.run.devcontainer import EditorFacts, make_files
from envbuilder.run.kernel import Kernel, render_files
from envbuilder.run.launch.array import make_array
from envbuilder.run.launch.job import Environment, LaunchJob
from envbuilder.run.launch.script import render, render_enter
from envbuilder.run.launch.site import Site, SlurmSite, SshSite
from envbuilder.run.modulefile import Module, render_lua, render_tcl
from envbuilder.run.ssh_session import SshSession, render_config, render_setup, set_up_session
from tests.support.runner import FakeRunner

# Each would make the file PWNED in the working folder, or stands for a sign that ends a line or a text.
LINES = [
    "x\ntouch PWNED\n",
    "x\rtouch PWNED",
    "x\n#SBATCH --wrap=touch",
    "x\x1b]0;y\x07",
    "x\x00y",
    "x\x85touch",
    "x\ty",
    "x\x7f",
]
QUOTES = [
    "$(touch PWNED)", "`touch PWNED`", "x'; touch PWNED; '", 'x"; touch PWNED; "', "x;touch PWNED", "x}touch PWNED", "x]] touch PWNED",
    "[exec touch PWNED]", '"); os.execute("touch PWNED") --', "-x", "x\\", "# x", "${IFS}", "!touch", "\u202ex", "x & touch PWNED",
]  # fmt: skip
SITE = Site(apptainer="true")
ENVIRONMENT = Environment(
    name="x", location="/x.sif", size=1, sha256="0" * 64, machine="x86_64", torch="2.6.0", cuda=""
)
JOB = LaunchJob(
    environment=ENVIRONMENT, program=("train.py",), where="local", shape="torchrun", nodes=1, ranks=1, gpus=0, folder=Path("/f"),
    project=Path("/f"), logs=Path("/f/logs"), site=SITE, grace=5,
)  # fmt: skip
# A variable that is set where the settings run.
THERE = replace(JOB, for_site=True, site=replace(SITE, sifs="$PATH/sifs", projects="$PATH/p"))
KERNEL = Kernel(name="x", form="sif", place="", sif=Path("/x.sif"), site=SITE)
MODULE = Module(name="x", sif=Path("/x.sif"), torch="2.6.0", cuda="", site=SITE)
FACTS = EditorFacts(python="3.11", has_cuda=False)


def session(**changes: object) -> SshSession:
    known = SshSession(name="x", sif=Path("/x.sif"), host="me@there", site=SITE, folder=Path("/f"))
    return replace(known, **changes)  # type: ignore[arg-type]


def array(recipe: str = "x.yaml", folder: Path = Path("/f")) -> str:
    return make_array(
        (Path(recipe),), ("true",), cache=Path("/c"), folder=folder, output=folder, site=SITE
    ).text


def devcontainer(text: str) -> str:
    return "\n".join(make_files("x", text, FACTS, base="debian/bookworm", mirror="", compose="p").values())


SHELL: dict[str, Callable[[str], str]] = {
    "exec: name": lambda text: render_enter(text, Path("/x.sif"), SITE),
    "exec: SIF": lambda text: render_enter("x", Path("/data", text), SITE),
    "kernel: name": lambda text: render_files(replace(KERNEL, name=text), Path("/k"))["start"],
    "kernel: image": lambda text: render_files(replace(KERNEL, form="image", image=text), Path("/k"))[
        "start"
    ],
    "kernel: host": lambda text: render_files(replace(KERNEL, form="ssh", host=text), Path("/k"))["start"],
    "launch: name": lambda text: render(replace(JOB, environment=replace(ENVIRONMENT, name=text))),
    "launch: name for Slurm": lambda text: render(
        replace(JOB, where="slurm", environment=replace(ENVIRONMENT, name=text))
    ),
    "launch: SIF": lambda text: render(replace(JOB, environment=replace(ENVIRONMENT, location=f"/d/{text}"))),
    "launch: folder": lambda text: render(replace(JOB, folder=Path("/d", text), logs=Path("/d", text))),
    "launch for a site: SIF": lambda text: render(
        replace(THERE, environment=replace(ENVIRONMENT, location=f"$PATH/sifs/{text}.sif"))
    ),
    "launch for a site: folder": lambda text: render(
        replace(
            THERE, folder=Path("$PATH/p", text), logs=Path("$PATH/p", text), project=Path("$PATH/p", text)
        )
    ),
    "launch for a site: folder of here": lambda text: render(replace(THERE, folder=Path("/d", text))),
    "launch: image": lambda text: render(
        replace(JOB, environment=replace(ENVIRONMENT, image_id="x", location=text))
    ),
    "launch: torch": lambda text: render(replace(JOB, environment=replace(ENVIRONMENT, torch=f"2.6+{text}"))),
    "launch: variable": lambda text: render(replace(JOB, site=replace(SITE, env=(("A", text),)))),
    "launch: Slurm's option": lambda text: render(
        replace(JOB, where="slurm", site=replace(SITE, slurm=SlurmSite(options=(f"--comment={text}",))))
    ),
    "launch: module": lambda text: render(replace(JOB, site=replace(SITE, modules=(text,)))),
    "launch: host": lambda text: render(
        replace(JOB, where="ssh", site=replace(SITE, ssh=SshSite(hosts=(text,))))
    ),
    "launch: bind": lambda text: render(replace(JOB, site=replace(SITE, binds=(f"/d/{text}",)))),
    "array: recipe": lambda text: array(recipe=f"{text}.yaml"),
    "array: folder": lambda text: array(folder=Path("/d", text)),
    "ssh: name": lambda text: render_setup(session(name=text), "ssh-ed25519 AAAA"),
    "ssh: SIF": lambda text: render_setup(session(sif=Path("/d", text)), "ssh-ed25519 AAAA"),
}
OTHERS: dict[str, Callable[[str], str]] = {
    "Lua": lambda text: render_lua(replace(MODULE, sif=Path("/d", text)), Path("/c")),
    "Lua: commands": lambda text: render_lua(MODULE, Path("/c", text)),
    "Tcl": lambda text: render_tcl(replace(MODULE, sif=Path("/d", text)), Path("/c")),
    "Tcl: module": lambda text: render_tcl(replace(MODULE, site=replace(SITE, modules=(text,))), Path("/c")),
    "ssh's settings: SIF": lambda text: render_config(session(sif=Path("/d", text)), "me"),
    "ssh's settings: folder": lambda text: render_config(session(folder=Path("/d", text)), "me"),
    "dev container": devcontainer,
}


def settings_of(writer: str, script: str) -> str:
    """Return a script up to the part that is the same in all of its kind."""
    first = {"kernel": '\n[ "$#" -eq 1 ]', "ssh": "\nfail() {"}.get(writer.partition(":")[0])
    return script[: script.index(first or "\n\n", script.index("set -euo pipefail") + 20)]


@pytest.mark.parametrize("text", LINES)
@pytest.mark.parametrize("writer", [*SHELL, *OTHERS])
def test_a_line_break_in_a_name_is_refused_wherever_the_name_is_written(writer: str, text: str):
    with pytest.raises(UsageError, match="one line without control characters"):
        (SHELL | OTHERS)[writer](text)


@pytest.mark.programs
@pytest.mark.parametrize("writer", SHELL)
def test_a_name_is_data_for_the_shell(tmp_path: Path, writer: str):
    """The settings of each script run, without the parts that would start the job."""
    for text in QUOTES:
        script = SHELL[writer](text)
        settings = settings_of(writer, script)
        done = subprocess.run(
            ["bash", "-c", f"{settings}\n:"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), (text, settings)
        assert list(tmp_path.iterdir()) == [], text


@pytest.mark.programs
def test_tcl_runs_nothing_of_a_name(tmp_path: Path):
    commands = "proc module-whatis {a} {}\nproc prepend-path {a b} {}\nproc module {a b} {}\n"
    for text in QUOTES:
        script = "".join(OTHERS[name](text) for name in ("Tcl", "Tcl: module"))
        done = subprocess.run(
            ["tclsh"],
            input=commands + script + "ModulesHelp\n",
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert list(tmp_path.iterdir()) == [], text


def test_a_name_that_a_shell_would_run_gets_no_session_on_another_machine(tmp_path: Path):
    """The program there builds programs of the name."""
    runner = FakeRunner({"ssh": "me\nssh-ed25519 AAAA x\n"})
    for text in ("x$(touch PWNED)", 'x"; touch PWNED; "', "../x", "-x"):
        with pytest.raises(UsageError, match="an environment whose name"):
            set_up_session(session(name=text, folder=tmp_path), runner, force=False)
    assert runner.commands == []


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\n",
        "me\n",
        "me\n  ProxyCommand touch x",
        "a b\nssh-ed25519 AAAA",
        "me\nssh-ed25519 AAAA\x1b[m",
        "\x00\n\x01",
    ],
)
def test_a_hostile_answer_of_another_machine_does_not_reach_the_settings(tmp_path: Path, answer: str):
    with pytest.raises(LaunchError, match="did not print its user and host key"):
        set_up_session(session(folder=tmp_path), FakeRunner({"ssh": answer}), force=False)
    assert not (tmp_path / "x.config").exists()


def test_a_quotation_mark_in_the_folder_of_sshs_settings_is_refused():
    with pytest.raises(UsageError, match="control characters"):
        render_config(session(folder=Path('/d" x')), "me")


@pytest.mark.parametrize("text", LINES)
def test_a_sif_with_such_a_name_is_refused_by_every_command(tmp_path: Path, text: str):
    with pytest.raises(EnvbuilderError, match="control characters"):
        find_outputs(f"{tmp_path}/{text}.sif", tmp_path)
