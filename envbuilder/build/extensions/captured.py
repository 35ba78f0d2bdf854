"""What a project's own import lines were seen to compile, as the store keeps it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from envbuilder.build.extensions.call import KEPT, SPACE, Call, parse_call
from envbuilder.core.cache import Sha256, Store, save_text, sha256_file
from envbuilder.recipe.extension import SOURCE_SUFFIXES

FILE: Final = "captured.json"
VERSION: Final = 1
# Beside sources, what a compiler may read of a project: everything but its Python code and its data.
_NOT_COMPILED: Final = (
    ".py",
    ".pyi",
    ".pyc",
    ".toml",
    ".cfg",
    ".ini",
    ".json",
    ".yaml",
    ".yml",
    ".txt",
    ".md",
    ".so",
    ".o",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    calls: tuple[Call, ...]
    files: tuple[
        tuple[str, Sha256], ...
    ]  # path below the compile folder, sorted; each is an artefact of the store

    def save(self, folder: Path) -> None:
        value = {
            "version": VERSION,
            "calls": [asdict(call) for call in self.calls],
            "files": dict(self.files),
        }
        save_text(folder / FILE, json.dumps(value, indent=1, sort_keys=True) + "\n")


def load_captured(folder: Path, store: Store) -> Captured | None:
    """The entry in a folder of the store; None when it is not there, or a file that it names has gone."""
    try:
        value = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if value["version"] != VERSION:
            return None
        captured = Captured(
            calls=tuple(parse_call(call) for call in value["calls"]), files=_sorted(value["files"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return captured if all(store.artefact(digest).exists() for _, digest in captured.files) else None


def read_captured(space: Path, calls: Path, store: Store) -> Captured:
    """What the program in the sandbox wrote; the files that the calls may read are taken into the store."""
    found = tuple(parse_call(call) for call in json.loads(calls.read_text(encoding="utf-8")))
    files: dict[str, Sha256] = {}
    for folder in (space / "src", space / KEPT.removeprefix(f"{SPACE}/")):
        for path in folder.rglob("*"):
            if path.is_file() and (path.suffix in SOURCE_SUFFIXES or path.suffix not in _NOT_COMPILED):
                digest = sha256_file(path)
                store.add_artefact(digest, path)
                files[path.relative_to(space).as_posix()] = digest
    return Captured(calls=found, files=_sorted(files))


def _sorted(files: Mapping[str, str]) -> tuple[tuple[str, Sha256], ...]:
    return tuple((name, Sha256(files[name])) for name in sorted(files))
