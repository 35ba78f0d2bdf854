"""Images and SIFs of given bytes, with a recipe or without one, and without a build."""

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path

from envbuilder.artifacts.oci.layout import write_layout
from envbuilder.artifacts.oci.model import ImageConfig
from envbuilder.artifacts.outputs import Outputs
from envbuilder.artifacts.sif import DataType, Document
from envbuilder.core.cache import Store, save_text
from envbuilder.layers.layer import write_layer
from envbuilder.plan.contents import runtime_files
from envbuilder.plan.make import make_plan
from tests.support.sifs import write_sif

EPOCH = 1_700_000_000
LOCK = "cd" * 32
LAYERS = {"os": 600_000, "python": 400_000, "extensions": 30_000}


def make_pair(folder: Path) -> tuple[Outputs, Outputs]:
    """Write an environment before and after the edit of an extension."""

    def text(seed: str, half: int) -> bytes:
        return random.Random(seed).randbytes(half).hex().encode()

    contents = {name: text(name, half) for name, half in LAYERS.items()}
    edited = contents | {"extensions": text("edited", LAYERS["extensions"])}
    return make_toy(folder / "old", contents), make_toy(folder / "new", edited)


def make_toy(folder: Path, layers: Mapping[str, bytes], platform: str = "linux/amd64") -> Outputs:
    """Write the image and the SIF `toy` of layers with one file each, with the documents of a real build.

    The layers stay beside, as `NAME-layer`.
    """
    made = []
    for name, content in layers.items():
        (folder / name / name).mkdir(parents=True)
        (folder / name / name / "big").write_bytes(content)
        made.append(
            write_layer(
                name=name, tree=folder / name, folder=folder / f"{name}-layer", epoch=EPOCH, threads=1
            )
        )
    outputs = Outputs(folder=folder / "out", name="toy")
    write_layout(
        layers=made, config=ImageConfig(cmd=("sh",)), epoch=EPOCH, platform=platform, folder=outputs.image,
        name="envbuilder/toy:latest",
    )  # fmt: skip
    files = [{"name": "opt/envbuilder/lock.json", "digest": {"sha256": LOCK}}]
    provenance = {
        "_type": "https://in-toto.io/Statement/v1", "subject": [], "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": {"externalParameters": {"files": files}}},
    }  # fmt: skip
    documents = (
        Document(data_type=DataType.SBOM, name="sbom", content=b'{"spdxVersion": "SPDX-2.3"}'),
        Document(data_type=DataType.JSON, name="provenance", content=json.dumps(provenance).encode()),
    )
    write_sif(
        layers=made, out=outputs.sif, epoch=EPOCH, definition="# by a test\n", labels={}, documents=documents
    )
    return outputs


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
