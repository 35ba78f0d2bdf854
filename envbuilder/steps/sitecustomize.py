"""A simulated GPU and sorted folders for a project's own programs, while the sandbox builds it.

Many a setup.py asks for a GPU before it compiles for one. Here it sees the recipe's GPU, from `_ENVBUILDER_CAPABILITY`, such as
8.0. Nothing can run on it. torch compiles for `_ENVBUILDER_GPUS`, such as 8.0;9.0, also where a setup.py names other GPUs. Python imports this file at its start because its folder is on PYTHONPATH; it is not part of the image.
Listings are sorted, because a setup.py that takes every file would link them in the order of the disk.
"""

import glob
import importlib
import importlib.abc
import os
import sys
import types
import typing


def in_order(function):
    def ordered(*args, **kwargs):
        return sorted(function(*args, **kwargs))

    return ordered


os.listdir = in_order(os.listdir)
glob.glob = in_order(glob.glob)


def simulate_gpu(torch):
    major, minor = map(int, os.environ["_ENVBUILDER_CAPABILITY"].rstrip("af").split("."))
    name = "GPU of the recipe, sm_%d%d" % (major, minor)
    properties = types.SimpleNamespace(
        major=major, minor=minor, name=name, total_memory=16 << 30, multi_processor_count=80
    )
    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.is_initialized = lambda: True
    cuda.get_device_capability = lambda device=None: (major, minor)
    cuda.get_device_name = lambda device=None: name
    cuda.get_device_properties = lambda device=None: properties
    for function in ("init", "set_device", "synchronize", "empty_cache", "_lazy_init"):
        setattr(cuda, function, lambda *args, **kwargs: None)


class Driver:
    """Stands for the driver that triton asks, while modules with its kernels are imported, for the GPU and for a way to measure."""

    def get_current_target(self):
        number = os.environ["_ENVBUILDER_CAPABILITY"].rstrip("af").replace(".", "")
        return importlib.import_module("triton.backends.compiler").GPUTarget("cuda", int(number), 32)

    def get_current_device(self):
        return 0

    def get_benchmarker(self):
        return lambda *args, **kwargs: [0.0]


def simulate_driver(module):
    module.driver.set_active(Driver())


def choose_gpus(cpp_extension):
    """Let torch compile for the recipe's GPUs, whichever list the project sets. `steady.c` does the same for nvcc."""
    flags = cpp_extension._get_cuda_arch_flags

    def recipes_flags(*args):
        os.environ["TORCH_CUDA_ARCH_LIST"] = os.environ["_ENVBUILDER_GPUS"]
        return flags(*args)

    cpp_extension._get_cuda_arch_flags = recipes_flags


def use_ninja(cpp_extension):
    """Let ninja compile also where a project leaves it out: it goes on after an interruption, and compiles several files at once.

    ninja starts compilers in another folder, so a project with a folder among its flags is left as it is.
    """
    if not hasattr(cpp_extension, "BuildExtension"):
        return
    build = cpp_extension.BuildExtension.build_extensions

    def build_extensions(self):
        flags = [flag for extension in self.extensions for flag in flags_of(extension.extra_compile_args)]
        if not any(flag.startswith(("-I", "-i")) for flag in flags) and cpp_extension.is_ninja_available():
            for extension in self.extensions:
                extension.include_dirs = list(map(os.path.abspath, extension.include_dirs or ()))
            self.use_ninja = self.force = True
        build(self)

    cpp_extension.BuildExtension.build_extensions = build_extensions


def flags_of(given):
    """Return the flags of an extension, which has a list of them or a list for each compiler."""
    lists = given.values() if isinstance(given, dict) else [given or []]
    return [str(flag) for flags in lists for flag in flags]


class After(importlib.abc.MetaPathFinder):
    """Find modules as usual, and change each once it is imported."""

    def __init__(self, changes):
        self.changes = changes

    def find_spec(self, name, path=None, target=None):
        change = self.changes.get(name)
        others = (finder for finder in sys.meta_path if change and finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None:
            return None
        loader: typing.Any = spec.loader
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            change(module)

        loader.exec_module = exec_module
        return spec


def change_extensions(cpp_extension):
    use_ninja(cpp_extension)
    if os.environ.get("_ENVBUILDER_GPUS"):
        choose_gpus(cpp_extension)


changes = {"torch.utils.cpp_extension": change_extensions}
if os.environ.get("_ENVBUILDER_CAPABILITY"):
    changes["torch"] = simulate_gpu
    changes["triton.runtime.driver"] = simulate_driver
sys.meta_path.insert(0, After(changes))
