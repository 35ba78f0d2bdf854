import os

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

archs = os.environ.get("CUDA_ARCHITECTURES", "37;75").split(";")
flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
setup(
    name="owned",
    version="1.0",
    ext_modules=[
        CUDAExtension(
            "owned", ["csrc/owned.cpp", "csrc/owned_kernel.cu"], extra_compile_args={"cxx": [], "nvcc": flags}
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
