"""Save decisions on this node, in a folder that nobody else can write, and the verdict of a test in the user's home.

Loaded only on nodes with GPUs. Only the user's own plain files are read: no links, no folders that others may enter, no files of
another owner or with a second name.
"""

from __future__ import annotations

import json
import os
import time
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_BYTES = 1 << 18


def load(key: str) -> dict[str, Any] | None:
    """Return the decision saved for exactly this key, None if there is none that can be trusted."""
    for folder in _folders():
        try:
            saved = json.loads(_read(folder, _name(key)) or "{}")
        except ValueError:
            continue
        if saved.get("key") == key and time.time() <= saved["decision"].get("until", float("inf")):
            return dict(saved["decision"])
    return None


def save(key: str, decision: dict[str, Any]) -> None:
    """Save a decision in the first folder that allows it. Without one, the next process decides again."""
    for folder in _folders():
        if _write(folder, _name(key), {"key": key, "decision": decision}, most=64):
            return


def measured_path(environment: Any) -> str:
    """Return where `detect --measure` saves this node's verdict, in the user's home."""
    state = environment.get("XDG_STATE_HOME") or os.path.join(
        environment.get("HOME", "/nonexistent"), ".local/state"
    )
    return os.path.join(state, "envbuilder", f"measured-{os.uname().nodename}.json")


def save_measured(environment: Any, verdict: Any) -> str:
    """Save a verdict. Returns its path, "" if the home cannot be written."""
    path = measured_path(environment)
    folder, name = os.path.split(path)
    try:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
    except OSError:
        return ""
    return path if _write(folder, name, verdict) else ""


def read_measured(environment: Any) -> Any:
    """Return the verdict of this node's test from the user's own plain file, None without one."""
    try:
        return json.loads(_read(*os.path.split(measured_path(environment))) or "null")
    except ValueError:
        return None


def _folders() -> list[str]:
    user = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return [*([os.path.join(runtime, "envbuilder")] if runtime else []), f"/tmp/envbuilder-{user}"]  # noqa: S108


def _open_folder(path: str) -> int | None:
    """Open a folder that only this user can enter. A link is not followed. Returns None for any other."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(opened)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(opened)
        return None
    return opened


def _read(path: str, name: str) -> str:
    folder = _open_folder(path)
    if folder is None:
        return ""
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    finally:
        os.close(folder)
    with os.fdopen(opened, "rb") as stream:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid() or status.st_nlink != 1 or (status.st_mode & 0o170000) != 0o100000:
            return ""
        return stream.read(MOST_BYTES).decode("utf-8", "replace")


def _write(path: str, name: str, value: Any, most: int = 0) -> bool:
    """Write a file in a folder, which is made if need be. With `most`, keep no more files than that."""
    try:
        os.mkdir(path, 0o700)
    except OSError:
        pass
    folder = _open_folder(path)
    if folder is None:
        return False
    try:
        _replace(folder, name, json.dumps(value).encode())
        names = os.listdir(folder) if most else []
        if len(names) > most:
            names.sort(
                key=lambda old_name: os.stat(old_name, dir_fd=folder, follow_symlinks=False).st_mtime_ns
            )
            for old in names[:-most]:
                os.unlink(old, dir_fd=folder)
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def _replace(folder: int, name: str, data: bytes) -> None:
    part = f"{name}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(part, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(opened, "wb") as stream:
            stream.write(data)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(part, dir_fd=folder)
        raise


def _name(key: str) -> str:
    """Return a file name. Two keys may share one, since the file holds the whole key. hashlib takes too long to import."""
    return f"nccl-{zlib.crc32(key.encode()):08x}.json"
