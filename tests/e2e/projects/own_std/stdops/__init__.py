import os

from torch.utils.cpp_extension import load

folder = os.path.dirname(os.path.abspath(__file__))
own = load(
    name="own",
    sources=[os.path.join(folder, "own.cpp"), os.path.join(folder, "own_kernel.cu")],
    extra_cflags=["-std=c++17", "-O3"],
    extra_cuda_cflags=["-std=c++17", "-O3", "-DFAST=1"],
)
