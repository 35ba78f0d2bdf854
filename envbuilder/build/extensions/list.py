"""The answer of `envbuilder extensions NAME`: each extension, its GPU code, its compile time and its origin."""

from collections.abc import Iterable, Iterator

from envbuilder.build.extensions.build import ExtensionStatus
from envbuilder.core.console import columns


def rows(found: Iterable[ExtensionStatus], *, recipe: str) -> Iterator[dict[str, object]]:
    """Yield a row for each extension, for `--json`. One that is not compiled yet has only its key."""
    for one in found:
        row: dict[str, object] = {
            "name": one.name,
            "form": str(one.extension.form),
            "key": one.key.digest,
            "decided_by": dict(one.key.fields),
        }
        compiled = one.compiled
        if compiled is not None:
            row |= {
                "function": compiled.function,
                "targets": list(compiled.targets),
                "size": compiled.size,
                "seconds": compiled.seconds,
                "files": {timing.file: timing.seconds for timing in compiled.timings},
                "compiled_for": compiled.recipe,
                "torch": compiled.facts.torch,
            }
        yield row | {"origin": _origin(one, recipe)}


def table(rows: Iterable[dict[str, object]], width: int = 0) -> str:
    """Return the rows as a table for a terminal of this width; 0: any width."""
    lines = [("name", "key", "form", "for", "size", "compiled in", "from")]
    for row in rows:
        if "targets" in row:
            targets = " ".join(map(str, row["targets"])) if isinstance(row["targets"], list) else ""
            size, seconds = f"{float(str(row['size'])) / 1e6:.2f} MB", f"{row['seconds']} s"
        else:
            targets = size = seconds = ""
        key = str(row["key"])[:16]
        lines.append(
            (
                str(row["name"]),
                key,
                str(row["form"]),
                targets or "-",
                size or "-",
                seconds or "-",
                str(row["origin"]),
            )
        )
    return columns(lines, width)


def _origin(found: ExtensionStatus, recipe: str) -> str:
    if found.compiled is None:
        return "not compiled yet"
    if found.compiled.recipe == recipe:
        return "compiled for this recipe"
    return f"the store: compiled for `{found.compiled.recipe}`"
