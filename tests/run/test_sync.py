"""A SIF goes to another machine by what is missing there, over ssh, to a Python that has nothing else."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.artifacts import history
from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.cache import sha256_file
from envbuilder.core.console import Console
from envbuilder.core.errors import CommandError, EnvbuilderError, FetchError, SpaceError, UsageError
from envbuilder.core.process import ProcessRunner
from envbuilder.run import sync as ssh
from tests.support import command_line
from tests.support.sshd import loopback_sshd
from tests.support.toys import make_pair

pytestmark = pytest.mark.programs
call = command_line.call
# In place of ssh: the shell of a machine with other variables. `$BREAK` bytes of what is sent arrive.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
host=$2; shift 2
[ "$host" = there ] || exit 255
echo "welcome to $host"
cd "$THERE" || exit 1
if [ -n "$BREAK" ]; then head -c "$BREAK" | env -i PATH=/usr/bin:/bin HOME="$THERE" sh -c "$*"; exit 255; fi
exec env -i PATH=/usr/bin:/bin HOME="$THERE" sh -c "$*"
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outputs, Outputs]:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The home of the other machine."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(SSH)
    (tmp_path / "bin/ssh").chmod(0o755)
    (tmp_path / "home/sifs").mkdir(parents=True)
    return tmp_path / "home"


def send(
    outputs: Outputs, there: Path, target: str = "there:sifs", versions: int = 1, **more: str
) -> ssh.Synced:
    path = f"{there.parent / 'bin'}:{os.environ['PATH']}"
    return ssh.sync(
        outputs, target, sha256=sha256_file(outputs.sif), versions=versions, python="python3",
        runner=ProcessRunner({"PATH": path, "THERE": str(there), **more}, whole=True), console=Console(quiet=True),
    )  # fmt: skip


def listed(there: Path) -> list[str]:
    return sorted(path.name for path in (there / "sifs").iterdir())


def test_after_an_edit_only_the_changed_parts_are_sent(pair: tuple[Outputs, Outputs], there: Path):
    old, new = pair
    first = send(old, there)
    assert first.bytes_sent > old.sif.stat().st_size
    done = send(new, there)
    assert done.sif == "there:sifs/toy.sif"
    assert sha256_file(there / "sifs/toy.sif") == sha256_file(new.sif) == done.sha256
    assert done.bytes_sent < 0.15 * new.sif.stat().st_size
    assert done.bytes_there > 0.85 * new.sif.stat().st_size
    assert listed(there) == ["toy.sif"]
    assert os.access(there / "sifs/toy.sif", os.X_OK)
    assert send(new, there).bytes_sent < 40_000  # the program and the index


def test_versions_are_kept_there(pair: tuple[Outputs, Outputs], there: Path):
    for outputs in pair:
        send(outputs, there, versions=2)
    found = history.versions(str(there / "sifs/toy.sif"))
    assert [(one.digest, one.current) for one in found] == [
        (sha256_file(pair[1].sif)[:16], True), (sha256_file(pair[0].sif)[:16], False)
    ]  # fmt: skip


@pytest.mark.parametrize("target", ["there:new/deep folder", "there:~/new", "there:"])
def test_a_folder_is_made_and_may_be_below_the_home(pair: tuple[Outputs, Outputs], there: Path, target: str):
    send(pair[0], there, target)
    (found,) = there.rglob("toy.sif")
    assert sha256_file(found) == sha256_file(pair[0].sif)


@pytest.mark.parametrize("at", [0.0, 0.3, 0.6, 0.9])
def test_a_damaged_file_there_only_costs_bytes(pair: tuple[Outputs, Outputs], there: Path, at: float):
    content = bytearray(pair[0].sif.read_bytes())
    content[int(at * len(content))] ^= 1
    (there / "sifs/toy.sif").write_bytes(content)
    done = send(pair[1], there)
    assert sha256_file(there / "sifs/toy.sif") == sha256_file(pair[1].sif)
    assert done.bytes_sent < 0.5 * len(content)


@pytest.mark.parametrize("arrive", [0, 1000, 100_000, 400_000])
def test_a_cut_connection_leaves_the_old_file_and_the_next_sync_ends_well(
    pair: tuple[Outputs, Outputs], there: Path, arrive: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ssh, "BATCH", 200_000)
    shutil.copy(pair[0].sif, there / "sifs/other.sif")
    (there / "sifs/toy.sif").write_bytes(b"old")
    with pytest.raises(CommandError):
        send(pair[1], there, BREAK=str(arrive))
    assert (there / "sifs/toy.sif").read_bytes() == b"old"
    send(pair[1], there)
    assert sha256_file(there / "sifs/toy.sif") == sha256_file(pair[1].sif)
    assert listed(there) == ["other.sif", "toy.sif"]


def test_what_came_before_a_break_is_not_sent_again(
    pair: tuple[Outputs, Outputs], there: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ssh, "BATCH", 200_000)
    calls, ask = [], ssh._Other.ask

    def breaking(self: ssh._Other, request: dict[str, object], data: bytes) -> ssh._Answer:
        calls.append(len(data))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return ask(self, request, data)

    monkeypatch.setattr(ssh._Other, "ask", breaking)
    with pytest.raises(KeyboardInterrupt):
        send(pair[0], there)
    done = send(pair[0], there)
    assert done.bytes_there >= calls[1] + calls[2] > 0
    assert sha256_file(there / "sifs/toy.sif") == sha256_file(pair[0].sif)


def test_two_at_once_end_with_a_whole_file(pair: tuple[Outputs, Outputs], there: Path):
    ends: list[BaseException | None] = []

    def work(outputs: Outputs) -> None:
        try:
            send(outputs, there)
        except EnvbuilderError as error:
            ends.append(error)

    threads = [threading.Thread(target=work, args=(one,)) for one in (pair[0], pair[1], pair[1], pair[0])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    send(pair[1], there)
    assert sha256_file(there / "sifs/toy.sif") == sha256_file(pair[1].sif)
    assert listed(there) == ["toy.sif"]


def overtake(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Do the work when the next `sync` was told what is missing, and has sent nothing of it."""
    calls, ask = [], ssh._Other.ask

    def overtaken(self: ssh._Other, request: dict[str, object], data: bytes) -> ssh._Answer:
        calls.append(request)
        if len(calls) == 2:
            work()
        return ask(self, request, data)

    monkeypatch.setattr(ssh._Other, "ask", overtaken)


def test_the_slower_of_two_of_one_sif_finds_it_there(
    pair: tuple[Outputs, Outputs], there: Path, monkeypatch: pytest.MonkeyPatch
):
    overtake(monkeypatch, lambda: send(pair[0], there))
    assert send(pair[0], there).sha256 == sha256_file(there / "sifs/toy.sif")
    assert listed(there) == ["toy.sif"]


def test_a_sync_that_finds_the_sif_there_removes_what_another_had_begun(
    pair: tuple[Outputs, Outputs], there: Path, monkeypatch: pytest.MonkeyPatch
):
    """While the first sends, a pull brings the SIF, and a second `sync` has nothing to do."""

    def pull_and_send() -> None:
        shutil.copy(pair[0].sif, there / "sifs/toy.sif")
        send(pair[0], there)

    overtake(monkeypatch, pull_and_send)
    send(pair[0], there)
    assert listed(there) == ["toy.sif"]


@pytest.mark.builds
def test_a_full_disk_there_leaves_the_old_file(pair: tuple[Outputs, Outputs], there: Path, tmp_path: Path):
    size = pair[0].sif.stat().st_size
    script = (tmp_path / "bin/ssh").read_text().replace(
        'cd "$THERE"', f'mount -t tmpfs -o size={size // 2} none "$THERE/sifs" && cd "$THERE"'
    )  # fmt: skip
    (tmp_path / "bin/real").write_text(script)
    (tmp_path / "bin/ssh").write_text(f'#!/bin/sh\nexec unshare --mount -- sh {tmp_path}/bin/real "$@"\n')
    with pytest.raises(SpaceError, match="no space left on `there`"):
        send(pair[0], there)


def test_a_folder_that_may_not_be_written_is_named(pair: tuple[Outputs, Outputs], there: Path):
    (there / "sifs/file").write_text("")
    with pytest.raises(UsageError, match="`there` refuses"):
        send(pair[0], there, "there:sifs/file")


@pytest.mark.parametrize("target", ["sifs", "/scratch/sifs", ":sifs", "-oProxyCommand=x:y", "a/b:c"])
def test_a_target_without_host_is_wrong_use(target: str):
    with pytest.raises(UsageError, match="no HOST:FOLDER"):
        ssh.parse_target(target)


def test_a_job_keeps_its_file_while_another_comes(pair: tuple[Outputs, Outputs], there: Path):
    shutil.copy(pair[0].sif, there / "sifs/toy.sif")
    with (there / "sifs/toy.sif").open("rb") as running:
        head = running.read(1000)
        send(pair[1], there)
        assert head + running.read() == pair[0].sif.read_bytes()


@pytest.mark.builds
def test_over_a_real_sshd(pair: tuple[Outputs, Outputs], tmp_path: Path):
    with loopback_sshd(tmp_path / "sshd") as (programs, _):
        runner = ProcessRunner({"PATH": f"{programs}:{os.environ['PATH']}"}, whole=True)
        sent = [
            ssh.sync(
                outputs, f"loopback:{tmp_path}/my sifs", sha256=sha256_file(outputs.sif), versions=2, python="python3",
                runner=runner, console=Console(quiet=True),
            ).bytes_sent
            for outputs in pair
        ]  # fmt: skip
    assert sha256_file(tmp_path / "my sifs/toy.sif") == sha256_file(pair[1].sif)
    assert sent[1] < 0.15 * sent[0]


ANSWERS = {
    "nothing": "true",
    "words": "echo welcome",
    "a list": "echo '[1]'",
    "nested": "head -c 200000 /dev/zero | tr '\\0' '['",
    "a number": """printf '{"here": '; head -c 5000 /dev/zero | tr '\\0' 9; echo '}'""",
    "no number": """echo '{"here": NaN}'""",
    "other parts": """echo '{"missing": [0, 99999999]}'""",
    "parts below": """echo '{"missing": [-1]}'""",
    "fewer than none": """echo '{"here": -1}'""",
    "bytes": "printf '\\377\\n'",
    "no end": "yes",
}


@pytest.mark.parametrize("says", ANSWERS.values(), ids=ANSWERS)
def test_what_a_machine_answers_is_no_traceback(pair: tuple[Outputs, Outputs], there: Path, says: str):
    (there.parent / "bin/ssh").write_text(f"#!/bin/sh\ncat >/dev/null\n{says}\n")
    with pytest.raises(FetchError, match="`there` sends"):
        send(pair[0], there)


HOSTILE_ANSWERS = {
    "nothing": "true",
    "no JSON": "echo no json",
    "another kind": "echo '[]'",
    "other types": """echo '{"missing": "x", "done": 5, "here": {}}'""",
    "no number": """echo '{"missing": [-1, 5e300]}'""",
    "a part that is not there": """echo '{"missing": [0, 123456789]}'""",
    "deep nesting": r"printf '[%.0s' $(seq 20000)",
    "a huge number": r"printf '{\"here\": 1%s}' $(printf '0%.0s' $(seq 6000))",
    "terminal commands": r"printf '\033]0;owned\007\n{\"error\": \"\033[31m\033]0;owned\007 \\u202e \\u001b]0;owned\\u0007\"}'",
    "bytes": r"head -c 5000 /dev/urandom",
}


@pytest.mark.parametrize("answer", HOSTILE_ANSWERS)
def test_a_hostile_answer_of_the_other_machine_ends_in_an_error(pair, tmp_path, call, monkeypatch, answer):
    ssh_program = tmp_path / "bin/ssh"
    ssh_program.parent.mkdir()
    ssh_program.write_text(f"#!/bin/sh\ncat >/dev/null\n{HOSTILE_ANSWERS[answer]}\n")
    ssh_program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh_program.parent}:{os.environ['PATH']}")
    for more in ((), ("--json",)):
        answered = call("sync", pair[0].sif, "there:sifs", *more)
        assert answered.code not in (0, EnvbuilderError.exit_code)
        assert not [sign for sign in answered.out + answered.err if not (sign.isprintable() or sign == "\n")]
