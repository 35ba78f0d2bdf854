"""The result of a build; and many builds: several at a time, each with its share of the machine, and one answer for all.

The builds run independently in one process. If two need the same layer, the store's locks let one make it and the other wait.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path

from envbuilder.artifacts.outputs import Outputs, Record, find_outputs
from envbuilder.builder.context import BuildContext, worker_threads
from envbuilder.core.answer import Answer
from envbuilder.core.errors import EnvbuilderError, UsageError
from envbuilder.core.findings import Finding
from envbuilder.core.plain import pasted
from envbuilder.recipe.load import expand, find_recipe, need_recipes


class BuiltRecipe(Answer):
    """The result of one build. A failed one has `log` and no artifacts. One of several has `exit_code` and `seconds`."""

    name: str
    sif: Path = Path()
    sif_sha256: str = ""
    sif_bytes: int = 0
    layout: Path = Path()
    manifest: str = ""
    tree_bytes: int = 0
    recipe_sha256: str = ""  # of the recipe's values, and of the lock, that the artifacts are made from
    lock_sha256: str = ""
    tested: tuple[str, ...] = ()  # "SIF" and "image", each with the sha256 of the tests that passed there
    image: str = ""
    built: bool
    log: str = ""
    exit_code: int = 0
    seconds: float = 0


class PlannedRecipe(Answer):
    """The plan of a recipe, and the commands of the layers that the cache lacks."""

    name: str
    plan: str
    commands: tuple[str, ...]

    def text(self) -> str:
        return f"{self.plan}\n" + "\n".join(f"$ {line}" for line in self.commands)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """The artifacts of one recipe after a build."""

    outputs: Outputs
    record: Record
    done: bool  # False: there was nothing to build
    image: str  # its name in the Docker engine; "" without an engine
    findings: tuple[Finding, ...]
    not_loaded: str = ""  # why the image is in no Docker engine
    tested: bool = False  # the artifacts were there, and were tested anew
    runs_here: bool = True  # False: on machines with another processor

    @property
    def words(self) -> str:
        unbuilt = (
            "nothing to build; tested with the recipe's tests of now" if self.tested else "nothing to do"
        )
        return "built and verified" if self.done else unbuilt

    def answer(self) -> BuiltRecipe:
        return BuiltRecipe(
            name=self.outputs.name,
            sif=self.outputs.sif,
            sif_sha256=self.record.sif,
            sif_bytes=self.record.sif_size,
            layout=self.outputs.image,
            manifest=f"sha256:{self.record.manifest}",
            tree_bytes=self.record.content_size,
            recipe_sha256=self.record.recipe,
            lock_sha256=self.record.lock,
            tested=self.record.tested,
            image=self.image,
            built=self.done,
        )

    def text(self) -> str:
        """Return the output of the command."""
        image = self.image or f"not loaded: {self.not_loaded}"
        compared = f"  from   recipe sha256:{self.record.recipe[:12]}, lock sha256:{self.record.lock[:12]}"
        lines = [
            f"{self.outputs.name}: {self.words}",
            *(() if self.done else (compared,)),
            f"  SIF    {self.outputs.sif}  {self.record.sif_size / 1e9:.2f} GB  sha256:{self.record.sif}",
            f"  image  {image}  sha256:{self.record.manifest}",
            f"  layout {self.outputs.image}  ({self.record.content_size / 1e9:.2f} GB unpacked)",
            *(
                (f"  next   envbuilder exec {pasted(self.outputs.sif)} -- python",)
                if self.done and self.runs_here
                else ()
            ),
        ]
        return "\n".join(lines)


Build = Callable[[str, BuildContext], BuildResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one of several builds."""

    name: str
    seconds: float
    result: BuildResult | None = None
    error: EnvbuilderError | None = None

    @property
    def exit_code(self) -> int:
        return self.error.exit_code if self.error else 0

    @property
    def words(self) -> str:
        if self.error:
            return f"failed: {self.error.message.splitlines()[0]}"
        return self.result.words if self.result else ""

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings of the build, and the reason if it failed."""
        if self.error is None:
            return self.result.findings if self.result else ()
        log = f"the log is `{self.error.log}`" if self.error.log else ""
        why = Finding(
            code=self.error.code, where=self.name, message=self.error.message, hint="; ".join(filter(None, (self.error.hint, log))),
        )  # fmt: skip
        return (*self.error.findings, why)

    def answer(self) -> BuiltRecipe:
        """Return a row of the JSON answer."""
        failed = BuiltRecipe(name=self.name, built=False, log=self.error.log if self.error else "")
        row = self.result.answer() if self.result else failed
        return row.model_copy(update={"exit_code": self.exit_code, "seconds": round(self.seconds, 1)})

    def row(self) -> tuple[str, ...]:
        """Return a row of the table."""
        size = f"{self.result.record.sif_size / 1e9:.2f} GB" if self.result else "-"
        words = f"failed, exit code {self.exit_code}" if self.error else self.words
        return (self.name, words, f"{self.seconds:.1f} s", size)


def need_place(where: str, *, without: bool) -> None:
    """Check the value of `--on`; raises UsageError. `without`: no option that requires it is given."""
    if where not in ("", "slurm"):
        raise UsageError(f"`--on` takes slurm, found `{where}`", hint="leave it out to build here")
    if not where and not without:
        hint = "add it, or leave them out"
        raise UsageError("`--sbatch`, `--write` and `--wait` require `--on slurm`", hint=hint)


def choose(names: Sequence[str], folder: Path, *, every: bool, jobs: int | None) -> tuple[str, ...]:
    """Return the named recipes, or all of the folder. Raises UsageError before anything is built."""
    if jobs is not None and jobs < 1:
        raise UsageError(f"`--jobs` takes 1 or more, found {jobs}", hint="1 builds one after the other")
    if every and names:
        hint = "leave out `--all` or the names"
        raise UsageError("`--all` builds every recipe and takes no recipe names", hint=hint)
    if every:
        names = need_recipes(folder)
    if not names:
        raise UsageError("no recipe is named", hint="`envbuilder build NAME…`, or `--all`")
    names = [variant for name in names for variant in expand(name, folder)]
    if len(names) == 1:  # its build reports its mistakes
        return tuple(names)
    places: dict[str, tuple[str, Path]] = {}
    for name in names:
        path = find_recipe(name, folder).resolve()
        known, before = places.setdefault(path.stem, (name, path))
        if before != path:
            hint = "build one after the other, each with an `--output` of its own"
            raise UsageError(f"`{known}` and `{name}` would both be built as `{path.stem}`", hint=hint)
    return tuple(name for name, _ in places.values())


def build_several(
    names: Sequence[str], context: BuildContext, build: Build, *, jobs: int
) -> tuple[Outcome, ...]:
    """Build each recipe, `jobs` at a time. An EnvbuilderError stops only its own build, another error stops all."""
    parts = min(jobs, len(names))
    with worker_threads(parts, context.runner) as pool:
        coming = [pool.submit(_build_one, name, context, build, parts=parts) for name in names]
        for done in as_completed(coming):
            done.result()
    return tuple(outcome.result() for outcome in coming)


def _build_one(name: str, context: BuildContext, build: Build, *, parts: int) -> Outcome:
    short = find_outputs(name, Path()).name
    share = context.share(short, parts)
    began, result, error = time.monotonic(), None, None
    # Lines of parallel builds are interleaved and are not folded.
    with share.console.group(f"build {name}") if parts == 1 else contextlib.nullcontext():
        try:
            result = build(name, share)
        except EnvbuilderError as failure:
            error = failure
    seconds = time.monotonic() - began
    ended = Outcome(name=short, seconds=seconds, result=result, error=error)
    share.console.say(ended.words)
    return ended
