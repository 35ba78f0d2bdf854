"""A hint names a word only where it was probably meant."""

import pytest

from envbuilder.core.spelling import either, nearest, nearest_names

OPTIONS = ("--nodes", "--gpus-per-node", "--ranks-per-node", "--qos", "--sbatch", "--time", "--write")


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("--gpu-per-node", OPTIONS, "--gpus-per-node"),
        ("--gpus", OPTIONS, "--gpus-per-node"),
        ("--wriet", OPTIONS, "--write"),
        ("node", OPTIONS, "--nodes"),
        ("--epochs", OPTIONS, ""),
        ("--batch-size", OPTIONS, ""),
        ("--model", OPTIONS, ""),
        ("--n", OPTIONS, ""),
        ("gti", ("git", "gcc"), "git"),
        ("CPU", ("a100", "cpu"), "cpu"),
        ("a10", ("a100", "cpu"), "a100"),
    ],
)
def test_a_known_word_is_suggested_only_if_it_is_near(word: str, known: tuple[str, ...], found: str):
    assert nearest_names(word, known)[:1] == ((found,) if found else ())
    assert nearest(word, known) == (f"did you mean `{found}`? " if found else "")


@pytest.mark.parametrize(
    ("word", "known", "names"),
    [
        ("A10O", ("A10", "A100", "A40", "H100"), "`A10` or `A100`"),
        ("h10", ("h100", "h200", "a10"), "`h100` or `a10`"),
        ("pakcages", ("packages", "package"), "`packages`"),
        ("a100", ("a100", "a10"), "`a100` or `a10`"),
    ],
)
def test_all_words_that_are_as_near_are_suggested(word: str, known: tuple[str, ...], names: str):
    assert nearest(word, known) == f"did you mean {names}? "


def test_lists_read_as_a_person_says_them():
    assert either(["11"]) == "11"
    assert either(["11", "12"]) == "11 or 12"
    assert either(("11", "12", "13")) == "11, 12 or 13"
