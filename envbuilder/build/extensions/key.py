"""What decides the bytes of a compiled extension, field by field: the same key in any recipe is the same file.

The fields are kept beside the file, so that a miss can be explained by the field that differs and not by a hash.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envbuilder.core.cache import Sha256, sha256_text
from envbuilder.lock.model import Artefact, LockedExtension
from envbuilder.plan.model import ENV_PREFIX, ExtensionsStep, Plan, extension_lines

FORMAT: Final = 6  # a new number when the same fields would give other bytes
# The packages that a compile of plain sources reads: compiler, linker, headers of libraries, Python's own.
_COMPILER: Final = re.compile(
    r".*-dev|linux-libc-dev|(gcc|g\+\+|cpp)(-[\d.]+)?(-base)?|lib(gcc|stdc\+\+|cc1|isl|mpc|mpfr|gmp|crypt|c6).*"
    r"|binutils.*|libbinutils|ninja-build|python3\.\d+.*"
)
_WHEELS: Final = re.compile(
    r"torch|nvidia-.*"
)  # torch's headers and libraries, and those that the toolkit links


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    fields: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> Sha256:
        return sha256_text(json.dumps(self.fields))

    def differences(self, other: "Key") -> tuple[str, ...]:
        """The names of the fields that differ."""
        mine, others = dict(self.fields), dict(other.fields)
        return tuple(name for name in sorted(mine | others) if mine.get(name) != others.get(name))


def surroundings(
    plan: Plan, extension: LockedExtension, *, reads_all: bool = False
) -> tuple[tuple[str, str], ...]:
    """What an extension is compiled with. With `reads_all` that is every package: a project's own programs may read any."""
    os_step, python, cuda = plan.os, plan.python, plan.cuda
    gpus = next(step.architectures for step in plan.steps if isinstance(step, ExtensionsStep))
    torch = next((wheel for wheel in python.artefacts if wheel.name == "torch"), None)
    reads_all = reads_all or ENV_PREFIX in "\n".join(extension_lines(extension))
    wheels = [one for one in python.artefacts if reads_all or _WHEELS.fullmatch(one.name)]
    debs = [one for one in os_step.artefacts if reads_all or _COMPILER.fullmatch(one.name)]
    toolkit = (
        f"{cuda.toolkit.cuda} {_digest(cuda.artefacts)} {sha256_text(repr(cuda.toolkit))}" if cuda else "none"
    )
    return (
        ("format", str(FORMAT)),
        ("platform", plan.platform),
        ("python", python.python),
        ("torch", f"{torch.version} {torch.sha256}" if torch else "none"),
        ("wheels", _digest(wheels)),
        ("cuda", toolkit),
        (
            "compiler",
            f"gcc {os_step.gcc} {_digest(debs)}" + (f" on {os_step.image}" if os_step.image else ""),
        ),
        ("architectures", " ".join(gpus) or "cpu"),
        ("variables", json.dumps(extension.env)),
        ("epoch", str(plan.epoch) if reads_all else "none"),  # a project may write it into its files
    )


def make_key(common: Iterable[tuple[str, str]], **own: str) -> Key:
    return Key(fields=(*common, *own.items()))


def project_key(plan: Plan, extension: LockedExtension) -> Key:
    """Of what a project's own programs make or do, which may read whatever is there."""
    own = "\n".join(extension_lines(extension))
    return make_key(surroundings(plan, extension, reads_all=True), project=own)


def _digest(artefacts: Iterable[Artefact]) -> Sha256:
    return sha256_text("\n".join(sorted(f"{one.name} {one.version} {one.sha256}" for one in artefacts)))
