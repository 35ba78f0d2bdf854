"""Small SIFs with the recipe of an environment, and as many bytes beside it as a test needs."""

import os
from pathlib import Path

from envbuilder.artifacts.sif import write_sif
from envbuilder.layers.layer import write_layer
from tests.support.pairs import EPOCH


def write_recipe_sif(sif: Path, recipe: str, *, filler: int = 0) -> Path:
    """Write a SIF that holds this text as its recipe, and `filler` bytes that no compression makes less of."""
    work = sif.parent / f"{sif.stem}-work"
    inside = work / "tree/opt/envbuilder"
    inside.mkdir(parents=True)
    (inside / "recipe.yaml").write_text(recipe)
    (inside / "filler").write_bytes(os.urandom(filler))
    layer = write_layer(name="recipe", tree=work / "tree", folder=work / "layer", epoch=EPOCH, threads=1)
    write_sif(layers=[layer], out=sif, epoch=EPOCH, definition="", labels={})
    return sif
