"""Put one compiled extension where the image has it, and write it into the index that the start hook reads.

Called as `python place_extension.py ENTRY OUT`: ENTRY is a JSON file with `entry`, the index's own words of this extension as far
as a recipe decides them, `head`, those of the whole index, `base`, what its `sources` are relative to, and `architectures`. The extension lies in /space, compiled by `compile_extension.py`; OUT is the root of what is new.
"""

import json
import os
import shutil
import subprocess
import sys

with open(sys.argv[1]) as stream:
    spec = json.load(stream)
out = sys.argv[2]
with open("/space/facts.json") as stream:
    facts = json.load(stream)
entry = spec["entry"]


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
entry["size"] = os.path.getsize(library)
entry["targets"] = []
if spec["architectures"]:
    tool = ["/usr/local/cuda/bin/cuobjdump", "--list-elf"]
    listed = subprocess.run([*tool, library], check=False, stdout=subprocess.PIPE).stdout.decode()
    wanted = [f"sm_{one.replace('.', '')}" for one in spec["architectures"]]
    entry["targets"] = [one for one in wanted if one in listed]
    missing = sorted(set(wanted) - set(entry["targets"]))
    if missing and spec["has_cuda"]:
        sys.exit(f"the extension {entry['name']} holds no code for {', '.join(missing)}")

path = out + "/opt/envbuilder/extensions/index.json"
os.makedirs(os.path.dirname(path), exist_ok=True)
index = dict(spec["head"], extensions=[])
if os.path.exists(path):
    with open(path) as stream:
        index = json.load(stream)
for name in ("torch", "cuda", "cxx11_abi", "python"):
    index[name] = facts[name]
index["extensions"].append(entry)
with open(path, "w") as stream:
    json.dump(index, stream, indent=1, sort_keys=True)
    stream.write("\n")
