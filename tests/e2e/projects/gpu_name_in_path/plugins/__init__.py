import hashlib
import importlib
import os
import re
import shutil

import torch
from torch.utils import cpp_extension


def get_plugin(name, files):
    os.environ["TORCH_CUDA_ARCH_LIST"] = ""
    folder = os.path.dirname(os.path.abspath(__file__))
    sources = [os.path.join(folder, file) for file in files]
    digest = hashlib.md5()
    for source in sources:
        with open(source, "rb") as stream:
            digest.update(stream.read())
    gpu = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower())
    top = cpp_extension._get_build_directory(name, verbose=False)
    cached = os.path.join(top, digest.hexdigest() + "-" + gpu)
    os.makedirs(cached, exist_ok=True)
    for source in sources:
        shutil.copyfile(source, os.path.join(cached, os.path.basename(source)))
    copies = [os.path.join(cached, os.path.basename(source)) for source in sources]
    cpp_extension.load(name=name, build_directory=cached, sources=copies, verbose=False)
    return importlib.import_module(name)


plugin = get_plugin("plugin", ["plugin.cpp", "plugin_kernel.cu"])
