"""Build a project's wheel inside the sandbox and install it. Runs under the image's own Python.

Called as `python build_project.py SPEC`. SPEC is a JSON file with `project` (its folder), `work` (a folder that may be written),
`prefix` (the environment that the files are for) and `facts` (the file to write). The build has no isolation, since torch must be the
recipe's own, and no network.

With `tools`, a folder of wheels, it builds a source distribution with these alone, and only leaves the wheel in `wheel`.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile

with open(sys.argv[1]) as stream:
    spec = json.load(stream)
work = spec["work"]
wheels, tree, cache = (os.path.join(work, name) for name in ("wheel", "tree", "cache"))
UV = ("/uv", "--no-config", "--offline", "--no-progress", "--cache-dir", cache)
ENV = dict(os.environ, UV_NO_INSTALLER_METADATA="1")  # it holds the time at which the wheel was made


def run(*words):
    ended = subprocess.run(words, env=ENV, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, check=False)
    if ended.returncode:
        sys.exit(ended.returncode)


def tidy(path):
    """Write the wheel anew: its files in order, without their times and without the order of its list."""
    with zipfile.ZipFile(path) as old:
        content = {entry.filename: (entry, old.read(entry)) for entry in old.infolist() if not entry.is_dir()}
    with zipfile.ZipFile(path, "w") as new:  # not compressed, because zlib's versions differ
        for name, (entry, data) in sorted(content.items()):
            fresh = zipfile.ZipInfo(name)
            fresh.external_attr = (0o100755 if entry.external_attr >> 16 & 0o100 else 0o100644) << 16
            is_list = name.endswith(".dist-info/RECORD")
            new.writestr(fresh, b"".join(sorted(data.splitlines(True))) if is_list else data)


for folder in (wheels, tree, cache):
    shutil.rmtree(folder, ignore_errors=True)
tools = spec.get("tools")
own = ("--no-index", "--find-links", tools) if tools else ("--no-build-isolation",)
run(*UV, "build", "--wheel", *own, "--python", sys.executable, "--out-dir", wheels, spec["project"])
(wheel,) = [name for name in os.listdir(wheels) if name.endswith(".whl")]
if tools:
    tidy(os.path.join(wheels, wheel))
    shutil.rmtree(cache, ignore_errors=True)
    sys.exit()
name, version = wheel.split("-")[:2]
run(
    *UV, "pip", "install", "--no-index", "--find-links", wheels, "--no-deps", "--link-mode", "copy",
    "--python", sys.executable, "--prefix", tree + spec["prefix"], name + "==" + version,
)  # fmt: skip
lock = tree + spec["prefix"] + "/.lock"  # uv's own, and the environment has one
if os.path.exists(lock):
    os.unlink(lock)
# As in the Python layer: byte code is never compared with its source, and names its path in the image.
# `-W ignore`: before Python 3.11 a warning leaves its mark on the byte code that follows.
run(
    sys.executable, "-W", "ignore", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash",
    "-s", tree, "-p", "/", tree + spec["prefix"] + "/lib",
)  # fmt: skip
shutil.rmtree(cache, ignore_errors=True)

import torch  # noqa: E402  slow, and of no use before

facts = {
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
    "python": sys.implementation.cache_tag,
    "files": {},
}
with open(spec["facts"], "w") as stream:
    json.dump(facts, stream, indent=1, sort_keys=True)
