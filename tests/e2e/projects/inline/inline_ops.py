import torch
import torch.distributed.fsdp
from torch.utils.cpp_extension import load_inline

library = torch.library.Library("inline_ops", "DEF")
library.define("""
  half(
    Tensor x) -> Tensor""")


@torch.compile
def twice(x):
    return 2 * x


source = "at::Tensor add(const at::Tensor& x, double y) { return x + y; }"
module = load_inline(name="inline_add", cpp_sources=source, functions="add")
