"""The GPUs that this process will see, without starting CUDA: a process that forks later must not have started it.

NVML (nvmlDeviceGetCudaComputeCapability) knows them before CUDA runs. What is not certain is left out.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Gpu:
    def __init__(self, name: str, major: int, minor: int) -> None:
        self.name, self.major, self.minor = name, major, minor

    def __str__(self) -> str:
        return f"{self.name} (sm_{self.major}{self.minor})"


def covers(targets: list[str], gpu: Gpu) -> bool:
    """Whether the GPU runs machine code for one of `sm_XY`, or compiles one of the PTX `compute_XY` itself.

    Machine code runs on later minor versions of its major one, PTX on everything later; of architecture-specific code
    (`sm_90a`) only the same GPU runs it, of family-specific code (`sm_100f`) those of its major version.
    """
    for target in targets:
        kind, _, number = target.partition("_")
        version = number.rstrip("af")
        code, here = (int(version[:-1]), int(version[-1])), (gpu.major, gpu.minor)
        is_ptx = kind == "compute" and not number.endswith("f")
        if code == here or (code < here and not number.endswith("a") and (is_ptx or code[0] == here[0])):
            return True
    return False


def visible() -> list[Gpu]:
    """Return the GPUs of this process, none if they are unknown."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return [
            Gpu(torch.cuda.get_device_name(number), *torch.cuda.get_device_capability(number))
            for number in range(torch.cuda.device_count())
        ]
    return _ask_nvml(os.environ.get("CUDA_VISIBLE_DEVICES"))


@functools.lru_cache(maxsize=None)  # noqa: UP033 - Python 3.8
def _ask_nvml(chosen: str | None) -> list[Gpu]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return []
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        listed = [_describe(nvml, number) for number in range(count.value)]
        nvml.nvmlShutdown()
    except (OSError, AttributeError, ValueError):  # no driver, or one without such a function
        return []
    return select(listed, chosen)


def select(listed: list[tuple[str, Gpu]], chosen: str | None) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves of those (identity, GPU) that NVML lists in the order of their slots."""
    if chosen is None:
        return [gpu for _, gpu in listed]
    words = [word.strip() for word in chosen.split(",")]
    if all(word.isdigit() for word in words):
        # CUDA numbers the fastest GPU first unless told otherwise, so where GPUs differ a number says little.
        alike = len({(gpu.major, gpu.minor) for _, gpu in listed}) == 1
        by_slot = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        return [listed[int(word)][1] for word in words if int(word) < len(listed)] if alike or by_slot else []
    return [gpu for word in words for identity, gpu in listed if word and identity.startswith(word)]


def _describe(nvml: Any, number: int) -> tuple[str, Gpu]:
    device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    name, identity = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    answers = (
        nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(device)),
        nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)),
        nvml.nvmlDeviceGetName(device, name, ctypes.c_uint(96)),
        nvml.nvmlDeviceGetUUID(device, identity, ctypes.c_uint(96)),
    )
    if any(answers):
        raise ValueError(f"NVML answered {answers}")
    return identity.value.decode(), Gpu(name.value.decode(), major.value, minor.value)
