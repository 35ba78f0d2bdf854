"""What Dockerfiles, definition files and shell scripts share: base, variables, files, and commands that install packages."""

import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path, PurePosixPath
from string import Template
from typing import Final

from envbuilder.compat.python_code import imported_modules
from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.places import shown
from envbuilder.init.conda import read_environment, read_install
from envbuilder.init.pip import read_arguments
from envbuilder.init.project import has_loads
from envbuilder.init.requests import Requests
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.requirement_file import (
    LONGEST_LINE,
    Direct,
    logical_lines,
    parse_direct,
    parse_place,
    shell_words,
)

# Why an instruction or a section is left out.
NO_CODE: Final = "an environment holds no code of yours but its extensions; your folder is bound when it runs"
NO_COMMANDS: Final = "a recipe runs no commands of its own"
UNTOLD: Final = "what is in this base cannot be told from its name"
STARTED: Final = "the command comes with `envbuilder exec` and `launch`"
# Set by envbuilder, or of no use after the build.
_OWN_VARIABLES: Final = re.compile(
    r"PATH|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|CUDA_(HOME|PATH|ROOT)|CUDAHOSTCXX|DEBIAN_FRONTEND|TORCH_CUDA_ARCH_LIST|"
    r"TORCH_NVCC_FLAGS|FORCE_CUDA|NVIDIA_.*|NV_.*|CONDA_.*|PIP_.*|LANG|LC_ALL|CC|CXX|TZ|"
    r"(PYTHON|PYTORCH|TORCH|TORCHVISION|TORCHAUDIO|CUDA|CUDNN|NCCL)_VERSION"
)
# One command of a shell line. What stands in quotes separates nothing.
_COMMAND: Final = re.compile(
    r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^'"\\;&|\n]|(?<!&)&(?!&)|(?<!\|)\|(?!\|)|['"\\])+""", re.DOTALL
)
# A comment of the shell ends with the line; of a Dockerfile's joined lines, nothing follows it.
_COMMENT: Final = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*"|\\.)|(?<!\S)#[^\n]*""", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_PYTHON: Final = re.compile(r"python3?(\.\d+)?")
_REDIRECTION: Final = re.compile(r"(?:\d|&)?(?:>>?|<)&?(\S*)")
_TIDYING: Final = re.compile(
    r"(sudo )?(apt-get|apt|aptitude) (-\S+ )*(update|upgrade|dist-upgrade|clean|autoclean|autoremove)\b.*|rm -rf? .*|"
    r"(conda|mamba|pip3?) (clean|cache|config)\b.*|ldconfig|set -\S+|true|mkdir .*|export DEBIAN_FRONTEND=.*|"
    r"(python3? -m )?pip3? install (-\S+ )*(--upgrade |-U )*(pip|setuptools|wheel| )+"
)
# Words of the shell before a command, and commands that change nothing but the shell.
_KEYWORD: Final = re.compile(r"^(?:(?:if|then|elif|else|while|until|do|!|\{|\(|time) +)+")
_OF_SHELL: Final = re.compile(
    r"(fi|done|esac|then|else|do|[{}]|;;|\[|\[\[|test|echo|printf|exit|return|export|unset|local|shift|source|\.|for|case|function|read|"
    r"eval|sleep|trap|pwd|which|nvidia-smi|(conda|mamba|micromamba) (activate|deactivate|init))(\s|$)|\S*\)$|\w+ ?\(\) ?\{"
)
_SHOWN: Final = 3  # commands of a script that are left out, in the line that says so
# What every environment has, by its own keys.
_OWN_PACKAGES: Final = re.compile(
    r"python3?(\.\d+)?(-(dev|pip|venv|distutils|setuptools|wheel|minimal|full|virtualenv|is-python3))?|"
    r"python-is-python3|build-essential|sudo|"
    r"software-properties-common|apt-transport-https|ca-certificates|gnupg2?|apt-utils|locales|ninja-build"
)
_FOR_DEBIANS_PYTHON: Final = re.compile(r"python3?-(.+)")
# Packages of NVIDIA's archive. Most names end with the version of CUDA.
_NVIDIA: Final = re.compile(
    r"(?:cuda|lib(?:cu(?:blas|fft|file|rand|solver|sparse)|nv(?:fatbin|jitlink|jpeg|ptxcompiler|vm)|npp)(?:-dev)?|nsight-\w+)"
    r"(?:-.*?)??(?:-(?P<major>\d+)-(?P<minor>\d+))?|cuda-.*|libcudnn.*|libnccl.*|nvidia-.*"
)


def _names(source: str, folder: Path) -> list[str]:
    """Return what a folder has under a path of COPY, which may be a pattern."""
    # `Path.glob` ends with an error for a pattern such as `a**`.
    names = glob(source, root_dir=folder) if set(source) & set("*?[") else [source]  # noqa: PTH207
    return sorted(name for name in names if (folder / name).exists())


@dataclass(slots=True, kw_only=True)
class Copied:
    """The files that COPY and ADD brought so far. All stages share it, because a later stage may name any of them."""

    context: Path  # the Dockerfile's folder
    top: Path | None = None  # the project's folder, which is the context of a Dockerfile below it too
    folder: str = "/"  # WORKDIR
    before: str = "/"  # the folder before the last `cd`
    files: list[tuple[Path, str, bool]] = field(default_factory=list)  # source, target, target is a folder
    clones: dict[str, Direct] = field(default_factory=dict)  # folder → the repository of `git clone`
    idle: dict[str, str] = field(default_factory=dict)  # folder of a clone that nothing installs → where

    def enter(self, folder: str) -> None:
        """Follow a WORKDIR."""
        target = self.before if folder == "-" else self._target(folder.strip().strip("\"'"))
        self.folder, self.before = target, self.folder

    def copy(self, value: str) -> None:
        """Note the arguments of COPY or ADD, unless they come from another stage or an address."""
        words = split_words(value)
        plain = [word for word in words if not word.startswith("--")]
        if len(plain) < 2 or any(word.startswith("--from=") for word in words):
            return
        *sources, target = plain
        is_folder = len(sources) > 1 or target.endswith(("/", "."))
        for source in (source.lstrip("/") for source in sources if "://" not in source):
            folders = [folder for folder in (self.top, self.context) if folder and _names(source, folder)]
            for folder in folders or [self.context]:  # what lies beside the Dockerfile wins
                paths = [folder / name for name in _names(source, folder) or (source,)]
                self.files += [(path, self._target(target), is_folder) for path in paths]

    def locate(self, name: str) -> Path | None:
        """Return the file or folder of the context behind a path, or None."""
        wanted = PurePosixPath(self._target(name))
        absent = None  # what a folder has not, such as a submodule's own
        for source, target, is_folder in reversed(self.files):
            if source.is_dir():
                file = source / wanted.relative_to(target) if wanted.is_relative_to(target) else None
                if file and file.exists():
                    return file
                absent = absent or file
            # Only the image tells whether `/tmp` is a folder or the file's new name.
            elif wanted == PurePosixPath(target, source.name) or (not is_folder and str(wanted) == target):
                return source
        for source, target, is_folder in self.files:  # a folder that single files were copied to
            if is_folder and str(wanted) == target:
                return source.parent
        return absent or (None if PurePosixPath(name).is_absolute() else self.context / name)

    def clone(self, words: Sequence[str], where: str) -> bool:
        """Note the arguments of `git clone`, or of `git checkout` in a clone; False for others."""
        folder = self.folder
        if words[:1] == ["-C"] and len(words) > 1:
            folder, words = self._target(words[1]), words[2:]
        plain = [word for word in words if not word.startswith("-")]
        if plain[:1] == ["clone"]:
            options = dict(itertools.pairwise(words))
            branch = options.get("-b", "") or options.get("--branch", "")
            places = [word for word in plain[1:] if word not in (branch, options.get("--depth"))]
            if not places:
                return False
            url, *targets = places
            target = self._target(targets[0] if targets else PurePosixPath(url).name.removesuffix(".git"))
            self.clones[target] = replace(parse_place(f"git+{url}"), text=url, revision=branch)
            self.idle[target] = where
            return True
        if folder in self.clones and plain[:1] in (["checkout"], ["reset"]) and len(plain) == 2:
            self.clones[folder] = replace(self.clones[folder], revision=plain[1])
            return True
        return plain[:1] == ["submodule"]

    def cloned(self, name: str) -> str:
        """Return the requirement for a folder of a clone, "" for any other folder."""
        target = PurePosixPath(self._target(name))
        for folder, project in self.clones.items():
            if target.is_relative_to(folder):
                self.idle.pop(folder, None)
                below = target.relative_to(folder).as_posix()
                end = "" if below == "." else f"#subdirectory={below}"
                return f"git+{project.git}{'@' if project.revision else ''}{project.revision}{end}"
        return ""

    def report(self, requests: Requests) -> None:
        """Leave out the clones that nothing installs."""
        for folder, where in self.idle.items():
            requests.leave(where, f"git clone {self.clones[folder].git}", NO_CODE)

    def _target(self, name: str) -> str:
        return os.path.normpath(PurePosixPath(self.folder, name))


def split_words(value: str) -> list[str]:
    """Split arguments written as words or as a JSON list."""
    try:
        return [str(word) for word in json.loads(value)] if value.startswith("[") else shell_words(value)
    except ValueError:
        return []


def read_base(value: str, where: str, requests: Requests) -> None:
    """Take the versions that the tag of a well-known base names."""
    image = next((word for word in value.split() if not word.startswith("--")), "")
    name, _, tag = image.partition("@")[0].rpartition(":")
    short = name.rpartition("/")[2]
    pins = {}
    if is_image := "/" in image or ":" in image:  # no name of an earlier stage, nor `debian`
        requests.untold = ("", "")
    if name.endswith("nvidia/cuda"):
        pins = {"cuda": re.match(r"(\d+\.\d+)", tag)}
    elif name.endswith("pytorch/pytorch"):
        pins = {"pytorch": re.match(r"(\d+\.\d+(?:\.\d+)?)", tag), "cuda": re.search(r"cuda(\d+\.\d+)", tag)}
    elif short == "python":
        pins = {"python": re.match(r"(\d+\.\d+)", tag)}
    suite = re.search(r"(ubuntu)-?(\d+\.\d+)", tag) if "python" not in pins else None
    kind, release = (suite[1], suite[2]) if suite else (short, tag.partition("-")[0])
    families = (row for row in load_distributions().rows if row.family == kind)
    requests.suite = next((row for row in families if release in (row.release, row.suite)), None)
    requests.image = (image, where) if short != "python" else requests.image
    if (short or image) in ("debian", "ubuntu"):
        requests.note(where, f"`{image}`: the base follows from Python and the compiler")
        return
    for key, version in pins.items():
        if version:
            requests.pin(key, f"=={version[1]}{'.*' if key == 'python' else ''}", where)
    if not any(pins.values()):
        if is_image:
            requests.untold = (image, where)
        requests.leave(where, f"FROM {value}", UNTOLD)


def read_variables(value: str, where: str, requests: Requests, *, word: str = "ENV ") -> dict[str, str]:
    """Take the variables of a line that a recipe can hold, and return all. `word` is what the file writes before them."""
    try:
        words = shell_words(value)
    except ValueError:
        words = []
    if words and "=" not in words[0]:  # the old form: ENV NAME the rest
        words = [f"{words[0]}={' '.join(words[1:])}"]
    variables = {}
    for pair in words:
        name, _, content = pair.partition("=")
        variables[name] = content
        if _OWN_VARIABLES.fullmatch(name):
            requests.leave(where, f"{word}{name}", "envbuilder sets what is needed of it")
        elif "$" in content:
            requests.leave(where, f"{word}{pair}", "a recipe's variables are plain text")
        else:
            requests.variable(name, content, where)
    if not words:
        requests.leave(where, f"{word}{value}", "a quotation that does not end")
    return variables


def read_run(value: str, where: str, requests: Requests, copied: Copied, *, word: str = "RUN ") -> None:
    """Take what the commands of a shell line install; leave the others with a reason."""
    value = re.sub(r"--mount=\S+\s*|--network=\S+\s*", "", value)
    for text in _read_commands(value, where, requests, copied, {}):
        requests.leave(where, f"{word}{text}", NO_COMMANDS)


def read_script(text: str, path: Path, requests: Requests) -> None:
    """Take what the commands of a shell script install, in whichever branch or function they stand; report the others in one line."""
    copied = Copied(context=path.parent, files=[(path.parent, "/", True)])
    variables: dict[str, str] = {}
    others: dict[str, str] = {}  # with the place of each
    for number, line in logical_lines(text):
        where = f"{path}:{number}"
        if len(line) > LONGEST_LINE:
            requests.leave(where, line, f"it has more than {LONGEST_LINE} characters")
        else:
            for command in _read_commands(line, where, requests, copied, variables, is_script=True):
                if not _OF_SHELL.match(command):
                    others.setdefault(command, where)
    copied.report(requests)
    if others:
        first = sorted(others, key=lambda command: " install " not in command)[:_SHOWN]
        texts = ", ".join(map(shown, first))
        more = f" and {len(others) - _SHOWN} more commands" if len(others) > _SHOWN else ""
        requests.leave_all(others[first[0]], f"{texts}{more}", NO_COMMANDS)


def _read_commands(
    value: str,
    where: str,
    requests: Requests,
    copied: Copied,
    variables: dict[str, str],
    *,
    is_script: bool = False,
) -> Iterator[str]:
    """Take what commands install, and yield the others. `variables` are the shell's, such as PIP_INSTALL="python -m pip install"."""
    value = _COMMENT.sub(lambda match: match[1] or "", value)
    for command in _COMMAND.findall(value):
        text = command.strip() if "\n" in command else " ".join(command.split())
        text = Template(text).safe_substitute(variables)
        text = _KEYWORD.sub("", text) if is_script else text
        if not text or len(text) > LONGEST_LINE or _TIDYING.fullmatch(text):
            continue
        try:
            words = shell_words(text)
        except ValueError:
            words = []
        if words and all(map(_ASSIGNMENT.fullmatch, words)):
            variables |= dict(word.split("=", 1) for word in words)
        elif not _read_command(_plain_words(words), where, requests, copied):
            yield text


def _plain_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command without redirections, variables before it, `sudo` and `python -m`."""
    rest, plain = list(words), list[str]()
    while rest:
        word = rest.pop(0)
        if redirection := _REDIRECTION.fullmatch(word):
            rest = rest if redirection[1] else rest[1:]
        elif plain or (word != "sudo" and not _ASSIGNMENT.fullmatch(word)):
            plain.append(word)
    return plain[2:] if len(plain) > 2 and _PYTHON.fullmatch(plain[0]) and plain[1] == "-m" else plain


def _read_command(words: Sequence[str], where: str, requests: Requests, copied: Copied) -> bool:
    """Take what a command installs; False for any other command."""
    plain = [word for word in words if not word.startswith("-")]
    match [re.sub(r".*/", "", plain[0]) if plain else "", *plain[1:2]]:
        case ["cd", *target]:
            copied.enter(target[0] if target else "-" if "-" in words else "/")
        case ["git", *_]:
            return copied.clone(words[1:], where)
        case ["apt-get" | "apt" | "aptitude", "install"]:
            for package in plain[2:]:
                _read_package(package, where, requests)
            requests.say_together()
        case ["pip" | "pip3" | "uv", "install" | "pip"]:
            given = [*itertools.dropwhile("install".__ne__, words)][1:]
            places = [_place(word, copied) for word in given]
            read_arguments(places, where, requests, locate=copied.locate)
        case ["conda" | "mamba" | "micromamba", "install" | "create" as verb]:
            read_install(words[list(words).index(verb) + 1 :], where, requests)
        case ["conda" | "mamba" | "micromamba", "env"] if {"create", "update"} & set(plain):
            return _read_environment(words, requests, copied)
        case ["python" | "python3", script] if script.endswith("setup.py"):
            folder = str(PurePosixPath(script).parent)
            folder = folder if folder.startswith((".", "/")) else f"./{folder}"
            read_arguments([_place(folder, copied)], where, requests, locate=copied.locate)
        case ["python" | "python3", *_] if "-c" in words[:-1]:
            return _read_import(words[list(words).index("-c") + 1], where, requests, copied)
        case _:
            return False
    return True


def _read_environment(words: Sequence[str], requests: Requests, copied: Copied) -> bool:
    """Take the file that `conda env create` reads."""
    pairs = itertools.pairwise(part for word in words for part in word.split("=", 1))
    name = next((value for option, value in pairs if option in ("-f", "--file")), "environment.yml")
    path = copied.locate(name)
    if path is None or not path.is_file() or not requests.holds(path):
        return False
    if path.resolve() not in requests.read:
        requests.read.add(path.resolve())
        read_environment(path, requests)
    return True


def _place(word: str, copied: Copied) -> str:
    """Return the requirement for a folder of a clone, and any other word as it is."""
    project = parse_direct(word)
    return (copied.cloned(project.path) if project and not project.git else "") or word


def _read_import(text: str, where: str, requests: Requests, copied: Copied) -> bool:
    """Take a line of Python that imports a project with calls of `load()`, as it would compile them."""
    try:
        names = imported_modules(text)
    except SyntaxError:
        return False
    for name in names:
        first = name.partition(".")[0]
        places = (copied.locate(f"{first}{suffix}") for suffix in ("", ".py"))
        place = next((place for place in places if place and place.exists()), None)
        if place and has_loads(place):
            line = "; ".join(filter(None, map(str.strip, text.splitlines())))
            requests.extension(Extension(name=first, path=place.parent.as_posix(), capture=(line,)), where)
            return True
    return False


def _read_package(package: str, where: str, requests: Requests) -> None:
    name, _, version = package.partition("=")
    if compiler := re.fullmatch(r"g(?:cc|\+\+)-(\d+)", name):
        requests.pin("gcc", f"=={compiler[1]}", where)
    elif part := _NVIDIA.fullmatch(name):
        if part["major"]:
            requests.pin("cuda", f"=={part['major']}.{part['minor']}", where)
        requests.system.append((where, package))
    elif re.fullmatch(r"gcc|g\+\+|clang.*", name) or _OWN_PACKAGES.fullmatch(name):
        is_plain = name in ("python3", "python3-dev", "python3-pip")
        if python := re.fullmatch(r"python(3\.\d+)(-dev)?", name):
            requests.pin("python", f"=={python[1]}.*", where)
        elif is_plain and requests.suite and "python" not in requests.pins:
            requests.pin("python", f"=={requests.suite.python}.*", where)
    elif (module := _FOR_DEBIANS_PYTHON.fullmatch(name)) and module[1] != "tk":  # which is Python's own
        why = "Debian's packages of Python modules are for Debian's own Python"
        requests.leave(
            where, package, why, hint=f"`packages: [{module[1]}]`, if the index has it by that name"
        )
    else:
        if version:
            requests.note(where, f"`{name}` without `={version}`: the lock chooses the version of the suite")
        requests.debian(name, where)
