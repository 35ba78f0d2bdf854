"""A depthwise convolution over the neighbours of octree nodes, as a CUDA extension."""

import os

from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

# In the order in which the disk lists them, as such projects have it: the build sees folders sorted.
sources = [os.path.join("csrc", name) for name in os.listdir("csrc") if name.endswith((".cpp", ".cu"))]

setup(
    name="dwconv",
    version="1.0.0",
    packages=find_packages(),
    ext_modules=[CUDAExtension("dwconv.core", sources)],
    cmdclass={"build_ext": BuildExtension},
)
