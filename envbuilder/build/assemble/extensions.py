"""The extensions layer: what `build/extensions` compiles for the recipe's GPUs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from envbuilder.build import extensions
from envbuilder.build.assemble.sandbox import Root
from envbuilder.build.assemble.step import Job, OtherSteps, link_files, write_settings, write_text
from envbuilder.core.process import Command
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import ExtensionsStep

JOBS_IN_BUILDKIT = (
    4  # compilers at once, on every machine: BuildKit may run elsewhere, and its cache is keyed by it
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionsMaker:
    """Make the extensions step."""

    step: ExtensionsStep
    job: Job

    def inputs(self) -> tuple[Artifact, ...]:
        return self.step.artefacts

    def commands(self, work: Path, root: Root) -> tuple[Command, ...]:
        return tuple(self.builder(lambda: root).commands(root=root, work=work))

    def write_layer(self, out: Path, work: Path, others: OtherSteps) -> None:
        built = self.builder(others.root).build()
        extensions.install_extensions(built, architectures=self.step.architectures, tree=work / "tree")
        self.job.pack(self.step, work / "tree", out)

    def write_inputs(self, folder: Path) -> None:
        compiles = extensions.container_compiles(self.job.plan, jobs=JOBS_IN_BUILDKIT)
        for number, (extension, one) in enumerate(zip(self.step.extensions, compiles, strict=True)):
            own = folder / "extensions" / f"{number:03}"
            write_text(own / "spec.json", one.specification)
            write_text(own / "entry.json", one.entry)
            write_settings(own / "environment", dict(one.env), export=True)
            if one.project:
                write_text(own / "project", one.project)
                extensions.stage_sources(extension, store=self.job.store, folder=own / "src")
            else:
                write_text(own / "sources", one.sums)
                link_files(
                    folder / "extensions/sources",
                    ((file.path, file.sha256) for file in one.files),
                    self.job.store,
                )

    def builder(self, root: Callable[[], Root]) -> extensions.ExtensionBuilder:
        """Return what compiles the extensions. `root` is called when something must be compiled."""
        return extensions.ExtensionBuilder(
            plan=self.job.plan, step=self.step, store=self.job.store, runner=self.job.runner,
            console=self.job.console, jobs=self.jobs, root=root,
        )  # fmt: skip

    @property
    def jobs(self) -> int:
        """Return how many compilers run at once: as many as cores and memory allow."""
        limits = self.job.limits
        return max(1, min(limits.threads, limits.memory // extensions.NVCC_MEMORY))
