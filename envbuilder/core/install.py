"""Name the command that installs a package on this machine, in the words of its own package manager."""

import os
import platform
import tomllib
from pathlib import Path
from typing import Any, Final

TABLE: Final = Path(__file__).with_name("packages.toml")
SETUP: Final = Path(__file__).parents[2] / "scripts/setup"  # a checkout has it, an installed package does not


def install_command(*packages: str) -> str:
    """Return the command of this machine's package manager for packages by their names in Debian, "" if it has none of them."""
    table, release, family = _find_family()
    names, before = family.get("names", {}), family.get("before", {})
    epel = table["epel"].get(release.get("ID"), "epel-release")
    major = release.get("VERSION_ID", "").partition(".")[0]
    steps = [before[one].format(epel=epel.format(major=major)) for one in packages if one in before]
    if wanted := dict.fromkeys(filter(None, (names.get(one, one) for one in packages))):
        steps.append(f"{family.get('install', 'install')} {' '.join(wanted)}")
    return " && ".join(dict.fromkeys(steps))


def install_hint(package: str) -> str:
    """Return how to install a package, or a program: by the package manager, and by `scripts/setup` where there is one."""
    table, _, family = _find_family()
    command = install_command(table["programs"].get(package, package))
    hint = f"`{command}`"
    if not command and package == "apptainer":
        hint = "Apptainer's own package: https://apptainer.org/docs/admin/latest/installation.html"
    if os.access(SETUP, os.R_OK) and family.get("install") in ("apt-get install", None):
        hint += "; `scripts/setup` installs all of them on Debian 12"
    return hint


def _find_family() -> tuple[Any, dict[str, str], Any]:
    """Return the table, /etc/os-release, and this system's row of the table, empty for an unknown one."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    own = release.get("ID", "")
    like = ["rhel"] if own == "ol" else release.get("ID_LIKE", "").split()  # Oracle's says fedora alone
    return (
        table,
        release,
        next((table["families"][one] for one in (own, *like) if one in table["families"]), {}),
    )
