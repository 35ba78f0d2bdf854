"""Install one extension where the image has it, and add it to the index that the start hook reads.

Called as `python install_extension.py ENTRY OUT`. ENTRY is a JSON file with `entry`, the extension's entry of the index as far as a
recipe decides it, `head`, the head of the index, and `architectures`. A compiled call also has `sources`, `base`, the folder that they
are relative to, and `has_cuda`; a project has its folder. The extension lies in /space: the library of `compile_extension.py`, or
the tree of `build_project.py`. OUT is the root of what is new.
"""

import json
import os
import re
import shutil
import subprocess
import sys

with open(sys.argv[1]) as stream:
    spec = json.load(stream)
out = sys.argv[2]
with open("/space/facts.json") as stream:
    facts = json.load(stream)
entry = spec["entry"]


def install_library():
    """Install the library of a call. The files that it was compiled from go into the index."""
    library = out + entry["file"]
    os.makedirs(os.path.dirname(library), exist_ok=True)
    shutil.copyfile("/space/build/" + os.path.basename(library), library)
    os.chmod(library, 0o755)
    folder = out + "/opt/envbuilder/extensions/modules"
    os.makedirs(folder, exist_ok=True)
    os.symlink("../" + "/".join(library.split("/")[-2:]), f"{folder}/{entry['name']}.so")
    relative = {os.path.relpath(path, spec["base"] or "/"): found for path, found in facts["files"].items()}
    entry["sources"] = {path: relative.get(path, "") for path in spec["sources"]}
    entry["headers"] = {path: found for path, found in relative.items() if path not in spec["sources"]}
    return [library]


def install_tree():
    """Install everything that a project installed. Returns its libraries."""
    tree, libraries = "/space/tree", []
    for parent, folders, names in os.walk(tree):
        place = out + parent[len(tree) :]
        os.makedirs(place, exist_ok=True)
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in names + links:
            path, target = os.path.join(parent, name), os.path.join(place, name)
            if os.path.lexists(target):
                sys.exit(f"the extension {entry['name']} installs {path[len(tree) :]}, as another does")
            shutil.copy2(path, target, follow_symlinks=False)
            if not os.path.islink(path) and (name.endswith(".so") or ".so." in name):
                libraries.append(target)
    return libraries


def targets_of(library):
    """Return the GPUs that a library has code for: sm_80 for machine code, compute_80 for PTX."""
    found = set()
    for option, kind, suffix in (("--list-elf", "sm_", "cubin"), ("--list-ptx", "compute_", "ptx")):
        tool = ["/usr/local/cuda/bin/cuobjdump", option, library]
        listed = subprocess.run(tool, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        found |= {kind + number for number in re.findall(rf"\.sm_(\w+)\.{suffix}\b", listed.decode())}
    return found


def need_gpus(libraries, has_cuda):
    """Return the GPUs of all libraries. A library with GPU code must have it for each of the recipe's GPUs."""
    wanted = {f"sm_{one.replace('.', '')}".rstrip("af") for one in spec["architectures"]}
    every = set()
    for library in libraries if wanted else ():
        found = targets_of(library)
        if found and not wanted <= {one.rstrip("af") for one in found}:
            fail(" ".join(sorted(found)), wanted)
        every |= found
    if wanted and has_cuda and not every:
        fail("no GPU", wanted)
    return sorted(every)


def fail(held, wanted):
    sys.exit(
        f"the extension {entry['name']} holds code for {held}; the recipe's GPUs need {' '.join(sorted(wanted))}"
    )


if "file" in entry:
    libraries, has_cuda = install_library(), spec["has_cuda"]
else:
    libraries = install_tree()
    entry["libraries"] = sorted(path[len(out) :] for path in libraries)
    has_cuda = any(name.endswith(".cu") for _, _, names in os.walk(spec["project"]) for name in names)
entry["size"] = sum(os.path.getsize(library) for library in libraries)
entry["targets"] = need_gpus(libraries, has_cuda)

path = out + "/opt/envbuilder/extensions/index.json"
os.makedirs(os.path.dirname(path), exist_ok=True)
index = dict(spec["head"], extensions=[])
if os.path.exists(path):
    with open(path) as stream:
        index = json.load(stream)
if not index["extensions"]:  # the first decides, as all are made for one torch
    for name in ("torch", "cuda", "cxx11_abi", "python"):
        index[name] = facts[name]
index["extensions"].append(entry)
with open(path, "w") as stream:
    json.dump(index, stream, indent=1, sort_keys=True)
    stream.write("\n")
