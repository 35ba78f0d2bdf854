"""Small SIFs with the recipe of an environment or with its whole runtime layer, and as many bytes beside it as a test needs."""

import os
from pathlib import Path

from envbuilder.artifacts.oci.layout import write_layout
from envbuilder.artifacts.oci.model import ImageConfig
from envbuilder.artifacts.outputs import Outputs
from envbuilder.artifacts.sif import DataType, Document, write_sif
from envbuilder.core.cache import Store, save_text
from envbuilder.layers.layer import write_layer
from envbuilder.plan.contents import runtime_files
from envbuilder.plan.make import make_plan
from tests.support.pairs import EPOCH


def write_recipe_sif(sif: Path, recipe: str | bytes, *, filler: int = 0) -> Path:
    """Write a SIF that holds this text as its recipe, and `filler` bytes that no compression makes less of."""
    work = sif.parent / f"{sif.stem}-work"
    inside = work / "tree/opt/envbuilder"
    inside.mkdir(parents=True)
    (inside / "recipe.yaml").write_bytes(recipe if isinstance(recipe, bytes) else recipe.encode())
    (inside / "filler").write_bytes(os.urandom(filler))
    layer = write_layer(name="recipe", tree=work / "tree", folder=work / "layer", epoch=EPOCH, threads=1)
    write_sif(layers=[layer], out=sif, epoch=EPOCH, definition="", labels={})
    return sif


def write_named(recipe: Path, output: Path) -> Outputs:
    """Write the image and the SIF of a locked recipe with its runtime layer alone, as a build labels them."""
    _, plan, _ = make_plan(str(recipe), recipe.parent, Store(output / "cache"))
    work, outputs = output / f"{plan.name}-work", Outputs(folder=output, name=plan.name)
    for path, text in runtime_files(plan.runtime).items():
        save_text(work / "tree" / path, text, mode=0o755 if text.startswith("#!") else 0o644)
    layer = write_layer(name="runtime", tree=work / "tree", folder=work / "layer", epoch=EPOCH, threads=1)
    labels = plan.runtime.labels
    documents = (
        Document(data_type=DataType.SBOM, name="sbom", content=b'{"packages": [{"name": "ipykernel"}]}'),
        Document(data_type=DataType.JSON, name="provenance", content=b"{}"),
    )
    write_sif(
        layers=[layer], out=outputs.sif, epoch=EPOCH, definition="", labels=dict(labels), documents=documents
    )
    write_layout(
        layers=[layer], config=ImageConfig(labels=labels), epoch=EPOCH, platform=plan.platform, folder=outputs.image,
        name=outputs.image_name,
    )  # fmt: skip
    return outputs
