"""`watch`: who waits for whom in a job that runs, seen from outside."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from envbuilder.commands.context import Session, command
from envbuilder.core.answer import Reply
from envbuilder.core.errors import LaunchError
from envbuilder.core.process import ProcessRunner
from envbuilder.core.text.redact import plain
from envbuilder.run.watch.job_nodes import find_job, look_at, wait_for_hang
from envbuilder.run.watch.verdict import Verdict


@command("watch", "envbuilder watch logs/a100-4711", "envbuilder watch 4711 --end")
def watch(
    session: Session,
    job: Annotated[
        str, typer.Argument(help="a job, its folder of logs, or a process of it", metavar="JOB|FOLDER|PID")
    ],
    *,
    logs: Annotated[Path, typer.Option("--logs", metavar="DIR", help="the folder of scripts and logs")] = Path("logs"),
    silent: Annotated[
        float, typer.Option("--silent", metavar="MINUTES", min=0, help="look whenever no rank wrote for so long, until the job ends")
    ] = 0,
    end: Annotated[bool, typer.Option("--end", help="then send TERM to every rank")] = False,
) -> Reply[Verdict]:  # fmt: skip
    """Say who waits for whom in a job that hangs, without stopping it; exit code 9 for a hang."""
    watched, runner = find_job(job, logs), ProcessRunner(session.environment, whole=True)
    if silent:
        wait_for_hang(
            watched, silent, lambda: look_at(watched, runner),
            lambda verdict: print(plain(verdict.text(session.width)), file=sys.stderr, flush=True),
        )  # fmt: skip
        return Reply()
    verdict = look_at(watched, runner, ends=end)
    code = LaunchError.exit_code if verdict.is_hang else 0
    return Reply(data=verdict, text=verdict.text(session.width), exit_code=code)
