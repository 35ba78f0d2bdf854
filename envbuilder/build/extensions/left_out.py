"""Name the file of a project that a failed build lacks because the lock does not hold it."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from envbuilder.core.errors import BuildError
from envbuilder.lock.model import LockedExtension
from envbuilder.lock.source_files import visible
from envbuilder.recipe.extension import Form

_LACKS: Final = re.compile(
    r".*(?:No such file|not found|(?:does not|doesn't) exist|No module named|can(?:not|'t) open).*"
)
_NAMED: Final = re.compile(r"['\"`<]([\w./+-]+)['\"`>]|([\w./+-]+\.\w+)")


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
            error.hint = f"the folder has `{path}` and the lock has not: no file of the build names it, or git ignores it; {way}, and lock again"
            error.findings = tuple(replace(one, hint=error.hint) for one in error.findings)
        raise


def _lacking(text: str, extension: LockedExtension, folder: Path) -> str:
    """Return a file that the text misses and that is in the folder, but not in the lock; "" if there is none."""
    names = {quoted or plain for line in _LACKS.findall(text) for quoted, plain in _NAMED.findall(line)}
    names |= {f"{name.replace('.', '/')}{end}" for name in names for end in (".py", "/__init__.py")}
    ends = tuple(f"/{name.removeprefix('./').strip('/')}" for name in sorted(names))
    locked = {file.path for file in extension.files}
    for path in sorted(set(visible(folder / extension.path, folder)) - locked):
        if f"/{path}".endswith(ends) or any(f"{end}/" in f"/{path}" for end in ends):
            return path
    return ""
