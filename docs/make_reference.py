"""Make the pages of `docs/reference` from the code: commands, recipe keys, codes, exit codes, JSON, settings."""

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import typer
import typer.core
from pydantic import TypeAdapter

import envbuilder
from envbuilder import cli
from envbuilder.commands import COMMANDS
from envbuilder.commands import GROUPS as HEADINGS
from envbuilder.compat.check import Tables, load_tables
from envbuilder.compat.tables.toolkit import SOURCES, all_releases, load_toolkits
from envbuilder.core import errors
from envbuilder.core.findings import CodeEnum, Finding
from envbuilder.core.processor import AARCH64
from envbuilder.diagnose.catalogue import load_catalogue, load_messages
from envbuilder.plan import shell
from envbuilder.recipe import model as schema

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "envbuilder"
# Options that every command has: described once.
COMMON: Final = ("as_json", "verbose", "no_color", "help")
GROUPS: Final = {
    "1": ("The recipe as a file", "Exit code 2, where it is an error."),
    "2": ("What was typed or written", "Exit code 2."),
    "3": (
        "Pins that cannot work together",
        "Exit code 3, where it is an error; a warning lets a build go on.",
    ),
    "4": ("The lock", "Exit code 4."),
    "5": ("Downloads and registries", "Exit code 5."),
    "6": ("Builds and extensions", "Exit code 6, where it is an error."),
    "7": (
        "What was built",
        "Exit code 7, where it is an error. [Verify](../how-to/verify.md) says which are warnings.",
    ),
    "8": (
        "Tools, machines and jobs",
        "Exit code 8 for a tool, 9 for a job; `doctor` and `launch lint` only tell.",
    ),
    "0": ("Anything else", "Exit code 1."),
}
EXIT_CODES: Final = {
    0: "done",
    1: "unexpected error: a bug in envbuilder",
    2: "a mistake in what you typed or in a recipe",
    3: "pins that cannot work together",
    4: "the lock is missing or stale",
    5: "a download failed, or a source refused it",
    6: "a build step failed, or the disk is full",
    7: "verification failed: the artifacts differ from the plan",
    8: "a required program is missing or too old",
    9: "a job could not be started, failed, or hangs",
    10: "`diagnose` knows no failure in these logs",
    130: "interrupted",
}
KEEP_SETTING: Final = (
    "a folder in which a job keeps what torch.compile, Triton and Numba compile, for `warm: {caches: […]}`"
)
SHELL_SETTING: Final = "`quiet`: no line on stderr names the [variables of your shell](shell.md) that are left out; `off`: all of them are passed"
SETTINGS: Final = {
    "ENVBUILDER_CACHE": "the cache folder; `~/.cache/envbuilder` if unset",
    "ENVBUILDER_CACHE_LIMIT": "what the cache may take after a build, `20GB`, or `none`; if unset, a quarter of what is free without it,"
    " at most 50 GB",
    "ENVBUILDER_SITE": "the site profile of `exec`, `launch` and `build --on slurm`",
    "ENVBUILDER_RECIPES": "the folder of recipes; `recipes` if unset",
    "ENVBUILDER_DEBIAN_MIRROR": "Debian mirrors, separated by spaces; if unset, those of this machine's apt, otherwise `ftp.debian.org`",
    "ENVBUILDER_DEBIAN_SECURITY": "mirrors of Debian's security archive; if unset, those of this machine's apt, otherwise"
    " `…/debian-security` beside a mirror `…/debian`",
    "ENVBUILDER_DEBIAN_KEYRING": "the keys that sign these mirrors; Debian's if unset, which envbuilder brings",
    "ENVBUILDER_DEBIAN_SNAPSHOT": "an archive with Debian as it was on each day, for `lock --before` and for packages that the mirrors"
    " have dropped; `snapshot.debian.org` if unset, none if empty",
    "ENVBUILDER_UBUNTU_MIRROR": "Ubuntu mirrors, separated by spaces; if unset, those of this machine's apt, otherwise"
    " `archive.ubuntu.com`",
    "ENVBUILDER_UBUNTU_KEYRING": "the keys that sign these mirrors; Ubuntu's if unset, which envbuilder brings",
    "ENVBUILDER_UBUNTU_SNAPSHOT": "an archive with Ubuntu as it was on each day, for `lock --before`; `snapshot.ubuntu.com` if unset,"
    " none if empty",
    "ENVBUILDER_UBUNTU_FILES": "an address below which lies every file that Ubuntu published, for packages that the mirrors have"
    " dropped; Launchpad's if unset, none if empty",
    "ENVBUILDER_INDEX": "Python package indexes, separated by spaces; if unset, those of uv or pip",
    "ENVBUILDER_PYTORCH_INDEX": "the parent of PyTorch's own indexes (`cpu`, `cu126`, …)",
    "UV_PYTHON_INSTALL_MIRROR": "the parent of python-build-standalone's releases; if unset, uv's mirror and GitHub",
    "ENVBUILDER_CUDA_REDIST": "a mirror of NVIDIA's archive of CUDA components, or a folder with its files; NVIDIA's own if unset, none if"
    " empty",
    "ENVBUILDER_APT_MIRRORS": "`NAME=ADDRESS`, separated by spaces: mirrors of a recipe's or an image's apt repositories",
    "ENVBUILDER_CONDA_MIRRORS": "`NAME=ADDRESS`, separated by spaces: mirrors of a recipe's conda channels, by their names in the lock",
    "HF_ENDPOINT": "a mirror of the Hugging Face hub, for `kernels`; the hub itself if unset",
    "ENVBUILDER_REGISTRY": "the registry that `push` and `pull` use for the name of a recipe: `registry.site.org/team`",
    "ENVBUILDER_REGISTRY_MIRRORS": "`REGISTRY=MIRROR/FOLDER`, separated by spaces: mirrors to ask before a registry",
    "ENVBUILDER_VERSIONS": "how many versions of a SIF its folder keeps, for `history`; 1 if unset: no earlier one",
    "ENVBUILDER_EXTENSION_STORE": "`registry.site.org/team/extensions`: where `build` looks for compiled extensions and built wheels, and"
    " puts its own",
    "ENVBUILDER_LAYER_STORE": "the same for whole layers",
    "ENVBUILDER_STORE_KEY": "a PEM key: the public one reads what it signed from both stores, the private one also adds to them; `none`"
    " believes the registry; if unset, the stores are not used",
    "ENVBUILDER_JOB": "the job that a process belongs to; `launch` sets it, and `watch` finds the processes by it",
    "ENVBUILDER_KEY": "the public key of `pull --key`",
    "ENVBUILDER_KEY_PASSPHRASE": "the passphrase of the private key of `sign` and `push --sign`; a terminal asks for it",
    "ENVBUILDER_REGISTRY_HTTP": "registries without TLS, separated by spaces; those on loopback need not be named",
    "ENVBUILDER_SHELL": SHELL_SETTING,
    "ENVBUILDER_KEEP_COMPILED": KEEP_SETTING,
    "ENVBUILDER_FOLDERS": "folders of wheels and .debs, and OCI layouts of base images, separated by `:`; if unset, pip's find-links",
}
SETTINGS_INSIDE: Final = {
    "ENVBUILDER_EXTENSIONS": "what `load()` does when the image holds another version of the code: `error`, `build` (compile it) or"
    " `off` (torch alone); if unset, `error` in a read-only image and `build` elsewhere",
    "ENVBUILDER_NCCL": "`explain`: print facts, settings and reasons when torch is imported; `off`: leave NCCL alone",
    "ENVBUILDER_KEEP_COMPILED": KEEP_SETTING,
    "ENVBUILDER_DEBUG": "`1`: print what was done and why",
    "ENVBUILDER_START": "`off`: start Python without anything of envbuilder",
    "ENVBUILDER_SHELL": SHELL_SETTING,
    "ENVBUILDER_WHOLE_LINES": "if set, Python writes each line at its end, and SIGRTMAX prints its stacks; `launch` sets it for"
    " its ranks",
}
SHELL_RULES: Final[Mapping[shell.Rule, str]] = {
    "always": "left out",
    "program": "left out unless the first word is a program of the image",
    "flags": "left out if a folder in it is neither of the image nor of your project, or a host compiler is not of the image",
    "path": "left out unless it is a file or folder of the image",
    "there": "left out unless it is there",
    "list": "folders that are there but belong neither to the image nor to your project are left out of it",
    "fixed": "set to `1`",
    "passed": "not touched",
}
SCHEMA: Final = "answers.schema.json"
ENVELOPE: Final = {
    "version": "of this form; it changes when a key is taken away or means something else",
    "command": "the command that answers",
    "status": "`ok`, or `failed` where the exit code is not 0",
    "exit_code": "what the process ends with",
    "data": "what the command found or made; its keys are those of the command. After a failure with a log: its path",
    "findings": "errors and warnings; a failure has at least one",
}
FINDING: Final = {
    "code": "stable; [codes](codes.md) lists them",
    "severity": "`error` or `warning`",
    "where": "`file:line:column`, a path, or empty",
    "message": "what was expected and what was found",
    "hint": "what to do, or empty",
}


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    return {
        "commands.md": commands(),
        "recipe.md": recipe_keys(),
        "pins.md": pins(),
        "codes.md": codes_page(),
        "exit-codes.md": exit_codes(),
        "json.md": envelope(),
        "settings.md": settings(),
        "shell.md": shell_page(),
    }


def made(title: str, source: str) -> list[str]:
    return [f"# {title}", "", f"Made from {source}.", ""]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table. A bar in a cell is escaped: it would end the cell."""
    lines = [f"| {' | '.join(head)} |", "|" + ":--|" * len(head)]
    return [
        *lines,
        *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows),
        "",
    ]


# ---------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A command without sub-commands. `answer` is the type of its data under `--json`, or None where it has none."""

    name: str
    summary: str
    command: typer.core.TyperCommand
    examples: tuple[str, ...]
    answer: object


def leaves() -> tuple[Leaf, ...]:
    return tuple(sorted((leaf for name in COMMANDS for leaf in _leaves(name)), key=lambda leaf: leaf.name))


def _leaves(name: str) -> Iterator[Leaf]:
    command = cli.load_command(name)
    found = {name: (COMMANDS[name], command)}
    if isinstance(command, typer.core.TyperGroup):
        below = command.commands.items()
        found = {f"{name} {inner}": (one.get_short_help_str(limit=200), one) for inner, one in below}
    for label, (summary, one) in found.items():
        function = one.callback
        yield Leaf(
            name=label, summary=summary, command=one, examples=function.examples, answer=function.answer
        )


def commands() -> str:
    lines = made("Commands", "the command line itself")
    lines += [
        "Every command takes `-v` (show each command that is run; twice: its output as well), `--no-color` and `-h`.",
        "All but three take `--json` and answer with [one envelope](json.md). Data goes to stdout, everything else to stderr.",
        "A command ends with one of these [exit codes](exit-codes.md).", "",
    ]  # fmt: skip
    every = leaves()
    for heading, names in HEADINGS.items():
        group = sorted(
            (leaf for leaf in every if leaf.name.split()[0] in names),
            key=lambda leaf: [*names].index(leaf.name.split()[0]),
        )
        lines += table((heading.lower(), "what it does"), [
            [f"[`{leaf.name}`](#envbuilder-{leaf.name.replace(' ', '-')})", _prose(leaf.summary)] for leaf in group
        ])  # fmt: skip
    lines += [
        "`envbuilder --install-completion` completes commands, options, their fixed values and recipes in bash, zsh and fish.",
        "It takes the shell that it is called from, or the one that you name: `envbuilder --install-completion zsh`.",
        "",
    ]
    for leaf in every:
        lines += _one_command(leaf)
    return "\n".join(lines)


def _one_command(leaf: Leaf) -> list[str]:
    name, command = leaf.name, leaf.command
    context = typer.Context(command, info_name=f"envbuilder {name}")
    params = [one for one in command.get_params(context) if not getattr(one, "hidden", False)]
    lines = [
        f"## envbuilder {name}",
        "",
        "```text",
        _plain(" ".join([f"envbuilder {name}", *command.collect_usage_pieces(context)])),
        "```",
        "",
    ]
    lines += [_prose(command.help or ""), ""]
    if not any(one.name == "as_json" for one in params):
        lines += ["Has no `--json`: the output is the program's own.", ""]
    records = [one.get_help_record(context) for one in params if one.name not in COMMON]
    rows = [[f"`{_plain(words)}`", _prose(told)] for words, told in filter(None, records)]
    lines += table(("argument or option", ""), rows) if rows else []
    lines += ["```sh", *leaf.examples, "```", ""]
    return lines


def _plain(words: str) -> str:
    """Remove the parser's marks: braces around required words, and the type of a text. `…` marks what may be repeated."""
    bare = re.sub(r" <(?:list\[)?str\]?>|[{}]", "", re.sub(r"…?([\]}])\.\.\.", r"\1…", words))
    return re.sub(r"\[(\[.*\])\]", r"\1", bare)


def _prose(text: str) -> str:
    """Return help as Markdown: one line, with `<` escaped."""
    return " ".join(text.replace("\b", "").split()).replace("<", "&lt;")


# ------------------------------------------------------------------------------------------------------ recipe


def recipe_keys() -> str:
    whole = schema.make_schema()
    properties = _properties(whole)
    extension = properties["extensions"]["items"]
    source = next(one for one in properties["apt_sources"]["items"]["anyOf"] if "properties" in one)
    needed = whole["else"]["required"]
    lines = made(
        "The keys of a recipe",
        "`envbuilder/recipe/model.py` and the tables of `envbuilder/compat/tables`",
    )
    lines += [
        f"Editors check them while you type: `recipes/{schema.SCHEMA_FILE}` is a JSON schema, and the line `{schema.MODELINE}` at the top of a recipe",
        "names it. Unknown keys are errors, each with the nearest key that is known. A recipe that `extends` another may leave out what that one has.", "",
    ]  # fmt: skip
    lines += table(("key", "needed", "is", ""), [_key(name, one, needed) for name, one in properties.items()])
    lines += ["## An apt source", "", "`nvidia/…`, or a map:", ""]
    lines += table(
        ("key", "needed", "is", ""),
        [_key(name, one, source["required"]) for name, one in _properties(source).items()],
    )
    index = properties["indexes"]["items"]
    lines += ["## An index", "", "Each needs `url` or `find_links`.", ""]
    lines += table(
        ("key", "needed", "is", ""),
        [_key(name, one, index["required"]) for name, one in _properties(index).items()],
    )
    lines += [
        "## An extension",
        "",
        "Each needs `name`, and one of `sources`, `path`, `git` with `commit`, or `sdist`.",
        "",
    ]
    inner = _properties(extension)
    lines += table(
        ("key", "is", ""),
        [[*_key(name, one, ())[:1], *_key(name, one, ())[2:]] for name, one in inner.items()],
    )
    return "\n".join(lines)


def pins() -> str:
    """Return the page of all values that the pins of a recipe may have."""
    tables = load_tables()
    suites = [
        [f"`{base.name}`", base.python, ", ".join(base.gccs), base.libxcrypt, base.glibc, _with_wheels(base.python, tables)]
        for base in tables.distributions.rows
    ]  # fmt: skip
    toolkits = [
        [
            cuda.cuda, *(_releases(cuda.cuda, source) for source in SOURCES), f"{cuda.gcc_min} to {cuda.gcc_max}",
            cuda.glibc_below and f"below {cuda.glibc_below}", cuda.driver_floor,
        ]
        for cuda in tables.cudas.rows if any(_releases(cuda.cuda, source) for source in SOURCES)
    ]  # fmt: skip
    gpus = [
        [f"`{gpu.name}`", gpu.capability, able[0], able[-1], AARCH64.title if gpu.arm_host else ""]
        for gpu in tables.gpus.rows if (able := [cuda.cuda for cuda in tables.cudas.rows if cuda.can_target(gpu.capability)])
    ]  # fmt: skip
    torches = [
        [torch.version, torch.pypi, torch.aarch64.pypi if torch.aarch64 else "", ", ".join(build.name for build in torch.other_builds), ", ".join(torch.pythons), torch.glibc]
        for torch in tables.torches.rows
    ]  # fmt: skip
    lines = made("What the pins can be", "the tables of `envbuilder/compat/tables`")
    lines += [
        "`envbuilder check` tells which of these go together, and the nearest that do. Any other gcc or CUDA comes with an image to stand on,",
        "[`base: {image: …}`](../how-to/base.md).", "",
        "## Suites", "",
        *table(("`base`", "`python`", "`gcc`", "libxcrypt", "glibc", "`pytorch` with wheels for this Python"), suites),
        f"Other Pythons are standalone builds, on any base: {', '.join(tables.standalones.by_name)}.", "",
        "## CUDA", "",
        "`lock` takes the first of the sources that this machine reaches, in the order of the columns. A release that is not in them is in an image only.",
        "That of NVIDIA's apt needs [`apt_sources: [nvidia/ubuntu2004]`](../how-to/recipes.md#add-apt-repositories).", "",
        *table(("`cuda`", "NVIDIA's archive", "wheels", "Debian", "NVIDIA's apt", "takes gcc", "takes glibc", "runs from driver"), toolkits),
        "## GPUs", "",
        *table(("`gpus`", "capability", "first `cuda` that compiles for it", "the last", "only beside"), gpus),
        *(f"`{gpu.name}` is refused: {gpu.refused}." for gpu in tables.refused_gpus.rows), "",
        "## PyTorch", "",
        "The package index has one build of each release for a processor; the others, and those for the CPU, are in PyTorch's own index.",
        "All but the third column is of the wheels for x86-64.", "",
        *table(("`pytorch`", "the package index's build", "its build for 64-bit Arm", "other builds", "`python`", "glibc from"), torches),
    ]  # fmt: skip
    return "\n".join(lines)


def _releases(cuda: str, source: str) -> str:
    """Return the releases of a CUDA that a source has."""
    layouts = [row for row in load_toolkits().rows if row.source == source]
    return ", ".join(one for one in all_releases(layouts) if one.startswith(f"{cuda}."))


def _with_wheels(python: str, tables: Tables) -> str:
    versions = [row.version for row in tables.torches.rows if python in row.pythons]
    return f"{versions[0]} to {versions[-1]}"


def _properties(one: Mapping[str, object]) -> dict[str, dict[str, object]]:
    return dict(one["properties"])


def _key(name: str, one: Mapping[str, object], needed: Sequence[str]) -> list[str]:
    return [f"`{name}`", "yes" if name in needed else "", _shape(one), str(one.get("description", ""))]


def _shape(one: Mapping[str, object]) -> str:
    """Describe the shape of a value, in the words of the JSON schema."""
    if several := one.get("anyOf"):
        return ", or ".join(dict.fromkeys(_shape(each) for each in several))
    if several := one.get("allOf"):
        return _shape(several[-1])
    if one.get("type") == "array":
        items = one.get("items") or {}
        return "a list of extensions" if "properties" in items else f"a list; each: {_shape(items)}"
    if one.get("type") == "object":
        keys = one.get("properties")
        return f"a map with {', '.join(f'`{key}`' for key in keys)}" if keys else "a map of names and texts"
    return str(one.get("patternErrorMessage", "")).removeprefix("expected ")


# ------------------------------------------------------------------------------------------------------- codes


def codes() -> dict[str, tuple[str, str]]:
    """Return every code with its name and what it means."""
    for module in pkgutil.walk_packages(envbuilder.__path__, "envbuilder."):
        if not module.name.startswith(("envbuilder.runtime", "envbuilder.steps.", "envbuilder.__main__")):
            importlib.import_module(module.name)
    found = {
        str(code): (code.name.lower().replace("_", " "), code.meaning)
        for kind in CodeEnum.__subclasses__()
        for code in kind
    }
    found |= {kind.code: (kind.__name__, _meaning(kind)) for kind in _errors(errors.EnvbuilderError)}
    for row in load_messages():
        if row.build:
            found[row.build.code] = ("", re.sub(r"`?\{(\w+)\}`?", r"*\1*", row.build.message))
    return dict(sorted(found.items()))


def _meaning(kind: type[errors.EnvbuilderError]) -> str:
    sentence = str(kind.__doc__).rstrip(".")
    return sentence[0].lower() + sentence[1:]


def _errors(kind: type[errors.EnvbuilderError]) -> Iterator[type[errors.EnvbuilderError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _errors(below)


def codes_page() -> str:
    lines = made(
        "Codes", "the code, `envbuilder/core/errors.py` and `envbuilder/diagnose/catalogue/build.yaml`"
    )
    lines += [
        "Every finding has a code that stays. `--json` gives it as `code`; people see it in brackets: `error[EB315]: …`.",
        "Codes from EB805 to EB809, from EB837 to EB840, from EB842 to EB849, from EB851 to EB867 and from EB898 are",
        "failures that `diagnose` knows; they have [a page each](../diagnose/README.md).", "",
    ]  # fmt: skip
    known = codes()
    for first, (title, note) in GROUPS.items():
        rows = [[f"`{code}`", *told] for code, told in known.items() if code[2] == first]
        lines += [f"## {title}", "", note, "", *table(("code", "about", ""), rows)]
    lines += [
        "## In logs",
        "",
        f"`diagnose` knows {len(load_catalogue())} failures: [the list](../diagnose/README.md).",
        "",
    ]
    return "\n".join(lines)


# --------------------------------------------------------------------------------- exit codes, JSON, settings


def exit_codes() -> str:
    kinds: list[type[errors.EnvbuilderError]] = [
        errors.EnvbuilderError,
        *errors.EnvbuilderError.__subclasses__(),
    ]
    lines = made("Exit codes", "`envbuilder/core/errors.py` and `EXIT_CODES` of `docs/make_reference.py`")
    lines += table(("exit code", "means", "codes"), [
        [str(number), words, ", ".join(f"`{kind.code}`" for kind in kinds if kind.exit_code == number and number)]
        for number, words in EXIT_CODES.items()
    ])  # fmt: skip
    lines += [
        "`exec`, `launch ssh` and `launch local` end with the exit code of the program that they run.",
        "A program that the environment lacks gives 127, and one that may not be run 126, as in a shell.",
        "If a machine cannot be reached or is not ready, `launch` starts no rank and ends with 9.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def envelope() -> str:
    error = errors.UsageError("there is no recipe `x`")
    whole = cli.make_envelope("check", cli.failed(error), error).model_dump()
    finding = whole["findings"][0]
    assert (list(whole), list(finding)) == (list(ENVELOPE), list(FINDING))
    lines = made("JSON", "the envelope that `envbuilder/cli.py` prints")
    lines += ["With `--json` stdout is one object, whatever happens, a wrong option included:", ""]
    lines += table(("key", ""), [[f"`{key}`", words] for key, words in ENVELOPE.items()])
    lines += ["Each finding is an object:", ""]
    lines += table(("key", ""), [[f"`{key}`", words] for key, words in FINDING.items()])
    lines += [
        "## The data of each command",
        "",
        f"[{SCHEMA}]({SCHEMA}) is a JSON schema of every answer. After a failure `data` is null, or has the path of the log as `log`.",
        "",
    ]
    lines += table(("command", "data", "keys"), list(_answer_rows()))
    lines += ["[Use it from a script](../how-to/scripts.md) shows it at work.", ""]
    return "\n".join(lines)


def answers_schema() -> dict[str, Any]:
    """Return the JSON schema of every answer: the envelope, and the data of each command."""
    answers = {leaf.name: leaf.answer for leaf in leaves() if leaf.answer is not None}
    known = {**answers, "finding": Finding, "log": cli.FailureLog}
    schemas, definitions = TypeAdapter.json_schemas(
        [(name, "validation", TypeAdapter(kind)) for name, kind in known.items()],
        ref_template="#/$defs/{model}",
    )
    finding = definitions["$defs"]["Finding"]
    finding["required"] = list(finding["properties"])  # an answer has all of them, whatever their defaults
    log, nothing = schemas["log", "validation"], {"type": "null"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The answer of an envbuilder command under --json",
        "type": "object",
        "properties": {
            "version": {"const": cli.ENVELOPE_VERSION},
            "command": {"type": "string"},
            "status": {"enum": ["ok", "failed"]},
            "exit_code": {"type": "integer"},
            "data": True,
            "findings": {"type": "array", "items": schemas["finding", "validation"]},
        },
        "required": list(ENVELOPE),
        "additionalProperties": False,
        "allOf": [
            {
                "if": {"properties": {"command": {"const": name}}},
                "then": {"properties": {"data": {"anyOf": [schemas[name, "validation"], log, nothing]}}},
            }
            for name in answers
        ],
        **definitions,
    }


def _answer_rows() -> Iterator[list[str]]:
    """Yield each command, the meaning of its data, and the keys."""
    for leaf in leaves():
        for kind in get_args(leaf.answer) or ([leaf.answer] if leaf.answer else []):
            (row,) = (
                get_args(kind.model_fields["root"].annotation)[:1] if "root" in kind.model_fields else (kind,)
            )
            keys = [one.alias or name for name, one in getattr(row, "model_fields", {}).items()]
            several = "each with " if row is not kind and keys else ""
            yield [
                f"`{leaf.name}`",
                " ".join((kind.__doc__ or "").split()),
                several + ", ".join(f"`{key}`" for key in keys),
            ]


def shell_page() -> str:
    lines = made("Variables of your shell", "`envbuilder/plan/shell.toml`")
    lines += [
        "What becomes of them in a SIF, however it is started. One line on stderr, once a job, names what was left out; rows with \\* are",
        "left out without it. `apptainer exec --env NAME=VALUE`, `APPTAINERENV_NAME` and `envbuilder exec --env NAME` pass a variable",
        "on purpose. A variable of the recipe or its image wins over your shell's. `ENVBUILDER_SHELL=quiet` hides the line, and",
        "`ENVBUILDER_SHELL=off` passes everything.", "",
        "`envbuilder exec`, `launch`, modules and SSH sessions leave out what is left out always, and compilers, before they start",
        "Apptainer: it is a program of your machine, too, and older SIFs leave out nothing.", "",
        "Docker passes no variable of your shell. If you pass one to an image, it is left out by its entry point only if the rule is about",
        "the image and it names what is not there.", "",
    ]  # fmt: skip
    rows = [
        (
            ", ".join(f"`{name}`" for name in row.names),
            row.harm,
            SHELL_RULES[row.rule] + (" \\*" if row.quiet else ""),
            row.why,
        )
        for row in shell.load_rows()
    ]
    return "\n".join([*lines, *table(("variables", "harm", "what happens", "why"), rows)])


def settings() -> str:
    lines = made(
        "Settings", "`SETTINGS` of `docs/make_reference.py`; a test compares its names with the code"
    )
    lines += ["Environment variables that envbuilder reads.", ""]
    for title, known in (("Outside", SETTINGS), ("Inside an environment", SETTINGS_INSIDE)):
        lines += [f"## {title}", ""]
        lines += table(("variable", "meaning"), [[f"`{name}`", words] for name, words in known.items()])
    return "\n".join(lines)
