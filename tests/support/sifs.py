"""A SIF of layers that are all there. A build adds each layer to its SIF once those below it are done."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from envbuilder.artifacts.sif import Document, SifFacts, SifWriter, check_place, seal
from envbuilder.core.cache import beside
from envbuilder.core.processor import X86_64, Processor
from envbuilder.layers.layer import Layer


def write_sif(
    *,
    layers: Sequence[Layer],
    out: Path,
    epoch: int,
    definition: str,
    labels: Mapping[str, str],
    documents: Sequence[Document] = (),
    processor: Processor = X86_64,
) -> SifFacts:
    """Write the SIF of the layers at once, see `SifWriter`.

    The file appears when it is whole and replaces an earlier SIF; raises UsageError for anything else there.
    """
    check_place(out)
    with beside(out) as work, SifWriter(work / "sif", definition=definition, labels=labels) as sif:
        for layer in layers:
            sif.add(layer)
        sif.finish(epoch=epoch, documents=documents, processor=processor)
        facts = seal(sif.path)
        sif.path.replace(out)
    return facts
