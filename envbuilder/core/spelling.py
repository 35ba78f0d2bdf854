"""Words in messages: the known word that a user meant, and lists."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

NEAR: Final = 0.65  # of 1 for the same word; 0.6 takes `--model` for `--nodes`
MOST: Final = 5  # words that are as near as another
BEGUN: Final = 3  # letters of the beginning of a word


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "did you mean `x`? " with each word that is as near, or nothing."""
    names = [f"`{name}`" for name in equally_near(word, known)]
    return f"did you mean {' or '.join(names)}? " if names else ""


def equally_near(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the nearest known words: all that one slip of a finger makes of this one, otherwise the nearest alone."""
    names = nearest_names(word, known)
    return tuple(name for name in names if _is_one_slip(_bare(word), _bare(name))) or names[:1]


def nearest_name(word: str, known: Iterable[str]) -> str:
    return next(iter(nearest_names(word, known)), "")


def nearest_names(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known words near this one, the nearest first, otherwise those that begin with it.

    Letter case and the dashes of options do not count.
    """
    bare, spelling = _bare(word), {_bare(name): name for name in known}
    near = difflib.get_close_matches(bare, spelling, n=MOST, cutoff=NEAR)
    near.sort(key=lambda name: not _is_one_slip(bare, name))  # stable: the nearest stays first
    begun = [name for name in spelling if len(bare) >= BEGUN and name.startswith(bare)]
    return tuple(spelling[name] for name in near or begun)


def _is_one_slip(word: str, other: str) -> bool:
    """Whether the words differ in one letter, which is another, too many or missing, or in the order of two."""
    pairs = enumerate(zip(word, other, strict=False))
    begin = next((index for index, (left, right) in pairs if left != right), min(len(word), len(other)))
    left, right = word[begin:], other[begin:]
    is_swapped = (left[1::-1], left[2:]) == (right[:2], right[2:])
    return is_swapped or left[1:] in (right, right[1:]) or left == right[1:]


def _bare(word: str) -> str:
    return word.casefold().lstrip("-")


def either(words: Sequence[str], last: str = "or") -> str:
    """12 or 13; 11, 12 or 13"""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
