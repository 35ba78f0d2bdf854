"""A simulated GPU and sorted folders for a project's own programs, while the sandbox builds it.

Many a setup.py asks for a GPU before it compiles for one. Here it sees the recipe's GPU, from `_ENVBUILDER_CAPABILITY`, such as
8.0. Nothing can run on it. Python imports this file at its start because its folder is on PYTHONPATH; it is not part of the image.
Listings are sorted, because a setup.py that takes every file would link them in the order of the disk.
"""

import glob
import importlib.abc
import importlib.util
import os
import sys
import typing


def in_order(function):
    def ordered(*args, **kwargs):
        return sorted(function(*args, **kwargs))

    return ordered


os.listdir = in_order(os.listdir)
glob.glob = in_order(glob.glob)


class Properties:
    def __init__(self, major, minor):
        self.major, self.minor = major, minor
        self.name = "GPU of the recipe, sm_%d%d" % (major, minor)
        self.total_memory, self.multi_processor_count = 16 << 30, 80


def pretend(torch, major, minor):
    properties = Properties(major, minor)
    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.is_initialized = lambda: True
    cuda.get_device_capability = lambda device=None: (major, minor)
    cuda.get_device_name = lambda device=None: properties.name
    cuda.get_device_properties = lambda device=None: properties
    for name in ("init", "set_device", "synchronize", "empty_cache", "_lazy_init"):
        setattr(cuda, name, lambda *args, **kwargs: None)


class AfterTorch(importlib.abc.MetaPathFinder):
    """Find torch as usual, and simulate the GPU once torch is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None:
            return None
        loader: typing.Any = spec.loader
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            capability = os.environ["_ENVBUILDER_CAPABILITY"]
            major, minor = capability.rstrip("af").split(".")
            pretend(module, int(major), int(minor))

        loader.exec_module = exec_module
        return spec


if os.environ.get("_ENVBUILDER_CAPABILITY"):
    sys.meta_path.insert(0, AfterTorch())
