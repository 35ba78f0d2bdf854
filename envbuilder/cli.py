"""The command line: puts the verbs together, prints their answers, and turns errors into exit codes.

The only module that catches errors, prints to stdout and exits, but for the two answers that `__main__` gives at once. What
a verb needs is imported when it runs.
"""

import contextlib
import itertools
import json
import os
import signal
import sys
from typing import Annotated, Final

import typer

from envbuilder import __version__
from envbuilder.errors import EnvbuilderError, UsageError
from envbuilder.session import SESSION
from envbuilder.verbs import artefact, exchange, job, machine, maintain, recipe, start

ENVELOPE_VERSION: Final = 1
INTERRUPTED: Final = 130

app = typer.Typer(
    name="envbuilder", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="One recipe becomes one environment: a Docker image and a SIF that hold the same files.",
)  # fmt: skip
for _part in (start, recipe, artefact, exchange, machine, job, maintain):
    app.add_typer(_part.app)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    if version:
        SESSION.text = f"envbuilder {__version__}"
        raise typer.Exit


def main() -> None:
    """Run the command of this process, print its answer, end with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    error: EnvbuilderError | None = None
    interrupted = False
    # Wrong use is found before any command starts, and is answered in the same form.
    SESSION.begin(
        next((argument for argument in arguments if not argument.startswith("-")), ""),
        as_json="--json" in itertools.takewhile(lambda argument: argument != "--", arguments),
    )
    with contextlib.suppress(ValueError):  # not the main thread: its owner handles signals
        signal.signal(
            signal.SIGTERM, signal.default_int_handler
        )  # a terminated build tidies up like an interrupted one
    try:
        code = app(arguments, prog_name="envbuilder", standalone_mode=False)
        interrupted = code == INTERRUPTED  # what Typer makes of Ctrl-C
    except EnvbuilderError as failure:
        error = failure
    except typer.TyperException as failure:
        error = UsageError(
            failure.format_message(), hint="`envbuilder --help` lists the commands and their options"
        )
    except (KeyboardInterrupt, typer.Abort):
        interrupted = True
    if interrupted:
        SESSION.stop()
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)  # worker threads may still compress; what they hold is swept by the next build
    if error:
        SESSION.findings, SESSION.exit_code = error.findings, error.exit_code
    _answer(error)
    return SESSION.exit_code


def _answer(error: EnvbuilderError | None) -> None:
    if SESSION.as_json:
        print(json.dumps(envelope(error), indent=1, ensure_ascii=False))
        return
    if error:
        print(f"error: {error.message}", file=sys.stderr)
    for finding in SESSION.findings:
        print(f"{finding.severity}[{finding.code}]: {finding}", file=sys.stderr)
        if finding.hint:
            print(f"  hint: {finding.hint}", file=sys.stderr)
    if error and error.hint:
        print(f"\nhint: {error.hint}", file=sys.stderr)
    if not error and SESSION.text:
        print(SESSION.text)


def envelope(error: EnvbuilderError | None) -> dict[str, object]:
    """The one JSON answer; its keys are a contract."""
    findings = [
        {
            "code": one.code,
            "severity": str(one.severity),
            "where": one.where,
            "message": one.message,
            "hint": one.hint,
        }
        for one in SESSION.findings
    ]
    if error and not findings:
        findings = [
            {
                "code": error.code,
                "severity": "error",
                "where": "",
                "message": error.message,
                "hint": error.hint,
            }
        ]
    return {
        "version": ENVELOPE_VERSION,
        "command": SESSION.command,
        "status": "failed" if SESSION.exit_code else "ok",
        "exit_code": SESSION.exit_code,
        "data": SESSION.data,
        "findings": findings,
    }
