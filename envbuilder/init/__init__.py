"""`init`: a first recipe, from three questions or from what a project or a machine already has.

The readers collect requests, `choose_pins` finds the nearest pins that pass `check`, and `render` writes the
recipe. Each line that cannot be taken over is reported with its reason, and listed in the file.
"""

import contextlib
import functools
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from envbuilder.compat.check import examine as examine_recipe
from envbuilder.compat.check import load_tables, need_sound
from envbuilder.compat.context import Tables
from envbuilder.compat.host_file import find_name
from envbuilder.compat.tables.cuda import for_gpus, load_gpus, load_switches
from envbuilder.compat.tables.table import version_key
from envbuilder.core.answer import Answer
from envbuilder.core.cache import save_bytes
from envbuilder.core.errors import (
    CommandError,
    EnvbuilderError,
    RegistryError,
    ToolError,
    UsageError,
    blaming_content,
)
from envbuilder.core.findings import Finding
from envbuilder.core.plain import need_no_credentials
from envbuilder.core.process import Command, Runner
from envbuilder.core.spelling import nearest
from envbuilder.init.choose_pins import choose, fitting
from envbuilder.init.conda import read_environment
from envbuilder.init.image_files import read_definition, read_dockerfile, read_script
from envbuilder.init.indexes import take_indexes
from envbuilder.init.live import read_live
from envbuilder.init.locks import read_lock
from envbuilder.init.meanings import settle_meanings
from envbuilder.init.pip import read_requirements
from envbuilder.init.project import (
    check_submodules,
    read_folder,
    read_git,
    read_python_version,
    read_setup,
    read_setup_cfg,
)
from envbuilder.init.recipe_text import recipe_text
from envbuilder.init.requests import Requests
from envbuilder.init.shell_lines import UNTOLD
from envbuilder.init.toml_files import read_pipfile, read_pixi_file, read_pyproject
from envbuilder.init.unread import reason
from envbuilder.init.vendor_image import is_reference, take_image
from envbuilder.node.detect import detect_here
from envbuilder.node.nccl.facts import Facts
from envbuilder.recipe.channels import NO_CONDA, Conda
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.load import examples_folder, list_recipes, load, new_path, recipes_folder
from envbuilder.recipe.model import SCHEMA_FILE, SUFFIX, Recipe, schema_text
from envbuilder.recipe.other_locks import find_locks
from envbuilder.recipe.requirement_file import parse_place
from envbuilder.registry.client import Client
from envbuilder.sources.git import check_out, find_commit

NONE: Final = "none"
_ANY: Final = "whatever fits best"
_LISTED: Final = 12  # versions that a question lists; of more, the newest four
Ask = Callable[[str, str], str]  # question and default → answer
Report = Callable[[str], None]
_KINDS: Final = (
    "the folder of a project or the address of its git repository, a requirements file (.txt, .in), conda's environment "
    "(.yml, .yaml), pyproject.toml, pixi.toml, Pipfile, the lock of uv, pixi, Poetry, Pipenv or conda-lock, pylock.toml, setup.py, "
    "setup.cfg, a Dockerfile, a definition file (.def), a shell script (.sh), or an image as NAME:TAG"
)
_HERE: Final = "this machine"
_PYTHON: Final = """\
import importlib.metadata, platform
print("Python", platform.python_version())
print("torch", importlib.metadata.version("torch"))"""
# Programs that print versions, with a pattern for each version.
_ASK: Final[tuple[tuple[tuple[str, ...], dict[str, tuple[str, str]]], ...]] = (
    (("nvcc", "--version"), {"cuda": (r"release (\d+\.\d+)", "=={}")}),
    (("gcc", "-dumpversion"), {"gcc": (r"^(\d+)", "=={}")}),
    (
        ("python3", "-c", _PYTHON),
        {"python": (r"^Python (\d+\.\d+)", "=={}.*"), "pytorch": (r"^torch (\d+\.\d+\.\d+)", "=={}")},
    ),
)


class NewRecipe(Answer):
    """The recipe that was written, with its pins. `reached` is checked, or with `--try` or an example locked or built."""

    name: str
    file: Path
    base: str
    python: str
    cuda: str
    gcc: str
    libxcrypt: str
    pytorch: str
    gpus: tuple[str, ...]
    packages: tuple[str, ...]
    apt: tuple[str, ...]
    reached: str

    @classmethod
    def of(cls, recipe: Recipe, reached: str) -> Self:
        pins = {key: getattr(recipe, key) for key in cls.model_fields.keys() - {"file", "reached"}}
        return cls.model_validate({"file": recipe.path, "reached": reached, **pins})


def as_typed(recipe: Recipe) -> str:
    """Return the recipe as a command takes it: by its name where that finds it."""
    is_named = recipe.path.parent in (recipes_folder({}), Path())
    return recipe.name if is_named else shlex.quote(str(recipe.path))


def as_text(recipe: Recipe) -> str:
    name = as_typed(recipe)
    return f"{recipe.path}\n{recipe.summary}\n$ envbuilder lock {name}\n$ envbuilder build {name}"


def read_source(path: Path, requests: Requests) -> None:
    """Read a project's folder, or one file of it; its name says of which kind it is."""
    if requests.top is None or not requests.holds(path):  # the next project that is named
        requests.top = _project_of(path)
    if path.is_dir():
        with blaming_content(f"the folder `{path}`"):
            read_folder(path, requests, read_source)
        return
    if not path.is_file():
        raise UsageError(f"there is no file `{path}`", hint=f"`--from` takes {_KINDS}")
    readers = {
        ".txt": read_requirements, ".in": read_requirements, ".yml": read_environment, ".yaml": read_environment,
        ".dockerfile": read_dockerfile, ".def": read_definition, ".toml": read_pyproject, ".cfg": read_setup_cfg,
        ".sh": read_script, ".py": read_setup if "setup" in path.name.lower() else None,
    }  # fmt: skip
    named = {
        r".*dockerfile.*": read_dockerfile, r"pixi\.toml": read_pixi_file, r"pipfile": read_pipfile,
        r"\.python-version": read_python_version, r"requirements.*\.lock": read_requirements,
    }  # fmt: skip
    reader = next(
        (reader for pattern, reader in named.items() if re.fullmatch(pattern, path.name.lower())),
        readers.get(path.suffix.lower()),
    )
    if find_locks([path]):
        with blaming_content(f"`{path}`"):
            read_lock(path, requests)
        return
    if reader is None:
        message = f"cannot read `{path}`: {reason(path) or 'its name does not say its kind'}"
        raise UsageError(message, hint=f"`--from` takes {_KINDS}")
    with blaming_content(f"`{path}`"):
        reader(path, requests)


def _project_of(path: Path) -> Path:
    """Return the folder whose files a project may name: the given folder; for a file, that of its repository or the working folder."""
    if path.is_dir():
        return path
    above = path.absolute().parents
    repository = next((folder for folder in above if (folder / ".git").exists()), None)
    return repository or next((folder for folder in above if folder == Path.cwd()), path.absolute().parent)


def read_machine(environment: Mapping[str, str], runner: Runner, requests: Requests) -> None:
    """Request the versions that this machine has."""
    read_facts(detect_here(environment, runner, Facts())[0], requests)
    for argv, versions in _ASK:
        command = Command(argv=argv, why=f"ask for the version of {argv[0]}", accept=(0, 1))
        try:
            output = runner.run(command)
        except (CommandError, ToolError):
            continue
        for key, (pattern, specifier) in versions.items():
            if version := re.search(pattern, output, re.MULTILINE):
                requests.pin(key, specifier.format(version[1]), f"`{argv[0]}` of {_HERE}")


def read_facts(facts: Facts, requests: Requests) -> None:
    """Request the GPUs, by the names that recipes use."""
    known = tuple(row.name for row in load_gpus().rows)
    names = []
    for gpu in dict.fromkeys(gpu.name for gpu in facts.gpus or () if gpu.name):
        if name := find_name(gpu, known):
            names.append(name)
        else:
            requests.leave(_HERE, gpu, "no GPU of that name is known", hint=f"GPUs: {', '.join(known)}")
    if facts.gpus is not None:
        requests.gpus = tuple(dict.fromkeys(names))
    requests.driver = facts.driver or ""


def make(
    name: str, folder: Path, requests: Requests, sources: tuple[str, ...]
) -> tuple[Recipe, tuple[Finding, ...]]:
    """Write the recipe, sound by every rule of `check`, and the schema beside it where there is none.

    The findings are the lines that were left out or moved, then the warnings of `check`.
    """
    home = _home(folder, requests)
    path = new_path(name, home)
    tables = load_tables()
    recipe = _on_image(take_indexes(choose(requests, tables, name=name, path=path), requests), requests)
    capabilities = tuple(dict.fromkeys(tables.gpus.by_name[name].capability for name in recipe.gpus))
    extensions = [_placed(_for_gpus(extension, capabilities), home) for extension in recipe.extensions]
    if not recipe.gpus:
        extensions = [_without_cuda(extension, requests) for extension in extensions]
    conda = Conda(channels=tuple(requests.channels), packages=tuple(requests.from_conda))
    recipe = replace(recipe, extensions=tuple(extensions), conda=conda if conda.packages else NO_CONDA)
    requests.say_gates()
    home.mkdir(parents=True, exist_ok=True)
    if home == folder:
        with contextlib.suppress(FileExistsError):
            _write_new(folder / SCHEMA_FILE, schema_text())
    try:
        is_copy = any(Path(source).exists() for source in sources)
        text = recipe_text(recipe, sources, requests.left, has_schema=home == folder, is_copy=is_copy)
        _write_new(path, text)
    except FileExistsError as error:
        raise UsageError(f"`{path}` is there, and nothing is overwritten") from error
    try:
        read = load(path)
        report = examine_recipe(read, tables)
        need_sound(read, report)
    except EnvbuilderError:
        path.unlink()
        raise
    return read, (*requests.left, *report.findings)


def _on_image(recipe: Recipe, requests: Requests) -> Recipe:
    """Return the recipe built on the requested image. Raises UsageError for one with another torch than the image's."""
    base, suite, asked = requests.base, requests.suite, requests.pins.get("pytorch")
    if asked and base and asked.where == base.where and not asked.specifier.contains(recipe.pytorch):
        raise UsageError(
            f"`{base.where}` has torch {base.torch}, and envbuilder does not offer that",
            hint="`--pytorch` names another one, which is installed beside that of the image",
        )
    if base is None:
        return recipe
    keeps = base.keeps_torch and not asked
    gcc = suite.gcc if suite and (keeps or recipe.gcc not in suite.gccs) else recipe.gcc
    recipe = replace(recipe, base="", image=base.reference, gcc=gcc, libxcrypt="")
    return replace(recipe, pytorch="", cuda="", gpus=(), keeps_torch=True) if keeps else recipe


def _home(folder: Path, requests: Requests) -> Path:
    """Return the folder of the recipe: `folder`, unless sources of extensions lie outside it."""
    wanted = [Path(text) for extension in requests.extensions.values() for text in _paths(extension)]
    if all(path.is_relative_to(folder.resolve()) for path in wanted):
        return folder
    if all(path.is_relative_to(Path.cwd()) for path in wanted):
        return Path()  # found by its name from here
    return Path(os.path.commonpath(wanted))


def _for_gpus(extension: Extension, capabilities: tuple[str, ...]) -> Extension:
    """Return an extension whose variables name these GPUs; without a GPU, none does."""
    switches = {row.variable: row for row in load_switches().rows if row.effect == "architectures"}
    env = (
        (name, for_gpus(switches[name].value, capabilities) if name in switches else value)
        for name, value in extension.env
    )
    return replace(extension, env=tuple((name, value) for name, value in env if value))


def _without_cuda(extension: Extension, requests: Requests) -> Extension:
    """Return an extension without the variables and options that make its build need CUDA."""
    gates = {row.variable for row in load_switches().rows if row.effect == "cuda"}
    gates |= {gate.name for _, gate in requests.gates if gate.effect == "cuda"}
    env = tuple(pair for pair in extension.env if pair[0] not in gates)
    return replace(extension, env=env, options=tuple(name for name in extension.options if name not in gates))


def _paths(extension: Extension) -> tuple[str, ...]:
    """Return the paths of an extension that are on this machine."""
    path = "" if extension.is_remote else extension.path
    return tuple(filter(None, (path, *extension.sources, *extension.include, extension.patch)))


def _placed(extension: Extension, home: Path) -> Extension:
    """Return an extension with paths from the recipe's folder."""
    places = {text: Path(text).relative_to(home.resolve()).as_posix() for text in _paths(extension)}
    return replace(
        extension.at(home.resolve()),
        path=places.get(extension.path, extension.path),
        sources=tuple(places[source] for source in extension.sources),
        include=tuple(places[folder] for folder in extension.include),
    )


def _write_new(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8", newline="\n") as stream:
        stream.write(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSources:
    """What the user gave: projects to read, pins, and whether to read this machine."""

    projects: tuple[str, ...]
    machine: bool
    gpus: tuple[str, ...]
    is_base: bool = True  # whether the recipe is built on an image that is named
    live: Path | None = None  # an environment that is installed, or its Python
    wanted: tuple[str, ...] = ()  # groups, extras, and environments of pixi
    meanings: tuple[str, ...] = ()  # of names that the package index gives another one: apex=source
    versions: Mapping[str, str]  # of pytorch and python; "" where none was given


def write_recipe(
    name: str,
    recipes: Path,
    sources: RecipeSources,
    environment: Mapping[str, str],
    runner: Runner,
    *,
    ask: Ask | None,
    report: Report,
    typed: Sequence[str],
) -> tuple[Recipe, tuple[Finding, ...]]:
    """Write a recipe of what the sources say and, with `ask`, of what the user answers. Raises UsageError where too little is known."""
    if not name:
        hint = "`envbuilder init NAME`, or `envbuilder init --example cpu`"
        raise UsageError("which name has the new recipe?", hint=hint)
    new_path(name, recipes)
    requests = Requests(wanted=sources.wanted, python=sources.versions.get("python", ""))
    tables = load_tables()
    if sources.machine:
        read_machine(environment, runner, requests)
    if sources.gpus:  # a lock has packages for one processor
        take_gpus(sources.gpus, tables, requests)
    if sources.live:
        read_live(sources.live, runner, requests)
    for project in sources.projects:
        need_no_credentials(project)
        if is_reference(project) and not Path(project).exists():
            take_image(project, project, Client(environment, runner), requests, is_base=sources.is_base)
        elif re.match(r"git\+|\w+://", project):
            _read_repository(project, runner, requests)
        else:
            read_git(Path(project), runner, requests)
            read_source(Path(project), requests)
            if not Path(project).is_dir():  # reading a folder checks those below it
                paths = (known.path for known in requests.extensions.values() if not known.is_remote)
                folders = {above for path in paths if path for above in (Path(path), *Path(path).parents)}
                check_submodules(sorted(filter(requests.holds, folders)), requests)
    if requests.untold[0] and not sources.versions.get("pytorch"):
        _read_untold(sources, environment, runner, requests)
    _need_something(sources, requests)
    for key, version in sources.versions.items():
        if version:
            _take_version(requests, key, f"`--{key}`", version, known=_offered(key, tables))
    if ask:
        ask_missing(requests, tables, ask, report)
    elif requests.gpus is None:
        raise UsageError(
            "without a terminal, `init` requires `--gpu MODEL`, such as A100, or `--gpu none`",
            hint=f"{shlex.join(('envbuilder', *typed))} --gpu MODEL",
        )
    settle_meanings(requests, sources.meanings, runner, ask=ask, report=report)
    live = (str(sources.live),) if sources.live else ()
    return make(name, recipes, requests, (*([_HERE] if sources.machine else []), *live, *sources.projects))


def _read_untold(
    sources: RecipeSources, environment: Mapping[str, str], runner: Runner, requests: Requests
) -> None:
    """Read the image of a Dockerfile whose name does not tell its content, where a registry answers.

    Raises RegistryError for one that has torch by its name: another torch would stand for it.
    """
    image, where = requests.untold
    try:
        if is_reference(image):
            take_image(image, where, Client(environment, runner), requests, is_base=sources.is_base)
            requests.left = [
                left for left in requests.left if left.where != where or UNTOLD not in left.message
            ]
    except RegistryError as error:
        if "torch" in image:
            hint = f"{error.hint}; `--pytorch VERSION` does without the image"
            raise type(error)(f"{where}: {error.message}", hint=hint) from error
        requests.note(where, f"`{image}` was not read: {error.message}", hint=error.hint)


def _need_something(sources: RecipeSources, requests: Requests) -> None:
    """Raise UsageError if a wanted group was in no file, or if the files say nothing that a recipe can hold."""
    if unknown := [name for name in sources.wanted if name not in requests.offered]:
        has = f"they have {', '.join(sorted(requests.offered))}" if requests.offered else "they have none"
        raise UsageError(f"no file has a group, an extra or an environment `{unknown[0]}`", hint=has)
    content = (
        requests.pins, requests.packages, requests.apt, requests.extensions, requests.env, requests.from_conda,
    )  # fmt: skip
    if sources.projects and not (requests.base or any(content)):
        raise UsageError(
            f"nothing that a recipe can hold was found in {', '.join(f'`{name}`' for name in sources.projects)}",
            hint="`--from FILE` names another file; without `--from`, `init` asks for the versions",
            findings=tuple(requests.left),
        )


def _read_repository(text: str, runner: Runner, requests: Requests) -> None:
    """Read the files of a git repository, and request its extensions by its commit."""
    place = parse_place(text if text.startswith("git+") else f"git+{text}")
    commit = find_commit(place.git, place.revision or "HEAD", runner)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch).resolve() / place.name
        check_out(place.git, commit, tree, runner)
        read_source(tree / place.path, requests)
        read_git(tree / place.path, runner, requests)
        requests.move(tree, place.git, commit)


def take_gpus(words: Iterable[str], tables: Tables, requests: Requests) -> None:
    """Request the named GPUs, or `none`; raises UsageError for an unknown one."""
    known = tuple(tables.gpus.by_name)
    names: list[str] = []
    for word in filter(None, map(str.strip, ",".join(words).split(","))):
        if name := find_name(word, known):
            names.append(name)
        elif word != NONE:
            is_none = word.casefold() in ("cpu", "no", "0")
            near = f"did you mean `{NONE}`? " if is_none else nearest(word, known)
            raise UsageError(f"no GPU `{word}` is known", hint=f"{near}GPUs: {', '.join(known)}, or {NONE}")
    requests.gpus = tuple(dict.fromkeys(names))


def _take_version(
    requests: Requests, key: str, where: str, text: str, *, known: tuple[str, ...], beside: str = ""
) -> None:
    """Request a known version, or the beginning of some; raises UsageError for another one."""
    if not any(version == text or version.startswith(f"{text}.") for version in known):
        hint = f"{nearest(text, known)}offered: {', '.join(known)}"
        raise UsageError(f"no {key} {text} is offered{beside}", hint=hint)
    requests.pin(key, f"=={text}" if text in known else f"=={text}.*", where)
    requests.typed.append(key)


def _offered(key: str, tables: Tables) -> tuple[str, ...]:
    if key == "pytorch":
        return tuple(row.version for row in tables.torches.rows)
    pythons = {*tables.standalones.by_name, *(base.python for base in tables.distributions.rows)}
    return tuple(sorted(pythons, key=version_key))


def ask_missing(requests: Requests, tables: Tables, ask: Ask, report: Report) -> None:
    """Ask for each value that no option and no file gives, until the answer is valid."""

    def settle(question: str, default: str, take: Callable[[str], None]) -> None:
        while True:
            answer = ask(question, default).strip()
            if answer == default == _ANY:
                return None
            try:
                return take(answer)
            except UsageError as error:
                report(f"{error.message}: {error.hint}")

    if requests.gpus is None:
        settle(f"GPU model, such as A100, or {NONE}", NONE, lambda text: take_gpus([text], tables, requests))
    for key, title in (("pytorch", "PyTorch version"), ("python", "Python version")):
        known = () if key in requests.pins else fitting(key, requests, tables)
        if known:  # otherwise `choose` says why no pins work together
            beside = " with the other pins"
            take = functools.partial(_take_version, requests, key, "your answer", known=known, beside=beside)
            shown = known if len(known) <= _LISTED else ("…", *known[-4:])
            settle(f"{title} ({', '.join(shown)})", _ANY, take)


def copy_example(name: str, folder: Path) -> tuple[Recipe, bool]:
    """Copy an example with its lock and sources. Return it, and whether a file was missing.

    Raises UsageError if there is no such example or another file would be overwritten.
    """
    source = examples_folder()
    known = list_recipes(source)
    if name not in known:
        hint = f"{nearest(name, known)}examples: {', '.join(known)}"
        raise UsageError(f"there is no example `{name}`", hint=hint)
    path = new_path(name, folder, (source / f"{name}{SUFFIX}").read_text(encoding="utf-8"))
    files = {folder / file: (source / file).read_bytes() for file in _files(load(source / path.name), source)}
    if (folder / SCHEMA_FILE).exists():  # perhaps of another version, which serves as well
        del files[folder / SCHEMA_FILE]
    missing = [target for target in files if not target.exists()]
    for target, content in files.items():
        if target not in missing and target.read_bytes() != content:
            raise UsageError(
                f"`{target}` is there with other content, and nothing is overwritten",
                hint="`--recipes` names another folder",
            )
    for target in missing:
        save_bytes(target, files[target])
    return load(path), bool(missing)


def _files(recipe: Recipe, source: Path) -> Iterator[Path]:
    """Yield the files of an example, from the folder of examples. Its recipe comes last."""
    yield Path(SCHEMA_FILE)
    for top in sorted({Path(path).parts[0] for extension in recipe.extensions for path in _paths(extension)}):
        for path in sorted((source / top).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(source)
    yield Path(f"{recipe.name}.lock")
    yield Path(f"{recipe.name}{SUFFIX}")
