"""Import each extension, in a process of its own. Runs in the SIF under the environment's Python.

Called as `python -c TEXT ITEMS`. ITEMS is a JSON list with `name`, and either `module`, which is imported by its name, or `file`, which
is loaded as a Python module or, without `is_python_module`, as a library of operators. It prints `envbuilder imports: ` and a JSON
list of the failed items, each with `error`. Without a driver, the toolkit's stubs stand for its libraries.
"""

import ctypes
import importlib
import importlib.util
import json
import os
import sys
import typing

# A project's own folder, in which a build is started, has its packages without what is compiled.
sys.path[:] = filter(None, sys.path)

try:
    import torch
except Exception:  # noqa: BLE001 - a project may do without it
    torch = None
DRIVER = ("libcuda.so", "libnvidia-ml.so")  # of the host; a toolkit may have stubs of them
STUBS = [path for path in map("/usr/local/cuda/lib64/stubs/".__add__, DRIVER) if os.path.exists(path)]


def load(item):
    if "module" in item:
        importlib.import_module(item["module"])
    elif item["is_python_module"]:
        spec: typing.Any = importlib.util.spec_from_file_location(item["name"], item["file"])
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    else:
        torch.ops.load_library(item["file"])


def attempt(item):
    """Return the error of an import, "" if there is none, or none but for the driver that is not here."""
    for libraries in ([], STUBS):
        try:
            list(map(ctypes.CDLL, libraries))
            load(item)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the extension raises
            if not any(name in str(error) for name in DRIVER):
                return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        else:
            break
    return ""


def isolated(item):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        os.write(writer, attempt(item).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        error = stream.read().decode()
    _, status = os.waitpid(child, 0)
    return error or ("the process was ended by signal %d" % (status & 127) if status else "")


failed = [dict(item, error=error) for item in json.loads(sys.argv[1]) for error in [isolated(item)] if error]
print("envbuilder imports: " + json.dumps(failed))
