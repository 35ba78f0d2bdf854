"""Compare the results of both runners."""

from pathlib import Path

from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.verify.compare import compare
from tests.support.workbench import (
    ENVBUILDER,
    Built,
    run,
)


def need_the_same(composed: Built, baked: Built) -> None:
    """Assert that both made the same files, and the same image to the byte."""
    mine, theirs = read_tree(composed.layout), read_tree(baked.layout)
    assert compare(mine.entries, theirs.entries, ("sandbox", "buildkit")) == ()
    assert (composed.layout / "index.json").read_text() == (baked.layout / "index.json").read_text()


def inside(built: Built, recipe: Path, *argv: str, place: str = "sif") -> str:
    return run(ENVBUILDER, "exec", recipe, "--artifacts", built.output, "--in", place, "--", *argv)
