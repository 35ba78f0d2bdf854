"""Build the wheel of a source distribution: `build_sdist.py SPEC INPUTS OUT`.

INPUTS has the source distribution, and in `tools` the wheels that its build needs, which sees no others. SPEC has `sdist`, the name of
its file, and `ldflags`. The build runs in /space, which its files may name, and the wheel is written into OUT.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
SPACE = "/space"
VARIABLES = {
    "CC": "gcc",
    "CXX": "g++",
    "MAX_JOBS": "4",  # the same everywhere, because a build may write the number down
    "SOURCE_DATE_EPOCH": "315619200",  # 1980-01-02, which every zip file can hold; the same for all, so that recipes share wheels
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPATH": f"{SPACE}/customize",
    "TMPDIR": f"{SPACE}/tmp",  # uv leaves a lock there
    "UV_NO_INSTALLER_METADATA": "1",  # it holds the time at which the wheel was made
}


def main(spec_file, inputs, out):
    os.umask(0o022)
    with open(spec_file, encoding="utf-8") as stream:
        spec = json.load(stream)
    for name in ("PYTHONPATH", "TMPDIR"):
        os.makedirs(VARIABLES[name])
    shutil.copy(os.path.join(HERE, "sitecustomize.py"), VARIABLES["PYTHONPATH"])  # sorts listings
    made, tools = os.path.join(SPACE, "wheel"), os.path.join(inputs, "tools")
    links = ["--find-links", tools] if os.path.exists(tools) else []
    ended = subprocess.run(
        [
            os.path.join(HERE, "uv"), "--no-config", "--offline", "--no-progress", "--cache-dir", os.path.join(SPACE, "cache"),
            "build", "--wheel", "--no-index", *links, "--python", sys.executable,
            "--out-dir", made, os.path.join(inputs, spec["sdist"]),
        ],
        cwd=SPACE, env=dict(os.environ, LDFLAGS=spec["ldflags"], **VARIABLES),
        stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if ended.returncode:
        sys.exit(ended.returncode)
    for name in os.listdir(made):
        if name.endswith(".whl"):
            tidy(os.path.join(made, name), os.path.join(out, name))
    for name in os.listdir(SPACE):
        shutil.rmtree(os.path.join(SPACE, name), ignore_errors=True)


def tidy(source, target):
    """Write a wheel anew: its files in order, without their times and without the order of its list."""
    with zipfile.ZipFile(source) as old:
        content = {entry.filename: (entry, old.read(entry)) for entry in old.infolist() if not entry.is_dir()}
    with zipfile.ZipFile(target, "w") as new:  # not compressed, because zlib's versions differ
        for name, (entry, data) in sorted(content.items()):
            fresh = zipfile.ZipInfo(name)
            fresh.external_attr = (0o100755 if entry.external_attr >> 16 & 0o100 else 0o100644) << 16
            is_list = name.endswith(".dist-info/RECORD")
            new.writestr(fresh, b"".join(sorted(data.splitlines(True))) if is_list else data)


if __name__ == "__main__":
    main(*sys.argv[1:])
