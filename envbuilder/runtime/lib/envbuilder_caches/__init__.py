"""Give the caches of torch, Triton and other libraries a place on this node where their default cannot be written.

`--no-home`, `--containall`, a read-only home and a full one end `torch.compile` and more, long after the start. Each library reads its
variable when it is imported, so `place` runs just before the first of them. It leaves a default that can be written, and every value
of the user's own.

`look_in_image` lets Triton find the kernels that the build compiled (the key `warm` of a recipe), wherever its cache is.
"""

from __future__ import annotations

import copy
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MARK = "_ENVBUILDER_CACHES"  # tells child processes which values are ours, of use on this node alone
HUB_KERNELS = "/opt/envbuilder/kernels"
KERNELS = "/opt/envbuilder/warm/triton"
PROBE = 1 << 16  # bytes: a full file system or a used-up quota may still take an empty file


def place() -> None:
    """Set the variables of the caches that have no place."""
    for ours in os.environ.pop(MARK, "").split("\n"):
        name, _, value = ours.partition("=")
        if value and os.environ.get(name) == value:
            del os.environ[name]
    devices: dict[int, bool] = {}
    lost = [
        (name, folder, kept)
        for name, folder, defaults, kept in _caches()
        if not os.environ.get(name) and not all(_is_writable(default, devices) for default in defaults)
    ]
    if not lost:
        return
    try:
        root = private_folder()
    except PermissionError as error:
        debug(f"caches have no place: {error}")
        return
    chosen = {name: kept or os.path.join(root, folder).rstrip("/") for name, folder, kept in lost}
    os.environ.update(chosen)
    os.environ[MARK] = "\n".join(f"{name}={value}" for name, value in chosen.items())
    debug(f"the home cannot be written; caches are in `{root}`: {', '.join(chosen)}")


def look_in_image(cache: Any) -> None:
    """Let Triton's cache of files look for a kernel in the image as well, after its own folder. Nothing is written there.

    A kernel's name is a digest of its source, of Triton and of the GPU's kind, so one for another GPU is not found.
    """
    manager = getattr(cache, "FileCacheManager", None)
    if manager is None or not os.path.isdir(KERNELS):
        return
    find = manager.get_group

    def get_group(self: Any, filename: str) -> Any:
        group = find(self, filename)
        folder = os.path.join(KERNELS, getattr(self, "key", ""))
        if group or not os.path.isfile(os.path.join(folder, f"__grp__{filename}")):
            return group
        ours = copy.copy(self)
        ours.cache_dir = folder
        debug(f"`{filename}` is from the image")
        return find(ours, filename)

    manager.get_group = get_group


def name_kernels() -> None:
    """Name the image's kernels of the hub to the package `kernels`, unless the user names others."""
    if "LOCAL_KERNELS" in os.environ or not os.path.isdir(HUB_KERNELS):
        return
    names = [
        f"{owner}/{name}"
        for owner in sorted(os.listdir(HUB_KERNELS))
        for name in sorted(os.listdir(f"{HUB_KERNELS}/{owner}"))
    ]
    os.environ["LOCAL_KERNELS"] = ":".join(f"{name}={HUB_KERNELS}/{name}" for name in names)


def _caches() -> Iterator[tuple[str, str, list[str], str]]:
    """Yield variable, name of our folder, the defaults that its library writes, and the default if it holds what we must not hide.

    Sources: triton/knobs.py, torch/_inductor/runtime/cache_dir_utils.py, torch/_appdirs.py, torch/hub.py, matplotlib/__init__.py,
    numba/core/caching.py, huggingface_hub/constants.py; CUDA C++ Programming Guide, CUDA_CACHE_PATH.
    """
    home = os.path.expanduser("~")
    cache = os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    config = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    triton = os.environ.get("TRITON_HOME") or home
    yield "TRITON_CACHE_DIR", "triton", [f"{triton}/.triton/cache"], ""
    yield "TORCHINDUCTOR_CACHE_DIR", "inductor", [_inductor_default()], ""
    yield "CUDA_CACHE_PATH", "cuda", [f"{home}/.nv/ComputeCache"], ""
    yield "TORCH_EXTENSIONS_DIR", "", [f"{cache}/torch_extensions"], ""  # `compiling` makes a folder for each
    yield "MPLCONFIGDIR", "matplotlib", [f"{config}/matplotlib", f"{cache}/matplotlib"], ""
    yield "NUMBA_CACHE_DIR", "numba", [f"{cache}/numba"], ""
    for name, folder in (("TORCH_HOME", "torch"), ("HF_HOME", "huggingface")):
        # Models that lie there can be read, and some nodes cannot download them again.
        kept = f"{cache}/{folder}"
        yield name, folder, [kept], kept if os.path.isdir(f"{kept}/hub") else ""
    yield "XDG_CACHE_HOME", "cache", [cache], ""


def _inductor_default() -> str:
    """Return torch's default, "" where there is none: it asks for the name of a user that an image may not have."""
    import getpass  # noqa: PLC0415 - torch imports both as well
    import tempfile  # noqa: PLC0415

    try:
        return f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"
    except (KeyError, OSError):
        return ""


def _is_writable(path: str, devices: dict[int, bool]) -> bool:
    """Whether a folder can be made, or filled if it is there. `devices` remembers what has room."""
    if not os.path.isabs(path):  # a user without a home
        return False
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        return False
    device = os.stat(path).st_dev
    if device not in devices:
        devices[device] = _has_room(path)
    return devices[device]


def _has_room(folder: str) -> bool:
    import tempfile  # noqa: PLC0415

    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:  # it has no name, so ranks do not meet
            return file.write(bytes(PROBE)) == PROBE
    except OSError:
        return False


def private_folder() -> str:
    """Return a folder on this node that nobody else can write. Raises PermissionError if there is none."""
    refused = []
    for parent in (os.environ.get("SLURM_TMPDIR"), os.environ.get("TMPDIR"), "/tmp"):  # noqa: S108 - checked below
        if not parent:
            continue
        folder = os.path.join(os.path.abspath(parent), f"envbuilder-{os.geteuid()}")
        try:
            if _is_open(parent):
                refused.append(f"others can exchange `{folder}`; `chmod +t {parent}` prevents it")
                continue
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:  # of an earlier process, or of another user
                pass
            status = os.lstat(folder)
        except OSError as error:
            refused.append(f"`{folder}`: {error.strerror}")
            continue
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            refused.append(f"`{folder}` is not a folder that is yours alone")
        elif not _has_room(folder):
            refused.append(f"`{folder}` cannot be written")
        else:
            return folder
    raise PermissionError("there is no safe folder: " + "; ".join(refused))


def _is_open(folder: str) -> bool:
    """Whether another user may exchange names in the folder: its owner, or who may write it without the sticky bit."""
    root = 0
    with open("/proc/self/uid_map", encoding="ascii") as stream:
        if stream.readline().split()[1] != "0":  # without root, files of root have another owner
            with open("/proc/sys/kernel/overflowuid", encoding="ascii") as overflow:
                root = int(overflow.read())
    status = os.stat(folder)
    others = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
    return bool(others) or status.st_uid not in (0, root, os.geteuid())


def debug(text: str) -> None:
    if os.environ.get("ENVBUILDER_DEBUG") == "1":
        sys.stderr.write(f"envbuilder: {text}\n")
        sys.stderr.flush()
