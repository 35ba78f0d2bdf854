"""Compare the results of both engines."""

from pathlib import Path

from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.verify.compare import compare
from tests.support.workbench import (
    ENVBUILDER,
    Built,
    run,
)

DIFFERS = {"opt/envbuilder/provenance.json": "says which engine made the layers"}


def need_the_same(composed: Built, baked: Built) -> None:
    """Assert that all paths are the same, except the known differences, which must differ."""
    mine, theirs = read_tree(composed.layout), read_tree(baked.layout)
    assert compare(mine.entries, theirs.entries, ("assemble", "docker"), without=DIFFERS) == ()
    others = {entry.path: entry for entry in theirs.entries}
    assert {one.path for one in mine.entries if others[one.path] != one} == set(DIFFERS)
    assert theirs.image.config == mine.image.config


def inside(built: Built, recipe: Path, *argv: str, place: str = "sif") -> str:
    return run(ENVBUILDER, "exec", recipe, "--artifacts", built.output, "--in", place, "--", *argv)
