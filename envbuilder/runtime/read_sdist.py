"""Ask a source distribution what it requires, through the hooks of PEP 517. Runs in a sandbox under this machine's own Python.

Called as `python read_sdist.py SPEC`. SPEC is a JSON file with `sdist` (the archive), `work` (a folder that may be written) and
`installed` (the requirements that are installed). The answer is JSON on stdout: `builds_with`, the requirements of
the build, and once all of these are installed, what the metadata says: `requires`, `extras` and `python`.
"""

import email
import importlib
import json
import os
import shutil
import sys
import tomllib
import zipfile

out = os.dup(1)
os.dup2(2, 1)  # what the project prints is no answer
with open(sys.argv[1]) as given:
    spec = json.load(given)
work = spec["work"]
source, made = os.path.join(work, "src"), os.path.join(work, "made")
for folder in (source, made):
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
shutil.unpack_archive(spec["sdist"], source)
tops = [os.path.join(source, name) for name in os.listdir(source)]
(project,) = filter(os.path.isdir, tops)

system = {}
if os.path.exists(os.path.join(project, "pyproject.toml")):
    with open(os.path.join(project, "pyproject.toml"), "rb") as stream:
        system = tomllib.load(stream).get("build-system", {})
builds_with = list(system.get("requires", ["setuptools>=40.8.0"]))


def answer(**more):
    with os.fdopen(out, "w") as stream:
        json.dump(dict(more, builds_with=builds_with), stream)


def is_ready():
    return set(builds_with) <= set(spec["installed"])


if not is_ready():
    answer()
    sys.exit()

os.chdir(project)
sys.path[:0] = [os.path.join(project, one) for one in system.get("backend-path", [])]
module, _, inside = system.get("build-backend", "setuptools.build_meta:__legacy__").partition(":")
backend = importlib.import_module(module)
for name in filter(None, inside.split(".")):
    backend = getattr(backend, name)

if hasattr(backend, "get_requires_for_build_wheel"):
    builds_with += [one for one in backend.get_requires_for_build_wheel() if one not in builds_with]
if not is_ready():
    answer()
    sys.exit()

if hasattr(backend, "prepare_metadata_for_build_wheel"):
    folder = os.path.join(made, backend.prepare_metadata_for_build_wheel(made))
    with open(os.path.join(folder, "METADATA"), "rb") as stream:
        metadata = email.message_from_binary_file(stream)
else:
    with zipfile.ZipFile(os.path.join(made, backend.build_wheel(made))) as wheel:
        (path,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(wheel.read(path))
answer(
    requires=metadata.get_all("Requires-Dist", []),
    extras=metadata.get_all("Provides-Extra", []),
    python=metadata.get_all("Requires-Python", []),
)
