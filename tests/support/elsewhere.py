"""Builders on other machines, for a machine without a Docker engine."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.cluster import REGISTRY, Cluster, machines, start_docker
from tests.support.registries import registry_command
from tests.support.workbench import NO_ENGINE, Built, build_command, cache_with_artifacts, link_tree

if TYPE_CHECKING:
    import subprocess


@dataclass(frozen=True)
class Far:
    """A head without an engine, two nodes with an engine each, and a registry that all of them reach."""

    cluster: Cluster
    client: dict[str, str]

    def attempt(
        self, recipe: Path, name: str, *options: str, fetched: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Build on the head, without a network, from a cache with no layers: what `fetched` has, or else the user's own.

        A name that was built has its cache and its artifacts.
        """
        folder = self.cluster.folder / name
        is_new = not folder.exists()
        folder.mkdir(exist_ok=True)
        if is_new and fetched:
            (folder / "cache").mkdir(mode=0o700)
            link_tree(fetched / "artifacts", folder / "cache/artifacts")
        elif is_new:
            cache_with_artifacts(folder, recipe)
        command = build_command(recipe, folder / "out", "--runner", "buildkit", "--offline", *options)
        env = self.client | NO_ENGINE | {"ENVBUILDER_CACHE": str(folder / "cache")}
        return self.cluster.head.attempt(*command, env=env)

    def build(self, recipe: Path, name: str, *options: str, fetched: Path | None = None) -> tuple[Built, str]:
        """Build, and return the log too."""
        ended = self.attempt(recipe, name, *options, fetched=fetched)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        data = json.loads(ended.stdout)["data"][0]
        return Built(recipe.stem, self.cluster.folder / name / "out", data), ended.stderr

    def kept(self, node: str) -> list[str]:
        """Return the build records of the engine on that node."""
        du = ("docker", "--context", node, "buildx", "du", "--format", "{{.ID}}")
        return self.cluster.head.run(*du, env=self.client).split()


@contextlib.contextmanager
def open_far(folder: Path) -> Iterator[Far]:
    with machines(folder) as cluster:
        cluster.start(cluster.head, *registry_command(folder / "registry", REGISTRY))
        yield Far(cluster, start_docker(cluster))
