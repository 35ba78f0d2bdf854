"""Tools of the end-to-end tests: the real command line, the runtimes, and folders that other users can enter."""

import contextlib
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from envbuilder.artifacts.sif import SifWriter
from envbuilder.builder import pipeline
from envbuilder.builder.artifacts import THREADS, fill
from envbuilder.builder.context import RunnerChoice
from envbuilder.builder.extensions.compile import ExtensionBuilder
from envbuilder.builder.extensions.compiled import CachedExtension
from envbuilder.builder.job import StepRunner
from envbuilder.builder.sandbox.runner import Run
from envbuilder.commands import context as sessions
from envbuilder.commands._console import build_context
from envbuilder.core.cache import Store, cache_folder, link_or_copy
from envbuilder.core.console import Console
from envbuilder.core.process import ProcessRunner
from envbuilder.diagnose import diagnose
from envbuilder.layers.layer import Layer
from envbuilder.lock.file import load_lock
from envbuilder.lock.model import Artifact, lock_artifacts
from envbuilder.lock.resolve.context import ResolveContext, open_context
from envbuilder.lock.resolve.extensions import store_sources
from envbuilder.plan.make import make_plan
from envbuilder.plan.model import ExtensionsStep
from envbuilder.runners.toolbox import toolbox_files
from tests.support.command_line import check_answer
from tests.support.conditions import Conditions
from tests.support.disk import RUN, folder_prefix
from tests.support.stranger import as_user

ROOT = Path(__file__).parents[2]
ENVBUILDER = str(ROOT / ".venv/bin/envbuilder")
CACHE = cache_folder(os.environ)
SPACIOUS = Path("/var/tmp")  # on disk, and not /tmp: Apptainer shows the host's to its containers
NOBODY = 65534
Ended: TypeAlias = "subprocess.CompletedProcess[str]"
WITHOUT_NETWORK = ("unshare", "--net", "--")
# Apptainer's default gzip takes eleven times the CPU, and no test that uses this depends on it.
WITH_ZSTD = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}

# Forward and backward of the recipe's own extension against torch's own operations.
NUMBERS = """
import torch, fused
from torch.nn.functional import leaky_relu
torch.manual_seed(0)
for kind, near in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
    x = torch.randn(2, 3, 5, 7, dtype=kind, requires_grad=True)
    bias = torch.randn(3, dtype=kind, requires_grad=True)
    wanted = 1.4 * leaky_relu(x + bias.view(1, -1, 1, 1), 0.2)
    y = fused.forward(x.detach(), bias.detach(), 0.2, 1.4)
    assert torch.allclose(y, wanted, atol=near), "forward"
    grad = torch.randn_like(y)
    wanted.backward(grad)
    gx = fused.backward(grad, y, 0.2, 1.4)
    assert torch.allclose(gx, x.grad, atol=near), "gradient of x"
    assert torch.allclose(gx.sum((0, 2, 3)), bias.grad, atol=10 * near), "gradient of the bias"
try:
    fused.forward(x.detach(), torch.zeros(4), 0.2, 1.4)
except RuntimeError as error:
    assert "one value per channel" in str(error)
else:
    raise AssertionError("a bias of the wrong length was taken")
print("numbers agree")
"""


@dataclass(frozen=True)
class Built:
    """A recipe's artifacts and the answer of `build --json`."""

    name: str
    output: Path
    data: dict[str, object]
    recipe: Path | None = None  # for an environment that is not from this repository

    @property
    def sif(self) -> Path:
        return self.output / f"{self.name}.sif"

    @property
    def layout(self) -> Path:
        return self.output / f"{self.name}.oci"

    @property
    def image(self) -> str:
        return f"envbuilder/{self.name}:latest"

    @property
    def digests(self) -> tuple[object, object]:
        return self.data["manifest"], self.data["sif_sha256"]


def run(*argv: object, env: dict[str, str] | None = None, cwd: Path = ROOT, timeout: float = 600) -> str:
    """Run a program that must succeed; returns its stdout."""
    ended = attempt(*argv, env=env, cwd=cwd, timeout=timeout)
    assert ended.returncode == 0, (
        f"{argv}\nexit code {ended.returncode}\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    )
    return ended.stdout


def attempt(
    *argv: object, env: dict[str, str] | None = None, cwd: Path = ROOT, timeout: float = 600
) -> Ended:
    """Run a program to its end; a JSON answer of envbuilder is compared with the published schema."""
    ended = subprocess.run(
        [str(word) for word in argv], env=os.environ | (env or {}), cwd=cwd, timeout=timeout,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "--json" in argv and ended.stdout.startswith('{\n "version"'):
        check_answer(ended.stdout)
    return ended


def start(*argv: object, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    """Start a program in its own process group, so that a test can kill it with its children."""
    return subprocess.Popen(
        [str(word) for word in argv], env=os.environ | (env or {}), cwd=ROOT, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def build_command(name: object, output: Path, *options: object) -> tuple[object, ...]:
    return (ENVBUILDER, "build", name, "--output", output, "--json", *options)


def build(
    name: str, output: Path, *options: object, env: dict[str, str] | None = None, prefix: Sequence[str] = ()
) -> Built:
    answer = json.loads(run(*prefix, *build_command(name, output, *options), env=env, timeout=3000))
    log = Path(answer["data"][0]["sif"]).with_suffix(".log")
    assert_healthy(log)
    path = Path(name)
    return Built(path.stem, output, answer["data"][0], path if path.suffix else None)


def assert_healthy(logs: Path) -> None:
    """Check that `diagnose` finds nothing in the log, or the folder of logs, of what went well."""
    incidents = diagnose([str(logs)], io.BytesIO()).incidents
    assert incidents == (), f"what went well has a failure in its log: {[one.place for one in incidents]}"


def findings(ended: Ended) -> list[dict[str, str]]:
    """The findings of a failed command that was called with `--json`; its envelope must agree with its exit code."""
    answer = json.loads(ended.stdout)
    is_told = (answer["status"], answer["exit_code"]) == ("failed", ended.returncode)
    assert is_told, ended.stdout + ended.stderr
    return list(answer["findings"])


def recipe_like(like: str, path: Path, *extensions: str) -> Path:
    """Write a recipe with the pins of another one, of which it has the lock, and with these extensions."""
    text = (ROOT / f"recipes/{like}.yaml").read_text()
    pins = re.sub(r"^(extensions|tests):.*\n(?:[ #].*\n|\n)*", "", text, flags=re.MULTILINE)
    path.write_text(pins + "\nextensions:\n" + "".join(f"  - {extension}\n" for extension in extensions))
    if not path.with_suffix(".lock").exists():
        shutil.copyfile(ROOT / f"recipes/{like}.lock", path.with_suffix(".lock"))
    return path


def as_nobody(*argv: object, groups: str = "") -> tuple[object, ...]:
    """The command line that runs another one as an ordinary user without a home."""
    return as_user(NOBODY, *argv, groups=groups) if os.geteuid() == 0 else argv


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that every user can enter."""
    folder = Path(tempfile.mkdtemp(prefix=folder_prefix(os.environ.get(RUN, "")), dir=SPACIOUS))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder, with hard links to its files if the disk allows it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if attempt("cp", "-al", source, target).returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        run("cp", "-a", source, target)


def resolve_context(environment: Mapping[str, str] = os.environ) -> ResolveContext:
    """Return what resolving and fetching need, with the user's cache."""
    runner, console = ProcessRunner(environment), Console(quiet=True)
    return open_context(Store(CACHE), runner, environment, console, offline=False)


def open_assembly(recipe: Path, console: Console | None = None) -> StepRunner:
    """Return the runner that makes the layers of a locked recipe in the cache of this environment; all that it reads is fetched."""
    shop = build_context(sessions.Session(environment=dict(os.environ)), recipe.parent)
    read, plan, _ = make_plan(str(recipe), shop.recipes, shop.store)
    resolving = pipeline.resolve_context(shop, offline=False)
    store_sources(read, plan.extensions, resolving)
    runner = pipeline.open_step_runner(plan, RunnerChoice(), replace(shop, console=console or shop.console))
    resolving.fetcher.fetch(runner.artifacts())
    return runner


@contextlib.contextmanager
def _sif_in_the_making() -> Iterator[tuple[ThreadPoolExecutor, SifWriter]]:
    with (
        ThreadPoolExecutor(THREADS) as pool,
        open_folder() as work,
        SifWriter(work / "a.sif") as sif,
    ):
        yield pool, sif


def make_layers(recipe: Path) -> tuple[Layer, ...]:
    """Make all layers of a locked recipe in the user's cache, and no image."""
    runner = open_assembly(recipe)
    with _sif_in_the_making() as (pool, sif):
        pending = runner.start(pool, sif)
        fill(sif, pending, runner.job.blobs, lambda _: None)
        return tuple(layer.result() for layer in pending)


def make_extensions(recipe: Path, console: Console) -> tuple[CachedExtension, ...]:
    """Make the extensions of a locked recipe, and the layers that their compilers read. Raises BuildError for one that fails."""
    job = open_assembly(recipe, console).job
    with _sif_in_the_making() as (pool, sif):
        made = Run(job, pool, sif)
        lower = itertools.takewhile(lambda step: not isinstance(step, ExtensionsStep), job.plan.steps)
        filled = pool.submit(fill, sif, [made.start(step) for step in lower], job.blobs, lambda _: None)
        extensions = ExtensionBuilder(job, made.root).build()
        filled.result()
    return extensions


def fetch_packages(recipe: str, *, kinds: Collection[str] = ("deb", "wheel", "sdist", "archive")) -> None:
    """Fetch what the cache lacks of the packages in a lock of this repository, if they are of these kinds."""
    fetcher = resolve_context().fetcher
    if lacking := fetcher.missing([one for one in locked_artifacts(recipe) if one.kind in kinds]):
        fetcher.fetch(lacking)


def cache_with_toolbox(folder: Path) -> Path:
    """Return a new cache with nothing but the packages of the toolbox."""
    users, new = Store(CACHE), Store(folder)
    resolve_context().fetcher.fetch(toolbox_files())
    for file in toolbox_files():
        new.add_artifact(file.sha256, users.artifact(file.sha256))
    return folder


def locked_artifacts(recipe: str | Path) -> list[Artifact]:
    """Return the files in the lock of a recipe, given by its name here or by its file, without those of its image."""
    path = ROOT / f"recipes/{recipe}.lock" if isinstance(recipe, str) else recipe.with_suffix(".lock")
    return [artifact for artifact in lock_artifacts(load_lock(path)) if artifact.kind != "blob"]


def cache_with_artifacts(folder: Path, recipe: str | Path, *, copy: bool = False) -> Path:
    """Make a cache with only the artifacts of the recipe's lock. With `copy`, the files are copies, not links."""
    cache = folder / "cache"
    cache.mkdir(mode=0o700)
    locked = locked_artifacts(recipe)
    fetcher = resolve_context().fetcher
    fetcher.fetch(fetcher.missing(locked))  # a large wheel goes once its layer is there
    # A file may be one of the environment's and of its tools: those for every processor are.
    for digest in {artifact.sha256 for artifact in locked}:
        target = cache / "artifacts" / digest[:2] / digest
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        source = CACHE / "artifacts" / digest[:2] / digest
        (shutil.copyfile if copy else link_or_copy)(source, target)
    return cache


def builds_in(
    several: Sequence[Conditions], recipe: str | Path, *, tell: Callable[[str], None] = print
) -> list[dict[str, object]]:
    """Build a lock in each of several conditions from an empty cache, offline; returns what each build said.

    Each build's cache and artifacts are removed after it.
    """
    answers = []
    for conditions in several:
        tell(f"{recipe}: {conditions.shown}")
        with open_folder() as folder:
            place = folder / conditions.folder
            place.mkdir(parents=True)
            cache = cache_with_artifacts(place, recipe, copy=bool(conditions.user))
            if conditions.user:
                run("chown", "-R", f"{conditions.user}:{conditions.user}", place)
            command = conditions.command(*build_command(recipe, place / "out", "--offline"), place=place)
            env = NO_ENGINE | {"ENVBUILDER_CACHE": str(cache)}
            answer = run(*WITHOUT_NETWORK, *command, env=env, timeout=3000)
            answers.append(json.loads(answer)["data"][0])
            tell(f"  {answers[-1]['manifest']} {answers[-1]['sif_sha256']}")
    return answers
