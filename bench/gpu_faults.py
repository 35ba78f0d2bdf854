"""Programs that fail on a GPU, each in its own way, and some that do not: `gpu_faults.py NAME`. Needs torch alone.

Those that do not need a GPU run on the CPU where there is none.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta

import torch  # type: ignore[import-not-found]
import torch.distributed as dist  # type: ignore[import-not-found]
from torch.utils import cpp_extension  # type: ignore[import-not-found]

KERNEL = """
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
__global__ void add(float* x, long far) { x[threadIdx.x + far] += 1; }
void go(torch::Tensor x, long far) { add<<<1, 32>>>(x.data_ptr<float>(), far); C10_CUDA_KERNEL_LAUNCH_CHECK(); }
"""


def kernel(source: str = KERNEL, far: int = 0, architecture: str = "") -> None:
    """Compile a kernel for this GPU, or for another one, and run it on 64 numbers."""
    if architecture:
        os.environ["TORCH_CUDA_ARCH_LIST"] = architecture
    module = cpp_extension.load_inline(
        "fault", "void go(torch::Tensor x, long far);", cuda_sources=source, functions=["go"],
        build_directory=tempfile.mkdtemp(), verbose=True,
    )  # fmt: skip
    module.go(torch.zeros(64, device="cuda"), far)
    torch.cuda.synchronize()


def kernel_without_compiler() -> None:
    cpp_extension.CUDA_HOME = None
    kernel()


def device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def join() -> torch.device:
    """Join the other ranks. All use the same GPU."""
    on = device()
    if on.type == "cuda":
        torch.cuda.set_device(on)
    dist.init_process_group("nccl" if on.type == "cuda" else "gloo", timeout=timedelta(seconds=20))
    return on


def compute() -> None:
    on = device()
    print(f"the sum is {torch.ones(64, device=on).sum().item():g} on {on.type}")


def train() -> None:
    """All-reduce and one step of DistributedDataParallel."""
    on = join()
    dist.all_reduce(torch.ones(1 << 20, device=on))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(on))
    model(torch.randn(8, 64, device=on)).sum().backward()
    dist.barrier()
    dist.destroy_process_group()


def ranks(fault: str = "") -> None:
    """Make ten all-reduces. With a fault, one rank leaves before the last, reduces another size, or raises KeyError."""
    on = join()
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(10):
        numbers = torch.full((1 << 20,), rank + 1.0, device=on)
        if fault == "leave" and (rank, step) == (2, 9):
            print("rank 2 leaves the loop", flush=True)
            time.sleep(60)
            return
        if fault == "raise" and (rank, step) == (3, 6):
            raise KeyError("image_0042")
        if fault == "size" and (rank, step) == (1, 7):
            numbers = numbers[:77]
        dist.all_reduce(numbers)
        print(f"rank {rank} of {world}: the sum is {numbers[0].item():g}", flush=True)  # it waits for the GPU
    dist.barrier()
    dist.destroy_process_group()


def two_ranks() -> None:
    dist.init_process_group("nccl", timeout=timedelta(seconds=40))
    torch.cuda.set_device(0)
    dist.all_reduce(torch.ones(4, device="cuda"))


def missing_rank() -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29811", "RANK": "0", "WORLD_SIZE": "2"}
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))


def peer_that_ended() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(4))


def compile_model() -> None:
    torch.compile(lambda x: (x * 2).sin().sum())(torch.ones(128, device=device()))


def compile_without_compiler() -> None:
    os.environ["CC"] = "/nowhere/bin/gcc"  # not by the shell: the environment drops such a variable
    compile_model()


def use_gpu() -> None:
    torch.ones(1, device="cuda")


def use_gpu_after_fork() -> None:
    use_gpu()
    child = torch.multiprocessing.get_context("fork").Process(target=use_gpu)
    child.start()
    child.join()
    sys.exit(child.exitcode)


def load_data() -> None:
    data = [torch.ones(4 << 20) for _ in range(8)]
    for _ in torch.utils.data.DataLoader(data, batch_size=2, num_workers=2):
        pass


def capture() -> None:
    x = torch.ones(4, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        print(x.sum().item())


def look_up() -> None:
    print(torch.nn.Embedding(10, 4).cuda()(torch.tensor([3, 99], device="cuda")).sum().item())


PROGRAMS: dict[str, Callable[[], object]] = {
    "compute": compute,
    "train": train,
    "ranks": lambda: ranks(*sys.argv[2:]),
    "kernel": kernel,
    "no-compiler": kernel_without_compiler,
    "compile": compile_model,
    "bad-compiler": compile_without_compiler,
    "two-ranks": two_ranks,
    "missing-rank": missing_rank,
    "peer-that-ended": peer_that_ended,
    "other-gpu": lambda: kernel(
        architecture="10.0" if torch.cuda.get_device_capability()[0] != 10 else "9.0"
    ),
    "old-gpu": lambda: kernel(architecture="7.0"),
    "bad-source": lambda: kernel(KERNEL.replace("threadIdx.x", "threadIndex")),
    "bad-address": lambda: kernel(far=1 << 40),
    "misaligned": lambda: kernel(KERNEL.replace("x[threadIdx.x + far]", "*(double*)((char*)x + 1)")),
    "too-many-threads": lambda: kernel(KERNEL.replace("<<<1, 32>>>", "<<<1, 4096>>>")),
    "memory": lambda: torch.empty(1 << 40, dtype=torch.uint8, device="cuda"),
    "use-gpu": use_gpu,
    "third-gpu": lambda: torch.cuda.set_device(torch.cuda.device_count() + 2),
    "fork": use_gpu_after_fork,
    "data": load_data,
    "capture": capture,
    "look-up": look_up,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
