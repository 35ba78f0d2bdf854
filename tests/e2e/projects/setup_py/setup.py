import os

import torch
from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

sources = [os.path.join("csrc", name) for name in os.listdir("csrc")]
if torch.cuda.is_available():
    extension = CUDAExtension("tinyconv.core", sources)
else:
    extension = CppExtension("tinyconv.core", [one for one in sources if one.endswith(".cpp")])
setup(
    name="tinyconv",
    version="0.3",
    packages=find_packages(),
    ext_modules=[extension],
    cmdclass={"build_ext": BuildExtension},
)
