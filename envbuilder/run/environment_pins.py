"""What an environment pins, as the recipe in its SIF or image says."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.artifacts.sif import opened_sif
from envbuilder.core.errors import ForeignError
from envbuilder.run.named import MADE_BY

PINS: Final = "/opt/envbuilder/recipe.yaml"  # in every image


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    python: str  # "3.11"
    torch: str
    cuda: str  # "" without
    gpus: tuple[str, ...]


def probe_pins(sif: Path) -> Pins:
    """Read the recipe in a SIF; raises ForeignError for a foreign SIF, and DamagedError for a damaged one."""
    text = b""
    with contextlib.suppress(KeyError), opened_sif(sif) as system, system.open(PINS.lstrip("/")) as stream:
        text = stream.read()
    return parse_pins(text.decode(errors="replace"), str(sif))


def parse_pins(text: str, location: str) -> Pins:
    try:
        pins = json.loads(text)
        gpus = tuple(map(str, pins.get("gpus", ())))
        return Pins(python=str(pins["python"]), torch=str(pins["pytorch"]), cuda=str(pins["cuda"]), gpus=gpus)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        message = f"`{location}` was not made by envbuilder: it has no readable {PINS}"
        raise ForeignError(message, hint=MADE_BY) from error
