"""Import torch twice, each time in a new process, and print the cost of the second. Runs inside the environment."""

import json
import resource
import subprocess
import sys
import time


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


command = [sys.executable, "-c", "import torch"]
subprocess.run(command, check=True)
began, before = time.monotonic(), cpu()
subprocess.run(command, check=True)
print(json.dumps({"wall": time.monotonic() - began, "cpu": cpu() - before}))
