"""Where the rows of `bench/run` work: folders, the peers' programs, and one built environment, each made when it is first needed."""

import contextlib
import functools
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from measure import ENVBUILDER, REPOSITORY, Disk, run, say

from envbuilder.core.cache import cache_folder, link_or_copy

RECIPE: Final = "cpu"
ALIAS: Final = f"bench-{RECIPE}"  # so that no artifact of the user's is replaced
PEERS: Final = ("hpccm==26.5.0", "neurodocker==2.1.2", "pip-tools==7.6.2")
NO_ENGINE: Final = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
CACHE: Final = cache_folder(os.environ)


@dataclass(frozen=True)
class Place:
    """The folders of a run. `work` belongs to this run. The user's cache is read and gets the results of a build of `cpu`."""

    work: Path
    disk: Disk

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "NO_COLOR": "1", "TMPDIR": f"{self.work}/tmp", "PYTHONNOUSERSITE": "1", "ENVBUILDER_CACHE": str(CACHE),
            "APPTAINER_TMPDIR": f"{self.work}/tmp", "APPTAINER_CACHEDIR": f"{self.work}/apptainer",
        }  # fmt: skip

    def prepare(self, *argv: object, env: Mapping[str, str] | None = None) -> str:
        """Run a command that is not measured. Raises Failed."""
        return run(argv, log=self.work / "logs/prepare.log", env={**self.environment, **(env or {})})

    def folder(self, name: str) -> Path:
        path = self.work / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def peer(self, name: str) -> Path:
        """Return the path of a program in the peers' virtual environment."""
        return self._venv / "bin" / name

    @functools.cached_property
    def _venv(self) -> Path:
        say("installing the peers")
        # With the Python that runs envbuilder, since the start times of two Python builds differ by a tenth.
        self.prepare(sys.executable, "-m", "venv", self.work / "peers")
        self.prepare(self.work / "peers/bin/pip", "install", "--quiet", *PEERS)
        return self.work / "peers"

    @functools.cached_property
    def recipes(self) -> Path:
        """Copy the repository's recipes, with `cpu` also under the benchmark's name."""
        shutil.copytree(REPOSITORY / "recipes", self.work / "recipes")
        for suffix in (".yaml", ".lock"):
            shutil.copyfile(REPOSITORY / f"recipes/{RECIPE}{suffix}", self.work / f"recipes/{ALIAS}{suffix}")
        return self.work / "recipes"

    @functools.cached_property
    def built(self) -> Path:
        """Return the folder with the environment's image and SIF. No Docker engine has loaded the image."""
        say(f"building {RECIPE}, as far as the cache lacks it (not measured)")
        out = self.folder("built")
        self.prepare(ENVBUILDER, "build", ALIAS, "--recipes", self.recipes, "--output", out, env=NO_ENGINE)
        return out

    @property
    def sif(self) -> Path:
        return self.built / f"{ALIAS}.sif"

    @property
    def layout(self) -> Path:
        return self.built / f"{ALIAS}.oci"

    @property
    def default_sif(self) -> Path:
        """Return the SIF that Apptainer makes from the same image."""
        path = self.work / "default.sif"
        if not path.exists():
            say("Apptainer's SIF (not measured)")
            self.prepare("apptainer", "build", path, f"oci:{self.layout}")
        return path

    @functools.cached_property
    def tree(self) -> Path:
        """Return the same files as a folder, unpacked by Apptainer."""
        self.prepare("apptainer", "build", "--sandbox", self.work / "tree", f"oci:{self.layout}")
        return self.work / "tree"

    @functools.cached_property
    def plain_squashfs(self) -> Path:
        """Return the same files in an uncompressed squashfs, which shows the cost of the mount alone."""
        path = self.work / "plain.squashfs"
        bare = ("-noI", "-noD", "-noF", "-noX")
        self.prepare("mksquashfs", self.tree, path, *bare, "-noappend", "-quiet", "-no-progress")
        return path

    def cache_of(self, source: Path, name: str) -> Path:
        """Make a cache with the same content, of hard links to its files."""
        target = self.work / name
        if target.exists():
            shutil.rmtree(target)
        target.mkdir(mode=0o700)
        for kind in ("artifacts", "layers", "extensions"):
            if (source / kind).is_dir():
                shutil.copytree(source / kind, target / kind, copy_function=_link, symlinks=True)
        return target


def _link(source: str, target: str) -> None:
    link_or_copy(Path(source), Path(target))


@contextlib.contextmanager
def loopback_registry(folder: Path) -> Iterator[str]:
    """Run a registry with its data in `folder`/data, and return its HOST:PORT."""
    from tests.support.registries import registry  # noqa: PLC0415 - of the end-to-end tests

    with registry(folder) as one:
        yield one.host


def lacks(*programs: str) -> str:
    """Return why a peer cannot run, or "" if all its programs are installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""
