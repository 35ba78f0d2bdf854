"""Make the Python environment at /opt/env, and install wheels into it: `wheels.py SPEC INPUTS OUT`.

INPUTS has the locked wheels, and a folder for each wheel that was built from a source distribution. SPEC has `requirements`, the
locked wheels with their hashes as pip reads them; `platform`, for uv where this Python is another machine's, otherwise ""; and `on_top`,
whether the wheels are for an environment of a lower layer, whose own files are left out then.

The environment is for the Python that runs this. It names only the minor version, because distributions with different patch versions
share the layer. uv compares the hashes, and installs without a network. A wheel's `.pth` files run when byte code is made.
"""

import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time

PREFIX = "/opt/env"
MINOR = "%d.%d" % sys.version_info[:2]
SITE = f"{PREFIX}/lib/python{MINOR}/site-packages"
LINKS = {"lib64": "lib", "bin/python": sys.executable, "bin/python3": "python", f"bin/python{MINOR}": "python"}  # fmt: skip
SETTINGS = "pyvenv.cfg"
LOCK = ".lock"  # uv's
# Measured: uv installed 7375 files ten times, equal with 3.11, never with 3.9. Before, byte code depends on the order of sets
# (python/cpython#81777), and on the modules that the process imported.
IS_REPEATABLE = sys.version_info >= (3, 11)
HERE = os.path.dirname(os.path.abspath(__file__))


def main(spec_file, inputs, out):
    os.umask(0o022)
    with open(spec_file, encoding="utf-8") as stream:
        spec = json.load(stream)
    tree, work = out + PREFIX, os.path.join(out, ".work")
    make_environment(tree)
    if not os.path.isdir("/opt"):
        os.mkdir("/opt")
    os.symlink(tree, PREFIX)  # its place in the image, which scripts and byte code name
    os.mkdir(work)
    built = sorted(glob.glob(os.path.join(inputs, "*", "*.whl")))
    lines = [*spec["requirements"], *map(requirement, built)]
    with open(os.path.join(work, "requirements.txt"), "w", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)
    install(spec["platform"], [inputs, *map(os.path.dirname, built)], work, len(lines))
    shutil.rmtree(work)
    verb = "check" if IS_REPEATABLE else "compile"
    need(subprocess.run([sys.executable, "-B", os.path.join(HERE, "byte_code.py"), verb, SITE], check=False))
    os.unlink(PREFIX)
    os.chmod(os.path.join(tree, LOCK), 0o644)
    for name in (*LINKS, SETTINGS, LOCK) if spec["on_top"] else ():
        os.unlink(os.path.join(tree, name))


def make_environment(tree):
    """Write an empty environment."""
    for folder in (f"{PREFIX}/bin", SITE):
        os.makedirs(tree + folder[len(PREFIX) :])
    for name, target in LINKS.items():
        os.symlink(target, os.path.join(tree, name))
    home = os.path.dirname(sys.executable)
    with open(os.path.join(tree, SETTINGS), "w", encoding="utf-8") as stream:
        stream.write(f"home = {home}\ninclude-system-site-packages = false\nversion = {MINOR}\n")


def requirement(wheel):
    """Return a built wheel as a line for pip."""
    name, version = os.path.basename(wheel).split("-")[:2]
    with open(wheel, "rb") as stream:
        return f"{name}=={version} --hash=sha256:{hashlib.sha256(stream.read()).hexdigest()}"


def install(platform, folders, work, total):
    """Install the wheels of `work/requirements.txt` by uv, and print how many it has unpacked, which it says only at its end."""
    cache = os.path.join(work, "cache")  # on the file system of the environment, so that files are linked
    argv = [
        os.path.join(HERE, "uv"), "pip", "install", "--offline", "--no-index", "--no-deps", "--no-config", "--require-hashes",
        "--requirement", os.path.join(work, "requirements.txt"), "--python", f"{PREFIX}/bin/python",
        "--link-mode", "hardlink", "--cache-dir", cache,
    ]  # fmt: skip
    argv += [word for folder in folders for word in ("--find-links", folder)]
    argv += ["--python-platform", platform] if platform else []
    argv += ["--compile-bytecode"] if IS_REPEATABLE else []
    # Their metadata would hold the time at which a wheel came into the cache. Byte code is not checked: an image is read-only.
    fixed = {"UV_NO_INSTALLER_METADATA": "1", "UV_NO_PROGRESS": "1", "PYC_INVALIDATION_MODE": "UNCHECKED_HASH"}  # fmt: skip
    with subprocess.Popen(argv, env=dict(os.environ, **fixed)) as process:
        done = -1
        while process.poll() is None:
            count = len(glob.glob(os.path.join(cache, "archive-v*", "*")))
            if count != done:
                done = count
                print(f"{done}/{total} {'unpacking' if done < total else 'compiling byte code'}", flush=True)
            time.sleep(0.1)
    need(process)


def need(process):
    """End this program unless the other one has succeeded, which has said why."""
    if process.returncode:
        sys.exit(process.returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
