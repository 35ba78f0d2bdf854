import os

from torch.utils.cpp_extension import load

folder = os.path.dirname(os.path.abspath(__file__))
cache = os.environ.get("TORCH_EXTENSIONS_DIR")
if cache:
    os.makedirs(cache, exist_ok=True)


def _load(name):
    sources = [os.path.join(folder, name + ".cpp"), os.path.join(folder, name + "_kernel.cu")]
    return load(name=name, sources=sources, build_directory=cache, verbose=True)


first = _load("first")
second = _load("second")
