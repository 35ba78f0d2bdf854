"""Runs inside a SIF (test_load.py): every kind of call that code makes of torch's `load()`, of one small project."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils import cpp_extension

HERE = Path("/home/user/cloned")
FLAGS = ["-DFACTOR=3", "-O1"]


def lite(**change):
    arguments = {
        "name": "lite",
        "sources": [f"{HERE}/op/lite.cpp", f"{HERE}/op/more/extra.cpp"],
        "extra_include_paths": [f"{HERE}/include"],
        "extra_cflags": FLAGS,
    }
    return cpp_extension.load(**{**arguments, **change})


def plain(**change):
    return cpp_extension.load("plain", f"{HERE}/op/plain.cpp", is_python_module=False, **change)


def tool(**change):
    return cpp_extension.load(
        "tool", f"{HERE}/op/tool.cpp", is_python_module=False, is_standalone=True, **change
    )


def inlined(text="", **change):
    text = text or (HERE / "op/inlined.cpp").read_text()
    return cpp_extension.load_inline("inlined", text, extra_cflags=FLAGS, no_implicit_headers=True, **change)


def unknown(name="unknown", **change):
    """The image has no extension of that name."""
    source = f"{HERE}/op/{name}.cpp"
    return cpp_extension.load(
        name, source, extra_include_paths=[f"{HERE}/include"], extra_cflags=FLAGS, **change
    )


def together(count, work):
    """Print what `work` returns or raises, and how long it took, in several processes at the same time."""
    begin = time.monotonic() + 0.5
    children = []
    for _ in range(count):
        children.append(os.fork())
        if not children[-1]:
            time.sleep(max(0.0, begin - time.monotonic()))
            began = time.monotonic()
            try:
                answer = work()
            except Exception as error:  # noqa: BLE001 - it is what is looked at
                answer = f"{type(error).__name__}: {error}"
            os.write(1, (json.dumps([str(answer), time.monotonic() - began]) + "\n").encode())
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)


def counted(wait=0):
    """From here on, compile through a script that notes each command, and waits so many seconds before."""
    script = Path("/tmp/c++")
    script.write_text(f'#!/bin/sh\necho "$*" >>/tmp/commands\nsleep {wait}\nexec /usr/local/bin/c++ "$@"\n')
    script.chmod(0o755)
    os.environ["CXX"] = str(script)


def compiles():
    return sum(" -c " in line for line in Path("/tmp/commands").read_text().splitlines())


def compile_all(folder):
    """Compile what the image shall know into a folder for each, and print the facts of this Python for the index."""
    for call in lite, plain, tool, inlined:
        place = Path(folder, call.__name__)
        place.mkdir()
        call(build_directory=str(place))
    driver = Path(folder, "driver/libnvidia-ml.so.1")
    driver.parent.mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", driver, HERE / "driver/nvml.c"], check=True)
    facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.implementation.cache_tag}
    print(json.dumps({**facts, "cxx11_abi": torch.compiled_with_cxx11_abi()}))
