"""Read a Dockerfile, a definition file of Apptainer, and a shell script: the base, the variables, and what the commands install.

Every other instruction and section is left out with a reason.
"""

import io
import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from dockerfile_parse import DockerfileParser

from envbuilder.core.errors import UsageError
from envbuilder.init import shell_lines
from envbuilder.init.requests import Requests, read_text
from envbuilder.recipe.requirement_file import LONGEST_LINE

_INSTRUCTIONS: Final = {
    "COPY": shell_lines.NO_CODE,
    "ADD": shell_lines.NO_CODE,
    "WORKDIR": "the folder is yours when it runs",
    "USER": "who runs it is who it runs as",
    "ENTRYPOINT": shell_lines.STARTED,
    "CMD": shell_lines.STARTED,
    "VOLUME": "folders are bound when it runs",
    "EXPOSE": "ports are opened when it runs",
    "SHELL": shell_lines.NO_COMMANDS,
    "HEALTHCHECK": "a job is watched by its launcher",
}
_SECTIONS: Final = {
    "runscript": shell_lines.STARTED,
    "startscript": shell_lines.STARTED,
    "apprun": shell_lines.STARTED,
    "setup": shell_lines.NO_COMMANDS,
    "test": "a recipe has `tests` of its own",
    "appinstall": shell_lines.NO_COMMANDS,
    "appenv": "a recipe's variables hold for the whole environment",
}
_REGISTRIES: Final = ("docker", "docker-daemon", "library", "oras")  # bootstraps whose `From:` names an image
_DOCUMENT: Final = re.compile(r"(?<!<)<<(-?)([\"']?)([A-Za-z_]\w*)\2")  # the beginning of a here-document
_SHELL: Final = re.compile(r"(\S*/)?(ba|da)?sh( -\w+)*")
# The commands of a loop or a function may run or not.
_FLOW: Final = re.compile(r"^\s*(if|for|while|until|case|function)\b|^\s*\w+ ?\(\)", re.MULTILINE)


def read_dockerfile(path: Path, requests: Requests) -> None:
    """Read every instruction; raises UsageError for what cannot be read."""
    arguments: dict[str, str] = {}
    copied = shell_lines.Copied(context=path.parent, top=requests.top)
    text, documents = _without_documents(read_text(path))
    parts = DockerfileParser(fileobj=io.BytesIO(text.encode())).structure
    if not any(part["instruction"] == "FROM" for part in parts):
        raise UsageError(f"`{path}` has no `FROM`: it is no Dockerfile")
    for part in parts:
        where = f"{path}:{part['startline'] + 1}"
        name, value = str(part["instruction"]), _filled(str(part["value"]), arguments)
        match name:
            case "COMMENT" | "LABEL" | "MAINTAINER":
                pass
            case "FROM":
                shell_lines.read_base(value, where, requests)
            case "ARG":
                for word in shell_lines.split_words(value):
                    key, sign, default = word.partition("=")
                    # A stage that only names it has the value from above the first FROM.
                    if sign or key not in arguments:
                        arguments[key] = default
            case "ENV":
                arguments |= shell_lines.read_variables(value, where, requests)
            case "RUN":
                folder = copied.folder
                if script := _script(value, documents.get(part["startline"], "")):
                    value = _filled(script, arguments)
                shell_lines.read_run(value, where, requests, copied)
                copied.folder = folder  # each RUN is a shell of its own
            case _:
                if name == "WORKDIR":
                    copied.enter(value)
                elif name in ("COPY", "ADD"):
                    copied.copy(value)
                why = _INSTRUCTIONS.get(name, "not an instruction that is read")
                requests.leave(where, f"{name} {value}".strip(), why)
    copied.report(requests)


def _without_documents(text: str) -> tuple[str, dict[int, str]]:
    """Turn the lines of here-documents into comments. Returns each document by the number of its instruction's line."""
    lines, documents = text.split("\n"), dict[int, str]()
    start = at = 0
    while at < len(lines):
        words, at = lines[at].strip(), at + 1
        if words.startswith("#") or words.endswith("\\"):
            continue
        for begin in _DOCUMENT.finditer("\n".join(lines[start:at])):
            rest = (line.lstrip("\t") if begin[1] else line for line in lines[at:])
            length = next((count for count, line in enumerate(rest) if line == begin[3]), None)
            if length is not None:
                documents[start] = "\n".join(lines[at : at + length])
                lines[at : at + length + 1] = ["#"] * (length + 1)
                at += length + 1
        start = at
    return "\n".join(lines), documents


def _script(value: str, document: str) -> str:
    """Return the commands of a RUN that hands its here-document to a shell, "" if it does not or if they branch."""
    first, _, _ = document.partition("\n")
    program = _DOCUMENT.sub("", re.sub(r"--\w+=\S+\s*", "", value)).strip()
    if not program and first.startswith("#!"):
        program = first[2:].strip()
    if _FLOW.search(document) or (program and not _SHELL.fullmatch(program)):
        return ""
    lines = (line for line in document.split("\n") if not line.lstrip().startswith("#"))
    return "\n".join(lines).replace("\\\n", " ")


def _filled(text: str, arguments: dict[str, str]) -> str:
    """Replace the variables of ENV, and the ARGs that have a default. Raises ValueError for a text without an end."""
    left = LONGEST_LINE

    def fill(variable: re.Match[str]) -> str:
        nonlocal left
        value = arguments.get(variable[1] or variable[2]) or variable[0]
        left -= len(value)
        if left < 0:  # a variable of itself doubles with each line
            raise ValueError(f"its variables make a line of more than {LONGEST_LINE} characters")
        return value

    return re.sub(r"\$(?:\{(\w+)(?::-[^}]*)?\}|(\w+))", fill, text)


def read_script(path: Path, requests: Requests) -> None:
    """Read what a shell script installs."""
    shell_lines.read_script(_without_documents(read_text(path))[0], path, requests)


def read_definition(path: Path, requests: Requests) -> None:
    """Read every section; raises UsageError for a file without a `Bootstrap:` header."""
    sections, bootstrap = _read_heads(path, requests)
    if not bootstrap:
        raise UsageError(f"`{path}` has no `Bootstrap:`: it is no definition file")
    copied = shell_lines.Copied(context=path.parent)
    # Apptainer runs them in this order, wherever they stand.
    for where, text in sections["files"]:
        copied.copy(text if len(text.split()) > 1 else f"{text} {text}")
        requests.leave(where, f"%files {text}", shell_lines.NO_CODE)
    for where, text in sections["environment"]:
        if "=" in text:
            shell_lines.read_variables(re.sub(r"^export\s+", "", text), where, requests, word="")
    start, command = "", ""
    for where, text in (*sections["post"], ("", "")):  # an empty last line ends what a backslash continues
        start = start if command else where
        command += text.removesuffix("\\")
        if text.endswith("\\"):
            command += " "
        else:
            shell_lines.read_run(command, start, requests, copied, word="")
            command = ""
    copied.report(requests)


def _read_heads(path: Path, requests: Requests) -> tuple[dict[str, list[tuple[str, str]]], str]:
    """Read the base of each stage, and leave out the sections that no recipe can hold.

    Returns the lines of the sections, each with its place, and the last bootstrap.
    """
    sections = defaultdict[str, list[tuple[str, str]]](list)
    section = bootstrap = ""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        where, text = f"{path}:{number}", line.strip()
        key, _, value = (part.strip() for part in text.partition(":"))
        if key.lower() == "bootstrap":  # the next stage
            section, bootstrap = "", value.lower()
            if bootstrap not in _REGISTRIES and bootstrap != "debootstrap":
                requests.leave(where, text, "what is in this base cannot be told from its name")
        elif text.startswith("%"):
            words = text[1:].lower().split()
            section = " ".join(words) if words[1:2] == ["from"] else "".join(words[:1])
            if section in _SECTIONS:
                requests.leave(where, text, _SECTIONS[section])
        elif section and text and not text.startswith("#"):
            sections[section].append((where, text))
        elif not section and key.lower() == "from" and bootstrap in _REGISTRIES:
            shell_lines.read_base(value.partition("#")[0].strip(), where, requests)
    return sections, bootstrap
