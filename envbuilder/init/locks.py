"""Request what the lock of another tool has: exactly its versions. `recipe/other_locks.py` reads the formats.

Hashes are not taken: the recipe's own lock has those of the files that it takes.
"""

import contextlib
import re
from pathlib import Path

from packaging.utils import canonicalize_name

from envbuilder.compat.check import load_tables
from envbuilder.core.errors import IncompatibleError
from envbuilder.core.processor import processor_for
from envbuilder.init.choose_pins import choose
from envbuilder.init.conda import read_locked
from envbuilder.init.pip import read_index, read_requirement
from envbuilder.init.requests import Requests
from envbuilder.init.toml_files import read_place
from envbuilder.recipe.other_locks import BROUGHT, Package, main_index, open_lock


def read_lock(path: Path, requests: Requests) -> set[str]:
    """Request exactly the versions of a lock. Return the normal names of all packages that it has for the target.

    Raises UsageError for a lock of an unknown version, or with nothing for Linux and the processor.
    """
    lock, where, processor = open_lock(path), str(path), processor_for("", requests.gpus or ())
    if lock.python:
        requests.pin("python", lock.python, where)
    python = _first_python(requests) if lock.has_markers else "3.11"
    packages, target = lock.packages(python, processor, requests.wanted)
    if lock.has_markers and not requests.python:
        chosen = _python(packages, python, requests, where)
        if chosen != python:
            python, (packages, target) = chosen, lock.packages(chosen, processor, requests.wanted)
    if lock.has_markers:
        requests.pin("python", f"=={python}.*", where)
    for note in target.notes:
        requests.note(where, note)
    requests.offered |= target.offered
    if others := sorted(target.offered.difference(requests.wanted)):
        texts = f"groups, extras and environments: {', '.join(others)}"
        requests.leave_all(where, texts, f"none is chosen, and `--with {others[0]}` takes that")
    names = {canonicalize_name(package.name) for package in packages}
    if others := sorted(name for name in target.others if canonicalize_name(name) not in names):
        requests.leave_all(where, ", ".join(others), "for another system, processor or Python")
    request(sorted(packages, key=lambda package: package.name), path, requests)
    message = "the versions are this lock's; its hashes are not compared: `lock` writes those of the files that it takes"
    requests.note(where, message)
    return names | {canonicalize_name(name) for name in target.others}


def _first_python(requests: Requests) -> str:
    """Return the Python of an option, else the first that the lock allows."""
    asked, known = requests.pins.get("python"), load_tables().standalones.by_name
    allowed = (name for name in known if not asked or asked.specifier.contains(f"{name}.99"))
    return requests.python or next(allowed, "3.11")


def _python(packages: list[Package], python: str, requests: Requests, where: str) -> str:
    """Return the Python for whose markers a lock is read: the one that fits its torch, which its packages for any Python name."""
    asked = requests.pins.get("python")
    trial = Requests(pins={"python": asked} if asked else {}, gpus=requests.gpus or ())
    for package in packages:
        if canonicalize_name(package.name) == "torch" and package.version:
            read_requirement(f"torch=={package.version}", where, trial)
    with contextlib.suppress(IncompatibleError):  # which the choice of all pins says
        python = choose(trial, load_tables(), name="lock", path=Path()).python
    if not (asked and asked.is_exact):
        words = f"`{asked.text}` allows others" if asked and asked.text else "it names none"
        requests.note(where, f"read for Python {python}: {words}", hint="`--python` names another one")
    return python


def request(packages: list[Package], path: Path, requests: Requests) -> None:
    """Request packages of a lock, or of an environment whose folder is that of `path`."""
    where, brought = str(path), list[str]()
    main = main_index(packages)
    for package in packages:
        name = canonicalize_name(package.name)
        if package.build is not None:
            read_locked(package, where, requests)
        elif read_place(package.name, package.place, path, requests):
            pass
        elif not package.version:
            requests.leave(where, package.name, "no version, and no address from which it is taken")
        elif BROUGHT.match(name):
            brought.append(f"{name}=={package.version}")
            if name.startswith("nvidia-cuda-runtime") and (cuda := re.match(r"\d+\.\d+", package.version)):
                requests.pin("cuda", f"=={cuda[0]}", where)
        else:
            read_requirement(f"{package.name}=={package.version}", where, requests)
        if package.registry not in ("", main):
            read_index(package.name, package.registry, where, requests)
    if brought:
        requests.leave_all(where, ", ".join(brought), "torch brings the ones that it was built with")
    requests.say_together()
