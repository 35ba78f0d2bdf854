"""How a step is made: its program with everything that decides the bytes. Runners and printers read this, and nothing else of a step.

The sandbox, BuildKit and the printed texts differ only in how the root and the inputs get to their places.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from envbuilder import steps
from envbuilder.core.cache import sha256_text
from envbuilder.lock.model import Artifact, SourceFile

# In the root that a program runs in.
PROGRAMS: Final = "/steps"  # `envbuilder/steps`, and `uv`
SPEC: Final = "/step/spec.json"
INPUTS: Final = "/step/inputs"
OUT: Final = "/out"
# Instead of a path in a root.
OUTSIDE: Final = "python3"  # an interpreter: the program runs on the machine that builds, by any from 3.8
BASE: Final = "base"  # a root: the recipe's image
PACKAGES: Final = "packages"  # in a root: the packages that torch does not need


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One run of a program of `envbuilder/steps`."""

    name: str  # of the step, or of a part of it: `start`, `extension-gsplat`
    files: tuple[str, ...]  # of `envbuilder/steps`: the program, then what it starts or imports
    interpreter: str  # the path of a Python in the root, or /bin/sh
    root: tuple[str, ...]  # names of the lower steps that it runs on, bottom first
    spec: str  # JSON
    inputs: tuple[tuple[str, Artifact | SourceFile], ...] = ()  # path below INPUTS → locked file
    texts: tuple[tuple[str, str], ...] = ()  # path below INPUTS → text of a small file
    parts: tuple["Program", ...] = ()  # the OUT of each lies in INPUTS under its name
    # The root that it runs in and changes in place, as the root user there: a path below INPUTS, or `BASE`. OUT is / then.
    changes: str = ""
    why: str = ""  # what it does, for the command line that a failure shows

    @property
    def out(self) -> str:
        return "/" if self.changes else OUT

    @property
    def is_outside(self) -> bool:
        """Return whether any Python from 3.8 runs it: on the machine that builds, or in the first stage of a text."""
        return self.interpreter == OUTSIDE

    @property
    def argv(self) -> tuple[str, ...]:
        return (self.interpreter, f"{PROGRAMS}/{self.files[0]}", SPEC, INPUTS, self.out)

    def lines(self) -> Iterator[str]:
        """Yield what the layer's key is made of, beside the keys of the layers that decide it too."""
        yield from (f"  program {name} sha256:{steps.digest(name)}" for name in self.files)
        yield f"  spec sha256:{sha256_text(self.spec)}"
        yield from (f"  input {path} sha256:{artifact.sha256}" for path, artifact in self.inputs)
        yield from (f"  text {path} sha256:{sha256_text(text)}" for path, text in self.texts)
        for part in self.parts:
            yield f"  part {part.name}"
            yield from (f"  {line}" for line in part.lines())


def spec_text(values: Mapping[str, object]) -> str:
    """Return the text of a SPEC."""
    return json.dumps(values, indent=1, sort_keys=True) + "\n"
