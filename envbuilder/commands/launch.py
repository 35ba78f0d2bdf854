"""`launch`: a distributed run through Slurm, over SSH or on this machine, and the linter of sbatch scripts."""

import functools
from pathlib import Path
from typing import Annotated, Final

import typer

from envbuilder.commands.context import Artifacts, BuiltName, Profile, Session, command, new_app, offer
from envbuilder.commands.diagnose import findings
from envbuilder.commands.exec import Form, ProgramCommand
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.console import Console
from envbuilder.core.errors import UsageError
from envbuilder.core.findings import Severity
from envbuilder.core.process import ProcessRunner
from envbuilder.run.exec import parse_form
from envbuilder.run.launch import start
from envbuilder.run.launch.job import LaunchJob, LaunchOptions
from envbuilder.run.launch.lint import lint_files
from envbuilder.run.launch.prepare import prepare
from envbuilder.run.launch.site import SlurmSite

LOGS: Final = Path("logs")
launch: Final = new_app("Start a distributed run: `envbuilder launch slurm a100 --nodes 2 -- train.py`.")


class SlurmJob(Answer):
    """The job that was submitted."""

    job: str
    script: Path
    log: Path


Nodes = Annotated[int | None, typer.Option("--nodes", metavar="N", min=1, help="machines")]
Gpus = Annotated[int | None, typer.Option("--gpus-per-node", metavar="G", min=0, help="GPUs, with one rank each")]  # fmt: skip
Ranks = Annotated[int | None, typer.Option("--ranks-per-node", metavar="R", min=1, help="ranks, if not one per GPU")]  # fmt: skip
Write = Annotated[Path | None, typer.Option("--write", metavar="FILE", help="write the script; start nothing")]  # fmt: skip
For = Annotated[str, typer.Option("--for", metavar="SITE", help="write it with the folders of this site")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the script; write and start nothing")]
Logs = Annotated[Path, typer.Option("--logs", metavar="DIR", help="the folder of scripts and logs")]
_GRACE: Final = "time from SIGTERM to the end, to write a checkpoint"
Grace = Annotated[int, typer.Option("--grace", metavar="SECONDS", min=1, help=_GRACE)]
_COPY: Final = "run from a copy of the SIF on each node, made before ranks start"
LocalCopy = Annotated[bool, typer.Option("--local-copy", help=_COPY)]
_WATCH: Final = "when no rank has written for so long, say who waits for whom"
Watch = Annotated[float, typer.Option("--watch", metavar="MINUTES", min=0, help=_WATCH)]
_SMOKE: Final = "check ranks, GPUs and collectives instead of running a program"
Strict = Annotated[
    bool, typer.Option("--strict", help="refuse to start while `exec --writable` has packages here")
]
SmokeRun = Annotated[bool, typer.Option("--smoke", help=_SMOKE)]
_COMPARE: Final = "with --smoke: try each transport, and say what works, how fast, and what to set"
Compare = Annotated[bool, typer.Option("--compare", help=_COMPARE)]
# A command that becomes the job: what it prints is the program's output.
becoming: Final = functools.partial(command, app=launch, has_json=False, cls=ProgramCommand)


@command(
    "launch slurm",
    "envbuilder launch slurm a100 --nodes 2 --gpus-per-node 4 -- train.py",
    app=launch,
    short_help="Submit a job to Slurm",
    cls=ProgramCommand,
)
def launch_slurm(
    session: Session, name: BuiltName, *, nodes: Nodes = None, gpus: Gpus = None, ranks: Ranks = None,
    shape: Annotated[
        str, typer.Option(autocompletion=offer("torchrun", "tasks"),
                          help="`torchrun`: one container per node; `tasks`: one per rank")
    ] = "torchrun",
    partition: Annotated[str, typer.Option(help="instead of the profile's")] = "",
    account: Annotated[str, typer.Option(help="instead of the profile's")] = "",
    qos: Annotated[str, typer.Option(help="instead of the profile's")] = "",
    time: Annotated[str, typer.Option(help="instead of the profile's")] = "",
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="another option of sbatch, as --sbatch=--constraint=h100")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="wait until the job has ended")] = False,
    profile: Profile, smoke: SmokeRun = False, compare: Compare = False, watch: Watch = 0, local_copy: LocalCopy = False,
    strict: Strict = False, write: Write = None, for_site: For = "", dry_run: DryRun = False, logs: Logs = LOGS, grace: Grace = 120,
    artifacts: Artifacts,
) -> Reply[SlurmJob | start.WrittenScript]:  # fmt: skip
    """Submit a job to Slurm."""
    options = LaunchOptions(
        name=name, program=session.program, where="slurm", shape=shape, nodes=nodes, ranks=ranks, gpus=gpus,
        folder=Path.cwd(), logs=logs, output=artifacts, profile=profile, grace=grace, smoke=smoke,
        compare=compare, watch=watch, strict=strict, for_site=for_site,
        local_copy=local_copy, slurm=SlurmSite(
            partition=partition, account=account, qos=qos, time=time, options=tuple(sbatch or ())
        ),
    )  # fmt: skip
    if script := _show_script(session, options, write, dry_run=dry_run):
        return script
    runner, report = ProcessRunner(session.environment, whole=True), Console(color=session.color).say
    job = _prepare(session, options)
    if warning := start.check_job(job, runner):
        report(f"warning: {warning}")
    started = start.submit(start.script_of(job), runner, wait=wait, report=report)
    return Reply(
        data=SlurmJob(job=started.number, script=started.script, log=started.log), text=started.text(),
        exit_code=started.code, findings=findings(start.failures(started)) if started.code else (),
    )  # fmt: skip


@becoming(
    "launch ssh",
    "envbuilder launch ssh a100 --hosts node1,node2 -- train.py",
    short_help="Run a job on machines reached by SSH",
)
def launch_ssh(
    session: Session, name: BuiltName, *, nodes: Nodes = None, gpus: Gpus = None, ranks: Ranks = None,
    hosts: Annotated[str, typer.Option(metavar="A,B,…", help="instead of the profile's")] = "",
    pdsh: Annotated[bool, typer.Option("--pdsh", help="reach them through pdsh")] = False,
    profile: Profile, smoke: SmokeRun = False, compare: Compare = False, watch: Watch = 0, local_copy: LocalCopy = False,
    strict: Strict = False, write: Write = None, for_site: For = "", dry_run: DryRun = False, logs: Logs = LOGS, grace: Grace = 120,
    artifacts: Artifacts,
) -> Reply[None]:  # fmt: skip
    """Run a job on machines reached by SSH; it ends on all of them when it ends on one."""
    options = LaunchOptions(
        name=name, program=session.program, where="ssh", nodes=nodes, ranks=ranks, gpus=gpus,
        folder=Path.cwd(), logs=logs, output=artifacts, profile=profile, grace=grace, smoke=smoke,
        compare=compare, watch=watch, strict=strict, for_site=for_site,
        local_copy=local_copy, hosts=tuple(filter(None, map(str.strip, hosts.split(",")))), pdsh=pdsh,
    )  # fmt: skip
    return _become(session, options, write, dry_run=dry_run)


@becoming(
    "launch local",
    "envbuilder launch local a100 -- train.py",
    "envbuilder launch local cpu --ranks-per-node 2 --smoke",
    short_help="Run a job on this machine",
)
def launch_local(
    session: Session, name: BuiltName, *, inside: Form = "", gpus: Gpus = None, ranks: Ranks = None,
    profile: Profile, smoke: SmokeRun = False, compare: Compare = False, watch: Watch = 0, strict: Strict = False,
    write: Write = None, for_site: For = "", dry_run: DryRun = False, logs: Logs = LOGS, grace: Grace = 120, artifacts: Artifacts,
) -> Reply[None]:  # fmt: skip
    """Run a job on this machine."""
    options = LaunchOptions(
        name=name, program=session.program, where="local", nodes=1, ranks=ranks, gpus=gpus,
        folder=Path.cwd(), logs=logs, output=artifacts, profile=profile, grace=grace, smoke=smoke,
        compare=compare, watch=watch, strict=strict, for_site=for_site,
        image=parse_form(inside) == "image",
    )  # fmt: skip
    return _become(session, options, write, dry_run=dry_run)


def _become(session: Session, options: LaunchOptions, path: Path | None, *, dry_run: bool) -> Reply[None]:
    script = _show_script(session, options, path, dry_run=dry_run)
    if script is None:
        start.exec_script(_prepare(session, options))
    return Reply(text=script.text, is_document=script.is_document)


def _prepare(session: Session, options: LaunchOptions, *, starts: bool = True) -> LaunchJob:
    report = Console(color=session.color).say
    return start.checked(prepare(options, session.environment), options, report, starts=starts)


def _show_script(
    session: Session, options: LaunchOptions, path: Path | None, *, dry_run: bool
) -> Reply[start.WrittenScript] | None:
    """Return the script, or write it and return the command that starts it. Returns None without such an option."""
    if path is None and not dry_run:
        if options.for_site:
            raise UsageError("`--for` writes a script for other machines", hint="add `--write FILE`")
        return None
    job = _prepare(session, options, starts=False)
    return start.write_job(job, None if dry_run else path, Console(color=session.color).say)


@command(
    "launch lint",
    "envbuilder launch lint job.sbatch",
    app=launch,
    short_help="Find mistakes in your own sbatch scripts",
)
def launch_lint(
    session: Session,
    scripts: Annotated[list[Path], typer.Argument(help="scripts for `sbatch`", metavar="SCRIPT")],
) -> Reply[None]:
    """Find the mistakes in your own sbatch scripts that hang jobs or hide GPUs; exit code 2 for an error."""
    findings = lint_files(scripts, ProcessRunner(session.environment))
    errors = sum(finding.severity == Severity.ERROR for finding in findings)
    text = f"errors: {errors}, warnings: {len(findings) - errors}" if findings else "no problems found"
    return Reply(text=text, findings=findings, exit_code=2 if errors else 0)
