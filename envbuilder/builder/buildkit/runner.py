"""Run BuildKit over one plan. It exports every layer except the runtime's as a tar, which envbuilder packs as its own layer.

BuildKit reads a folder with a Dockerfile of the plan, the programs, and SPEC and INPUTS of each as links to the cache. Each stage mounts
its own part of the folder, so BuildKit repeats only the stages that an edit changes.
"""

import functools
import tarfile
from collections.abc import Collection, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path

from envbuilder import steps
from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.sif import SifWriter
from envbuilder.builder.buildkit import buildx
from envbuilder.builder.buildkit.buildx import DOCKERFILE
from envbuilder.builder.buildkit.uv_program import fetch_uv, uv_program
from envbuilder.builder.context import Builder
from envbuilder.builder.job import BuildJob, run_outside, write_runtime_layer, write_step
from envbuilder.builder.sandbox.distribution import MOUNTED, OWNERS, image_owners, merged_owners
from envbuilder.builder.sandbox.foreign import make_tools, missing_tools
from envbuilder.builder.vendor import layout_files
from envbuilder.core.cache import Store, link_or_copy, remove_tree, save_text
from envbuilder.core.errors import BuildError
from envbuilder.core.process import Command
from envbuilder.layers.layer import Layer, load_layer, write_layer_from_tar
from envbuilder.lock.model import Artifact, LockedBase, blobs
from envbuilder.plan.model import OsStep, RuntimeStep, Step
from envbuilder.plan.printer.dockerfile import ROOT, folder_dockerfile
from envbuilder.plan.printer.printed import with_parts
from envbuilder.plan.program import BASE, INPUTS, Program
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import BLOBS


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildKitRunner:
    job: BuildJob
    builder: Builder = field(default_factory=Builder)

    def need_tools(self, fetcher: Fetcher) -> None:
        buildx.need_buildkit(self.builder, self.job.runner)
        fetch_uv(self.job, fetcher)

    def artifacts(self) -> tuple[Artifact, ...]:
        """Return every input if BuildKit has a layer to make: its cache may lack any stage; and what runs the tests for Arm."""
        return (*(self.job.plan.artifacts if self.wanted() else ()), *missing_tools(self.job))

    def start(self, pool: Executor, sif: SifWriter) -> "tuple[Future[Layer], ...]":  # noqa: ARG002 - BuildKit reads no SIF
        """Start every layer of the plan."""
        make_tools(self.job)
        made = pool.submit(self._make_layers)
        return tuple(pool.submit(self._layer, step, made) for step in self.job.plan.steps)

    def _layer(self, step: Step, made: "Future[dict[str, Layer]]") -> Layer:
        layers = made.result()
        if not isinstance(step, RuntimeStep):
            return layers[step.name]
        return self.job.make_layer(
            step, functools.partial(write_runtime_layer, step, self.job, layers.__getitem__)
        )

    def commands(self) -> tuple[Command, ...]:
        """Return the command for the layers that BuildKit must make. `WORK` stands for the temporary folder of a run."""
        return (self._command(Path("WORK")),) if self.wanted() else ()

    def _command(self, work: Path) -> Command:
        context = buildx.is_context(self.builder, self.job.runner)
        return buildx.build_command(
            self.job.plan, work / "folder", work / "layout", self.builder, context=context
        )

    def wanted(self) -> tuple[Step, ...]:
        """Return the layers that BuildKit must make: the missing ones, or all with `--cache-to`."""
        wanted = self.job.plan.steps if self.builder.cache_to else self.job.missing()
        return tuple(step for step in wanted if not isinstance(step, RuntimeStep))

    def prepare(self, folder: Path, final: Path) -> Command:
        """Write the inputs of BuildKit into `folder`, later renamed to `final`. Returns the command that builds an image."""
        write_folder(self.job, folder, {program.name for program in self.job.plan.programs})
        context = buildx.is_context(self.builder, self.job.runner)
        return buildx.manual_command(self.job.plan, final, self.builder, context=context)

    def _make_layers(self) -> dict[str, Layer]:
        store = self.job.store
        if self.wanted():
            with store.lock(f"docker-{self.job.plan.key}"), store.workspace() as work:
                if wanted := self.wanted():  # another process may have made them
                    self._build(wanted, work)
        layers = {step.name: load_layer(store.layer(key)) for step, key in self.job.keys.items()}
        return {name: layer for name, layer in layers.items() if layer is not None}

    def _build(self, wanted: Sequence[Step], work: Path) -> None:
        job, names = self.job, [step.name for step in wanted]
        with job.console.step("gather the inputs of BuildKit"):
            write_folder(job, work / "folder", names)
        buildx.run(self._command(work), job.runner, job.console)
        tars = exported_tars(work / "layout", names)
        for step in [step for step in job.missing() if step in wanted]:
            with job.console.step(f"write the {step.name} layer"):
                self._pack(step, tars[step.name], work / "folder")

    def _pack(self, step: Step, tar: Path, folder: Path) -> None:
        self.job.make_layer(step, lambda out, _: pack_tar(step, self.job, tar, folder, out))


def pack_tar(step: Step, job: BuildJob, tar: Path, folder: Path, out: Path) -> Layer:
    """Write the step's layer from the tar that BuildKit exported into the folder `out`. `folder` is what BuildKit read."""
    if isinstance(step, OsStep):
        owners = image_owners(step.base, job.store) if step.base else {}
        owners = merged_owners(owners, folder / step.name / "inputs/unpack" / OWNERS)
        return write_layer_from_tar(
            name=step.name, tar=tar, folder=out, epoch=job.plan.epoch, threads=job.limits.threads,
            drop=MOUNTED, owners=owners,
        )  # fmt: skip
    return write_layer_from_tar(
        name=step.name, tar=tar, folder=out, epoch=job.plan.epoch, threads=job.limits.threads,
        omit=("", *job.shared_folders(step)), plain=True,
    )  # fmt: skip


def exported_tars(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return layer name → tar in the OCI layout that BuildKit wrote. Raises BuildError for another number of layers."""
    layout = read_layout(folder)
    layers = layout.manifest.layers
    if len(layers) != len(names):
        raise BuildError(f"BuildKit wrote {len(layers)} layers, not the {len(names)} of its Dockerfile")
    return {name: layout.path(layer) for name, layer in zip(names, layers, strict=True)}


def write_folder(job: BuildJob, folder: Path, wanted: Collection[str]) -> None:
    """Write everything that the layers of the wanted steps need. The store must have the plan's inputs."""
    programs = [part for program in job.plan.programs for part in with_parts(program)]
    save_text(folder / DOCKERFILE, folder_dockerfile(job.plan, wanted))
    for name in {name for program in programs for name in program.files}:
        save_text(folder / "steps" / name, steps.text(name))
    link_or_copy(uv_program(job), folder / "steps/uv")
    for program in programs:
        if not program.is_outside:
            _write_program(program, job, folder / program.name)
    if job.plan.os.base:
        write_base(job.plan.os.base, folder / BASE, job.store)


def _write_program(program: Program, job: BuildJob, folder: Path) -> None:
    write_step(program, folder, job.store)
    inputs = folder / Path(INPUTS).name
    for part in program.parts:
        if part.is_outside:
            work = folder / "work"  # not in the cache, which may be on another file system than `folder`
            run_outside(part, work, job.store, job.runner).rename(inputs / part.name)
            remove_tree(work)
        else:
            (inputs / part.name).mkdir()  # where its OUT is mounted
    if program.changes not in ("", BASE):
        write_root(inputs / program.changes, folder / ROOT)


def write_root(tree: Path, out: Path) -> None:
    """Move a tree into a tar, as the files of root."""

    def of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(tree.iterdir()):
            tar.add(path, arcname=path.name, filter=of_root)
    remove_tree(tree)


def write_base(base: LockedBase, folder: Path, store: Store) -> None:
    """Write the base image as an OCI layout of links to its blobs in the store."""
    (folder / BLOBS).mkdir(parents=True)
    for blob in dict.fromkeys(blobs(base)):
        link_or_copy(store.artifact(blob.sha256), folder / BLOBS / blob.sha256)
    for name, content in layout_files(base).items():
        save_text(folder / name, content.decode())
