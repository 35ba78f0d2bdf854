"""Starting programs: what a failure says, what a program sees of us, and that none of them outlives us."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.core.errors import CommandError, SpaceError, ToolError
from envbuilder.core.process import TAIL, Command, ProcessRunner, Runner, exec_process
from tests.support.runner import FakeRunner

BIG = b"x" * (1 << 20)  # more than a pipe holds
runs_programs = pytest.mark.programs


def sh(script: str, *, why: str = "try it", **rest: object) -> Command:
    return Command(argv=("sh", "-c", script), why=why, **rest)


def runner(**environment: str) -> ProcessRunner:
    return ProcessRunner({"PATH": "/usr/bin:/bin", **environment})


def failure(command: Command) -> CommandError:
    with pytest.raises(CommandError) as caught:
        runner().run(command)
    return caught.value


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline, "it did not happen in ten seconds"
        time.sleep(0.01)


def test_a_command_is_written_as_a_line_to_paste():
    command = Command(argv=("echo", "two words", "$HOME"), why="say", env=(("A", "1 2"), ("B", "3")))
    assert str(command) == "A='1 2' B=3 echo 'two words' '$HOME'"


@runs_programs
def test_the_line_to_paste_does_the_same_again(tmp_path):
    command = Command(argv=("printenv", "A"), why="say", env=(("A", 'it\'s "two"\n $words'),))
    said = subprocess.run(["sh", "-c", str(command)], check=True, capture_output=True, text=True).stdout
    assert said == runner().run(command)


@runs_programs
def test_run_returns_what_the_program_writes_to_stdout():
    assert runner().run(sh("echo one; echo two; echo three >&2")) == "one\ntwo\n"


@runs_programs
def test_each_line_is_told_as_it_comes():
    heard = []
    runner().run(sh("printf 'one\\ntwo\\nthree'"), on_line=heard.append)
    assert heard == ["one", "two", "three"]


@runs_programs
def test_output_that_is_not_utf8_does_not_break_a_run():
    assert runner().run(sh(r"printf '\377ok'")) == "\N{REPLACEMENT CHARACTER}ok"


@runs_programs
def test_without_input_stdin_is_empty():
    assert runner().run(Command(argv=("cat",), why="repeat")) == ""


@runs_programs
def test_a_program_runs_in_the_folder_of_its_command(tmp_path):
    assert runner().run(sh("pwd", cwd=tmp_path)) == f"{tmp_path}\n"


@runs_programs
def test_an_accepted_exit_code_is_no_failure():
    assert runner().run(sh("echo said; exit 3", accept=(0, 3))) == "said\n"


@runs_programs
def test_zero_is_a_failure_where_it_is_not_accepted():
    assert failure(sh("exit 0", accept=(1,))).message == "could not try it: `sh` ended with exit code 0"


@runs_programs
def test_a_failure_says_what_was_tried_which_program_how_it_ended_and_its_last_words():
    assert failure(sh("echo to stdout; echo bad luck >&2; exit 7", why="bake the cake")).message == (
        "could not bake the cake: `sh` ended with exit code 7\nbad luck"
    )


@runs_programs
@pytest.mark.parametrize("stream", [1, 2])
def test_a_password_in_a_repeated_url_is_not_in_the_error_or_the_log(caplog, stream):
    script = f'echo "E: http://reader:$WORD@mirror.example/x  403; see a@b.example" >&{stream}; exit 1'
    with caplog.at_level(logging.DEBUG):
        error = failure(sh(script, env=(("WORD", "s3cret"),)))
    assert "http://***@mirror.example/x  403; see a@b.example" in error.message
    output = [record.message for record in caplog.records if record.levelno == logging.DEBUG]
    assert not any("s3cret" in text for text in (error.message, *output))


@runs_programs
def test_a_failure_of_a_program_without_stderr_shows_the_end_of_its_stdout():
    assert failure(sh("echo the reason; exit 1")).message.endswith("exit code 1\nthe reason")


@runs_programs
def test_a_failure_of_a_silent_program_has_no_empty_lines():
    assert failure(sh("exit 1")).message == "could not try it: `sh` ended with exit code 1"


@runs_programs
def test_a_failure_shows_the_last_lines_only():
    shown = failure(sh("seq 1000 >&2; exit 1")).message.splitlines()[1:]
    assert shown == [str(number) for number in range(1001 - TAIL, 1001)]


@runs_programs
def test_a_failure_gives_a_line_to_paste():
    command = sh("exit 1", env=(("A", "b c"),))
    assert failure(command).hint == "to repeat it: A='b c' sh -c 'exit 1'"


@runs_programs
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGTERM, "was ended by SIGTERM"),
        (signal.SIGSEGV, "was ended by SIGSEGV"),
        (signal.SIGKILL, "was ended by SIGKILL (out of memory?)"),
    ],
)
def test_a_signal_is_named_in_words(number, words):
    assert failure(sh(f"kill -{number.value} $$")).message == f"could not try it: `sh` {words}"


@runs_programs
@pytest.mark.parametrize("merged", [False, True])
def test_a_full_disk_is_an_error_of_its_own(merged: bool):
    with pytest.raises(SpaceError) as caught:
        runner().run(sh("cat /dev/zero > /dev/full", merged=merged))
    assert "ENVBUILDER_CACHE" in caught.value.hint


@runs_programs
def test_a_program_that_is_not_there_is_a_tool_error():
    with pytest.raises(ToolError) as caught:
        runner().run(Command(argv=("no-such-program-here",), why="bake the cake"))
    assert caught.value.message == "could not bake the cake: `no-such-program-here` is not installed"


@runs_programs
def test_a_program_that_is_not_there_is_a_tool_error_for_streams_too():
    with pytest.raises(ToolError), runner().read(Command(argv=("no-such-program",), why="x")):
        pass


@runs_programs
def test_a_program_sees_only_the_settings_on_the_list():
    given = {
        "HOME": "/home/x",
        "https_proxy": "proxy:1",
        "LD_PRELOAD": "evil.so",
        "PYTHONPATH": "/evil",
        "CC": "tcc",
    }
    said = runner(**given).run(Command(argv=("env",), why="look"))
    assert sorted(said.splitlines()) == [
        "HOME=/home/x",
        "HTTPS_PROXY=proxy:1",
        "LANG=C.UTF-8",
        "LC_ALL=C.UTF-8",
        "NO_PROXY=localhost,127.0.0.1,::1",
        "PATH=/usr/bin:/bin",
        "https_proxy=proxy:1",
        "no_proxy=localhost,127.0.0.1,::1",
    ]


@runs_programs
def test_no_proxy_for_any_host_stays_as_it_is():
    said = runner(http_proxy="http://proxy:1", NO_PROXY="*").run(
        Command(argv=("printenv", "no_proxy"), why="look")
    )
    assert said == "*\n"


@runs_programs
def test_a_program_speaks_in_a_fixed_locale_whatever_the_users_is():
    said = runner(LANG="de_DE.UTF-8", LC_ALL="fr_FR.UTF-8", LC_MESSAGES="sv_SE").run(
        Command(argv=("env",), why="look")
    )
    assert [line for line in said.splitlines() if line.startswith("L")] == ["LANG=C.UTF-8", "LC_ALL=C.UTF-8"]


@runs_programs
def test_without_a_path_the_systems_own_is_used():
    said = ProcessRunner({}).run(Command(argv=("printenv", "PATH"), why="look"))
    assert said == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"


@runs_programs
def test_the_commands_own_setting_beats_the_users():
    said = runner(HOME="/home/x").run(
        Command(argv=("printenv", "HOME"), why="look", env=(("HOME", "/root"),))
    )
    assert said == "/root\n"


@runs_programs
def test_read_gives_stdout_as_bytes():
    with runner().read(sh(r"printf 'a\000\377b'; echo noise >&2")) as stream:
        assert stream.read() == b"a\0\xffb"


@runs_programs
def test_a_reader_may_stop_before_the_end():
    with runner().read(Command(argv=("head", "-c", str(4 << 20), "/dev/zero"), why="x")) as stream:
        assert stream.read(10) == bytes(10)


@runs_programs
def test_a_failure_while_reading_is_raised_at_the_end():
    def read() -> None:
        with runner().read(sh("echo data; echo bad luck >&2; exit 4")) as stream:
            seen.append(stream.read())

    seen: list[bytes] = []
    with pytest.raises(CommandError, match="exit code 4\nbad luck"):
        read()
    assert seen == [b"data\n"]


@runs_programs
def test_a_folder_that_is_not_there_is_named():
    with pytest.raises(CommandError, match="there is no folder `/nonexistent`"):
        runner().run(sh("true", cwd=Path("/nonexistent")))


@runs_programs
def test_a_file_that_is_no_program_is_named(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(ToolError, match="does not start: Permission denied"):
        runner().run(Command(argv=(str(tmp_path / "data"),), why="try it"))


@runs_programs
def test_an_error_of_the_reader_ends_the_program():
    def read() -> None:
        with runner().read(sh("echo $$; exec sleep 60")) as stream:
            pids.append(int(stream.readline()))
            raise ZeroDivisionError

    pids: list[int] = []
    with pytest.raises(ZeroDivisionError):
        read()
    assert not is_alive(pids[0])


@runs_programs
def test_an_interrupt_from_the_keyboard_ends_the_program():
    heard: list[str] = []

    def interrupt(line: str) -> None:
        heard.append(line)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        runner().run(sh("echo $$; exec sleep 60"), on_line=interrupt)
    assert not is_alive(int(heard[0]))


@runs_programs
def test_a_program_that_ignores_every_request_is_killed(monkeypatch):
    monkeypatch.setattr("envbuilder.core.process.GRACE", 0.1)
    heard: list[str] = []

    def interrupt(line: str) -> None:
        heard.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner().run(sh("trap '' INT TERM; echo $$; while :; do sleep 0.05; done"), on_line=interrupt)
    assert not is_alive(int(heard[0]))


@runs_programs
@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("echo up; exec sleep 60", "SIGTERM"),
        ("trap '' TERM; echo up; exec sleep 60", "SIGKILL (out of memory?)"),  # it does not listen
    ],
)
def test_stop_ends_what_runs_in_another_thread(script: str, ended: str):
    ours, started, caught = runner(), threading.Event(), []

    def work() -> None:
        try:
            ours.run(sh(script), on_line=lambda _: started.set())
        except CommandError as error:
            caught.append(error.message)

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(10)
    ours.stop(for_good=False)
    thread.join(10)
    assert caught == [f"could not try it: `sh` was ended by {ended}\nup"]
    assert ours.run(sh("echo more")) == "more\n"


@runs_programs
def test_nothing_starts_when_all_has_been_stopped_for_good():
    ours = runner()
    before = ours.named("before")
    ours.stop()
    for one in (ours, before, ours.named("after")):
        with pytest.raises(CommandError, match="could not try it: envbuilder is shutting down"):
            one.run(sh("echo up"))


@runs_programs
def test_every_command_is_in_the_log_with_its_words(caplog):
    caplog.set_level(logging.DEBUG, "envbuilder")
    runner().run(sh("echo out; echo err >&2"))
    assert caplog.messages == ["$ sh -c 'echo out; echo err >&2'", "out", "err"]


@runs_programs
def test_handing_over_becomes_the_program():
    code = "from envbuilder.core.process import exec_process; exec_process(['sh', '-c', 'echo $$; exit 5'])"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate(timeout=60)
    assert (int(said), process.returncode) == (process.pid, 5)


@runs_programs
def test_handing_over_to_what_is_not_there_is_a_tool_error():
    with pytest.raises(ToolError, match="`no-such-program` is not installed"):
        exec_process(["no-such-program"])


@runs_programs
def test_handing_over_to_what_may_not_be_started_is_a_tool_error(tmp_path):
    (tmp_path / "program").touch(mode=0o644)
    with pytest.raises(ToolError, match="does not start: Permission denied"):
        exec_process([str(tmp_path / "program")])


def test_the_fake_records_commands_and_answers_by_the_name_of_the_program():
    fake = FakeRunner({"uv": "uv 1.2\nsecond\n"})
    commands = [Command(argv=("/opt/bin/uv", "--version"), why="ask"), Command(argv=("other",), why="ask")]
    heard: list[str] = []
    answers = [fake.run(command, on_line=heard.append) for command in commands]
    assert (answers, heard, fake.commands) == (["uv 1.2\nsecond\n", ""], ["uv 1.2", "second"], commands)


def test_the_fake_answers_a_reader_too():
    with FakeRunner({"cat": "words"}).read(Command(argv=("cat",), why="read")) as stream:
        assert stream.read() == b"words"


@pytest.mark.parametrize("make", [lambda: ProcessRunner({}), FakeRunner])
def test_both_runners_are_runners(make):
    ours: Runner = make()
    assert [name for name in ("run", "read", "stop") if not callable(getattr(ours, name))] == []
