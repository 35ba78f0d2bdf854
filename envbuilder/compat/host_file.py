"""The facts of the machine that will run an environment, read from a file for `check`.

A compute node is not the machine that builds. Its facts come from a file: a profile of `detect --save`, or
a few lines of YAML written by hand.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic_core import to_jsonable_python

from envbuilder.core.errors import UsageError
from envbuilder.core.models import Line, Shape, read_node
from envbuilder.core.places import FormCode, Mistakes, load

if TYPE_CHECKING:
    from envbuilder.node.nccl.profile import Profile

_DRIVER: Final = Shape(
    pattern=r"\d+(\.\d+)+",
    expected='the version of a driver such as "535.104.05"',
    hint="`nvidia-smi --query-gpu=driver_version --format=csv,noheader` prints it",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One machine. What the file does not state is empty or None."""

    path: Path
    driver: str = ""  # 535.104.05
    # As nvidia-smi or a recipe names them, each kind at least once; () where the machine has none.
    gpus: tuple[str, ...] | None = None
    profile: "Profile | None" = None
    profile_data: Mapping[str, object] | None = None  # the profile as an image keeps it


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostFile:
    """The keys of the file; `node/nccl/profile.py` reads what is `Any` here."""

    version: Any = None
    driver: Annotated[str, _DRIVER] = ""
    gpus: tuple[Line, ...] | None = None
    settings: Any = None
    fixed: Any = None
    facts: Any = None


def load_host_facts(path: Path) -> HostFacts:
    """Read the file. Raises UsageError with a finding for each mistake, unknown keys included."""
    from envbuilder.node.nccl.profile import parse_profile, profile_data  # noqa: PLC0415 - NCCL's rules, for a profile alone

    mistakes = Mistakes()
    root = load(path, mistakes)
    file = read_node(_HostFile, root, mistakes) if root else None
    if root and file and not mistakes.findings:
        try:
            profile = parse_profile(to_jsonable_python(root.value))
        except ValueError as error:
            place, _, message = str(error).partition(": ")
            hint = "`envbuilder detect --save FILE` writes a profile"
            mistakes.add(FormCode.VALUE, root.where, f"{place}: {message}", hint=hint)
        else:
            data = profile_data(profile)
            return HostFacts(
                path=path, driver=file.driver, gpus=file.gpus, profile=profile, profile_data=data
            )
    raise UsageError(f"the host facts `{path}` cannot be used", findings=mistakes.findings)


@functools.cache
def find_name(given: str, known: tuple[str, ...]) -> str | None:
    """Return the known name within one such as "NVIDIA A100-SXM4-80GB", as whole words; the longest match."""
    words = r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"
    inside = (name for name in known if re.search(words.format(re.escape(name)), given, re.IGNORECASE))
    return max(inside, key=len, default=None)
