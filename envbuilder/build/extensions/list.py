"""What `envbuilder extensions NAME` tells: each extension, what is in it, how long it took and where it came from."""

from collections.abc import Iterable, Iterator

from envbuilder.build.extensions.build import ExtensionStatus
from envbuilder.core.console import columns


def rows(found: Iterable[ExtensionStatus], *, recipe: str) -> Iterator[dict[str, object]]:
    """One row for each extension, for `--json`; what was not compiled yet has its key and nothing else."""
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
    """The same for a person whose terminal is that wide; 0: any width."""
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
