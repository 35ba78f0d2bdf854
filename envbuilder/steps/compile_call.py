"""Compile one extension, and write facts about the result. `extension.py` starts it as `python compile_call.py SPEC`.

SPEC is a JSON file: `function` is `load` or `load_inline` of torch's public `cpp_extension`, and `arguments` are its arguments, so
an extension is built by the rules of its project. ninja's state stays in the build folder, so a second run compiles only what
changed. The facts go to the file that `facts` names. Without a function, they are those of torch.
"""

import hashlib
import json
import os
import subprocess
import sys

with open(sys.argv[1]) as stream:
    spec = json.load(stream)
del sys.path[0]  # this file's folder
arguments = spec.get("arguments", {})
folder = arguments.get("build_directory", "/")
stale = os.path.join(folder, "lock")
if os.path.exists(stale):
    # A killed run left it, since only one runs at a time. torch <= 2.13 would wait for it forever.
    os.unlink(stale)

import torch  # noqa: E402  slow, and of no use before

try:
    if spec["function"]:
        from torch.utils import cpp_extension

        getattr(cpp_extension, spec["function"])(verbose=True, **arguments)
except ImportError as error:
    # There is no driver here. A library that needs one to be loaded is compiled all the same.
    if "libcuda.so" not in str(error) and "libnvidia-ml.so" not in str(error):
        raise


def dependencies():
    """Return the files that the compilers read, from ninja's list if there is one."""
    listing = subprocess.run(["ninja", "-t", "deps"], cwd=folder, stdout=subprocess.PIPE, check=False).stdout
    names = {line.strip() for line in listing.decode().splitlines() if line.startswith("    ")}
    return sorted({os.path.realpath(os.path.join(folder, name)) for name in names})


def is_own(path):
    system = ("/usr/", "/opt/env/", "/etc/", folder + "/")
    return not path.startswith(system) and os.path.isfile(path)


def digest(path):
    with open(path, "rb") as content:
        return hashlib.sha256(content.read()).hexdigest()


read = [*arguments.get("sources", []), *filter(is_own, dependencies())] if spec["function"] else []
facts = {
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
    "python": sys.implementation.cache_tag,
    "files": {path: digest(path) for path in read},
}
with open(spec["facts"], "w") as stream:
    json.dump(facts, stream, indent=1, sort_keys=True)
