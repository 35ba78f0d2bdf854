"""uv as BuildKit starts it: of this environment, or for another processor the program in the index's wheel of the same version."""

import zipfile
from importlib import metadata
from pathlib import Path
from typing import Final

import uv

from envbuilder.builder.job import BuildJob
from envbuilder.core.cache import Sha256, commit_path
from envbuilder.core.errors import FetchError
from envbuilder.lock.model import Artifact
from envbuilder.sources.fetch import NETWORK_HINT, Fetcher

_MEMBER: Final = "uv-{}.data/scripts/uv"  # by the wheel format's names


def uv_program(job: BuildJob) -> Path:
    """Return the program for the plan's processor, which `fetch_uv` has put there."""
    if job.cross_tools is None:
        return Path(uv.find_uv_bin())
    return job.store.resolver("uv") / f"uv-{metadata.version('uv')}-{job.plan.processor.machine}"


def fetch_uv(job: BuildJob, fetcher: Fetcher) -> None:
    """Fetch the program unless it is there. Raises FetchError."""
    program, version = uv_program(job), metadata.version("uv")
    if program.exists():
        return
    platform = f"manylinux2014_{job.plan.processor.machine}"
    wheel = next(
        (
            file
            for file in fetcher.files("uv")
            if file.filename.startswith(f"uv-{version}-") and platform in file.filename
        ),
        None,
    )
    if wheel is None or not wheel.sha256:
        raise FetchError(
            f"no package index here has a wheel of uv {version} for `{platform}` with its sha256",
            hint=NETWORK_HINT,
        )
    (size,) = fetcher.measure((wheel.url,))
    artifact = Artifact(
        kind="wheel", name="uv", version=version, sha256=Sha256(wheel.sha256), size=size, source="pypi", path=f"uv/{wheel.filename}"
    )  # fmt: skip
    fetcher.fetch((artifact,))
    with zipfile.ZipFile(job.store.artifact(artifact.sha256)) as archive, job.store.workspace() as work:
        (work / "uv").write_bytes(archive.read(_MEMBER.format(version)))
        (work / "uv").chmod(0o755)
        commit_path(work / "uv", program)
