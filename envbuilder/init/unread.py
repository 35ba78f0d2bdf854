"""Name each file of a project that says what it needs, and that `init` does not read, with the reason."""

import re
from pathlib import Path
from typing import Final

from envbuilder.core.places import Mistakes, load_text
from envbuilder.init.requests import Requests, read_text
from envbuilder.recipe.other_locks import find_locks

OURS: Final = re.compile(r".*Written by envbuilder")  # the first line of what `devcontainer` writes
# Environments of conda, by the names of their files.
ENVIRONMENTS: Final = (
    r"(?i:(?!.*(lock|build_config))(.+[-_.])?(conda|(conda)?env(ironment)?)\d*([-_.].+)?\.ya?ml)"
)
# Files that `--from` reads.
_READABLE: Final = re.compile(
    rf"(?i:.*dockerfile.*|(install|setup|env(ironment)?)\w*([-_]\w+)*\.sh)|.*\.def|{ENVIRONMENTS}|"
    r"(.+[-_.])?requirements?([-_.].*)?\.(txt|in|lock)|pixi\.toml|Pipfile"
)  # fmt: skip
# Names of other files, and why these are not read. The first row that fits counts.
_REASONS: Final = (
    (r"constraints?([-_.].*)?\.txt", "it has bounds alone, and the lock fixes every version"),
    (r"conda(-.*)?\.lock|.*explicit.*\.txt", "a list of files without dependencies; `conda-lock.yml` is read"),
    (r"pdm\.lock", "`pdm export --output requirements.txt` writes what is read"),
    (r"(?!Cargo|Gemfile|composer|yarn|mix).*\.lock", "the lock of a tool that `init` does not know"),
    (r"tox\.ini|noxfile\.py", "it has environments for tests"),
    (r"(meta|recipe|conda_build_config)\.ya?ml", "it builds a package of conda"),
    (r"(apt|packages|runtime)\.txt|Aptfile|postBuild|cog\.ya?ml", "a service reads it: `apt` and `packages` take what it lists"),
    (r"Singularity(file)?(\..*)?", "a definition file is read if its name ends in .def"),
    (r".*\.nix|(guix|manifest)\.scm|spack\.ya?ml|conanfile\..*|vcpkg\.json|MODULE\.bazel", "a recipe does not have its package manager"),
    (r"uv\.toml|poetry\.toml|hatch\.toml|pip\.conf|\.condarc", "it has settings of a tool"),
)  # fmt: skip
_PROSE: Final = re.compile(
    r"(?i:(README|INSTALL)(\.\w+)?|(GNU)?Makefile|justfile|Taskfile\.ya?ml|.*\.(ba)?sh)"
)
_INSTALL: Final = re.compile(
    r"^[ \t>$%@!-]*(?:[^#`\n]*(?:&&|;) *)?((?:sudo |(?:\S*/)?python3? -m |\$\S+ -m |uv )*(?:\S*/)?"
    r"(?:pip3?|conda|mamba|micromamba|pixi|poetry|pipenv|uv|apt|apt-get) (?:install|add) (.+))$",
    re.MULTILINE,
)  # fmt: skip


def name_unread(top: Path, read: set[Path], requests: Requests) -> None:
    """Report the files that are not read: at the top, and below it those that `--from` reads."""
    for path in sorted((*top.glob("*"), *top.glob("[!.]*/*"))):
        if not path.is_file() or not requests.holds(path) or path in read or path.resolve() in requests.read:
            continue
        is_list = path.parent.name == "requirements" and path.suffix in (".txt", ".in")
        if is_list or _READABLE.fullmatch(path.name) or find_locks([path]):
            if path.suffix or not OURS.match(read_text(path)):
                requests.note(str(path), "this file is not read", hint=f"`--from {path}` reads it")
        elif (path.parent == top or path.suffix == ".sh") and _PROSE.fullmatch(path.name):
            _name_commands(path, {file.name for file in read}, requests)
        elif path.parent == top and (why := reason(path)):
            requests.note(str(path), f"this file is not read: {why}")


def reason(path: Path) -> str:
    """Return why a file of this name is not read; "" for a name that says nothing of packages."""
    return next((why for names, why in _REASONS if re.fullmatch(names, path.name)), "")


def _name_commands(path: Path, read: set[str], requests: Requests) -> None:
    """Report the commands of a page or a Makefile that install anything but the project itself and the files that are read."""
    text = load_text(path, Mistakes()) or ""
    lines = []
    for line in _INSTALL.finditer(text):
        words = [word.strip("'\"") for word in line[2].split() if not word.startswith("-")]
        if any(Path(word).name not in read and not re.fullmatch(r"\.(\[.*\])?", word) for word in words):
            lines.append(line)
    if lines:
        where = f"{path}:{text[: lines[0].start(1)].count(chr(10)) + 1}"
        commands = ", ".join(f"`{line[1].strip()}`" for line in lines)
        hint = "`--from FILE.sh` reads a script of them"
        requests.note(where, f"these commands are not read: {commands}", hint=hint)
