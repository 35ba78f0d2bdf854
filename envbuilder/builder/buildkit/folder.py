"""The folder that `Dockerfile.base` reads: inputs as links to the store, programs, and the plan's settings as files.

Each stage reads its own part of the folder, so BuildKit repeats only the stages that an edit changes.
"""

import shlex
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, assert_never

import uv

from envbuilder import runtime, steps
from envbuilder.builder.assemble.runtime import write_runtime_files, write_text
from envbuilder.builder.engine import Job
from envbuilder.builder.extensions.programs import SPEC, TOOLS, container_compiles, wheel_program
from envbuilder.builder.extensions.stage_sources import stage_sources
from envbuilder.builder.step_folder import run_outside, write_step
from envbuilder.core.cache import Sha256, Store, link_or_copy, remove_tree
from envbuilder.lock.model import Artifact, LockedBase, blobs
from envbuilder.lock.vendor import layout_files
from envbuilder.plan import contents, model
from envbuilder.plan.render.dockerfile import render_base
from envbuilder.plan.render.stages import ARCHIVE
from envbuilder.plan.render.steps import rules
from envbuilder.sources.names import BLOBS

DOCKERFILE: Final = "Dockerfile.base"
BASE: Final = "base"  # the base image, as an OCI layout
JOBS: Final = 4  # compilers at once; fixed, because it is part of the key of BuildKit's cache
# Programs beside those of the kit, and their folders in it. Each Python of a project's build imports the last one.
_PROGRAMS: Final = {"compile_extension.py": "", "build_project.py": "", "sitecustomize.py": "customize"}


def write_folder(job: Job, folder: Path) -> None:
    """Write everything into `folder`. The store must have the plan's inputs."""
    write_text(folder / DOCKERFILE, render_base())
    for name, text in runtime.files("kit"):
        write_text(folder / "kit" / name, text)
    for name in ("start.py", "configure_distribution.sh"):
        write_text(folder / "steps" / name, steps.text(name))
    for name, below in _PROGRAMS.items():
        write_text(folder / "kit" / below / name, runtime.path(name).read_text(encoding="utf-8"))
    for step in job.plan.steps:
        _write_inputs(step, job, folder / step.name)
    write_sdists(job, folder / "sdists")
    if job.plan.os.base:
        write_base(job.plan.os.base, folder / BASE, job.store)


def write_base(base: LockedBase, folder: Path, store: Store) -> None:
    """Write the base image as an OCI layout of links to its blobs in the store."""
    _link_files(folder / BLOBS, ((blob.sha256, blob.sha256) for blob in blobs(base)), store)
    for name, content in layout_files(base).items():
        write_text(folder / name, content.decode())


def _write_inputs(step: model.Step, job: Job, folder: Path) -> None:
    """Write the inputs of the step's stage."""
    match step:
        case model.OsStep():
            _write_os(step, job, folder)
        case model.InterpreterStep():
            _write_settings(folder / "settings", {"INTERPRETER": step.program})
            _link_files(folder, ((ARCHIVE, step.archive.sha256),), job.store)
        case model.PythonStep():
            settings = {
                "INTERPRETER": step.program,
                "VERSION": step.python,
                "REPEAT": contents.seeded_python(step.python),
            }
            if step.sdists:
                settings["SDISTS"] = " ".join(_sdist_folders(step))
            _write_settings(folder / "settings", settings)
            pins = (
                f"{one.name}=={one.version} --hash=sha256:{one.sha256}\n"
                for one in step.artifacts
                if one.kind == "wheel"
            )
            write_text(folder / "requirements.txt", "".join(pins))
            wheels = ((one.filename, one.sha256) for one in step.artifacts if one.kind == "wheel")
            _link_files(folder / "wheels", wheels, job.store)
            link_or_copy(Path(uv.find_uv_bin()), folder / "uv")
            (folder / "uv").chmod(0o755)
        case model.CudaStep():
            python = job.plan.python
            settings = {
                "INTERPRETER": python.program,
                "SITE": python.site_packages,
                "CUDA": step.toolkit.cuda,
            }
            _write_settings(folder / "settings", settings)
            write_text(folder / "rules.json", rules(step))
            parts = ((part.filename, part.sha256) for part in step.artifacts)
            _link_files(folder / "parts", parts, job.store)
        case model.ExtensionsStep():
            _write_extensions(step, job, folder)
        case model.StartStep():
            write_step(step.made_by(job.plan), folder, job.store)
        case model.RuntimeStep():
            write_runtime_files(step, folder)
        case _:
            assert_never(step)


def _sdist_folders(step: model.PythonStep) -> dict[str, Artifact]:
    """Return the folder of each sdist below `sdists`, and below what the stage of builds writes."""
    return {one.sha256[:16]: one for one in step.sdists}


def write_sdists(job: Job, folder: Path) -> None:
    """Write a folder for the build of each source distribution of the plan."""
    for step in filter(None, (job.plan.python, job.plan.added)):
        for name, sdist in _sdist_folders(step).items():
            program = wheel_program(step, sdist)
            (folder / name / TOOLS).mkdir(parents=True)
            files = ((f"{TOOLS}/{one.filename}", one.sha256) for one in step.tools(sdist))
            _link_files(folder / name, ((sdist.filename, sdist.sha256), *files), job.store)
            write_text(folder / name / SPEC, program.specification)
            _write_settings(folder / name / "environment", dict(program.env), export=True)


def _write_os(step: model.OsStep, job: Job, folder: Path) -> None:
    program = step.made_by(job.plan)
    (unpacking,) = program.parts
    unpacked = run_outside(unpacking, folder.with_name("packages"), job.store, job.runner)
    write_step(program, folder, job.store, {unpacking.name: unpacked})
    root = folder / "inputs" / program.changes
    if not step.base:
        with tarfile.open(folder / "root.tar", "w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(root, "", filter=_of_root)
        remove_tree(root)
    remove_tree(folder.with_name("packages"))


def _of_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid, info.gid, info.uname, info.gname, info.mtime = 0, 0, "", "", int(info.mtime)
    return info


def _write_extensions(step: model.ExtensionsStep, job: Job, folder: Path) -> None:
    compiles = container_compiles(job.plan, jobs=JOBS)
    for number, (extension, one) in enumerate(zip(step.extensions, compiles, strict=True)):
        own = folder / f"{number:03}"
        write_text(own / "spec.json", one.specification)
        write_text(own / "entry.json", one.entry)
        _write_settings(own / "environment", dict(one.env), export=True)
        if one.project:
            write_text(own / "project", one.project)
            stage_sources(extension, store=job.store, runner=job.runner, folder=own / "src")
        else:
            write_text(own / "sources", one.sums)
            sources = ((file.path, file.sha256) for file in one.files)
            _link_files(folder / "sources", sources, job.store)


def _link_files(folder: Path, files: Iterable[tuple[str, str]], store: Store) -> None:
    """Link files of the store into a folder: name → sha256."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, digest in files:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            link_or_copy(store.artifact(Sha256(digest)), target)


def _write_settings(path: Path, values: Mapping[str, str], *, export: bool = False) -> None:
    """Write variables as a shell script."""
    word = "export " if export else ""
    write_text(path, "".join(f"{word}{name}={shlex.quote(value)}\n" for name, value in values.items()))
