"""Jupyter kernels: started as Jupyter starts them, and spoken to by its own client, which is in the environment, too."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, machines, start_slurm, start_ssh, wait_until
from tests.support.hostile import OWN, VARIABLES, make_home, variables
from tests.support.workbench import ENVBUILDER, ROOT, Built, attempt, build, open_folder, run

pytestmark = pytest.mark.builds

RECIPE = """\
extends: cpu
summary: for notebooks
packages:
  - numpy>=2,<3
  - ipykernel
"""
WRITE = "import sys; from jupyter_client.connect import write_connection_file as w; w(sys.argv[1])"
TALK = """
import sys
from jupyter_client import BlockingKernelClient
client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
client.start_channels(hb=False)  # a forwarded port answers before the kernel does, so its heartbeat seems to stop
client.wait_for_ready(timeout=120)
def show(message):
    text = message["content"].get("text") or message["content"].get("ename")
    if message["msg_type"] in ("stream", "error"):
        print(text, end="\\n" if message["msg_type"] == "error" else "", flush=True)
client.execute_interactive("import os, shutil, sys, torch; print(torch.__version__, os.uname().nodename, sys.executable, shutil.which('python'), 'evil' in sys.modules)", output_hook=show)
client.execute_interactive("print(open('/dev/stdin').read() == '')", output_hook=show)
client.control_channel.start()
import threading
def interrupt():
    client.control_channel.send(client.session.msg("interrupt_request", {}))
threading.Timer(1, interrupt).start()
client.execute_interactive("import time; time.sleep(60)", output_hook=show, timeout=30)
if "end" in sys.argv:
    client.shutdown()
"""


def test_without_ipykernel_it_is_refused(tiny: Built, tmp_path: Path):
    ended = attempt(ENVBUILDER, "kernel", tiny.sif, "--write", tmp_path)
    assert ended.returncode == 2
    assert "has no `ipykernel`" in ended.stderr
    assert "hint: `envbuilder add tiny ipykernel`" in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def notebook() -> Iterator[Built]:
    """`cpu` with ipykernel, locked as of now."""
    with open_folder() as folder:
        recipes = folder / "recipes"
        shutil.copytree(ROOT / "recipes", recipes)
        (recipes / "notebook.yaml").write_text(RECIPE)
        run(ENVBUILDER, "lock", "notebook", "--recipes", recipes)
        yield build("notebook", folder / "built", "--recipes", recipes)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with open_folder() as folder, machines(folder) as made:
        start_ssh(made)
        start_slurm(made)
        made.head.run("mkdir", "-p", "/run/sshd")
        (folder / "home").mkdir()
        (folder / "site.yaml").write_text(f"ssh: {{options: ['-F', '{folder}/ssh_config']}}\n")
        yield made


WAYS = {
    "sif": ((), os.uname().nodename),
    "image": (("--in", "image"), os.uname().nodename),
    "ssh": (("--ssh", "n1"), "n1"),
    "slurm": (("--srun", "--nodelist=n2 --time=5"), "n2"),
}


@pytest.mark.release  # an environment with torch of its own; test_vscode_ssh.py and tests/run/test_kernel.py hold each part
@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_runs_is_interrupted_and_ends(
    way: str, notebook: Built, request: pytest.FixtureRequest, tmp_path: Path
):
    options, where = WAYS[way]
    prefix: tuple[str, ...] = ()
    env: dict[str, str] = {}
    if way in ("ssh", "slurm"):
        cluster: Cluster = request.getfixturevalue("cluster")
        prefix, env = cluster.head.enter, cluster.env | {"HOME": str(cluster.folder / "home")}
        options = (*options, "--profile", str(cluster.folder / "site.yaml"))
    with open_folder() as folder, open_folder() as other:
        started = dict(env)
        if not prefix:  # Jupyter has the variables of a conda, and all others that would bring another Python
            home = make_home(other / "home")
            started = {"HOME": str(home), "APPTAINER_HOME": str(home)}
            started |= {key: value for name in VARIABLES for key, value in variables(home, name).items()}
        client = (*prefix, "apptainer", "exec", "--bind", folder, notebook.sif, "python", "-c")
        written = run(*prefix, ENVBUILDER, "kernel", notebook.sif, "--write", folder, *options, env=env)
        (start, _) = json.loads(Path(written.strip()).read_text())["argv"]
        for end in ("end", "kill"):
            connection = folder / f"{end}.json"
            run(*client, WRITE, connection)
            line = [str(word) for word in (*prefix, start, connection)]
            with subprocess.Popen(
                line, env=os.environ | started, cwd=folder, start_new_session=True
            ) as kernel:
                try:
                    printed = run(*client, TALK, connection, end)
                    assert printed.splitlines() == [
                        f"2.13.0+cpu {where} {OWN} {OWN} False",
                        "True",
                        "KeyboardInterrupt",
                    ]
                    if end == "end":
                        kernel.wait(30)
                finally:
                    if kernel.poll() is None:
                        os.killpg(kernel.pid, 9)
                kernel.wait(30)
        if way in ("ssh", "slurm"):
            wait_until("nothing is left", lambda: not cluster.left_over(), 20)
        time.sleep(3)
        assert "kernel_boot" not in run("ps", "-e", "-o", "args=")
        assert not run("docker", "ps", "--quiet", "--filter", f"ancestor={notebook.image}")
