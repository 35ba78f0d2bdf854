"""Make a job of what the user asked for: read the environment in the SIF or the image, and the site profile."""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from envbuilder.artifacts.outputs import Outputs, find_outputs, read_record
from envbuilder.artifacts.sif import processor_in
from envbuilder.core import cache
from envbuilder.core.cache import Sha256
from envbuilder.core.errors import EnvbuilderError, ToolError, UsageError
from envbuilder.core.plain import pasted
from envbuilder.recipe.load import recipes_folder
from envbuilder.run.container import Surroundings, project_folder, run_in_image
from envbuilder.run.environment_pins import PINS, parse_pins, probe_pins
from envbuilder.run.exec import need_engine, need_processor
from envbuilder.run.launch.job import Environment, LaunchJob, LaunchOptions, make_job
from envbuilder.run.launch.site import Site, find_site, find_slurm_site
from envbuilder.run.named import need_image, need_sif

log = logging.getLogger(__name__)


def prepare(options: LaunchOptions, settings: Mapping[str, str]) -> LaunchJob:
    """Read the SIF or the image and the site profile; raises UsageError for a job that cannot run, and what `need_sif` raises."""
    if options.for_site and options.profile not in ("", options.for_site, settings.get("ENVBUILDER_SITE")):
        message = "`--for` and `--profile` name two sites for one script"
        raise UsageError(message, hint="leave `--profile` out")
    site = _find_site(replace(options, profile=options.for_site or options.profile))
    if options.image:
        environment = _probe_image(options.name, find_outputs(options.name, options.output), settings)
    else:
        outputs = need_sif(options.name, options.output, recipes_folder(settings))
        if options.where == "local":
            need_processor(outputs.sif)
        environment = _probe_sif(outputs, settings)
    return make_job(options, environment, site, project_folder(options.folder))


def _find_site(options: LaunchOptions) -> Site:
    if options.where != "slurm":
        return find_site(options.profile)
    words = pasted(options.name, "--profile", options.profile)
    hint = (
        f"inside a job, `envbuilder launch local {words} -- PROGRAM` runs on its node, "
        f"and `envbuilder launch ssh {words} --hosts NODE,NODE -- PROGRAM` on several"
    )
    return find_slurm_site(options.profile, hint=hint)


def _probe_image(name: str, outputs: Outputs, settings: Mapping[str, str]) -> Environment:
    image, docker = outputs.image_name, need_engine(outputs, settings)
    identity = need_image(docker, name, outputs, recipes_folder(settings))
    read = run_in_image(docker, image, ("cat", PINS), Surroundings(folder=Path("/")))
    if read.code and PINS not in read.output:  # it did not even come to `cat`
        raise ToolError(f"a container of `{image}` ended with {read.code}: {read.output.strip()}")
    pins = parse_pins(read.output, image)
    return Environment(name=outputs.name, location=image, image_id=identity, torch=pins.torch, cuda=pins.cuda)


def _probe_sif(outputs: Outputs, settings: Mapping[str, str]) -> Environment:
    sif = outputs.sif.resolve()
    pins = probe_pins(sif)
    state = file_state(sif)  # before its digest: a write since then gives it another
    record = read_record(outputs)
    is_recorded = record is not None and record.knows_sif(outputs.sif)
    sha256 = record.sif if record and is_recorded else _remembered_digest(sif, state, settings)
    if record and sha256 != record.sif:
        log.warning(
            "warning: `%s` is not as the last build here left it: its sha256 is %.12s, not %.12s; `%s` proves what it is",
            outputs.sif, sha256, record.sif, pasted("envbuilder", "verify", outputs.sif),
        )  # fmt: skip
    processor = processor_in(sif)
    return Environment(
        name=outputs.name, location=str(sif), size=sif.stat().st_size, sha256=sha256, state=state,
        machine=processor.machine if processor else "", torch=pins.torch, cuda=pins.cuda,
    )  # fmt: skip


def file_state(sif: Path) -> str:
    """Return size, device, inode and times of a file, as `state` in `parts/sif.sh` prints them. Users cannot set the last."""
    status = sif.stat()
    times = (f"{ns // 10**9}.{ns % 10**9:09}" for ns in (status.st_mtime_ns, status.st_ctime_ns))
    return " ".join((str(status.st_size), f"{status.st_dev}:{status.st_ino}", *times))


def _remembered_digest(sif: Path, state: str, settings: Mapping[str, str]) -> Sha256:
    """Return the sha256 of a SIF without a build record. Reading it takes seconds, so the cache keeps the result for its state."""
    key = cache.sha256_text(f"sha256 of a SIF: {state}")
    unusable = (OSError, EnvbuilderError)  # a cache that cannot be written forbids no launch
    with contextlib.suppress(ValueError, *unusable):
        return Sha256(cache.read_proved(cache.Store(cache.cache_folder(settings)).proof(key)))
    digest = cache.sha256_file(sif)
    with contextlib.suppress(*unusable):
        cache.save_proved(cache.Store(cache.cache_folder(settings)).proof(key), digest)
    return digest
