"""A simulated GPU on which Triton compiles and launches nothing, for the programs of `warm`.

It stands on that of extensions, `sitecustomize.py`, which lies beside it as `simulated.py`. A launch of a kernel compiles it for the GPU
and ends there. Tensors for the GPU are made on the host: the key of a kernel knows types and alignment, and no device.
"""

import importlib
import inspect
import sys
import typing

simulated: typing.Any = importlib.import_module("simulated")

# More shared memory than any GPU has for a block: on the GPU itself, Triton says that a kernel takes too much.
PROPERTIES = {
    "max_shared_mem": 256 << 10, "max_num_regs": 65536, "multiprocessor_count": 80, "warpSize": 32,
    "sm_clock_rate": 1_000_000, "mem_clock_rate": 1_000_000, "mem_bus_width": 4096,
}  # fmt: skip


def nothing(*args, **kwargs):
    return None


class Utils:
    """Stands for the functions of the driver. Those that have no answer return None."""

    def __getattr__(self, name):
        return nothing

    def get_device_properties(self, device):
        return PROPERTIES

    def load_binary(self, *args):
        """Return module, function, registers and spills; newer releases of Triton also expect the most threads."""
        kernel = sys.modules["triton.compiler.compiler"].CompiledKernel
        return (0, 0, 0, 0, 1024) if "n_max_threads" in inspect.getsource(kernel) else (0, 0, 0, 0)


class Driver(simulated.Driver):  # type: ignore[misc]
    utils = Utils()

    def __getattr__(self, name):
        return nothing

    def launcher_cls(self, source, metadata):
        return nothing

    def get_current_stream(self, device=None):
        return 0

    def get_active_torch_device(self):
        return sys.modules["torch"].device("cpu")

    def get_benchmarker(self):
        """Return a way to measure in which each configuration takes no time, after one launch."""

        def measure(launch, *args, **kwargs):
            launch()
            return [0.0, 0.0, 0.0]

        return measure


def simulate_driver(module):
    module.driver.set_active(Driver())


def simulate_gpu(torch):
    simulated.simulate_gpu(torch)
    torch.cuda.current_stream = nothing
    mode: typing.Any = importlib.import_module("torch.overrides").TorchFunctionMode

    def on_host(value):
        is_gpu = isinstance(value, str) and value.partition(":")[0] == "cuda"
        is_gpu = is_gpu or (isinstance(value, torch.device) and value.type == "cuda")
        return torch.device("cpu") if is_gpu else value

    class OnHost(mode):  # type: ignore[misc]
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if getattr(function, "__name__", "") == "cuda":  # Tensor.cuda
                return args[0]
            named = {name: on_host(value) for name, value in (kwargs or {}).items()}
            return function(*map(on_host, args), **named)

    OnHost().__enter__()


simulated.changes.update({"torch": simulate_gpu, "triton.runtime.driver": simulate_driver})
