"""Run BuildKit over one plan. It exports every layer except the runtime's as a tar, which envbuilder packs as its own layer."""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path

from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.builder.assemble import runtime
from envbuilder.builder.buildkit import buildx
from envbuilder.builder.buildkit.folder import write_folder
from envbuilder.builder.choice import Builder
from envbuilder.builder.engine import Job
from envbuilder.core.errors import BuildError
from envbuilder.core.process import Command
from envbuilder.layers.layer import Layer, load_layer, write_layer_from_tar
from envbuilder.lock.model import Artifact
from envbuilder.plan.contents import DROP
from envbuilder.plan.model import OsStep, RuntimeStep, Step
from envbuilder.plan.render.stages import EXPORTED
from envbuilder.sources.fetch import Fetcher


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildKitEngine:
    job: Job
    builder: Builder = field(default_factory=Builder)

    def need_tools(self, fetcher: Fetcher) -> None:  # noqa: ARG002 - the other engine fetches some
        buildx.need_buildkit(self.builder, self.job.runner)

    def artifacts(self) -> tuple[Artifact, ...]:
        """Return every input if BuildKit has a layer to make: its cache may lack any stage."""
        return self.job.plan.artifacts if self._wanted() else ()

    def start(self, pool: Executor) -> "tuple[Future[Layer], ...]":
        """Start every layer of the plan."""
        made = pool.submit(self._make_layers)
        return tuple(pool.submit(self._layer, step, made) for step in self.job.plan.steps)

    def _layer(self, step: Step, made: "Future[dict[type[Step], Layer]]") -> Layer:
        layers = made.result()
        if not isinstance(step, RuntimeStep):
            return layers[type(step)]
        return self.job.make_layer(
            step, lambda out, work: runtime.write_layer(step, self.job, layers=layers, work=work, out=out)
        )

    def commands(self) -> tuple[Command, ...]:
        """Return the command for the layers that BuildKit must make. `WORK` stands for the temporary folder of a run."""
        wanted = self._wanted()
        return (self._command(Path("WORK"), stage=_stage(wanted)),) if wanted else ()

    def _command(self, work: Path, *, stage: str) -> Command:
        context = buildx.is_context(self.builder, self.job.runner)
        return buildx.build_command(
            self.job.plan, work / "folder", work / "layout", self.builder, stage=stage, context=context
        )

    def _wanted(self) -> tuple[Step, ...]:
        """Return the layers that BuildKit must make: the missing ones, or all with `--cache-to`."""
        wanted = self.job.plan.steps if self.builder.cache_to else self.job.missing()
        return tuple(step for step in wanted if not isinstance(step, RuntimeStep))

    def prepare(self, folder: Path, final: Path) -> Command:
        """Write the inputs of BuildKit into `folder`, later renamed to `final`. Returns the command that builds an image."""
        write_folder(self.job, folder)
        context = buildx.is_context(self.builder, self.job.runner)
        return buildx.manual_command(self.job.plan, final, self.builder, context=context)

    def _make_layers(self) -> dict[type[Step], Layer]:
        """Return every layer except the runtime's, by the type of its step."""
        store = self.job.store
        if self._wanted():
            with store.lock(f"docker-{self.job.plan.key}"), store.workspace() as work:
                if wanted := self._wanted():  # another process may have made them
                    self._build(wanted, work)
        found = {type(step): load_layer(store.layer(key)) for step, key in self.job.keys.items()}
        return {kind: layer for kind, layer in found.items() if layer is not None}

    def _build(self, wanted: Sequence[Step], work: Path) -> None:
        job, stage = self.job, _stage(wanted)
        with job.console.step("gather the inputs of BuildKit"):
            write_folder(job, work / "folder")
        buildx.run(self._command(work, stage=stage), job.runner, job.console)
        tars = exported_tars(work / "layout", EXPORTED[stage])
        for step in (one for one in job.missing() if one in wanted):
            with job.console.step(f"write the {step.name} layer"):
                self._pack(step, tars[step.name])

    def _pack(self, step: Step, tar: Path) -> None:
        self.job.make_layer(step, lambda out, _: pack_tar(step, self.job, tar, out))


def pack_tar(step: Step, job: Job, tar: Path, out: Path) -> Layer:
    """Write the step's layer from the tar that BuildKit exported into the folder `out`."""
    is_os = isinstance(step, OsStep)
    return write_layer_from_tar(
        name=step.name, tar=tar, folder=out, epoch=job.plan.epoch, threads=job.limits.threads,
        drop=DROP if isinstance(step, OsStep) and not step.base else (),
        omit=() if is_os else ("", *job.shared_folders(step)), plain=not is_os,
    )  # fmt: skip


def _stage(wanted: Sequence[Step]) -> str:
    """Return the smallest stage with these layers: the time of an export grows with its size."""
    names = {step.name for step in wanted}
    return min(
        (stage for stage, layers in EXPORTED.items() if names <= set(layers)),
        key=lambda stage: len(EXPORTED[stage]),
    )


def exported_tars(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return layer name → tar in the OCI layout that BuildKit wrote. Raises BuildError for another number of layers."""
    layout = read_layout(folder)
    layers = layout.manifest.layers
    if len(layers) != len(names):
        raise BuildError(f"BuildKit wrote {len(layers)} layers, not the {len(names)} of Dockerfile.base")
    return {name: layout.path(layer) for name, layer in zip(names, layers, strict=True)}
