"""Give the caches of torch, Triton and other libraries a place on this node where their default cannot be written.

`--no-home`, `--containall`, a read-only home and a full one end `torch.compile` and more, long after the start. Each library reads its
variable when it is imported, so `place` runs just before the first of them. It leaves a default that can be written, and every value
of the user's own.

With KEEP, `place` lets them write what they compile into a folder, which the key `warm` of a recipe takes into an image. There,
`look_in_image` and `look_for_functions` let Triton and Numba find it behind the user's own cache, wherever that is, and `fill` copies
that of torch.compile into it. A kernel for another GPU or CPU is not found.
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
WARM = "/opt/envbuilder/warm"  # as `steps/warm.py` has it: a folder for what a build compiled, and one for each that jobs filled
KEEP = "ENVBUILDER_KEEP_COMPILED"
INDUCTOR, TRITON, NUMBA = "inductor", "triton", "numba"  # in each of these, as `recipe/warm.py` has them
# torch.compile precompiles headers of C++ before it looks for what it compiled, for seconds. Its keys know the setting.
HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
PROBE = 1 << 16  # bytes: a full file system or a used-up quota may still take an empty file


def place() -> None:
    """Set the variables of the caches that have no place."""
    for ours in os.environ.pop(MARK, "").split("\n"):
        name, _, value = ours.partition("=")
        if value and os.environ.get(name) == value:
            del os.environ[name]
    _keep()
    if not os.environ.get(KEEP) and os.path.isdir(WARM) and _in_image(f"{INDUCTOR}/{_cpu()}"):
        os.environ.setdefault(HEADERS, "0")
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


def _keep() -> None:
    """Let libraries write what they compile into the folder that the user names."""
    if not os.environ.get(KEEP):
        return
    folder = os.environ[KEEP] = os.path.abspath(
        os.environ[KEEP]
    )  # child processes may have another working folder
    if not _is_writable(folder, {}):
        sys.stderr.write(f"envbuilder: `{folder}` cannot be written: what is compiled is not kept there\n")
        return
    os.environ.update(
        TORCHINDUCTOR_CACHE_DIR=f"{folder}/{INDUCTOR}/{_cpu()}",
        TRITON_CACHE_DIR=f"{folder}/{TRITON}",
        NUMBA_CACHE_DIR=f"{folder}/{NUMBA}",
    )
    os.environ.setdefault(HEADERS, "0")
    debug(f"what is compiled is kept in `{folder}`")


def _cpu() -> str:
    """Return a name for CPUs of this kind. Code of Inductor is for the CPU that compiled it, and keys of some releases do not say so."""
    import hashlib  # noqa: PLC0415 - torch imports it as well

    try:
        with open("/proc/cpuinfo", "rb") as stream:
            first = stream.read(1 << 13).partition(b"\n\n")[0]
    except OSError:
        return "unknown"
    facts = (b"vendor_id", b"cpu family", b"model", b"flags", b"Features", b"CPU implementer", b"CPU part")
    lines = [line for line in first.splitlines() if line.partition(b":")[0].strip() in facts]
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:12]


def _in_image(kind: str) -> list[str]:
    """Return the image's folders of what was compiled, of this kind. None while a job keeps all that it needs."""
    if os.environ.get(KEEP) or not os.path.isdir(WARM):
        return []
    folders = [os.path.join(WARM, name, kind) for name in sorted(os.listdir(WARM))]
    return [folder for folder in folders if os.path.isdir(folder)]


def look_in_image(cache: Any) -> None:
    """Let Triton's cache of files look for a kernel in the image as well, after its own folder. Nothing is written there.

    A kernel's name is a digest of its source, of Triton and of the GPU's kind, so one for another GPU is not found.
    """
    manager, places = getattr(cache, "FileCacheManager", None), _in_image(TRITON)
    if manager is None or not places:
        return
    find = manager.get_group

    def get_group(self: Any, filename: str) -> Any:
        group = find(self, filename)
        folders = [os.path.join(place, getattr(self, "key", "")) for place in places]
        folder = next((path for path in folders if os.path.isfile(f"{path}/__grp__{filename}")), "")
        if group or not folder:
            return group
        ours = copy.copy(self)
        ours.cache_dir = folder
        debug(f"`{filename}` is from the image")
        return find(ours, filename)

    manager.get_group = get_group


def look_for_functions(caching: Any) -> None:
    """Let Numba look for a function in the image as well, after its own cache. Nothing is written there.

    Numba compares its release, the source and the CPU. The folder of the source does not matter: a clone has another one.
    """
    files = getattr(caching, "IndexDataCacheFile", None)
    places = [entry.path for place in _in_image(NUMBA) for entry in os.scandir(place)]
    if files is None or not places:
        return
    find = files.load

    def load(self: Any, key: Any) -> Any:
        data, name = find(self, key), getattr(self, "_index_name", "")
        for place in places if data is None and name else ():
            if not os.path.isfile(f"{place}/{name}"):
                continue
            ours = copy.copy(self)
            ours._cache_path, ours._index_path = place, f"{place}/{name}"  # noqa: SLF001 - there is no other way
            try:
                data = find(ours, key)
            except Exception as error:  # noqa: BLE001 - Numba compiles it
                debug(f"`{place}/{name}` is not used: {error!r}")
            if data is not None:
                debug(f"`{name}` is from the image")
                break
        return data

    files.load = load


def fill(codecache: Any) -> None:
    """Copy what the image has for this kind of CPU into the cache of torch.compile, which finds it by its own keys.

    Ranks may do so at once: a file gets its name when it is whole.
    """
    places = _in_image(f"{INDUCTOR}/{_cpu()}") if os.path.isdir(WARM) else []
    if not places:
        if _in_image(INDUCTOR):
            debug("what the image has of torch.compile is for another CPU")
        return
    if not hasattr(codecache, "cache_dir"):
        debug("this torch does not say where its cache is: what the image has of torch.compile is not used")
        return
    cache, count = codecache.cache_dir(), 0
    temporary = os.path.join(cache, f".envbuilder-{os.urandom(8).hex()}")
    try:
        for place in places:
            for parent, _, names in os.walk(place):
                folder = cache + parent[len(place) :]
                os.makedirs(folder, exist_ok=True)
                for name in names:
                    count += _copy(os.path.join(parent, name), os.path.join(folder, name), temporary)
    except OSError as error:
        debug(f"what the image has of torch.compile is not copied: {error}")
    debug(f"{count} files of torch.compile are from the image")


def _copy(source: str, target: str, temporary: str) -> bool:
    """Copy a file unless it is there. A library that was not written to its end would end the program that loads it."""
    if os.path.lexists(target):
        return False
    if source.endswith(".so") and not _is_whole(source):
        debug(f"`{source}` is not whole")
        return False
    import shutil  # noqa: PLC0415 - torch imports it as well

    try:
        shutil.copyfile(source, temporary)
        os.rename(temporary, target)
    except OSError:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
    return True


def _is_whole(library: str) -> bool:
    """Return whether an ELF file of 64 bits has its table of sections, which stands at its end."""
    import struct  # noqa: PLC0415

    with open(library, "rb") as stream:
        head = stream.read(64)
        if len(head) < 64 or head[:4] != b"\x7fELF":
            return False
        (start,), (size, number) = struct.unpack_from("<Q", head, 40), struct.unpack_from("<HH", head, 58)
        return bool(start) and start + size * number <= os.fstat(stream.fileno()).st_size


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
