"""Read `requirements.txt` and the arguments of `pip install`."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuilder.compat.init.requests import CONFIGURED, Requests, read_text
from envbuilder.recipe.extension import Extension

# Options of pip with a value, by what they do to a recipe.
_PLACES: Final = ("-f", "--find-links", "-i", "--index-url", "--extra-index-url", "--trusted-host")
_WITH_VALUE: Final = (*_PLACES, "-c", "--constraint", "-e", "--editable", "-r", "--requirement", "-t", "--target", "--prefix",
                      "--no-binary", "--only-binary", "--cache-dir", "--timeout", "--retries", "--default-timeout",
                      "--progress-bar")  # fmt: skip
# Options that do not change which packages are installed.
_HARMLESS: Final = ("--no-cache-dir", "--upgrade", "-U", "--quiet", "-q", "--user", "--no-input", "-y", "--yes",
                    "--disable-pip-version-check", "--no-warn-script-location", "--break-system-packages",
                    "--root-user-action=ignore", "--force-reinstall", "--ignore-installed", "-I", "--prefer-binary",
                    "--cache-dir", "--timeout", "--retries", "--default-timeout", "--progress-bar")  # fmt: skip
# Packages with CUDA sources and without wheels for every torch: a build compiles their sdist.
_COMPILED: Final = ("torch-scatter", "torch-sparse", "torch-cluster", "torch-spline-conv")

Locate = Callable[[str], Path | None]  # a file's name as it is written → the file, where there can be one


def read_requirements(path: Path, requests: Requests, *, above: tuple[Path, ...] = ()) -> None:
    """Read every line of a file, and of the files that it names; raises UsageError for an unreadable file."""
    for number, line in _lines(read_text(path)):
        where = f"{path}:{number}"
        try:
            # A marker has its own quotes.
            words = shlex.split(line) if line.startswith("-") else [line]
        except ValueError:
            requests.leave(where, line, "a quotation that does not end")
            continue
        read_arguments(words, where, requests, locate=path.parent.joinpath, above=(*above, path.resolve()))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines as pip joins them, without comments, each with its number."""
    start, whole = 0, ""
    # An empty last line ends what a backslash continues.
    for number, raw in enumerate([*text.removeprefix("\ufeff").splitlines(), ""], start=1):
        line = re.sub(r"(^|\s)#.*", "", raw).rstrip()
        start = start or number
        whole += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        if whole.strip():
            yield start, whole.strip()
        start, whole = 0, ""


def read_arguments(
    words: Sequence[str], where: str, requests: Requests, *, locate: Locate, above: tuple[Path, ...] = ()
) -> None:
    """Read the arguments of `pip install`, or one line of a file. `locate` finds the files that it names."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, sign, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if not word.startswith("-"):
            read_requirement(word, where, requests)
            continue
        if option in _WITH_VALUE and not sign:
            value = rest.pop(0) if rest else ""
        elif len(word) > 2 and word[:2] in _WITH_VALUE and word[1] != "-":
            option, value = word[:2], word[2:]
        _read_option(option, value, where, requests, locate=locate, above=above)


def _read_option(
    option: str, value: str, where: str, requests: Requests, *, locate: Locate, above: tuple[Path, ...]
) -> None:
    text = f"{option} {value}".strip()
    if option in ("-r", "--requirement"):
        path = locate(value)
        if path is None:
            requests.leave(where, text, "no `COPY` or `ADD` brings that file from the Dockerfile's folder")
        elif path.resolve() in above:
            requests.leave(where, text, "the files name each other in a circle")
        elif path.is_file():
            read_requirements(path, requests, above=above)
        else:
            requests.leave(where, text, f"there is no file `{path}`")
    elif option in _PLACES:
        requests.leave(
            where, text, CONFIGURED, hint="`ENVBUILDER_INDEX` and `ENVBUILDER_FOLDERS` name others"
        )
    elif option in ("-e", "--editable"):
        _leave_project(value, where, requests)
    elif option in ("-c", "--constraint"):
        requests.leave(
            where, text, "the lock fixes every version", hint="add the bounds that matter to `packages`"
        )
    elif option not in _HARMLESS and f"{option}={value}" not in _HARMLESS:
        requests.leave(where, text, "an option of pip that recipes do not have")


def read_requirement(text: str, where: str, requests: Requests) -> None:
    """Read one requirement. torch becomes a pin. The place of a download is left out."""
    text = re.sub(r"\s+--hash[= ]\S+|\s+--(global-option|config-settings?)[= ]\S+", "", text).strip()
    if re.search(r"\.(whl|tar\.gz|zip)$", text) and "://" not in text:
        requests.leave(
            where, text, "a file of one machine", hint="`ENVBUILDER_FOLDERS` names a folder of wheels"
        )
        return
    if re.match(r"(git|hg|svn|bzr)\+|https?://|file:|\.{0,2}/|\.$", text):
        _leave_project(text, where, requests)
        return
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requests.leave(where, text, "not a requirement that pip's standard (PEP 508) knows")
        return
    if requirement.url:
        _leave_project(requirement.url, where, requests, name=requirement.name)
        return
    name = canonicalize_name(requirement.name)
    local = re.search(r"\+(?P<build>[a-z0-9.]+)", str(requirement.specifier))
    specifier = re.sub(r"\+[a-z0-9.]+", "", str(requirement.specifier))
    if name == "torch":
        requests.pin("pytorch", specifier, where)
        if local:
            _read_build(local["build"], where, requests)
        return
    exact = re.fullmatch(r"===?([^,*]+)", specifier)
    if name in _COMPILED:
        _compile(text, name, exact[1] if exact else "", where, requests)
        return
    if re.match(r"nvidia-.*-cu\d+$|triton$|pytorch-triton$", name):
        requests.leave(where, text, "torch brings the one that it was built with")
        return
    if local:
        requests.note(where, f"`{name}{specifier}` stands for `{text}`: which build fits is for the lock")
    kept = Requirement(str(requirement).replace(str(requirement.specifier), specifier) if local else text)
    requests.package(name, str(kept), where)


def _read_build(build: str, where: str, requests: Requests) -> None:
    """cu113 → CUDA 11.3; cpu → no GPU."""
    if found := re.fullmatch(r"cu(\d+)(\d)", build):
        requests.pin("cuda", f"=={found[1]}.{found[2]}", where)
    elif build == "cpu" and requests.gpus is None:
        requests.gpus = ()
    elif build != "cpu":
        requests.leave(where, f"+{build}", "a build of torch that envbuilder does not offer")


def _compile(text: str, name: str, version: str, where: str, requests: Requests) -> None:
    """Make an extension of a package that has no wheel for every torch."""
    module = name.replace("-", "_")
    if not version:
        hint = f"extensions: [{{name: {module}, sdist: {module}==VERSION}}]"
        requests.leave(where, text, "it has CUDA sources, and needs a version", hint=hint)
        return
    sdist = f"{module}=={version}"
    requests.extensions[module] = Extension(name=module, sdist=sdist, env=(("FORCE_CUDA", "1"),))
    requests.note(
        where, f"`{name}=={version}` is an extension: it is compiled from its sdist for the recipe's GPUs"
    )


def _leave_project(text: str, where: str, requests: Requests, *, name: str = "") -> None:
    """Leave out a project that pip would build. The hint is an extension for it."""
    plain = text.partition("#")[0]
    named = re.search(r"[#&]egg=([\w.-]+)", text)
    url = re.fullmatch(r"git\+((?:https?|ssh|file)://.+?)(?:@([^@/]+))?", plain)
    if url:
        module = (name or (named[1] if named else Path(url[1]).stem)).replace("-", "_").lower()
        commit = url[2] if url[2] and re.fullmatch(r"[0-9a-f]{40}", url[2]) else "the 40 digits of a commit"
        why = "a git repository is no requirement of a recipe"
        hint = f"if it has C++ or CUDA sources: extensions: [{{name: {module}, git: {url[1]}, commit: {commit}}}]"
    elif re.match(r"https?://", plain):
        why, hint = (
            "a file at one address",
            "name the package and its version; `ENVBUILDER_FOLDERS` serves files",
        )
    elif plain.rstrip("/") in (".", ""):
        why = "the environment holds what a project needs, and not the project itself"
        hint = "set `env: {PYTHONPATH: …}`, or make it an extension with `path` if it has C++ or CUDA sources"
    else:
        why = "a folder of a project"
        hint = f"if it has C++ or CUDA sources: extensions: [{{name: NAME, path: {plain.removeprefix('file:').removeprefix('./')}}}]"
    requests.leave(where, text, why, hint=hint)
