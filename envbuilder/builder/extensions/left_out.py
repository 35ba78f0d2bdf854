"""Name the file of a project that a failed build lacks because the lock does not hold it."""

import contextlib
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from envbuilder.core.errors import BuildError
from envbuilder.lock.model import LockedExtension
from envbuilder.recipe.extension import Form

_LACKS: Final = re.compile(
    r"No such file|not found|(?:does not|doesn't) exist|No module named|can(?:not|'t) open"
)
_QUOTED: Final = re.compile(r"['\"`<](?:\./)?([\w+-][\w./+-]{0,200})['\"`>]")
_MOST: Final = 100  # names that are looked for


@contextlib.contextmanager
def naming_left_out(extension: LockedExtension, recipe: str) -> Iterator[None]:
    """Let the hint of a BuildError of the block name such a file beside the recipe, and how a build names it."""
    try:
        yield
    except BuildError as error:
        is_local = recipe and extension.path and not extension.archive
        if is_local and (path := _lacking(error.message, extension, Path(recipe).parent)):
            inside = Path(path).relative_to(extension.path).as_posix()
            way = f"name it in `MANIFEST.in`: `include {inside}`"
            if extension.form is Form.CAPTURE:
                way = "let the code that `capture` imports name or import it"
            why = "no file of the build names it, or git ignores it"
            reason = f"the folder has `{path}` and the lock has not: {why}; {way}, and lock again"
            error.hint = "; ".join(filter(None, (error.hint, reason)))
            error.findings = tuple(replace(one, hint=error.hint) for one in error.findings)
        raise


def _lacking(text: str, extension: LockedExtension, folder: Path) -> str:
    """Return a file that the text misses and that the project's folder has, but not the lock; "" if there is none."""
    locked, top, names = {file.path for file in extension.files}, folder / extension.path, dict[str, None]()
    for line in filter(_LACKS.search, text.splitlines()):
        before = line.partition(": No such file")[0].rpartition(" ")[2]
        names |= dict.fromkeys(_QUOTED.findall(f"{line} '{before}'"))
    for name in [one for one in names if ".." not in one][:_MOST]:
        module = name.replace(".", "/")
        inside = sorted(f"{module}/{one.name}" for one in (top / module).glob("*.py"))[:1]
        for file in (name, f"{module}.py", *inside):
            path = posixpath.normpath(f"{extension.path}/{file}")
            if path not in locked and (folder / path).is_file():
                return path
    return ""
