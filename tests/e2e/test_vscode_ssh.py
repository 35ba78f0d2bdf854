"""VS Code without Docker: sessions in the SIF of an ordinary user on another machine, through its real sshd.

Remote-SSH needs three things of a host: commands with input and output, a file transfer, and a forwarded socket.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import hostile
from tests.support.cluster import Cluster, machines, start_slurm, start_ssh, wait_until
from tests.support.workbench import ENVBUILDER, Built, Ended, open_folder

pytestmark = [
    pytest.mark.builds,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make machines of namespaces"),
]

PERSON = 1234  # who has an account on the cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head and a node on which `person` has a home and bash."""
    with open_folder() as folder, machines(folder) as made:
        home = folder / "a home"
        home.mkdir()
        os.chown(home, PERSON, PERSON)
        passwd = Path("/etc/passwd").read_text() + f"person:x:{PERSON}:{PERSON}::{home}:/bin/bash\n"
        (folder / "passwd").write_text(passwd)
        made.nodes[0].run("mount", "--bind", folder / "passwd", "/etc/passwd")
        start_ssh(made)
        (folder / "user_key").chmod(0o600)
        (folder / "site.yaml").write_text(f"ssh: {{options: ['-F', '{folder}/ssh_config']}}\n")
        yield made


def set_up(cluster: Cluster, sif: Path, *words: str) -> Ended:
    line = (
        ENVBUILDER, "devcontainer", sif, "--ssh", "person@n1", "--write", cluster.folder / "my doors",
        "--profile", cluster.folder / "site.yaml", *words,
    )  # fmt: skip
    return cluster.head.attempt(*line)


@pytest.fixture(scope="module")
def ssh(cluster: Cluster, tiny: Built) -> tuple[object, ...]:
    """The command line that reaches the environment."""
    written = set_up(cluster, tiny.sif)
    assert written.returncode == 0, written.stderr
    config = cluster.folder / "my doors/tiny.config"
    assert written.stdout.startswith(f"{config}: `ssh -F '{config}' envbuilder-tiny`")  # its path has a blank
    return ("ssh", "-F", config, "envbuilder-tiny")


@pytest.fixture
def session(cluster: Cluster, ssh: tuple[object, ...]) -> Callable[..., Ended]:
    def call(*words: str, **more: object) -> Ended:
        line = [str(word) for word in (*cluster.head.enter, *ssh, *words)]
        return subprocess.run(line, text=True, capture_output=True, timeout=60, check=False, **more)  # type: ignore[call-overload,no-any-return]

    return call


def test_a_command_ends_in_the_sif(session, cluster):
    code = "'import filelock, os; print(os.environ[\"APPTAINER_NAME\"], os.getuid())'"
    ended = session("python", "-c", code)
    assert ended.stdout == f"tiny.sif {PERSON}\n", ended.stderr
    assert session("uname -n; pwd").stdout == f"n1\n{cluster.folder}/a home\n"


def test_exit_code_and_input_pass_through(session):
    assert session("exit 7").returncode == 7
    assert session("cat", input="x" * 300_000).stdout == "x" * 300_000


def test_a_shell_without_a_command_is_the_environments(session):
    """What Remote-SSH does: `bash` that reads its script from us."""
    script = "command -v python; echo >&2 why; exit 3\n"
    for words in (("-T",), ("bash",)):
        ended = session(*words, input=script)
        assert (ended.returncode, ended.stdout) == (3, "/opt/env/bin/python\n")
        assert "why" in ended.stderr


@pytest.mark.parametrize("name", hostile.VARIABLES)
@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (("python seen.py",), ""),
        (('"$SHELL" -ilc "python seen.py"',), ""),  # how VS Code's server asks for the user's variables
        (('"$SHELL" -i',), "python seen.py\n"),  # its terminal
    ],
    ids=["command", "environment", "terminal"],
)
def test_the_environments_python_wins(session, cluster, name, words, typed):
    """The machine's sshd reads ~/.bashrc, and so does bash in the SIF."""
    home = cluster.folder / "a home"
    if not (home / "evil").exists():
        hostile.make_home(home)
    (home / "seen.py").write_text(hostile.SEEN)
    hostile.set_start_files(home, hostile.variables(home, name))
    try:
        ended = session(*words, input=typed)
    finally:
        hostile.set_start_files(home, {}, text="")
    hostile.need_own(ended.stdout)


def test_files_are_sent(cluster, ssh, session):
    """Remote-SSH sends its server so, where a cluster has no way out."""
    (cluster.folder / "sent").write_text("by scp\n")
    line = ("scp", *ssh[1:3], cluster.folder / "sent", "envbuilder-tiny:received")
    cluster.head.run(*line)
    assert session("cat", "received").stdout == "by scp\n"


def test_a_socket_is_forwarded(cluster, ssh):
    """Remote-SSH speaks with its server so: a port on the machine is reached from ours."""
    serve = 'python -c \'import socket; s = socket.create_server(("127.0.0.1", 20777)); print(1, flush=True); s.accept()[0].send(b"hello")\''
    forward = ("-L", "20778:127.0.0.1:20777")
    line = [str(word) for word in (*cluster.head.enter, *ssh[:3], *forward, ssh[3], serve)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "1\n"
        received = cluster.head.run("bash", "-c", "cat </dev/tcp/127.0.0.1/20778")
        assert (received, running.wait(30)) == ("hello", 0)


def test_nothing_is_left_when_a_session_has_ended(session, cluster):
    """Within a moment: the client ends before the server has collected its own processes."""
    session("true")
    wait_until("nothing is left", lambda: not cluster.left_over(), 10)


def test_another_key_gets_no_session(cluster, ssh):
    """Not even one that the machine's own sshd takes."""
    theirs = cluster.folder / "others.config"
    ours = str(cluster.folder / "my doors/tiny.key")
    theirs.write_text(Path(str(ssh[2])).read_text().replace(ours, str(cluster.folder / "user_key")))
    ended = cluster.head.attempt("ssh", "-F", theirs, "-o", "BatchMode=yes", "envbuilder-tiny", "true")
    assert ended.returncode == 255
    assert "Permission denied" in ended.stderr


def test_it_can_be_set_up_again_and_keeps_what_a_person_changed(cluster, ssh, tiny, session):
    assert set_up(cluster, tiny.sif).returncode == 0
    config = Path(str(ssh[2]))
    before = config.read_text()
    config.write_text(before + "  Compression yes\n")
    refused = set_up(cluster, tiny.sif)
    assert refused.returncode == 2
    assert "exists with other content" in refused.stderr
    assert config.read_text() == before + "  Compression yes\n"
    assert set_up(cluster, tiny.sif, "--force").returncode == 0
    assert config.read_text() == before
    assert session("exit 5").returncode == 5


def test_what_the_other_machine_lacks_is_said(cluster):
    ended = set_up(cluster, cluster.folder / "other.sif")
    assert ended.returncode == 9
    assert f"n1: there is no SIF {cluster.folder}/other.sif" in ended.stderr


def test_a_session_is_a_job_and_ends_with_it(cluster, tiny):
    """`--srun` on the login node: the ssh that VS Code and Jupyter start goes through Slurm."""
    start_slurm(cluster)
    home, settings = cluster.folder / "home of root", cluster.folder / "my doors"
    home.mkdir()
    cluster.head.run("mkdir", "-p", "/run/sshd")
    env = cluster.env | {"HOME": str(home)}
    line = (ENVBUILDER, "devcontainer", tiny.sif, "--srun", "--nodelist=n2 --time=5", "--write", settings)
    config = settings / "tiny-slurm.config"
    assert str(config) in cluster.head.run(*line, env=env)
    words = ("ssh", "-F", config, "envbuilder-tiny-slurm", "uname -n; command -v python; cat")
    enter = [str(word) for word in (*cluster.head.enter, *words)]
    ended = subprocess.run(
        enter, env=os.environ | env, input="x" * 300_000, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert ended.stdout == "n2\n/opt/env/bin/python\n" + "x" * 300_000, ended.stderr
    need_no_job(cluster)
    with subprocess.Popen(
        enter, env=os.environ | env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"n2\n"
        os.killpg(killed.pid, signal.SIGKILL)  # what Jupyter does with a kernel
    need_no_job(cluster)


def need_no_job(cluster: Cluster) -> None:
    wait_until(
        "the job is gone", lambda: not cluster.head.run("squeue", "--noheader", env=cluster.env).strip(), 20
    )
    wait_until("nothing is left", lambda: not cluster.left_over(), 10)
