"""Run programs that launch Triton kernels: `warm.py SPEC INPUTS OUT`. Runs under the environment's own Python, without a GPU.

SPEC has `run`, the commands, `gpus`, such as 8.0, for each of which they run, `env`, the variables of the image, `epoch`, the time of
its files, and `caches`, folders of what a job compiled. INPUTS/files are the files of the recipe that they read, and those of `caches`.
OUT gets the part of Triton's cache that launches have filled, at its place in the image, whose path is in its files, and each folder of
`caches` under its number.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys

STEPS = os.path.dirname(os.path.abspath(__file__))
SCRATCH = "/tmp/warm"
FILES = f"{SCRATCH}/files"
WARM = "/opt/envbuilder/warm"
CACHE = f"{WARM}/run/triton"
MODULES = "/opt/envbuilder/extensions/modules"
GROUP = "__grp__"  # begins the name of the file that Triton writes last of a kernel


def environment(spec, gpu):
    """Return the variables of a program that compiles for one GPU."""
    env = dict(os.environ, **dict(spec["env"]))
    places = (f"{SCRATCH}/customize", FILES, MODULES, env.get("PYTHONPATH", ""))
    env.update(
        PYTHONPATH=":".join(filter(None, places)),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONHASHSEED="0",
        TRITON_CACHE_DIR=CACHE,
        TORCHINDUCTOR_CACHE_DIR=f"{SCRATCH}/inductor",
        _ENVBUILDER_CAPABILITY=gpu,
    )
    return env


def kernels():
    """Return the names of the kernels that are there whole. What else Triton keeps goes, such as what it measured on no GPU."""
    for name in os.listdir(CACHE):
        if not any(inner.startswith(GROUP) for inner in os.listdir(os.path.join(CACHE, name))):
            shutil.rmtree(os.path.join(CACHE, name))
    return set(os.listdir(CACHE))


def set_times(folder, epoch):
    """Give every Python file the time that it has in the image: ptxas writes it beside the line of an instruction."""
    for parent, _, names in os.walk(folder):
        for path in (os.path.join(parent, name) for name in names if name.endswith(".py")):
            if os.lstat(path).st_mtime != epoch:
                os.utime(path, (epoch, epoch), follow_symlinks=False)


def run(command, env, target):
    """Run a command, whose output is the cause if it fails."""
    words = shlex.split(command)
    program = shutil.which(words[0], path=env["PATH"]) or words[0]
    try:
        ended = subprocess.run(
            [program, *words[1:]], env=env, cwd=FILES, stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        sys.exit(f"`{command}` cannot be started: {error.strerror}")
    if ended.returncode:
        sys.exit(f"`{command}` ended with exit code {ended.returncode}, for {target}")


def take(folder, place, out):
    """Copy what a job compiled to its place in the image."""
    for parent, _, names in os.walk(folder):
        inside = place + parent[len(folder) :]
        os.makedirs(out + inside, exist_ok=True)
        for name in names:
            source, target = os.path.join(parent, name), f"{out}{inside}/{name}"
            shutil.copyfile(source, target)
            if name.startswith(GROUP):
                name_anew(target, inside)


def name_anew(listing, folder):
    """Give the files of a kernel the paths that they have in the image. Some releases of Triton list names alone.

    A list that is damaged ends a program that reads it. Without the list, Triton compiles the kernel.
    """
    try:
        with open(listing, encoding="utf-8") as stream:
            paths = json.load(stream)["child_paths"]
        paths = {name: f"{folder}/{name}" for name in paths} if isinstance(paths, dict) else paths
    except (ValueError, KeyError, TypeError):
        os.unlink(listing)
        print(f"{listing} is damaged and left out", flush=True)
        return
    with open(listing, "w", encoding="utf-8") as stream:
        json.dump({"child_paths": paths}, stream)


def compile_for(spec, out):
    """Run the commands for each GPU."""
    tree, place = out + CACHE, os.path.dirname(CACHE)
    os.makedirs(tree)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    os.symlink(os.path.dirname(tree), place)
    before: set[str] = set()
    for gpu in spec["gpus"]:
        target = "sm_" + gpu.replace(".", "")
        for command in spec["run"]:
            print(f"{command} for {target}", flush=True)
            run(command, environment(spec, gpu), target)
        after = kernels()
        if not after - before:
            sys.exit(f"the programs of `warm` launched no Triton kernel for {target}")
        before = after
    os.unlink(place)


def main(spec_file, inputs, out):
    os.umask(0o022)
    with open(spec_file, encoding="utf-8") as stream:
        spec = json.load(stream)
    os.makedirs(f"{SCRATCH}/customize")
    shutil.copyfile(f"{STEPS}/sitecustomize.py", f"{SCRATCH}/customize/simulated.py")
    shutil.copyfile(f"{STEPS}/warm_customize.py", f"{SCRATCH}/customize/sitecustomize.py")
    files = f"{inputs}/files"
    for number, folder in enumerate(spec["caches"]):
        take(f"{files}/{folder}", f"{WARM}/{number}", out)
    if os.path.isdir(files):
        shutil.copytree(files, FILES)
    os.makedirs(FILES, exist_ok=True)
    for folder in (FILES, "/opt/env", "/opt/envbuilder"):
        set_times(folder, spec["epoch"])
    if spec["run"]:
        compile_for(spec, out)
    shutil.rmtree(SCRATCH)


if __name__ == "__main__":
    main(*sys.argv[1:])
