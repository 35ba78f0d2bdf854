"""One run of BuildKit over one plan. It exports every layer but the runtime's, as a tar that is packed again as ours."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path

from envbuilder.build.assemble import os as debian
from envbuilder.build.assemble.runtime import RuntimeMaker
from envbuilder.build.assemble.step import Job
from envbuilder.build.buildkit import buildx
from envbuilder.build.buildkit.folder import write_folder
from envbuilder.build.engine import Builder, EngineName, layer_keys, missing_steps
from envbuilder.build.extensions import need_calls
from envbuilder.core.cache import Sha256, Store, commit_path, remove_tree
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError
from envbuilder.core.limits import Limits
from envbuilder.core.process import Command, Runner
from envbuilder.core.required_tools import DPKG_DEB, need_tools
from envbuilder.layers.layer import Layer, load_layer, write_layer_from_tar
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import OsStep, Plan, RuntimeStep, Step
from envbuilder.plan.render import EXPORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildKitEngine:
    store: Store
    runner: Runner
    console: Console
    limits: Limits
    builder: Builder = field(default_factory=Builder)

    @property
    def name(self) -> EngineName:
        return EngineName.DOCKER

    def need_tools(self) -> None:
        need_tools((DPKG_DEB,), self.runner)
        buildx.need_buildkit(self.builder, self.runner)

    def artefacts(self, plan: Plan) -> tuple[Artifact, ...]:
        """Return every input if BuildKit has something to do: it may have forgotten any of its stages."""
        need_calls(plan)
        return plan.artefacts if self._asked(plan) else ()

    def start(self, plan: Plan, pool: Executor) -> "tuple[Future[Layer], ...]":
        """Start every layer of the plan."""
        baked = pool.submit(self._bake, plan)
        return tuple(pool.submit(self._layer, plan, step, baked) for step in plan.steps)

    def _layer(self, plan: Plan, step: Step, baked: "Future[dict[type[Step], Layer]]") -> Layer:
        layers = baked.result()
        return (
            self._write_runtime(plan, step, layers) if isinstance(step, RuntimeStep) else layers[type(step)]
        )

    def commands(self, plan: Plan) -> tuple[Command, ...]:
        """Return the command for the layers that BuildKit is asked for. `WORK` stands for the temporary folder of a run."""
        need_calls(plan)
        asked = self._asked(plan)
        return (self._command(plan, Path("WORK"), stage=_stage(asked)),) if asked else ()

    def _command(self, plan: Plan, work: Path, *, stage: str) -> Command:
        context = buildx.is_context(self.builder, self.runner)
        return buildx.build_command(
            plan, work / "folder", work / "layout", self.builder, stage=stage, context=context
        )

    def _missing(self, plan: Plan) -> tuple[Step, ...]:
        """Return the missing layers that BuildKit makes."""
        return _baked(missing_steps(plan, self.store, self.name))

    def _asked(self, plan: Plan) -> tuple[Step, ...]:
        """Return the layers that BuildKit is asked for: the missing ones, or all if it fills a cache of its own."""
        return _baked(plan.steps) if self.builder.cache_to else self._missing(plan)

    def prepare(self, plan: Plan, folder: Path, final: Path) -> Command:
        """Write everything that BuildKit reads into `folder`. Returns the command that builds an image once the folder is `final`."""
        write_folder(self.job(plan), folder)
        context = buildx.is_context(self.builder, self.runner)
        return buildx.by_hand(plan, final, self.builder, context=context)

    def _bake(self, plan: Plan) -> dict[type[Step], Layer]:
        """Return every layer but the runtime's, by the type of its step."""
        if self._asked(plan):
            with self.store.lock(f"docker-{plan.key}"), self.store.workspace() as work:
                if asked := self._asked(plan):  # another process may have made them meanwhile
                    self._build(plan, asked, work)
        keys = layer_keys(plan, self.name)
        found = {type(step): load_layer(self.store.layer(key)) for step, key in keys.items()}
        return {kind: layer for kind, layer in found.items() if layer is not None}

    def _build(self, plan: Plan, asked: Sequence[Step], work: Path) -> None:
        with self.console.step("gather what BuildKit reads"):
            write_folder(self.job(plan), work / "folder")
        stage = _stage(asked)
        buildx.run(self._command(plan, work, stage=stage), self.runner, self.console)
        blobs = read_layout(work / "layout", EXPORTED[stage])
        keys = layer_keys(plan, self.name)
        for step in self._missing(plan):
            with self.console.step(f"write the {step.name} layer"):
                self._write(plan, step, keys[step], tar=blobs[step.name], work=work)

    def _write(self, plan: Plan, step: Step, key: Sha256, *, tar: Path, work: Path) -> None:
        out, final = work / f"layer-{step.name}", self.store.layer(key)
        is_os = isinstance(step, OsStep)
        write_layer_from_tar(
            name=step.name, tar=tar, folder=out, epoch=plan.epoch, threads=self.limits.threads,
            drop=debian.DROP if isinstance(step, OsStep) and not step.base else (),
            omit=() if is_os else ("", *plan.shared_folders(step)), plain=not is_os,
        )  # fmt: skip
        with self.store.lock(f"layer-{key}"):
            if (
                final.exists() and load_layer(final) is None
            ):  # damaged: `commit_path` would take it for finished
                remove_tree(final)
            commit_path(out, final)

    def _write_runtime(self, plan: Plan, step: RuntimeStep, layers: Mapping[type[Step], Layer]) -> Layer:
        final = self.store.layer(layer_keys(plan, self.name)[step])
        if found := load_layer(final):
            return found
        with self.store.workspace() as work:
            RuntimeMaker(step=step, job=self.job(plan)).write(work / "layer", work, layers, {})
            if final.exists():
                remove_tree(final)
            commit_path(work / "layer", final)
        layer = load_layer(final)
        assert layer is not None, f"{final} was just written"
        return layer

    def job(self, plan: Plan) -> Job:
        """Return what the steps of a plan are made with."""
        return Job(
            plan=plan, store=self.store, runner=self.runner, console=self.console, limits=self.limits, engine=self.name
        )  # fmt: skip


def _baked(steps: Sequence[Step]) -> tuple[Step, ...]:
    return tuple(step for step in steps if not isinstance(step, RuntimeStep))


def _stage(asked: Sequence[Step]) -> str:
    """Return the smallest stage with these layers. To export all of them takes as long as the image is large."""
    names = {step.name for step in asked}
    return min(
        (stage for stage, layers in EXPORTED.items() if names <= set(layers)),
        key=lambda stage: len(EXPORTED[stage]),
    )


def read_layout(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return layer name → tar in the OCI layout that BuildKit wrote. Raises BuildError for another number of layers."""
    blobs = folder / "blobs/sha256"

    def load(descriptor: Mapping[str, str]) -> dict[str, list[dict[str, str]]]:
        text = (blobs / descriptor["digest"].removeprefix("sha256:")).read_text(encoding="utf-8")
        return dict(json.loads(text))

    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    layers = load(index["manifests"][0])["layers"]
    if len(layers) != len(names):
        raise BuildError(f"BuildKit wrote {len(layers)} layers, not the {len(names)} of Dockerfile.base")
    return {
        name: blobs / layer["digest"].removeprefix("sha256:")
        for name, layer in zip(names, layers, strict=True)
    }
