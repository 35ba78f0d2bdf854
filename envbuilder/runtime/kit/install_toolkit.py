"""Install a CUDA toolkit from its packages, as NVIDIA lays it out: /usr/local/cuda-X.Y and /usr/local/cuda.

Called as `python install_toolkit.py RULES PARTS SITE`. RULES is a JSON file that says what to take out of which package, PARTS the
folder of the packages, SITE the site-packages whose libraries and headers are linked instead of copied. `*` and `?` stay
inside one folder; a final `**` is everything below.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

with open(sys.argv[1]) as opened:
    rules = json.load(opened)
parts, site = sys.argv[2:]
home = f"/usr/local/cuda-{rules['cuda']}"


def pattern(glob):
    if glob.endswith("/**"):
        return pattern(glob[:-3]) + "/.+"
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(sign) or re.escape(sign) for sign in glob)


def target(take, name):
    if not take["target"].endswith("/"):
        return take["target"]
    fixed = re.split(r"[*?]", take["source"], maxsplit=1)[0].rpartition("/")[0]
    return take["target"] + os.path.relpath(name, fixed or ".")


def unpack(package, folder):
    if package.endswith(".deb"):
        subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
        return
    with zipfile.ZipFile(package) as archive:
        for info in archive.infolist():
            path = archive.extract(info, folder)
            if not info.is_dir():
                os.chmod(path, info.external_attr >> 16 & 0o777 or 0o644)


def place(path):
    full = f"{home}/{path}"
    os.makedirs(os.path.dirname(full), exist_ok=True)
    return full


for part in rules["parts"]:
    with tempfile.TemporaryDirectory() as folder:
        unpack(os.path.join(parts, part["file"]), folder)
        found = [
            os.path.relpath(os.path.join(top, name), folder)
            for top, _, names in os.walk(folder)
            for name in names
        ]
        left = {name for name in found if not os.path.islink(os.path.join(folder, name))}
        for take in part["take"]:
            wanted = [name for name in sorted(left) if re.fullmatch(pattern(take["source"]), name, re.DOTALL)]
            for glob in take["exclude"]:
                wanted = [name for name in wanted if not re.fullmatch(pattern(glob), name, re.DOTALL)]
            if not wanted:
                sys.exit(f"{part['file']}: nothing in it is {take['source']}")
            for name in wanted:
                left.remove(name)
                runnable = os.stat(os.path.join(folder, name)).st_mode & 0o111
                full = place(target(take, name))
                shutil.copyfile(os.path.join(folder, name), full)
                os.chmod(full, 0o755 if runnable else 0o644)

for path, text in rules["files"]:
    with open(place(path), "w") as stream:
        stream.write(text)
for wheel in rules["header_wheels"]:
    headers = f"{site}/nvidia/{wheel}/include"
    names = sorted(set(os.listdir(headers)) - {"__init__.py", "__pycache__"})
    lacking = [name for name in names if not os.path.lexists(f"{home}/include/{name}")]
    for name in lacking:
        os.symlink(os.path.relpath(f"{headers}/{name}", f"{home}/include"), place(f"include/{name}"))
for path, to in rules["links"]:
    full = to.replace("{site}", site)
    if full.startswith("/") and not os.path.exists(full):
        sys.exit(f"{home}/{path} should be linked to {full}, which is not there")
    relative = os.path.relpath(full, os.path.dirname(f"{home}/{path}")) if full.startswith("/") else full
    os.symlink(relative, place(path))
os.symlink(os.path.basename(home), "/usr/local/cuda")
