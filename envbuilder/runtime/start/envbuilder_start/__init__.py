"""Run at the start of every Python of this image and wait for torch, and for other libraries with caches.

`Watcher` is the first finder of modules. It finds no module itself.

* Just before the first of CACHING is executed, it calls `envbuilder_caches.place()`.
* Just before `torch` is executed for the first time, it calls `envbuilder_nccl.prepare()`.
* After each module of COMPILED is executed, it calls a function of `envbuilder_caches` with it, which finds what the image has compiled.
* After `torch.utils.cpp_extension` is executed, it calls `envbuilder_extensions.install(module)`.

They lie in /opt/envbuilder/lib, which is not on `sys.path`. An error in them is one line on stderr, and torch starts as if they did
not exist. `Compiled` is the last finder: it finds the compiled modules of projects that a working folder hides. In a job of
`launch`, each line of output becomes one write, and a signal prints Python's stacks. ENVBUILDER_START=off turns all of this off.
"""

import os
import sys

TYPE_CHECKING = False  # importing `typing` or `__future__` takes as long as all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

LIB = "/opt/envbuilder/lib"
INDEX = "/opt/envbuilder/extensions/index.json"
CACHING = ("torch", "triton", "matplotlib", "numba", "huggingface_hub", "datasets", "kernels")
EXTENSIONS = "torch.utils.cpp_extension"
COMPILED = {
    "triton.runtime.cache": "look_in_image",
    "numba.core.caching": "look_for_functions",
    "torch._inductor.codecache": "fill",
}
WATCHED = frozenset((*CACHING, EXTENSIONS, *COMPILED))


def write_whole_lines() -> None:
    """Write each line at its end. Unbuffered, `print(a, b)` writes it in parts, and other ranks write between them."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]


def show_stacks() -> None:
    """Let SIGRTMAX print the stacks of all threads to stderr. Programs and schedulers have uses of their own for USR1 and USR2."""
    import faulthandler  # noqa: PLC0415 - of no use outside a job
    import signal  # noqa: PLC0415

    if sys.stderr is not None:
        faulthandler.register(signal.SIGRTMAX, sys.stderr)


class Watcher:
    """The finder stays in `sys.meta_path`: removing it could make another thread's import skip a finder."""

    def __init__(self) -> None:
        self.placed = self.prepared = False

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name not in WATCHED:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                self._surround(spec)
                return spec
        return None

    def _surround(self, spec: "ModuleSpec") -> None:
        loader, name = spec.loader, spec.name
        execute: Callable[[ModuleType], None] | None = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: "ModuleType") -> None:
            del loader.exec_module  # type: ignore[union-attr]  # the loader is the usual one again
            if not self.placed:
                self.placed = True
                _call("envbuilder_caches", "place", failure="caches have no place")
            if name == "kernels":
                _call("envbuilder_caches", "name_kernels", failure="kernels of the image are not used")
            if name == "torch" and not self.prepared:
                self.prepared = True
                _call("envbuilder_nccl", "prepare", failure="NCCL defaults were not set")
            execute(module)
            if name in COMPILED:
                failure = "what the image has compiled is not used"
                _call("envbuilder_caches", COMPILED[name], module, failure=failure)
            if name == EXTENSIONS:
                _call("envbuilder_extensions", "install", module, failure="prebuilt extensions are not used")

        loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]


class Compiled:
    """Find `pkg._C` of the environment where another folder's `pkg`, such as a clone's, hides the installed one.

    A clone has the Python files of a project without what is compiled. As with an editable install, the folder's Python files then
    run with the environment's compiled modules. Only a module that no other finder finds is looked for: one that was compiled in
    the folder wins. Nothing is read before the first submodule that is not found.
    """

    def __init__(self) -> None:
        self.modules: dict[str, str] | None = None

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        del target
        # No folder hides what has no package.
        if path is None or os.environ.get("ENVBUILDER_EXTENSIONS") == "off":
            return None
        if self.modules is None:
            self.modules = _compiled_modules()
        if name not in self.modules:
            return None
        file = self.modules[name]
        from importlib.util import spec_from_file_location  # noqa: PLC0415 - of no use before

        if os.environ.get("ENVBUILDER_DEBUG") == "1":
            sys.stderr.write(f"envbuilder: `{name}` is `{file}`: {list(path)} hides the installed package\n")
        return spec_from_file_location(name, file)


def _compiled_modules() -> "dict[str, str]":
    """Return the files of the compiled modules that the image's projects installed, by their names in Python."""
    import json  # noqa: PLC0415 - most programs do without
    from importlib.machinery import EXTENSION_SUFFIXES  # noqa: PLC0415

    try:
        with open(INDEX, encoding="utf-8") as stream:
            entries = json.load(stream)["extensions"]
        files = [file for entry in entries for file in entry.get("libraries", ()) if isinstance(file, str)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # told when torch is imported
        return {}
    modules = {}
    for file in files:
        inside = file.partition("/site-packages/")[2]
        suffix = next(filter(inside.endswith, EXTENSION_SUFFIXES), "")
        if suffix:
            modules[inside[: -len(suffix)].replace("/", ".")] = file
    return modules


def _call(name: str, function: str, *arguments: object, failure: str) -> None:
    """Call a function of a module in LIB, if the image has that module."""
    try:
        module = _import(name)
        if module is not None:
            getattr(module, function)(*arguments)
    except Exception as error:  # noqa: BLE001 - torch must start without us, too
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        sys.stderr.write(f"envbuilder: {failure}: {text}\n")


def _import(name: str) -> "ModuleType | None":
    from importlib.machinery import PathFinder  # noqa: PLC0415 - of no use without torch
    from importlib.util import module_from_spec  # noqa: PLC0415

    spec = PathFinder.find_spec(name, [LIB])
    if spec is None or spec.loader is None:
        return None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


if os.environ.get("ENVBUILDER_START") != "off":
    sys.meta_path.insert(0, Watcher())
    sys.meta_path.append(Compiled())
    if "ENVBUILDER_WHOLE_LINES" in os.environ:  # `launch` sets it
        write_whole_lines()
        show_stacks()
