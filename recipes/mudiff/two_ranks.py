"""Two ranks import the operators at the same moment, as a training job does; each says where it found them.

Run it in the environment: `TORCH_EXTENSIONS_DIR=/tmp/flat envbuilder exec mudiff -- python recipes/mudiff/two_ranks.py`. The ranks
meet over gloo, so that no GPU is needed; where there is one, the operators are compared with torch's own operations as well.
"""

import os
import sys
import time

import torch
from torch import distributed, multiprocessing

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def rank(number, port):
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    distributed.barrier()
    began = time.monotonic()
    from utils import op  # noqa: PLC0415 - the ranks are to import it at once
    from utils.op.upfirdn2d import upfirdn2d_native  # noqa: PLC0415

    took = time.monotonic() - began
    for name in ("fused", "upfirdn2d"):
        print(f"rank {number}: {name} from {sys.modules[name].__file__} after {took:.2f} s", flush=True)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    kernel = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]], dtype=torch.float64) / 16
    plain = upfirdn2d_native(x, kernel, 2, 1, (1, 1, 1, 1))
    assert plain.shape == (2, 3, 16, 16), plain.shape
    if torch.cuda.is_available():
        there = x.detach().cuda().requires_grad_()
        fast = op.upfirdn2d(there, kernel.cuda(), up=2, pad=(1, 1))
        assert torch.allclose(fast.cpu(), plain, atol=1e-5), "forward"
        plain.square().sum().backward()
        fast.square().sum().backward()
        assert torch.allclose(there.grad.cpu(), x.grad, atol=1e-4), "gradient"
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(rank, args=(int(os.environ.get("MASTER_PORT", "29511")),), nprocs=2)
    print("both ranks have the operators")
