"""What a person sees: a line for each start and end where there is no terminal, a live view where there is one."""

import io
import logging
import re
import sys
import threading
from pathlib import Path

import pytest

from envbuilder.core import console as console_module
from envbuilder.core.console import Console, ended_steps, folds, log_to, setup
from envbuilder.core.errors import BuildError

TIME = re.compile(r"\(\d+\.\d s\)")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen(io.StringIO):
    """A terminal that keeps everything written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.set()
        return count

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def our_logger():
    logger = logging.getLogger("envbuilder")
    before = (logger.level, list(logger.handlers))
    yield logger
    logger.setLevel(before[0])
    logger.handlers = before[1]


def open_screen(monkeypatch) -> Screen:
    """Not a fixture: pytest sets its own stderr between a test's fixtures and the test."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def lines(capsys) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return TIME.sub("(T)", err).splitlines()


def fail(console: Console) -> None:
    with console.step("bake"):
        raise ZeroDivisionError


def test_without_a_terminal_a_step_is_a_line_at_its_start_and_one_at_its_end(capsys):
    console = Console()
    with console.step("bake"):
        assert lines(capsys) == ["… bake"]
    assert lines(capsys) == ["✓ bake (T)"]


def test_a_line_in_a_log_has_neither_tabs_nor_control_codes(capsys):
    Console().say("a\tb\r\x07c")
    assert lines(capsys) == ["a       bc"]


def test_a_step_that_fails_has_another_mark(capsys):
    with pytest.raises(ZeroDivisionError):
        fail(Console())
    assert lines(capsys) == ["… bake", "✗ bake (T)"]


def test_the_last_word_of_a_step_is_kept(capsys):
    with Console().step("bake") as step:
        step.show_note("dough")
        step.show_note("crust")
    assert lines(capsys) == ["… bake", "✓ bake crust (T)"]


def test_steps_may_stand_inside_steps(capsys):
    console = Console()
    with console.step("outer"), console.step("inner"):
        pass
    assert lines(capsys) == ["… outer", "… inner", "✓ inner (T)", "✓ outer (T)"]


def test_a_short_transfer_without_a_terminal_is_two_lines(capsys):
    with Console().step("fetch", 100) as transfer:
        transfer.advance(100)
    assert lines(capsys) == ["… fetch", "✓ fetch (T)"]


def test_a_long_transfer_without_a_terminal_says_now_and_then_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(console_module, "LINE_EVERY", -1.0)
    with Console().step("fetch [all]", 5_000_000) as transfer:
        transfer.advance(1_000_000)
        transfer.advance(2_000_000)
    assert lines(capsys)[1:3] == [
        "  fetch [all]: 1 of 5 MB, 0 s left",
        "  fetch [all]: 3 of 5 MB, 0 s left",
    ]


def test_a_wait_without_an_answer_names_who_is_asked(monkeypatch):
    monkeypatch.setattr(console_module, "SILENCE", 0.0)
    screen = open_screen(monkeypatch)
    with Console(color=False).waiting(lambda: ("http://one/", "http://two/", "http://one/")):
        assert screen.written.wait(60)
    assert screen.getvalue() == "  waiting for an answer from http://one/ and http://two/\n"


def test_a_wait_with_an_answer_says_nothing(capsys, monkeypatch):
    asked = threading.Event()
    with Console().waiting(lambda: asked.set() or ("http://one/",)):
        pass
    monkeypatch.setattr(console_module, "SILENCE", 0.0)
    with Console().waiting(lambda: asked.set() or ()):
        asked.wait(60)
    assert lines(capsys) == []


def test_the_estimate_is_that_of_the_speed_so_far(capsys, monkeypatch):
    monkeypatch.setattr(console_module, "LINE_EVERY", -1.0)
    with Console().step("write") as step:
        step.expect(5_000_000)
        step._began -= 10
        step.advance(1_000_000)
    assert lines(capsys)[1] == "  write: 1 of 5 MB, 40 s left"


def test_a_step_of_items_says_how_many_are_done(capsys, monkeypatch):
    monkeypatch.setattr(console_module, "LINE_EVERY", -1.0)
    with Console().step("install") as step:
        step.expect(300, items=True)
        step._began -= 10
        step.advance(100)
    assert lines(capsys)[1] == "  install: 100 of 300, 20 s left"


def test_the_first_items_give_no_estimate(capsys, monkeypatch):
    monkeypatch.setattr(console_module, "LINE_EVERY", -1.0)
    with Console().step("install") as step:
        step.expect(159, items=True)
        step._began -= 20
        step.advance(1)
        step.advance(15)
    assert lines(capsys)[1:3] == ["  install: 1 of 159", "  install: 16 of 159, 179 s left"]


def test_a_step_may_count_one_thing_after_another(capsys, monkeypatch):
    monkeypatch.setattr(console_module, "LINE_EVERY", -1.0)
    with Console().step("install") as step:
        for total, items in ((2_000_000, False), (2, True)):
            step.expect(total, items=items)
            step.advance(total)
    assert lines(capsys)[1:3] == ["  install: 2 of 2 MB, 0 s left", "  install: 2 of 2, 0 s left"]


def test_at_a_terminal_items_are_shown_as_numbers(monkeypatch):
    screen = open_screen(monkeypatch)
    with Console(color=False).step("install") as step:
        step.expect(300, items=True)
        step.advance(100)
        step.view[0].refresh()
    assert "install 100/300" in ESCAPE.sub("", screen.getvalue())


def test_a_step_follows_what_is_counted(capsys, monkeypatch):
    monkeypatch.setattr(console_module, "POLL", 0.0)
    monkeypatch.setattr(console_module, "LINE_EVERY", -1.0)
    counts, counted = iter([0, 2, 2, 3]), threading.Event()

    def count() -> int:
        found = next(counts, None)
        if found is None:
            counted.set()
        return 3 if found is None else found

    with Console().step("install") as step:
        step.expect(3, items=True)
        with step.following(count):
            assert counted.wait(60)
    said = [line.partition(",")[0] for line in lines(capsys)[1:-1]]
    assert list(dict.fromkeys(said)) == ["  install: 2 of 3", "  install: 3 of 3"]


@pytest.mark.parametrize(
    "text", ["a [red]word[/red]", "/tmp/[x]", "test: d = {1:fire:2}", "[/]", "back\\slash\\", "{task.id}"]
)
def test_words_are_shown_as_they_are(capsys, text):
    console = Console()
    console.say(text)
    with console.step(text) as step:
        step.show_note(text)
    assert lines(capsys) == [text, f"… {text}", f"✓ {text} {text} (T)"]


def test_long_lines_are_not_broken(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    Console().say("word " * 20)
    assert lines(capsys) == ["word " * 20]


def test_a_quiet_console_says_nothing(capsys):
    console = Console(quiet=True)
    console.say("words")
    with console.step("bake"), console.step("fetch", 1):
        pass
    assert lines(capsys) == []


def test_without_a_terminal_there_are_no_colours(capsys):
    with pytest.raises(ZeroDivisionError):
        fail(Console())
    assert "\x1b" not in capsys.readouterr().err


def test_at_a_terminal_running_steps_are_in_a_live_view(monkeypatch):
    screen = open_screen(monkeypatch)
    console = Console()
    with console.step("bake") as step:
        step.show_note("the dough")
        assert console._screen.live is not None
        console._screen.live.refresh()
    shown = ESCAPE.sub("", screen.getvalue())
    assert re.search(r"bake +the dough", shown)
    assert TIME.sub("(T)", shown.splitlines()[-1]).strip() == "✓ bake the dough (T)"


def test_at_a_terminal_a_transfer_shows_bytes(monkeypatch):
    screen = open_screen(monkeypatch)
    console = Console()
    with console.step("fetch", 5_000_000) as transfer:
        transfer.advance(3_000_000)
        assert console._screen.live is not None
        console._screen.live.refresh()
    assert re.search(r"fetch +3/5 MB", ESCAPE.sub("", screen.getvalue()))


def test_a_narrow_terminal_cuts_off_the_note_alone(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    screen = open_screen(monkeypatch)
    console = Console()
    with console.step("install bookworm: 142 packages", 142) as step:
        step.expect(142, items=True)
        step.show_note("configure libkrb5support0:amd64 (1.20.1-2+deb12u5) ...")
        assert console._screen.live is not None
        console._screen.live.refresh()
    shown = ESCAPE.sub("", screen.getvalue())
    assert re.search(r"install bookworm: 142 packages 0/142 configure l\S*… 0:00:0\d\r", shown)


@pytest.mark.parametrize("text", ["[red]word[/red]", "[/]", "d = {1:fire:2}"])
def test_a_live_view_shows_words_as_they_are(monkeypatch, text):
    screen = open_screen(monkeypatch)
    console = Console()
    with console.step(f"bake {text}") as step:
        step.show_note(f"now {text}")
        assert console._screen.live is not None
        console._screen.live.refresh()
    before_the_end = ESCAPE.sub("", screen.getvalue()).partition("✓")[0]
    assert re.search(re.escape(f"bake {text}") + " +" + re.escape(f"now {text}"), before_the_end)


def test_a_live_view_is_gone_with_the_last_step(monkeypatch):
    screen = open_screen(monkeypatch)
    console = Console()
    with console.step("one"):
        with console.step("two"):
            pass
        assert console._screen.live is not None
    assert console._screen.live is None
    assert screen.getvalue().count("\x1b[?25l") == screen.getvalue().count("\x1b[?25h") == 1  # the cursor


def test_closing_gives_the_cursor_back_while_steps_run(monkeypatch):
    screen = open_screen(monkeypatch)
    console = Console()
    with console.step("bake"):
        console.close()
        assert "\x1b[?25h" in screen.getvalue()
    assert console._screen.live is None


def test_a_step_after_closing_leaves_no_live_view(monkeypatch):
    open_screen(monkeypatch)
    console = Console()
    with console.step("one"):
        console.close()
    with console.step("two"):
        pass
    assert console._screen.live is None


def test_at_a_terminal_marks_have_colours(monkeypatch):
    screen = open_screen(monkeypatch)
    with Console().step("bake"):
        pass
    assert "\x1b[32m✓" in screen.getvalue()


def colours(text: str) -> list[str]:
    """The escape sequences that set a foreground or background colour."""
    return re.findall(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7])[0-9;]*m", text)


def test_the_choice_of_no_colour_is_obeyed(monkeypatch):
    screen = open_screen(monkeypatch)
    with Console(color=False).step("bake"):
        pass
    assert colours(screen.getvalue()) == []


@pytest.mark.parametrize("terminal", [False, True])
def test_steps_of_several_threads_all_end(terminal, monkeypatch):
    stream = Screen() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    console = Console()

    def work(number: int) -> None:
        for _ in range(5):
            with console.step(f"part {number}", 10) as transfer:
                transfer.advance(10)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ESCAPE.sub("", stream.getvalue()).count("✓ part") == 40
    assert not terminal or console._screen.live is None


def test_a_log_holds_every_step_with_its_time(tmp_path, capsys, our_logger):
    setup(0)
    console = Console()
    with log_to(tmp_path / "a/x.log"), console.step("bake"):
        console.say("it is hot")
    said = (tmp_path / "a/x.log").read_text(encoding="utf-8")
    assert [line.split(" ", 3)[3] for line in TIME.sub("(T)", said).splitlines()] == [
        "start: bake",
        "it is hot",
        "end: bake (T)",
    ]


def test_a_log_ends_with_its_build(tmp_path, capsys, our_logger):
    setup(0)
    with log_to(tmp_path / "x.log"):
        pass
    Console().say("later")
    assert (tmp_path / "x.log").read_text(encoding="utf-8") == ""


@pytest.mark.parametrize(
    ("verbosity", "seen"),
    [(0, ["warning"]), (1, ["warning", "command"]), (2, ["warning", "command", "output"])],
)
def test_each_v_shows_more(capsys, our_logger, verbosity, seen):
    setup(verbosity)
    logger = logging.getLogger("envbuilder.x")
    logger.warning("warning")
    logger.info("command")
    logger.debug("output")
    assert lines(capsys) == seen


def test_handlers_are_set_once(capsys, our_logger):
    setup(0)
    setup(0)
    logging.getLogger("envbuilder").warning("once")
    assert lines(capsys) == ["once"]


@pytest.mark.parametrize(
    ("environment", "opening", "closing"),
    [
        ({}, "", ""),
        ({"GITHUB_ACTIONS": "true"}, "::group::build cpu\n", "::endgroup::\n"),
        ({"GITLAB_CI": "true"}, r"\x1b\[0Ksection_start:\d+:build_cpu\[collapsed=true\]\r\x1b\[0Kbuild cpu\n",
         r"\x1b\[0Ksection_end:\d+:build_cpu\r\x1b\[0K\n"),
    ],
)  # fmt: skip
def test_the_log_of_a_ci_system_is_folded(capsys, environment, opening, closing):
    console = Console(folds=folds(environment))
    with console.group("build cpu"), console.step("bake"):
        pass
    err = TIME.sub("(T)", capsys.readouterr().err)
    assert re.fullmatch(f"{opening}… bake\n✓ bake \\(T\\)\n{closing}", err)


def test_a_fold_ends_before_a_failure_is_told(capsys):
    console = Console(folds="github")

    def fail_inside() -> None:
        with console.group("build cpu"):
            raise BuildError("no")

    with pytest.raises(BuildError):
        fail_inside()
    assert capsys.readouterr().err == "::group::build cpu\n::endgroup::\n"


def test_an_error_names_the_log_of_its_build(tmp_path, our_logger):
    def fail_inside() -> None:
        with log_to(tmp_path / "x.log"):
            raise BuildError("no")

    with pytest.raises(BuildError) as caught:
        fail_inside()
    assert caught.value.log == str(tmp_path / "x.log")


def test_a_skipped_step_has_no_tick(capsys: pytest.CaptureFixture[str]):
    with Console(color=False).step("test in the SIF") as step:
        step.skip("Apptainer is not installed")
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("- test in the SIF skipped: Apptainer is not installed (")


def test_the_log_of_a_build_has_the_time_of_each_step(tmp_path: Path, our_logger):
    setup(0)
    with log_to(tmp_path / "log"), Console(quiet=True).step("write the SIF (again)"):
        pass
    assert ended_steps((tmp_path / "log").read_text()) == (("write the SIF (again)", 0.0),)
