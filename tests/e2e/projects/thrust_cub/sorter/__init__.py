from pathlib import Path

from torch.utils.cpp_extension import load

folder = Path(__file__).resolve().parent
sorter = load(name="sorter", sources=[str(folder / "sorter.cpp"), str(folder / "sorter_kernel.cu")])
