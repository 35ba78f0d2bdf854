"""The chosen pins → the text of a recipe file, which the loader reads back."""

import json
import re
from collections.abc import Iterator, Sequence

from envbuilder.core.findings import Finding
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.model import MODELINE, Recipe
from envbuilder.recipe.packages import IMAGE_TORCH
from envbuilder.recipe.wheel_sources import index_entry

_WHY = {
    "gpus": "what extensions are compiled for, whatever GPU the building machine has",
    "base": "where the C library, the compilers and Python come from",
    "python": "the suite's own, otherwise a standalone build",
    "libxcrypt": "brings crypt.h, which the Python.h of some versions includes",
}

_IN_BRACKETS = r"[A-Za-z_][A-Za-z0-9_ ./:<>=+-]*"  # a channel's address, or a package of conda


def recipe_text(
    recipe: Recipe,
    sources: Sequence[str],
    left: Sequence[Finding],
    *,
    has_schema: bool = True,
    is_copy: bool = False,
) -> str:
    """Return the file, with the lines left out at its end. `has_schema`: its schema stands beside it; `is_copy`: files were read."""
    origin = f" from {', '.join(f'`{_one_line(source)}`' for source in sources)}" if sources else ""
    about = f"Versions stand in quotes; `envbuilder show {recipe.name}` explains them."
    head = [*([MODELINE] if has_schema else []), f"# Made by `envbuilder init`{origin}. {about}"]
    if is_copy:
        head.append("# Files are read once: later edits of them do not reach this recipe.")
    parts = ["\n".join(head), "\n".join(_pins(recipe)), *_lists(recipe)]
    if left:
        parts.append("\n".join(["# Not as it was written there:", *map(_comment, left)]))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _pins(recipe: Recipe) -> Iterator[str]:
    lines = {
        "summary": _plain(_summary(recipe)),
        "gpus": f"[{', '.join(map(_plain, recipe.gpus))}]" if recipe.gpus else "",
        "base": recipe.base or f"{{image: {_quoted(recipe.image)}}}",
        **{key: _quoted(getattr(recipe, key)) for key in ("python", "cuda", "gcc", "libxcrypt", "pytorch")},
        **({"pytorch": IMAGE_TORCH} if recipe.keeps_torch else {}),
    }
    for key, value in lines.items():
        if value and value != '""':
            line = f"{key}: {value}"
            yield f"{line:<24} # {_WHY[key]}" if key in _WHY else line


def _summary(recipe: Recipe) -> str:
    if recipe.keeps_torch:
        return f"the PyTorch of {recipe.image.partition('@')[0]}"
    if not recipe.gpus:
        return f"PyTorch {recipe.pytorch} for machines without a GPU"
    return f"PyTorch {recipe.pytorch} with CUDA {recipe.cuda} for {', '.join(recipe.gpus)}"


def _lists(recipe: Recipe) -> Iterator[str]:
    for key, items in (("packages", recipe.packages), ("apt", recipe.apt)):
        if items:
            yield "\n".join([f"{key}:", *(f"  - {_plain(item)}" for item in items)])
    if recipe.conda.packages:
        texts = (
            ", ".join(_plain(item, _IN_BRACKETS) for item in items)
            for items in (recipe.conda.channels, recipe.conda.packages)
        )
        yield "conda:\n  channels: [{}]\n  packages: [{}]".format(*texts)
    if recipe.indexes:
        entries = (
            index_entry(index.place, is_page=not index.url, packages=index.packages, name=index.name)
            for index in recipe.indexes
        )
        yield "\n".join(["indexes:", *(f"  - {entry}" for entry in entries)])
    if recipe.extensions:
        yield "\n".join(["extensions:", *(f"  - {_extension(extension)}" for extension in recipe.extensions)])
    if recipe.env:
        yield "\n".join(["env:", *(f"  {name}: {_quoted(value)}" for name, value in recipe.env)])
    yield 'tests:\n  - python -c "import torch"'


def _extension(extension: Extension) -> str:
    given = {key: value for key, value in extension.canonical().items() if value}
    return f"{{{', '.join(f'{key}: {_value(value)}' for key, value in given.items())}}}"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_quoted(text)}' for name, text in value.items())}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return _plain(str(value), r"[A-Za-z_.][A-Za-z0-9_ ./=-]*")


def _comment(finding: Finding) -> str:
    """Return a text as one comment line, whatever the names of files hold."""
    return f"#   {_one_line(str(finding))}"


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _plain(text: str, shape: str = r"[A-Za-z][A-Za-z0-9 ,._+/\[\]<>=!~*-]*") -> str:
    """Return a value as plain YAML if it reads back as the same text, otherwise in quotes."""
    is_word = text.lower() in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    is_safe = re.fullmatch(shape, text) and not text.endswith((" ", ":")) and not is_word
    return text if is_safe else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
