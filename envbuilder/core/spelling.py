"""Find the known word that a user meant, for hints."""

import difflib
from collections.abc import Iterable
from typing import Final

NEAR: Final = 0.65  # of 1 for the same word; 0.6 takes `--model` for `--nodes`
BEGUN: Final = 3  # letters of the beginning of a word


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "did you mean `x`? " or nothing."""
    found = nearest_names(word, known)
    return f"did you mean `{found[0]}`? " if found else ""


def nearest_name(word: str, known: Iterable[str]) -> str:
    """Return the nearest known word, or nothing."""
    return next(iter(nearest_names(word, known)), "")


def nearest_names(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known words near this one, the nearest first, otherwise those that begin with it.

    Letter case and the dashes of options do not count.
    """
    bare, spelling = _bare(word), {_bare(name): name for name in known}
    near = difflib.get_close_matches(bare, spelling, cutoff=NEAR)
    begun = [name for name in spelling if len(bare) >= BEGUN and name.startswith(bare)]
    return tuple(spelling[one] for one in near or begun)


def _bare(word: str) -> str:
    return word.casefold().lstrip("-")
