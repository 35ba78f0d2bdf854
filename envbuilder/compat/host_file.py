"""What `check` may know of the machine that an environment is to run on, read from a small file.

A compute node is not the machine that builds, so its facts come by file: a profile that `detect --save` wrote there, or a few
lines of YAML by hand.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envbuilder.core.decode import Code, Fields, Kind, Mistakes, Node, Shape, load
from envbuilder.core.errors import UsageError

if TYPE_CHECKING:
    from envbuilder.node.nccl.profile import Profile

_DRIVER: Final = Shape(
    pattern=r"\d+(\.\d+)+",
    expected='the version of a driver such as "535.104.05"',
    hint="`nvidia-smi --query-gpu=driver_version --format=csv,noheader` prints it",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One machine; empty, or None, for what the file does not say."""

    path: Path
    driver: str = ""  # 535.104.05
    # As nvidia-smi or a recipe names them, each kind at least once; () where the machine has none.
    gpus: tuple[str, ...] | None = None
    profile: "Profile | None" = None

    @property
    def driver_branch(self) -> str:
        """535"""
        return self.driver.partition(".")[0]


def load_host_facts(path: Path) -> HostFacts:
    """Read the file; raises UsageError whose findings hold every mistake, unknown keys among them."""
    from envbuilder.node.nccl.profile import KEYS  # noqa: PLC0415 - few recipes are checked for a machine

    mistakes = Mistakes()
    root = load(path, mistakes)
    facts = HostFacts(path=path)
    if root is not None:
        fields = Fields(root, mistakes, optional=KEYS)
        driver, gpus = fields.text("driver", _DRIVER), fields.texts("gpus") if "gpus" in fields else None
        facts = HostFacts(path=path, driver=driver, gpus=gpus, profile=_profile(root, mistakes))
    if mistakes.findings:
        raise UsageError(f"the host facts `{path}` cannot be used", findings=mistakes.findings)
    return facts


def _profile(root: Node, mistakes: Mistakes) -> "Profile | None":
    """The whole of it, where what `Fields` looks at is sound."""
    from envbuilder.node.nccl.profile import parse_profile  # noqa: PLC0415 - as above

    if mistakes.findings:
        return None
    try:
        return parse_profile(plain(root))
    except ValueError as error:
        place, _, message = str(error).partition(": ")
        mistakes.add(
            Code.VALUE,
            root.where,
            f"{place}: {message}",
            hint="`envbuilder detect --save FILE` writes a profile",
        )
        return None


def plain(node: Node) -> object:
    """The value of a node as JSON has it."""
    match node.kind:
        case Kind.MAP:
            return {entry.key: plain(entry.node) for entry in node.entries}
        case Kind.LIST:
            return [plain(item) for item in node.items]
        case Kind.INTEGER:
            return int(node.text)
        case Kind.BOOLEAN:
            return node.text.lower() == "true"
        case Kind.NOTHING:
            return None
        case _:
            return node.text


@functools.cache
def find_name(given: str, known: tuple[str, ...]) -> str | None:
    """The name that a longer one such as "NVIDIA A100-SXM4-80GB" holds as whole words; the longest where several do."""
    found = [
        name
        for name in known
        if re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", given, re.IGNORECASE)
    ]
    return max(found, key=len, default=None)
