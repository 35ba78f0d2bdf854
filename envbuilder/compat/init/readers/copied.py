"""Find the build context's file for a path in the image, by following COPY, ADD and WORKDIR."""

import json
import os
import shlex
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path, PurePosixPath


@dataclass(slots=True, kw_only=True)
class Copied:
    """The files copied so far. All stages share it, because a later stage may name any of them."""

    context: Path  # the Dockerfile's folder
    folder: str = "/"  # WORKDIR
    files: list[tuple[Path, str, bool]] = field(default_factory=list)  # source, target, is that a folder

    def enter(self, folder: str) -> None:
        """WORKDIR."""
        self.folder = self._target(folder.strip().strip("\"'"))

    def copy(self, value: str) -> None:
        """Note the arguments of COPY or ADD, unless they come from another stage or an address."""
        words = _words(value)
        plain = [word for word in words if not word.startswith("--")]
        if len(plain) < 2 or any(word.startswith("--from=") for word in words):
            return
        *sources, target = plain
        is_folder = len(sources) > 1 or target.endswith(("/", "."))
        for source in (source.lstrip("/") for source in sources if "://" not in source):
            # `Path.glob` ends with an error for a pattern such as `a**`.
            found = sorted(glob(source, root_dir=self.context))  # noqa: PTH207
            names = found if set(source) & set("*?[") else [source]
            self.files += [(self.context / one, self._target(target), is_folder) for one in names]

    def locate(self, name: str) -> Path | None:
        """Return the file of the context behind a path, or None."""
        wanted = PurePosixPath(self._target(name))
        for source, target, is_folder in reversed(self.files):
            if source.is_dir():
                if wanted.is_relative_to(target) and (file := source / wanted.relative_to(target)).is_file():
                    return file
            # Whether `/tmp` is a folder or the file's new name is told by the image alone.
            elif wanted == PurePosixPath(target, source.name) or (not is_folder and str(wanted) == target):
                return source
        return None if PurePosixPath(name).is_absolute() else self.context / name

    def _target(self, name: str) -> str:
        return os.path.normpath(PurePosixPath(self.folder, name))


def _words(value: str) -> list[str]:
    """Split arguments written as words or as a JSON list."""
    try:
        return [str(word) for word in json.loads(value)] if value.startswith("[") else shlex.split(value)
    except ValueError:
        return []
