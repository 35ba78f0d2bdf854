"""What `check` may know of the machine that an environment is to run on, read from a small file.

A compute node is not the machine that builds, so its facts come by file (JSON or YAML); `detect --save` will write it.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.decode import Fields, Mistakes, Shape, load
from envbuilder.errors import UsageError

_DRIVER: Final = Shape(
    pattern=r"\d+(\.\d+)+",
    expected='the version of a driver such as "535.104.05"',
    hint="`nvidia-smi --query-gpu=driver_version --format=csv,noheader` prints it",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One machine; empty for what the file does not say."""

    path: Path
    driver: str = ""  # 535.104.05
    gpus: tuple[str, ...] = ()  # as nvidia-smi or a recipe names them, each kind at least once

    @property
    def driver_branch(self) -> str:
        """535"""
        return self.driver.partition(".")[0]


def load_host_facts(path: Path) -> HostFacts:
    """Read the file; raises UsageError whose findings hold every mistake, unknown keys among them."""
    mistakes = Mistakes()
    root = load(path, mistakes)
    facts = HostFacts(path=path)
    if root is not None:
        fields = Fields(root, mistakes, optional=("driver", "gpus"))
        facts = HostFacts(path=path, driver=fields.text("driver", _DRIVER), gpus=fields.texts("gpus"))
    if mistakes.findings:
        raise UsageError(f"the host facts `{path}` cannot be used", findings=mistakes.findings)
    return facts


@functools.cache
def find_name(given: str, known: tuple[str, ...]) -> str | None:
    """The name that a longer one such as "NVIDIA A100-SXM4-80GB" holds as whole words; the longest where several do."""
    found = [
        name
        for name in known
        if re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", given, re.IGNORECASE)
    ]
    return max(found, key=len, default=None)
