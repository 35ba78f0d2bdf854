"""Let torch compile what the image does not hold, so that nothing hangs, races or loads another user's code.

* The folder belongs to this user alone and lies on this node, unless the code names a suitable one.
* One process compiles at a time, under flock: the kernel releases the lock of a dead process. Processes that waited learn of a
  failure and do not try again one after the other.
* torch up to 2.13 waits forever for a `lock` that a killed process left. Such a folder is not used again.
* What is compiled is loaded without ninja while the files that it was compiled from are unchanged: ninja asks for the time of each of
  thousands of headers.
* A failure is explained in plain words with a repair. The exception stays torch's own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import inspect
import json
import os
import re
import stat
import subprocess
import sys
import time

from envbuilder_caches import debug, private_folder

from envbuilder_extensions import gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from envbuilder_extensions import Call

TOOLS = "/opt/env/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin"

# Messages of compilers and torch with their cause and repair. They come from the catalogue of `diagnose`.
MESSAGES = os.path.join(os.path.dirname(__file__), "messages.json")


class OtherProcessError(RuntimeError):
    """Another process compiled the same extension and failed."""


def run(call: Call, cpp_extension: ModuleType, *, architectures: list[str], edited: str = "") -> Any:
    """Call torch's own function. `architectures` are the recipe's. `edited` says how the image's extension of that name differs."""
    try:
        root = private_folder()
    except PermissionError as error:
        say(f"{error}; `{call.name}` is compiled where torch does it")
        return call.original(**call.arguments)
    try:
        with _turn(root, _key(call)) as ours:
            folder = ("" if edited else _named_folder(call, cpp_extension, root)) or ours
            call.arguments["build_directory"] = folder
            with _environment(architectures, force=bool(edited)):
                if folder == ours:
                    if _is_compiled(call, folder):
                        return _load(call, cpp_extension, folder)
                    _forget_older(call, folder)
                if edited:
                    say(f"{edited}; compiling what is here")
                debug(f"`{call.name}` is compiled by torch in `{folder}`")
                began = time.time()
                made = call.original(**call.arguments)
                if folder == ours:
                    _note_compiled(call, folder, since=began)
                return made
    except Exception as error:
        say(_explain(call.name, error))
        raise


def say(text: str) -> None:
    sys.stderr.write(f"envbuilder: {text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _turn(root: str, key: str) -> Iterator[str]:
    """Wait for the right to compile one extension, and give the folder for it.

    Raises OtherProcessError if the process that had that right failed meanwhile.
    """
    began, note = time.time(), f"{root}/{key}.failed"
    lock = os.open(f"{root}/{key}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process compiles `{key.rpartition('-')[0]}`; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        # The lock's text is the number of the folder. A process that died left `busy` there, and perhaps compilers that
        # still write into its folder: the next process uses another one.
        last, _, busy = os.pread(lock, 100, 0).decode().partition(" ")
        number = int(last or 0) + bool(busy)
        folder = f"{root}/{key}-{number}"
        _rewrite(lock, f"{number} busy")
        _need_no_failure(note, since=began)
        os.makedirs(folder, 0o700, exist_ok=True)
        try:
            yield folder
        except Exception as error:
            with open(note, "w", encoding="utf-8") as stream:
                stream.write(str(error))
            raise
        finally:
            _rewrite(lock, str(number))
    finally:
        os.close(lock)


def _rewrite(file: int, text: str) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, text.encode(), 0)


def _need_no_failure(note: str, *, since: float) -> None:
    try:
        if os.stat(note).st_mtime < since:
            return
        with open(note, encoding="utf-8") as stream:
            text = stream.read()
    except OSError:
        return
    raise OtherProcessError(f"another process tried to compile it and failed: {text}")


def _named_folder(call: Call, cpp_extension: ModuleType, root: str) -> str:
    """Return the folder that the code names if torch can compile in it, "" for our own."""
    parent = os.environ.get("TORCH_EXTENSIONS_DIR", root)
    folder = call.arguments.get("build_directory")
    if not folder and parent != root:
        folder = os.path.join(parent, call.name)
    if not folder:
        return ""
    reason = _unsafe(folder)
    if not reason and hasattr(cpp_extension, "FileBaton") and os.path.lexists(os.path.join(folder, "lock")):
        reason = f"`{folder}/lock` is there: a killed process left it, or another node compiles; remove it if none does"
    if not reason and not os.access(_existing(folder), os.W_OK | os.X_OK):
        reason = f"`{folder}` cannot be written"
    if reason:
        say(f"{reason}; compiling `{call.name}` in `{root}`")
        return ""
    os.makedirs(folder, exist_ok=True)
    return str(folder)


def _unsafe(folder: str) -> str:
    """Return why code must not be loaded from a folder: somebody else could have written it. "" if it is safe."""
    there = _existing(folder)
    status, is_new = os.stat(there), there != os.path.abspath(folder)
    if status.st_mode & stat.S_IWOTH and not (is_new and status.st_mode & stat.S_ISVTX):
        return f"everybody can write in `{there}`"
    if not is_new and status.st_uid not in (os.geteuid(), 0):
        return f"`{folder}` belongs to user {status.st_uid}"
    return ""


def _existing(path: str) -> str:
    """Return the path itself or the first folder above it that exists."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _key(call: Call) -> str:
    """Return the name of a folder: the same for the same code and environment, so an edit compiles only what it touches."""
    import torch  # noqa: PLC0415 - the caller has imported it

    kinds = ("cpp_sources", "cuda_sources", "functions", "build_directory")
    texts = [call.arguments.get(kind) for kind in kinds]
    place = os.environ.get("TORCH_EXTENSIONS_DIR")
    facts = [torch.__version__, sys.implementation.cache_tag, call.sources, texts, place]
    digest = hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_.]', '_', call.name)}-{digest[:16]}"


def _forget_older(call: Call, folder: str) -> None:
    """Remove the objects of sources that changed but have an older time, as after `rsync -a`: ninja compares times."""
    note = os.path.join(folder, "sources.json")
    now = {source: sha256(source) for source in call.sources}
    before = _read_note(note)
    for source, digest in now.items():
        if before.get(source, digest) != digest:
            stem = os.path.join(folder, os.path.splitext(os.path.basename(source))[0])
            for made in (f"{stem}.o", f"{stem}.cuda.o"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(made)
    with open(note, "w", encoding="utf-8") as stream:
        json.dump(now, stream)


def sha256(path: str) -> str:
    """Return the digest of a file, "" if there is none."""
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""


def _read_note(path: str) -> dict[str, Any]:
    """Return what an earlier process wrote, nothing where it cannot be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            return dict(json.load(stream))
    except (OSError, ValueError, TypeError):
        return {}


# What decides a compile beside the files and the arguments of the call.
DECIDING = (
    *("CC", "CXX", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST"),
    *("PYTORCH_NVCC", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"),
)


def _is_compiled(call: Call, folder: str) -> bool:
    """Return whether the folder holds the library of this call, compiled from the files as they are now."""
    note = _read_note(os.path.join(folder, "compiled.json"))
    return (
        note.get("asked") == _asked(call)
        and os.path.isfile(_library(call, folder))
        and all(sha256(path) == digest for path, digest in note["files"].items())
    )


def _note_compiled(call: Call, folder: str, *, since: float) -> None:
    """Note what a library was compiled from, unless that is uncertain.

    It is without ninja's list of headers, where a file was edited meanwhile, and where torch wrote a second library `NAME_v1.so`,
    because this process had compiled the first.
    """
    note = os.path.join(folder, "compiled.json")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(note)
    try:
        listed = subprocess.run(["ninja", "-t", "deps"], cwd=folder, stdout=subprocess.PIPE, check=True)  # noqa: S607
    except (OSError, subprocess.CalledProcessError):
        return
    read = {line.strip() for line in listed.stdout.decode().splitlines() if line.startswith("    ")}
    read = {os.path.realpath(os.path.join(folder, path)) for path in read}
    image = ("/usr/", "/etc/", "/opt/env/", "/opt/python/", os.path.realpath(folder) + "/")
    files = [*call.sources, *sorted(path for path in read if not path.startswith(image))]
    if (
        any(name.startswith(f"{call.name}_v") for name in os.listdir(folder))
        or max(map(_edited, files), default=0) >= since
    ):
        return
    with open(note, "w", encoding="utf-8") as stream:
        json.dump({"asked": _asked(call), "files": {path: sha256(path) for path in files}}, stream)


def _edited(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return time.time()


def _asked(call: Call) -> str:
    arguments = {
        name: value for name, value in call.arguments.items() if name not in ("build_directory", "verbose")
    }
    environment = {name: os.environ.get(name) for name in DECIDING}
    facts = [arguments, environment, list(map(str, gpus.visible()))]
    return hashlib.sha256(json.dumps(facts, default=str, sort_keys=True).encode()).hexdigest()


def _library(call: Call, folder: str) -> str:
    return os.path.join(folder, call.name if call.arguments.get("is_standalone") else f"{call.name}.so")


def _load(call: Call, cpp_extension: ModuleType, folder: str) -> Any:
    debug(f"`{call.name}` is compiled already, in `{folder}`")
    kinds = {
        name: call.arguments.get(name, default)
        for name, default in (("is_python_module", True), ("is_standalone", False))
    }
    return load_library(cpp_extension, {"name": call.name, "file": _library(call, folder), **kinds})


def load_library(cpp_extension: ModuleType, entry: dict[str, Any]) -> Any:
    if entry.get("is_standalone"):
        return entry["file"]
    # `load` ends with this private function as well; what it does and returns has changed between versions.
    import_library = cpp_extension._import_module_from_library  # noqa: SLF001
    is_module = entry.get("is_python_module", True)
    return remember(entry["name"], import_library(entry["name"], os.path.dirname(entry["file"]), is_module))


def remember(name: str, loaded: Any) -> Any:
    """Register the module: code from before pybind11 3 imports a loaded extension by its name."""
    if inspect.ismodule(loaded):
        sys.modules.setdefault(name, loaded)
    return loaded


@contextlib.contextmanager
def _environment(architectures: list[str], *, force: bool) -> Iterator[None]:
    """What a compile needs and the shell may lack: the image's tools behind the user's own, and GPUs to compile for."""
    before = dict(os.environ)
    os.environ["PATH"] = ":".join(filter(None, (os.environ.get("PATH"), TOOLS)))
    if architectures and (force or ("TORCH_CUDA_ARCH_LIST" not in before and not gpus.visible())):
        os.environ["TORCH_CUDA_ARCH_LIST"] = ";".join(architectures)
    try:
        yield
    finally:
        for name in ("PATH", "TORCH_CUDA_ARCH_LIST"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


def _explain(name: str, error: Exception) -> str:
    text = str(error)
    with open(MESSAGES, encoding="utf-8") as stream:
        rows = json.load(stream)
    for row in rows:
        if any(_is_like(line, mark) for mark in row["lines"] for line in text.splitlines()):
            meaning, remedy = row["message"], row["repair"]
            return f"`{name}` could not be compiled or loaded here: {meaning}\nhint: {remedy}"
    if isinstance(error, IndexError) and "TORCH_CUDA_ARCH_LIST" not in os.environ:
        return (
            f"`{name}` could not be compiled here: no GPU is visible, and nothing says for which to compile\n"
            "hint: set TORCH_CUDA_ARCH_LIST, for example to 8.0, or name the extension in the recipe"
        )
    lines = [line.strip() for line in text.splitlines() if re.search(r"\berror\b|Error:", line)]
    shown = "\n".join(f"  {line}" for line in lines[:5]) or f"  {type(error).__name__}: {text[:500]}"
    return f"`{name}` could not be compiled or loaded here:\n{shown}"


def _is_like(line: str, mark: dict[str, str]) -> bool:
    """Whether a line holds the literal of a mark, and both its expressions agree."""
    if mark["has"] not in line or ("unless" in mark and re.search(mark["unless"], line)):
        return False
    return "like" not in mark or bool(re.search(mark["like"], line))
