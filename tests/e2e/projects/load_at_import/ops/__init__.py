import os

from torch.utils.cpp_extension import load

here = os.path.dirname(os.path.abspath(__file__))
scale = load(name="scale", sources=[os.path.join(here, "scale.cpp"), os.path.join(here, "scale_kernel.cu")])
