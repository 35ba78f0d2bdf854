"""The command line: finds the command that was called, prints its answer, and turns errors into exit codes.

The only module that catches errors, prints to stdout and exits. It imports the module of the command that was called;
`--help` and completion know the others by their names.
"""

import contextlib
import errno
import importlib
import itertools
import json
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn

import typer
import typer.core
from pydantic import BaseModel, SerializeAsAny
from typer import _completion_shared
from typer.main import get_command

from envbuilder import __version__
from envbuilder.commands import COMMANDS, GROUPS, RENAMED, RENAMED_RUNNERS
from envbuilder.commands.context import Interrupts, Session, open_session
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.errors import FULL, EnvbuilderError, FetchError, UsageError, full_error
from envbuilder.core.findings import Finding
from envbuilder.core.plain import pasted
from envbuilder.core.spelling import nearest
from envbuilder.core.text.redact import plain, plain_json, redacted
from envbuilder.sources.http.proxies import blame

ENVELOPE_VERSION: Final = 1
INTERRUPTED: Final = 130
PATIENCE: Final = 1.0  # seconds from an interrupt to the end; each file gets its final name when it is whole
_LEAVING: Final = threading.Lock()
_NEIGHBOURS: Final = "(envbuilder-hpc, neither Coder's envbuilder nor the one on PyPI)"
_GROUP: Final = "launch"  # the command that has commands of its own
# Words that people take for commands, and where they stand.
_ELSEWHERE: Final = {
    "vendor": "cache vendor",
    "slurm": "launch slurm",
    "lint": "launch lint",
    "run": "exec",
    "nccl": "detect",
    "topology": "detect",
    "help": "--help",
    "install": "add",
    "activate": "exec",
    "clean": "cache --gc",
    "create": "init",
    "upgrade": "lock --upgrade",
    "sbatch": "launch slurm",
} | dict.fromkeys(("switch", "rollback", "prune", "versions"), "history")
_EXAMPLE: Final = re.compile(r"(?:\$ |`)(envbuilder [^`\n]+)")  # in the help of a command
# Errors of a path that the user chose. ENOENT counts only for a folder that could not be made, as below /proc. For a file
# it is a bug of envbuilder.
_PATH_ERRORS: Final = (
    errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip


def load_command(name: str) -> Any:
    """Import the module of a command and return the command for Typer to run."""
    command = get_command(getattr(importlib.import_module(f"envbuilder.commands.{name}"), name))
    command.name = name
    return command


class CommandGroup(typer.core.TyperGroup):
    """The commands by name and summary; the one that is called is imported."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        word = args[0]
        if word in RENAMED and word not in COMMANDS and not ctx.resilient_parsing:
            words = (re.sub(r"^--output\b", "--artifacts", given) for given in args[1:])
            now = RENAMED[word].format(pasted(*words) or "NAME")
            raise UsageError(f"`envbuilder {word}` is now {now}")
        if word not in COMMANDS and not ctx.resilient_parsing and not word.startswith("-"):
            meant = nearest(_ELSEWHERE.get(word, word), (*COMMANDS, *_ELSEWHERE.values()))
            hint = f"{meant}`envbuilder --help` lists the commands"
            raise UsageError(f"there is no command `{word}`", hint=hint)
        if word == "build" and not ctx.resilient_parsing:
            _need_new_names(args[1:])
        name, named, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name and named else None, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the commands below their headings, aligned with each other."""
        width = max(map(len, COMMANDS))
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, line in commands.items()])


def _need_new_names(words: Sequence[str]) -> None:
    for word, following in itertools.pairwise((*words, "")):
        option, _, value = word.partition("=")
        value = value or ("" if following.startswith("-") else following)
        if option == "--engine" or (option == "--runner" and value in RENAMED_RUNNERS):
            now = f"--runner {RENAMED_RUNNERS.get(value, '')}".strip()
            raise UsageError(f"`{f'{option} {value}'.strip()}` is now `{now}`")


app = typer.Typer(
    name="envbuilder", cls=CommandGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="One recipe becomes one environment: a Docker image and a SIF that hold the same files.",
    epilog="Begin with `envbuilder init --example cpu`, then `envbuilder build cpu`.",
)  # fmt: skip


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
) -> Reply[None]:
    return Reply(text=f"envbuilder {__version__} {_NEIGHBOURS}" if version else "")


def _named() -> None:
    """Stand for a command until it is called."""


for _name, _summary in COMMANDS.items():
    app.command(_name, short_help=_summary)(_named)

# At the first TAB zsh runs Typer's script and takes its result for the answer. The script defines a function; this line
# calls it.
_SCRIPTS: Final[dict[str, str]] = getattr(_completion_shared, "_completion_scripts", {})
if "zsh" in _SCRIPTS:
    _SCRIPTS["zsh"] += '[[ $zsh_eval_context[-1] != loadautofunc ]] || %(complete_func)s "$@"\n'


class Envelope(Answer):
    """The one JSON answer; its keys are a contract."""

    version: int = ENVELOPE_VERSION
    command: str
    status: Literal["ok", "failed"]
    exit_code: int
    data: SerializeAsAny[BaseModel] | None
    findings: tuple[Finding, ...]


class FailureLog(Answer):
    """The data of a failure with a log."""

    log: str


def main() -> None:
    """Run the command of this process, print its answer, end with its exit code."""
    sys.excepthook = _print_bug
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    session = open_session(arguments)
    reply: Reply[Any] = Reply()
    error: EnvbuilderError | None = None
    interrupted = False
    if arguments[:1] in (["--install-completion"], ["--show-completion"]) and arguments[1:]:
        # Otherwise Typer takes no shell, and installs for the one that it was called from.
        os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"  # noqa: TID251 - Typer reads it there
    try:
        with _signals(session.interrupts):
            ended = get_command(app)(arguments, prog_name="envbuilder", standalone_mode=False, obj=session)
        interrupted = ended == INTERRUPTED  # Typer's return value after Ctrl-C
        reply = ended if isinstance(ended, Reply) else reply
    except EnvbuilderError as failure:
        error = failure
    except typer.TyperException as failure:
        words = failure.format_message()
        if words.startswith("Usage:"):  # no command was named
            print(plain(words), file=sys.stderr)
            return UsageError.exit_code
        error = _wrong_use(words, getattr(failure, "ctx", None), session)
    except (KeyboardInterrupt, typer.Abort):
        interrupted = True
    except Exception as failure:
        error = _path_error(failure)
        if error is None:
            if session.as_json:  # one object, before the traceback goes to stderr
                hint = "a bug in envbuilder; stderr has the traceback"
                bug = EnvbuilderError(f"{type(failure).__name__}: {failure}", hint=hint)
                _answer(session, failed(bug), bug)
            raise
    if interrupted:
        _leave(session.interrupts)
    if isinstance(error, FetchError):
        blame(error, session.environment)
    if error:
        reply = failed(error)
    _answer(session, reply, error)
    return reply.exit_code


def failed(error: EnvbuilderError) -> Reply[Any]:
    data = FailureLog(log=error.log) if error.log else error.data
    return Reply(data=data, findings=error.findings, exit_code=error.exit_code)


def _label(words: Sequence[str]) -> str:
    """Return the command that was called, as the answer names it: of a group with its own command."""
    names = [word for word in words if not word.startswith("-")]
    return " ".join(names[: 2 if names[:1] == [_GROUP] else 1])


def _wrong_use(words: str, context: Any, session: Session) -> UsageError:
    """Return Typer's words of wrong use with an example of the command, if possible one of the option that is wrong."""
    label = _label(session.typed)
    program = getattr(context, "command_path", f"envbuilder {label if label in COMMANDS else ''}".strip())
    command = getattr(context, "command", None)
    examples = _EXAMPLE.findall(f"{getattr(command, 'epilog', '')}\n{getattr(command, 'help', '')}")
    option = "".join(re.findall(r"'(--[a-z-]+)", words)[:1])
    such_as = "".join(
        f"such as `{line}`; " for line in sorted(examples, key=lambda line: option not in line)[:1]
    )
    given = re.search(rf"{option}[ =](\S+)", " ".join(session.typed))
    value = f", found `{given[1]}`" if given else ""
    words = re.sub(r"Input should be ([^,]+).*", lambda bound: f"expected {bound[1]}{value}", words)
    words = words.replace("Value error, ", "").removesuffix(".")
    return UsageError(words[:1].lower() + words[1:], hint=f"{such_as}`{program} --help` lists what there is")


def _path_error(failure: Exception) -> EnvbuilderError | None:
    """Return the error about a path that cannot be used, or None if the failure is another one."""
    if not isinstance(failure, OSError):
        return None
    path = failure.filename2 or failure.filename
    if failure.errno in FULL:
        return full_error(Path(os.fsdecode(path or ".")), number=failure.errno)
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    makes_folder = traceback.extract_tb(failure.__traceback__)[-1].name == "mkdir"
    if failure.errno not in _PATH_ERRORS and not (failure.errno == errno.ENOENT and makes_folder):
        return None
    logging.getLogger(__name__).debug("where it failed:", exc_info=failure)
    place, what = os.fsdecode(path), "write"
    if os.path.exists(place):  # noqa: PTH110
        what = "write" if os.access(place, os.R_OK) else "read"
    elif os.path.basename(place).startswith("."):  # noqa: PTH119  # a temporary file: the user chose its folder
        place = os.path.dirname(place) or "."  # noqa: PTH120
    elif failure.errno == errno.EACCES and not os.access(os.path.dirname(place) or ".", os.X_OK):  # noqa: PTH120
        what = "reach"  # it may exist or not
    reason = (
        "it is not a folder"
        if makes_folder and failure.errno == errno.EEXIST
        else (failure.strerror or str(failure)).lower()
    )
    return UsageError(
        f"cannot {what} `{place}`: {reason}",
        hint="name another path, or change the permissions of this one; `-vv` shows where it failed",
    )


def _print_bug(kind: type[BaseException], bug: BaseException, trace: Any) -> None:
    """Print the traceback of a bug: its last line may hold a name or an answer of foreign code."""
    print(plain("".join(traceback.format_exception(kind, bug, trace))), end="", file=sys.stderr)


@contextlib.contextmanager
def _signals(interrupts: Interrupts) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into KeyboardInterrupt. Where something is to be ended first, the process ends soon after."""

    def interrupt(number: int, frame: object) -> NoReturn:
        if interrupts:
            last = threading.Timer(PATIENCE, _leave, (interrupts,))
            last.daemon = True
            last.start()
        signal.default_int_handler(number, frame)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    before = {}
    with contextlib.suppress(ValueError):  # not the main thread, which handles its own signals
        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(interrupts: Interrupts) -> NoReturn:
    """End now, with worker threads still running; the next build sweeps what they leave."""
    _LEAVING.acquire()  # the first caller ends the process
    interrupts.end()
    over = "\r" if sys.stderr.isatty() else ""  # overwrites the `^C` that a terminal shows
    print(f"{over}{plain(f'interrupted{interrupts.note}')}", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


def _answer(session: Session, reply: Reply[Any], error: EnvbuilderError | None) -> None:
    """Print the answer. A reader that closed the pipe, as `head` does, is not an error."""
    try:
        if session.as_json:
            print(_json(make_envelope(_label(session.typed), reply, error), as_it_is=reply.is_document))
        else:
            _print(reply, error)
        sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):  # otherwise Python writes once more at exit, and fails
            os.dup2(nowhere, stream.fileno())


def _json(envelope: Envelope, *, as_it_is: bool) -> str:
    # Not pydantic's own JSON: it refuses the names of files that are not UTF-8.
    answer = envelope.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for key in ("findings",) if as_it_is else ("findings", "data"):
        answer[key] = _redacted_strings(answer.get(key))
    return plain_json(json.dumps(answer, indent=1, ensure_ascii=False))


def _print(reply: Reply[Any], error: EnvbuilderError | None) -> None:
    lines = _error_lines(reply.findings, error)
    if error:
        lines = _fit_screen(lines, error)
    elif sys.stderr.isatty():
        lines = _wrapped(lines, shutil.get_terminal_size().columns)
    for line in lines:
        print(line, file=sys.stderr)
    if reply.text:
        # A program gets a document byte for byte. A terminal never does.
        print(reply.text if reply.is_document and not sys.stdout.isatty() else plain(reply.text))


def _redacted_strings(value: Any) -> Any:
    """Return the value of a JSON answer without credentials in its strings."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, list):
        return [_redacted_strings(item) for item in value]
    if isinstance(value, dict):
        return {redacted(key): _redacted_strings(item) for key, item in value.items()}
    return value


def _error_lines(findings: tuple[Finding, ...], error: EnvbuilderError | None) -> list[str]:
    """Return the lines of the error and the findings. A finding with the error's message stands in place of the error."""
    lines: list[str] = []
    if error and error.message not in [finding.message for finding in findings]:
        lines += plain(f"error: {error.message}").splitlines()
    for number, finding in enumerate(findings, start=1):
        lines += plain(f"{finding.severity}[{finding.code}]: {finding}").splitlines()
        # A hint for several findings follows the last of them, and the error's comes at the very end.
        later = {other.hint for other in findings[number:]} | ({error.hint} if error else set())
        if finding.hint and finding.hint not in later:
            lines.append(plain(f"  hint: {finding.hint}"))
    return lines


def _fit_screen(lines: list[str], error: EnvbuilderError) -> list[str]:
    """At a terminal, cut the lines to one screen that ends with the hint and the log."""
    end = [plain(f"{name}: {words}") for name, words in (("hint", error.hint), ("log", error.log)) if words]
    if sys.stderr.isatty():
        width, height = shutil.get_terminal_size()
        lines, end = _wrapped(lines, width), _wrapped(end, width)
        room = height - 3 - _rows(end, width)
        if _rows(lines, width) > room:
            lines = _cut(lines, room - 1, width)
    return [*lines, *([""] if end else []), *end]


def _wrapped(lines: list[str], width: int) -> list[str]:
    """Break long lines between words. A command stays whole, so that it can be copied."""
    return [
        part
        for line in lines
        for part in (
            textwrap.wrap(
                line, width, break_long_words=False, break_on_hyphens=False,
                subsequent_indent=" " * (len(line) - len(line.lstrip())),
            )
            if len(line) > width and not line.lstrip().startswith("$ ")
            else [line]
        )
    ]  # fmt: skip


def _rows(lines: list[str], width: int) -> int:
    return sum(max(1, -(-len(line) // width)) for line in lines)


def _cut(lines: list[str], room: int, width: int) -> list[str]:
    """Keep as many of the first and the last lines as fit: the reason of an error stands at either end."""
    first: list[str] = []
    last: list[str] = []
    left = lines
    while left:
        side, line = (first, left[0]) if len(first) <= len(last) else (last, left[-1])
        if _rows([*first, *last, line], width) > room:
            break
        side.append(line)
        left = left[1:] if side is first else left[:-1]
    return [*first, f"… {len(left)} more lines; `--json` has all", *reversed(last)]


def make_envelope(label: str, reply: Reply[Any], error: EnvbuilderError | None = None) -> Envelope:
    """Return the answer under `--json`; a failure without findings becomes one."""
    findings = reply.findings
    if error and not findings:
        findings = (Finding(code=error.code, message=error.message, hint=error.hint),)
    return Envelope(
        version=ENVELOPE_VERSION,
        command=label,
        status="failed" if reply.exit_code else "ok",
        exit_code=reply.exit_code,
        data=reply.data,
        findings=findings,
    )
