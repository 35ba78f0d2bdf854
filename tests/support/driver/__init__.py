"""A stand-in for NVIDIA's driver: its libraries, devices and `nvidia-smi`, for tests of starts, binds and environments.

It answers as the H200 of a recorded node. It stands for the driver's presence, never for results: it runs no kernel.
A command gets it in a mount namespace of its own, so nothing of the machine changes.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
GPU: Final = "NVIDIA H200"
VERSION: Final = "580.159.04"
LIBRARIES: Final = {"cuda": "libcuda.so.1", "nvml": "libnvidia-ml.so.1"}


class Driver:
    """The driver, compiled into a folder that every user can enter. Apptainer's `--nv` finds it as it finds the real one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.libraries = folder, folder / "lib"
        for place in ("lib", "bin", "dev"):
            (folder / place).mkdir(parents=True)
        for source, name in LIBRARIES.items():
            options = ("-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", self.libraries / name)
            subprocess.run(["gcc", *options, HERE / f"{source}.c"], check=True)
        shutil.copy(HERE / "nvidia-smi", folder / "bin")
        (folder / "ld.so.conf").write_text(f"{self.libraries}\ninclude /etc/ld.so.conf\n")
        cache = ("-C", folder / "ld.so.cache", "-f", folder / "ld.so.conf", "-X")
        subprocess.run(["/sbin/ldconfig", *cache], check=True)

    def command(self, *argv: object) -> tuple[object, ...]:
        """Return the command line that runs another one on a node with this driver."""
        alone = ("unshare", "--mount", *(("--map-root-user",) if os.geteuid() else ()))
        return (*alone, "sh", "-eu", HERE / "enter.sh", self.folder, *argv)
