"""What a project leaves in its build directory leads the host nowhere: attacks that run in a real sandbox.

Each project runs code of its own in bubblewrap. It leaves links, FIFOs or forged answers, and the host must neither write nor
read through them.
"""

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from envbuilder.artifacts.sif import SifWriter
from envbuilder.builder.recipe_tests import _modules
from envbuilder.builder.sandbox.root import Mount, sandboxed
from envbuilder.builder.sandbox.runner import Run
from envbuilder.core.errors import BuildError
from envbuilder.core.process import Command, Runner
from envbuilder.layers.layer import load_layer
from tests.support.projects import Machine, make_machine

pytestmark = pytest.mark.programs
BREACH = Path(__file__).parents[1] / "support/breach.py"

LEAVE = """
import os, time
def leave(path, target):
    if os.path.lexists(path): os.rename(path, "/%s/left-%d" % (path.split("/")[1], time.time_ns()))
    os.symlink(target, path) if target else os.mkfifo(path)
"""
# Waits in the background until the wheel is installed, then runs the rest while the build's own program goes on.
MEANWHILE = (
    LEAVE
    + """
import glob, time
if not os.fork():
    os.setsid()
    nowhere = os.open("/dev/null", os.O_RDWR)
    for number in range(64): number == nowhere or os.dup2(nowhere, number)
    while not glob.glob("/out/0/tree/opt/env/lib/python3.11/site-packages/*.dist-info/RECORD"): time.sleep(0.001)
    time.sleep(0.2)
"""
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path)


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("/space/spec.json", "HOME/.bashrc"),
        ("/space/src/evil/keep.h", "HOME/.bashrc"),
        ("/space/src/evil/more", "HOME/empty"),
        ("/space/src/evil", "HOME/empty"),
        ("/space/src", "HOME/empty"),
        ("/space/src/evil/keep.h", ""),
        ("/space/src/evil/more", ""),
        ("/space/src", ""),
        ("/space/.ninja_log", ""),
        ("/space/.ninja_log", "/dev/zero"),
    ],
)
def test_the_next_build_writes_and_hangs_at_nothing_that_the_last_one_left(
    machine: Machine, place: str, target: str
) -> None:
    code = f"{LEAVE}\nleave({place!r}, {target!r})"
    files = {"keep.h": "// h\n", "more/a.h": "// a\n"}
    if place in ("/space/src/evil", "/space/src"):  # the build itself still needs them
        code = f"{LEAVE}\nos.rename({place!r}, '/space/moved')\nos.chdir('/space/moved')\nleave({place!r}, {target!r})"
    with_links = machine.hostile("evil", code, **files)
    innocent = machine.hostile("evil", "", mark="edited", **(files | {"keep.h": "// edited\n"}))
    with contextlib.suppress(BuildError):
        machine.build(with_links)
    machine.build(innocent)
    machine.need_untouched()


def test_a_tree_that_becomes_a_link_while_the_build_runs_is_not_read(machine: Machine) -> None:
    swap = '    os.rename("/out/0/tree", "/out/old")\n    leave("/out/0/tree", "HOME/private")\n    time.sleep(9)'
    with pytest.raises(BuildError, match="a link"):
        machine.build(machine.hostile("evil", MEANWHILE + swap))
    machine.need_untouched()


@pytest.mark.parametrize("name", ["key.so", "id_ed25519", "private", "fifo"])
def test_a_link_among_what_a_project_installs_stays_a_link(machine: Machine, name: str) -> None:
    target = {"fifo": "", "private": "HOME/private"}.get(name, f"HOME/private/{name}")
    code = f'{MEANWHILE}    leave("/out/0/tree/opt/env/{name}", {target!r})\n    time.sleep(9)'
    project = machine.hostile("evil", code)
    if name == "fifo":
        with pytest.raises(BuildError, match=r"no regular file|a device"):
            machine.build(project)
    else:
        (built,) = machine.build(project)
        assert (built.folder / f"tree/opt/env/{name}").is_symlink()
        assert not built.compiled.entry.size
    machine.need_untouched()


@pytest.mark.parametrize("place", ["opt/envbuilder", "opt/envbuilder/extensions", "opt/env/share"])
def test_the_layer_is_written_through_no_link_that_a_project_installs(
    machine: Machine, tmp_path: Path, place: str
) -> None:
    code = f'{MEANWHILE}    os.makedirs(os.path.dirname("/out/0/tree/{place}"), exist_ok=True)\n'
    link = machine.hostile("link", f'{code}    leave("/out/0/tree/{place}", "HOME/empty")\n    time.sleep(9)')
    below = f'{MEANWHILE}    os.makedirs("/out/0/tree/{place}/mine")\n    open("/out/0/tree/{place}/x", "w").close()\n    time.sleep(9)'
    extensions = (link, machine.hostile("other", below))
    built = machine.build(*extensions)
    with pytest.raises(BuildError, match="or through a link"):
        machine.join(built, tmp_path, *extensions)
    machine.need_untouched()


CAPTURED = {"net/op.cpp": "// cpp\n", "net/ops.py": ""}
LOAD = "from torch.utils.cpp_extension import load; load('op', ['op.cpp'])"


@pytest.mark.parametrize("line", [
    'leave("/space/src/net/leak.h", "HOME/private/id_ed25519")',
    'leave("/space/src/net/private", "HOME/private")',
    'os.rename("/space/src/net", "/space/moved"), leave("/space/src/net", "HOME/private")',
    'leave("/space/src/net/op.cpp", "HOME/private/key.h")',
    'leave("/space/kept", "HOME/private")',
    'leave("/space/kept", "")',
    'leave("/space/src/net/leak.h", "")',
    'leave("/space/calls.json", "HOME/private/id_ed25519"), os._exit(0)',
    'leave("/space/calls.json", ""), os._exit(0)',
    'open("/space/calls.json", "w").write("[" * 100000), os._exit(0)',
    'os.path.exists("/space/entry") and (os.rmdir("/space/entry"), os.symlink("HOME/empty", "/space/entry"))',
])  # fmt: skip
def test_the_links_of_a_captured_project_are_neither_read_nor_written_through(
    machine: Machine, line: str
) -> None:
    lines = (f"{LOAD}{LEAVE}{line}".replace("HOME", str(machine.home)),)
    with contextlib.suppress(BuildError):
        machine.build(machine.project("net", CAPTURED, capture=lines))
    machine.need_untouched()


def test_a_captured_project_reaches_nothing_beyond_its_sandbox(machine: Machine) -> None:
    head, ends, _ = BREACH.read_text().rpartition("print(json.dumps(reached))")
    assert ends
    secret = str(machine.home)  # HOME is a variable of whoever builds
    code = head.replace("sys.argv[1], sys.argv[2:]", f"{secret!r}, ['/step/spec.json']")
    line = (
        f"exec({code!r} + 'raise RuntimeError(\"reached \" + json.dumps(reached))', dict(__name__='breach'))"
    )
    with pytest.raises(BuildError) as failed:
        machine.build(machine.project("net", CAPTURED, capture=(line,)))
    shown = [failed.value.message, *(finding.message for finding in failed.value.findings)]
    assert "reached {}" in "\n".join(shown)


@pytest.mark.parametrize(
    "name", ["../../../../../../..HOME/private/key.so", "/HOME/private/key.so", "..", ".", "a/b", "a\nb"]
)
def test_a_captured_call_whose_name_is_a_path_is_refused(machine: Machine, name: str) -> None:
    name = name.replace("HOME", str(machine.home))
    line = f"from torch.utils import cpp_extension\ncpp_extension.load(name={name!r}, sources=['op.cpp'], is_standalone=True)"
    with pytest.raises(BuildError, match=r"calls\.json"):
        machine.build(machine.project("net", CAPTURED, capture=(line,)))
    machine.need_untouched()


@pytest.mark.parametrize("change", [
    'rename("/space/build", "/space/old"); symlink("HOME/private", "/space/build");',
    'unlink("/space/build/key.so"); symlink("HOME/private/key.so", "/space/build/key.so");',
    'unlink("/space/build/key.so"); mkfifo("/space/build/key.so", 0600);',
    'truncate("/space/build/key.so", 1L << 40);',
    'unlink("/space/facts.json"); symlink("HOME/private/id_ed25519", "/space/facts.json");',
    'unlink("/space/facts.json"); mkfifo("/space/facts.json", 0600);',
    'truncate("/space/facts.json", 1L << 40);',
    'truncate("/space/facts.json", 0);',
    'unlink("/space/facts.json");',
])  # fmt: skip
def test_a_library_or_an_answer_that_a_compiled_module_swaps_is_not_read(
    machine: Machine, change: str
) -> None:
    text = f"""#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
__attribute__((destructor)) static void leave(void) {{ {change} }}
""".replace("HOME", str(machine.home))
    project = machine.project("key", {"key.c": text}, sources=("key.c",), path="")
    with pytest.raises(BuildError):
        machine.build(project)
    machine.need_untouched()
    machine.build(machine.project("key", {"key.c": "int mine;\n"}, sources=("key.c",), path=""))
    machine.need_untouched()


def test_a_folder_that_keeps_its_owner_out_does_not_stop_the_next_build(machine: Machine) -> None:
    code = 'import os\nos.makedirs("/space/src/evil/shut/in")\nos.chmod("/space/src/evil/shut", 0)'
    machine.build(machine.hostile("evil", code))
    machine.build(machine.hostile("evil", "", mark="edited"))


def test_a_tree_that_lies_in_depth_is_refused(machine: Machine) -> None:
    code = 'import os\nos.makedirs("/out/0/tree/" + "x/" * 300)'
    with pytest.raises(BuildError, match="folders in each other"):
        machine.build(machine.hostile("evil", code))


def patched(machine: Machine, patch: str, **files: str) -> None:
    text = patch.replace("HOME", str(machine.home))
    one = machine.hostile("evil", "", **files)
    with_patch = machine.project("x", {"evil.patch": text}).files
    machine.build(replace(one, patch="evil.patch", files=(*one.files, *with_patch)))


def test_a_patch_that_makes_a_link_is_refused(machine: Machine) -> None:
    patch = "diff --git a/leak.h b/leak.h\nnew file mode 120000\n--- /dev/null\n+++ b/leak.h\n@@ -0,0 +1 @@\n"
    with pytest.raises(BuildError, match="it makes a link, which could lead to any file"):
        patched(machine, f"{patch}+HOME/private/id_ed25519\n\\ No newline at end of file\n")
    machine.need_untouched()


def test_a_patch_starts_no_program_that_the_sources_name(machine: Machine, tmp_path: Path) -> None:
    filter_ = f'[core]\nbare = false\nrepositoryformatversion = 0\n[filter "x"]\nclean = touch {tmp_path}/ran; cat\n'
    files = {
        ".git/config": filter_, ".git/HEAD": "ref: refs/heads/main\n", ".git/objects/x": "", ".git/refs/x": "",
        ".gitattributes": "*.h filter=x\n", "a.h": "// a\n",
    }  # fmt: skip
    patched(machine, "--- a/a.h\n+++ b/a.h\n@@ -1 +1 @@\n-// a\n+// b\n", **files)
    assert not os.path.lexists(tmp_path / "ran")


@pytest.mark.parametrize("place", ["site-packages/zero.so", "site-packages"])
def test_the_names_of_modules_are_read_from_no_link(machine: Machine, place: str) -> None:
    lib = "opt/env/lib/python3.11"
    target = "/dev/zero" if place.endswith(".so") else "HOME/private"
    swap = f'    leave("/out/0/tree/{lib}/{place}", "{target}")\n    time.sleep(9)'
    (built,) = machine.build(machine.hostile("evil", MEANWHILE + swap))
    if place.endswith(".so"):
        assert _modules(built.folder, f"tree/{lib}/site-packages") == ["evil"]
    else:
        with pytest.raises(BuildError, match="a link"):
            _modules(built.folder, f"tree/{lib}/site-packages")


class Swapping:
    """Runs in each sandbox what swaps the folder of its result, as code of a wheel can while byte code is compiled beside it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
        if "/out" not in command.argv:  # it unpacks the minimal Python, outside of a sandbox
            Path(command.argv[-1], "root/usr").mkdir(parents=True)
            return ""
        work = Path(command.argv[command.argv.index("/out") - 1]).parent
        swap = ("/bin/sh", "-c", f"mv /work/out /work/old; ln -s {self._machine.home}/private /work/out")
        mounts = (Mount(source=work, target="/work", writable=True),)
        swapping = sandboxed(self._machine.root, swap, why="compile byte code", mounts=mounts)
        return self._machine.job.runner.run(swapping)


def test_a_layers_folder_that_a_package_swaps_is_not_kept(machine: Machine, tmp_path: Path) -> None:
    job = replace(machine.job, runner=cast("Runner", Swapping(machine)))
    for artifact in job.plan.artifacts:
        file = job.store.artifact(artifact.sha256)
        file.parent.mkdir(exist_ok=True)
        file.touch()
    refused = pytest.raises(BuildError, match="replaced the folder `out`")
    with ThreadPoolExecutor(4) as pool, SifWriter(tmp_path / "a.sif") as sif, refused:
        Run(job, pool, sif).start(job.plan.python).result()
    assert load_layer(job.store.layer(job.keys[job.plan.python])) is None
    machine.need_untouched()
