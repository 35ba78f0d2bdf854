"""Load the extension of `recipes/fused` as a project does, inside the environment: `load_fused.py FOLDER`."""

import sys

from torch.utils.cpp_extension import load

names = ("fused_bias_act.cpp", "fused_bias_act_cpu.cpp")
print(load("fused", [f"{sys.argv[1]}/{name}" for name in names]).forward)
