import os

import torch
from torch.utils import cpp_extension

assert torch.cuda.is_available(), "this package needs a GPU"
major, _ = torch.cuda.get_device_capability()
assert major >= 7, torch.cuda.get_device_name()
folder = os.path.join(os.path.dirname(__file__), "csrc")
module = cpp_extension.load(
    name="gated",
    sources=[os.path.join(folder, name) for name in ("gated.cpp", "gated_kernel.cu")],
    extra_cuda_cflags=["--use_fast_math", "-DGATED=1"],
)
