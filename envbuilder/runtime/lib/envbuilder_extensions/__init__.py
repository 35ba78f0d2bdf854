"""Let torch's `load()` and `load_inline()` find the extensions that this image holds compiled.

A call is compared by its name, the bytes of its sources and of the project's headers, and the flags that decide their meaning.

* The image has an equal extension: its library is loaded. Nothing is locked, compiled or written.
* The image has that name, but something differs: ENVBUILDER_EXTENSIONS decides. `error`, the default in a read-only image, reports
  what differs. `build`, the default elsewhere, lets torch compile it for the recipe's GPUs. `off` leaves every call to torch.
* The image does not have that name: torch compiles it, as without this hook.

`compiling` does every compile, so that no process waits for a dead one or loads a file that others can write. Paths and times decide
nothing. ENVBUILDER_DEBUG=1 prints what was done and why.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys

from envbuilder_extensions import compiling, gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Entry = dict[str, Any]

FOLDER = "/opt/envbuilder/extensions"
VERSION = 2  # of its index.json
FLAGS = ("-D", "-U", "-std", "--std", "-gencode", "--generate-code", "-arch", "--gpu-architecture")
TEXTS = ("cpp_sources", "cuda_sources", "sycl_sources", "functions")
SWITCHES = ("with_pytorch_error_handling", "no_implicit_headers", "gil_not_used")


class ExtensionError(RuntimeError):
    """An extension of this image does not fit the code or the GPU."""


def install(cpp_extension: ModuleType) -> None:
    """Wrap the two public functions of `torch.utils.cpp_extension`."""
    index = _index()
    _policy()  # a wrong value is named at once
    for name in ("load", "load_inline"):
        setattr(cpp_extension, name, _wrap(getattr(cpp_extension, name), cpp_extension, index))


def _index() -> Entry:
    """Read what the image holds. `steps/extensions.py` writes it."""
    try:
        with open(f"{FOLDER}/index.json", encoding="utf-8") as stream:
            index: Entry = json.load(stream)
    except FileNotFoundError:
        index = {"version": VERSION, "extensions": [], "architectures": []}
    if index["version"] != VERSION:
        raise ExtensionError(f"the index is of version {index['version']}, and this hook reads {VERSION}")
    return index


def _wrap(original: Callable[..., Any], cpp_extension: ModuleType, index: Entry) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        policy = _policy()
        if policy == "off":
            return original(*args, **kwargs)
        call = Call(original, args, kwargs)
        known = [entry for entry in index["extensions"] if call.is_named(entry)]
        reason = _foreign(index) if known else ""
        if not known or reason:
            tell = compiling.say if known else compiling.debug
            tell(f"torch compiles `{call.name}`: {reason or 'the image has no extension of that name'}")
            return compiling.run(call, cpp_extension, architectures=index["architectures"])
        compared = [(call.differences(entry), entry) for entry in known]
        differences, entry = min(compared, key=lambda pair: len(pair[0]))
        if not differences:
            _need_gpu(entry)
            compiling.debug(f"`{call.name}` is `{entry['file']}`")
            return compiling.load_library(cpp_extension, entry)
        how = "; ".join(differences)
        what = f"the image's extension `{call.name}` was compiled from something else: {how}"
        if policy == "build":
            made = compiling.run(call, cpp_extension, architectures=index["architectures"], edited=what)
            return compiling.remember(call.name, made)
        raise _reported(
            f"{what}\n"
            f"hint: `{_renewal()}` where the recipe is makes an image that fits;\n"
            "with ENVBUILDER_EXTENSIONS=build it is compiled here, at each start on a node that has not done so"
        )

    return wrapper


class Call:
    """One call of `load` or `load_inline`, with every argument by its name."""

    def __init__(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        self.original, self.arguments = original, bound.arguments
        self.function = original.__name__
        self.name: str = self.arguments["name"]
        self.sources = [os.path.abspath(path) for path in _listed(self.arguments.get("sources"))]

    def is_named(self, entry: Entry) -> bool:
        return (entry["function"], entry["name"]) == (self.function, self.name) and all(
            entry.get(kind, default) == self.arguments.get(kind, default)
            for kind, default in (("is_python_module", True), ("is_standalone", False))
        )

    @property
    def base(self) -> str:
        """The folder that the index's paths are relative to: the common one of all sources, otherwise of all include folders."""
        include = _listed(self.arguments.get("extra_include_paths"))
        folders = [os.path.dirname(source) for source in self.sources] or list(map(os.path.abspath, include))
        return os.path.commonpath(folders) if folders else ""

    def differences(self, entry: Entry) -> list[str]:
        """Return how the call differs from what the extension was compiled from, in words."""
        base, words = self.base, []
        mine = {os.path.relpath(source, base) for source in self.sources}
        theirs = set(entry["sources"])
        words += [
            f"it did not have the source `{os.path.join(base, path)}`" for path in sorted(mine - theirs)
        ]
        words += [f"it had a source `{path}`" for path in sorted(theirs - mine)]
        for path, digest in {**entry["sources"], **entry["headers"]}.items():
            here = os.path.join(base, path)
            if path in entry["headers"] or path in mine:
                now = compiling.sha256(here)
                if now != digest:
                    words.append(f"`{os.path.normpath(here)}` " + ("differs" if now else "is not there"))
        arguments = entry["arguments"]
        for kind in ("extra_cflags", "extra_cuda_cflags"):
            before, after = _deciding(arguments.get(kind)), _deciding(self.arguments.get(kind))
            if before != after:
                words.append(f"`{kind}` had {_shown(before)} and now has {_shown(after)}")
        for kind in (*TEXTS, *SWITCHES) if self.function == "load_inline" else ():
            if kind in self.arguments:
                before = arguments.get(kind, inspect.signature(self.original).parameters[kind].default)
                if _normal(kind, self.arguments[kind]) != _normal(kind, before):
                    words.append(f"`{kind}` differs")
        return words


def _policy() -> str:
    chosen = os.environ.get("ENVBUILDER_EXTENSIONS", "")
    if chosen in ("error", "build", "off"):
        return chosen
    if chosen:
        raise _reported(f"ENVBUILDER_EXTENSIONS is `{chosen}`; it can be `error`, `build` or `off`")
    fixed = os.statvfs(__file__).f_flag & os.ST_RDONLY or "APPTAINER_CONTAINER" in os.environ
    return "error" if fixed else "build"


def _foreign(index: Entry) -> str:
    """Return why this process cannot use the image's extensions, "" if it can."""
    import torch  # noqa: PLC0415 - the caller has imported it

    here = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cxx11_abi": torch.compiled_with_cxx11_abi(),
        "python": sys.implementation.cache_tag,
    }
    return "; ".join(
        f"the image's extensions are for {name} {index[name]}, and {here[name]} runs here"
        for name in here
        if index[name] != here[name]
    )


def _need_gpu(entry: Entry) -> None:
    """Raise an error for code that no GPU here can run. CUDA would fail at the first kernel: `no kernel image is available`."""
    targets = entry["targets"]
    here = gpus.visible() if targets else []
    unfit = [gpu for gpu in here if not gpus.covers(targets, gpu)]
    if not unfit:
        return
    names = " and ".join(sorted(set(map(str, unfit))))
    what = f"the extension `{entry['name']}` holds code for {', '.join(targets)}, which {names} cannot run"
    if len(unfit) < len(here):
        compiling.say(f"{what}; on that GPU its kernels will fail with `no kernel image is available`")
        return
    raise _reported(
        f"{what}\nhint: name this GPU under `gpus` in the recipe and run `{_renewal()}`;\n"
        "to use the extension on the CPU alone, hide the GPUs with `CUDA_VISIBLE_DEVICES=`"
    )


def _reported(text: str) -> ExtensionError:
    """Print the error and return it: many projects catch errors of their imports, and fail later for no visible reason."""
    compiling.say(text)
    return ExtensionError(text)


def _renewal() -> str:
    """Return the command for an image of an edited recipe or of edited sources. Both need a new lock."""
    try:
        with open("/.singularity.d/labels.json", encoding="utf-8") as stream:
            name = str(json.load(stream)["org.opencontainers.image.title"])
    except (OSError, ValueError, KeyError):
        name = "NAME"
    return f"envbuilder lock {name} && envbuilder build {name}"


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [os.fspath(one) for one in value or []]


def _deciding(flags: Any) -> list[str]:
    """Return the flags that decide what a source means, `-gencode X` as one. Search paths and optimization do not."""
    words, deciding = iter(_listed(flags)), []
    for word in words:
        flag = " ".join(word.split())
        if flag in FLAGS:
            flag = f"{flag} {next(words, '')}"
        if flag.startswith(FLAGS):
            deciding.append(flag)
    return deciding


def _normal(kind: str, value: Any) -> Any:
    if kind in SWITCHES:
        return bool(value)
    if kind == "functions" and isinstance(value, (dict, type(None))):
        return value
    return _listed(value)


def _shown(flags: list[str]) -> str:
    return f"`{' '.join(flags)}`" if flags else "none that matter"
