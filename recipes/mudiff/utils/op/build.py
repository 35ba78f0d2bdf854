"""One flat folder for all extensions, named by TORCH_EXTENSIONS_DIR, as jobs on clusters set it."""

import os

from torch.utils.cpp_extension import load

HERE = os.path.dirname(os.path.abspath(__file__))


def load_flat(name, files):
    folder = os.environ.get("TORCH_EXTENSIONS_DIR") or None
    if folder:
        os.makedirs(folder, exist_ok=True)
    return load(
        name=name, sources=[os.path.join(HERE, file) for file in files], build_directory=folder, verbose=False
    )
