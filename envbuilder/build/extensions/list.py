"""List what the store has of a recipe's extensions: GPU code, compile time and origin."""

from typing import Final

from envbuilder.build.extensions.build import ExtensionStatus

HEAD: Final = ("name", "key", "form", "for", "size", "compiled in", "from")


def cells(found: ExtensionStatus, recipe: str) -> tuple[str, ...]:
    """Return the row of an extension in the recipe's table, below `HEAD`."""
    compiled = found.compiled
    return (
        found.name,
        found.key.digest[:16],
        str(found.extension.form),
        " ".join(compiled.targets if compiled else ()) or "-",
        f"{compiled.size / 1e6:.2f} MB" if compiled else "-",
        f"{compiled.seconds} s" if compiled else "-",
        origin(found, recipe),
    )


def origin(found: ExtensionStatus, recipe: str) -> str:
    if found.compiled is None:
        return "not compiled yet"
    if found.compiled.recipe == recipe:
        return "compiled for this recipe"
    return f"the store: compiled for `{found.compiled.recipe}`"
