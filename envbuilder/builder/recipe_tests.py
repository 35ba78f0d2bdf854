"""Run a recipe's own tests in the image and in the SIF, before either gets its final name. Import its extensions in the SIF."""

import contextlib
import functools
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from envbuilder import runtime
from envbuilder.builder.extensions.compiled import TREE, find_extensions
from envbuilder.builder.job import BuildJob
from envbuilder.builder.sandbox.foreign import emulation
from envbuilder.builder.sandbox.layer_folders import LayerFolder, mounted
from envbuilder.core.beneath import FILE_LIMIT, files_beneath, folder_beneath, read_beneath
from envbuilder.core.cache import Store, sha256_text
from envbuilder.core.errors import BuildError, CommandError, FetchError, ToolError
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.process import Completed
from envbuilder.plan.extension import install_path
from envbuilder.plan.model import Plan
from envbuilder.recipe.extension import Form
from envbuilder.recipe.model import Recipe
from envbuilder.run.container import FIXED_ENV, TEMPORARY, Surroundings, probe_alone, run_in_image, run_in_sif
from envbuilder.runners.enter_sandbox import machine_has
from envbuilder.runners.sandbox import sandbox
from envbuilder.runners.toolbox import open_sandbox
from envbuilder.sources.fetch import Fetcher

if TYPE_CHECKING:
    from envbuilder.artifacts.docker_engine import DockerEngine


class BuildCode(CodeEnum):
    UNTESTED = "EB650", "the tests of the recipe were not run in the SIF"
    UNTESTED_IMAGE = "EB652", "the tests of the recipe were not run in the image"
    NOT_IMPORTED = "EB651", "an extension was compiled, and cannot be imported in the SIF"


PROGRAM: Final = "import_extensions.py"
_REPORT: Final = "envbuilder imports: "  # of the program
# What an import lacks, and how to bring it. The rest of an error is told as it is.
_LACKS: Final = (
    (r"No module named '(?P<it>pkg_resources)\b", "setuptools has no `{it}` since 82", "write `setuptools<82` in `packages` of the recipe"),
    (r"No module named '(?P<it>[\w.]+)'", "the package `{it}` is not there", "add `{top}` to `packages` in the recipe"),
    (r"(?P<it>\S+\.so[\d.]*): cannot open shared object", "the library `{it}` is not there", "add the package that contains `{it}` to `apt`"),
    (r"undefined symbol: (?P<it>\S+)", "no library that it loads defines `{it}`", "add the missing source to the extension, or the library to its flags"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import of a compiled extension. `of` is the recipe's name of the extension."""

    of: str
    place: str
    name: str
    module: str = ""  # of a project
    file: str = ""
    is_python_module: bool = True


def list_imports(recipe: Recipe, plan: Plan, store: Store) -> tuple[tuple[Import, ...], tuple[Finding, ...]]:
    """Return the imports of the recipe's extensions, without those that it switches off, and a warning for each that is not known.

    The store has none of BuildKit's extensions, and after `cache --gc` none that no build used of late.
    """
    named = enumerate((*recipe.extensions, *recipe.implied))
    places = {wanted.name: recipe.place(f"$.extensions[{at}]") for at, wanted in named if wanted.is_imported}
    imports: list[Import] = []
    unknown: dict[str, Finding] = {}
    for status in find_extensions(plan, store):
        of, entry = status.extension.name, status.compiled.entry if status.compiled else None
        if of not in places:
            continue
        if status.extension.form is Form.LOAD:
            file = f"{install_path(status.name, status.key)}/{status.name}.so"
            imports.append(Import(of=of, place=places[of], name=status.name, file=file))
        elif entry and not entry.file:
            names = _modules(store.extension(status.key.entry), f"{TREE}{plan.python.site_packages}")
            imports += [Import(of=of, place=places[of], name=name, module=name) for name in names]
        elif entry and not entry.is_standalone:
            what = {"name": entry.name, "file": entry.file}
            imports.append(Import(of=of, place=places[of], is_python_module=entry.is_python_module, **what))
        elif not entry:
            message = (
                f"the extension `{of}` was not imported in the SIF: which modules it has is not in the cache"
            )
            hint = "import them in a line of the recipe's `tests`; `import: false` of the extension leaves this one out"
            unknown[of] = _untested(message, hint, places[of])
    return tuple(dict.fromkeys(imports)), tuple(unknown.values())


def _untested(message: str, hint: str, where: str, *, code: str = BuildCode.UNTESTED) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, where=where, message=message, hint=hint)


def _modules(folder: Path, site: str) -> list[str]:
    """Return the compiled modules that a project installed in the folder `site` of its entry, its packages if it has none."""
    try:
        paths = [PurePosixPath(file).relative_to(site) for file in files_beneath(folder, site)]
    except FileNotFoundError:
        return []
    compiled = [
        ".".join(path.with_name(name).parts)
        for path in paths
        if path.suffix == ".so"
        and f"PyInit_{(name := path.name.partition('.')[0])}".encode()
        in read_beneath(folder, f"{site}/{path}", limit=FILE_LIMIT)
    ]
    packages = [path.parent.name for path in paths if path.name == "__init__.py" and len(path.parts) == 2]
    modules = [path.stem for path in paths if path.suffix == ".py" and len(path.parts) == 1]
    return compiled or packages or modules


def import_in_sif(
    imports: Sequence[Import], sif: Path, job: BuildJob, *, fetcher: Fetcher, environment: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Import each extension in the SIF. Raises BuildError with a finding for each that fails.

    Returns a warning if Apptainer does not work here.
    """
    if not imports:
        return ()
    program, items = runtime.path(PROGRAM).read_text(encoding="utf-8"), json.dumps(list(map(_item, imports)))
    with job.console.step(f"import in the SIF: {', '.join(wanted.name for wanted in imports)}") as step:
        try:
            with _programs_in(sif, job, fetcher, environment) as (run, _):
                ran = run(("python", "-c", program, items))
        except ToolError as error:
            step.skip(error.message)
            message = f"the recipe's extensions were not imported in the SIF: {error.message}"
            return (_untested(message, error.hint, imports[0].place),)
        _need_success(ran, "import of the extensions", "the SIF")
        errors = {
            (item["name"], item.get("file", "")): item["error"]
            for line in ran.output.splitlines()  # libraries may warn on stderr
            if line.startswith(_REPORT)
            for item in json.loads(line.removeprefix(_REPORT))
        }
        failed = [(wanted, words) for wanted in imports if (words := errors.get((wanted.name, wanted.file)))]
        if failed:
            message = f"{len(failed)} of {len(imports)} imports of extensions failed in the SIF"
            raise BuildError(message, findings=tuple(explain_import(*pair) for pair in failed))
    return ()


def _item(wanted: Import) -> dict[str, object]:
    if wanted.module:
        return {"name": wanted.name, "module": wanted.module}
    return {"name": wanted.name, "file": wanted.file, "is_python_module": wanted.is_python_module}


def explain_import(failed: Import, error: str) -> Finding:
    meaning, repair = error, "run the same import in the SIF that is kept"
    for pattern, what, way in _LACKS:
        if match := re.search(pattern, error):
            name = match["it"]
            meaning, repair = what.format(it=name), way.format(it=name, top=name.partition(".")[0])
            break
    return Finding(
        code=BuildCode.NOT_IMPORTED,
        where=failed.place,
        message=f"`import {failed.name}` of the extension `{failed.of}` fails in the SIF: {meaning}",
        hint=f"{repair}; `import: false` of the extension leaves this test out",
    )


_MOUNTED: Final = ("proc", "dev", "tmp")  # in the layers' root, by the sandbox


@contextlib.contextmanager
def _programs_in(
    sif: Path, job: BuildJob, fetcher: Fetcher, environment: Mapping[str, str]
) -> Iterator[tuple[Callable[[Sequence[str]], Completed], Surroundings]]:
    """Yield a function that runs a command in the SIF, and its surroundings with an empty folder: packages are foreign code.

    Without an Apptainer that works, and for another processor, the sandbox of builds runs the command in the SIF's files.
    """
    with contextlib.ExitStack() as stack:
        around = probe_alone(stack.enter_context(job.store.workspace()))
        root = functools.cache(lambda: _files_of(sif, job, fetcher))

        def run(argv: Sequence[str]) -> Completed:
            if emulation(job):
                return _run_in_layers(root(), argv, job)
            try:
                return run_in_sif(sif, argv, around, environment)
            except ToolError as refused:
                try:
                    return _run_in_layers(root(), argv, job)
                except (ToolError, FetchError):
                    raise refused from None

        yield run, around


def _files_of(sif: Path, job: BuildJob, fetcher: Fetcher) -> LayerFolder:
    """Return the files of the SIF. Raises ToolError if one of its layers is not in the store or no sandbox works."""
    layers = job.layers()
    if len(layers) < len(job.keys):
        raise ToolError("a layer is not in the cache")
    open_sandbox(job.store, fetcher, job.runner, job.console.step)
    folder = job.folders.of_sif(sif, layers)
    for name in _MOUNTED:
        if folder.file is None:
            folder_beneath(folder.place, name)  # a layer may have a link there
        elif not folder.is_folder(name):
            raise ToolError(f"the layers have no folder `/{name}`")
    return folder


def _run_in_layers(folder: LayerFolder, argv: Sequence[str], job: BuildJob) -> Completed:
    options = ["--ro-bind", str(folder.place), "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", TEMPORARY]
    variables = {"HOME": TEMPORARY, "LANG": "C.UTF-8"} | FIXED_ENV | dict(job.plan.runtime.env)
    by = emulation(job)
    command = sandbox(
        options, argv, why="run a program in the SIF's files", env=tuple(variables.items()), cwd=TEMPORARY,
        emulation=by.words() if by else (), mounted=mounted((folder,)), merged=True,
    )  # fmt: skip
    try:
        return Completed(code=0, output=job.runner.run(command))
    except CommandError as error:
        return Completed(code=1, output=error.message)


def passed_tests(recipe: Recipe, *, image: bool, findings: tuple[Finding, ...] = ()) -> tuple[str, ...]:
    """Return what to note in the record of a build with these findings: "SIF" and "image", each with a sha256.

    It is that of the recipe's tests and of the names of the extensions that are imported. "SIF" is there if all of them ran in the
    SIF, "image" if there is an `image` in which the tests ran.
    """
    imported = [
        extension.name for extension in (*recipe.extensions, *recipe.implied) if extension.is_imported
    ]
    skipped = {finding.code for finding in findings}
    forms = ["SIF"] if (recipe.tests or imported) and BuildCode.UNTESTED not in skipped else []
    forms += ["image"] if recipe.tests and image and BuildCode.UNTESTED_IMAGE not in skipped else []
    return tuple(f"{form} {sha256_text(json.dumps([recipe.tests, imported]))}" for form in forms)


def run_recipe_tests(
    recipe: Recipe, sif: Path, job: BuildJob, *, fetcher: Fetcher, docker: "DockerEngine | None", image: str, environment: Mapping[str, str]
) -> tuple[Finding, ...]:  # fmt: skip
    """Run each test of the recipe in both artifacts. Raises BuildError for a failed test.

    `image` is the image's name in the Docker engine, if there is one. Returns a warning if Apptainer does not work here, or if the
    engine cannot run programs of the image's processor.
    """
    findings: list[Finding] = []
    console, processor = job.console, job.plan.processor
    if docker and recipe.tests and job.cross_tools and not machine_has(processor.elf):
        docker = None
        message = "the recipe's tests were run in the SIF alone: the Docker engine of this machine runs no programs for "
        hint = (
            "the image has the same files; an emulator that is registered on the machine lets the engine run it, "
            "such as the package `qemu-user-static` brings"
        )
        place = recipe.place("$.tests")
        findings.append(_untested(message + processor.title, hint, place, code=BuildCode.UNTESTED_IMAGE))

    def in_sif(test: str) -> None:
        with console.step(f"test in the SIF: {test}") as step:
            try:
                _need_success(run(shlex.split(test)), test, "the SIF")
            except ToolError as error:
                step.skip(error.message)
                message = f"the recipe's tests were not run in the SIF: {error.message}"
                findings.append(_untested(message, error.hint, recipe.place("$.tests")))

    def in_image(test: str) -> None:
        if docker:
            with console.step(f"test in the image: {test}"):
                _need_success(run_in_image(docker, image, shlex.split(test), around), test, "the image")

    with _programs_in(sif, job, fetcher, environment) as (run, around):
        for test in recipe.tests:
            with ThreadPoolExecutor(2) as pool:
                for tested in [pool.submit(each, test) for each in (in_sif, in_image)]:
                    tested.result()
    return tuple(findings)


def _need_success(ran: Completed, test: str, where: str) -> None:
    if ran.code:
        tail = "\n".join(ran.output.splitlines()[-20:])
        raise BuildError(f"the recipe's test `{test}` failed in {where} with exit code {ran.code}\n{tail}")
