"""Build the wheel of a source distribution: `build_sdist.py SPEC INPUTS OUT`.

INPUTS has the source distribution, and in `tools` the wheels that its build needs, which sees no others. SPEC has `sdist`, the name of
its file, and `ldflags`. The wheel is written into OUT. /space is the build directory, as that of `extension.py`: a runner that keeps
it lets a build go on that was killed. Sources and tools always lie there in the same places and have the same times, so that ninja
compiles only what is not complete.
"""

import glob
import json
import os
import re
import subprocess
import sys
import zipfile

from extension import (
    BUILD,
    NEW,
    SOURCE,
    SPACE,
    STEPS,
    clear_space,
    compilers,
    empty_folder,
    files_in,
    note_memory,
    place,
    read,
    run,
    tidy,
    unpack,
)

TIME = 315619200  # 1980-01-02, which every zip file can hold; the same for all, so that recipes share wheels
TOOLS = SPACE + "/tools"
PYTHON = TOOLS + "/bin/python"
UV = [STEPS + "/uv", "--no-config", "--offline", "--no-progress", "--cache-dir", SPACE + "/cache"]
# Backends that compile in a new folder each time, unless they are given another one.
NINJA_BACKENDS = re.compile(rb"build-backend\s*=\s*[\"'](scikit_build_core|mesonpy)\b")


def main(spec_file, inputs, out):
    os.umask(0o022)
    with open(spec_file, encoding="utf-8") as stream:
        spec = json.load(stream)
    jobs, is_kept = compilers(spec_file)
    clear_space(is_kept=is_kept)
    for name in ("customize", "tmp", "wheel"):
        empty_folder(os.path.join(SPACE, name))
    with open(SPACE + "/customize/sitecustomize.py", "wb") as copy:  # sorts listings
        copy.write(read(STEPS + "/sitecustomize.py"))
    empty_folder(NEW)
    unpack(os.path.join(inputs, spec["sdist"]), strip=True)
    place(NEW, SOURCE)
    set_times(SOURCE, files_in(NEW))
    env = variables(spec, jobs)
    try:
        install_tools(os.path.join(inputs, "tools"), env)
        words = f"build --wheel --no-build-isolation --python {PYTHON} --out-dir {SPACE}/wheel".split()
        run([*UV, *words, *settings(jobs), SOURCE], env, SOURCE, subprocess.STDOUT)
    finally:
        if is_kept:
            note_memory(out)
    for name in os.listdir(SPACE + "/wheel"):
        if name.endswith(".whl"):
            rewrite(os.path.join(SPACE, "wheel", name), os.path.join(out, name))
    clear_space(is_kept=False)


def variables(spec, jobs):
    return dict(
        os.environ,
        CC="gcc",
        CXX="g++",
        LDFLAGS=spec["ldflags"],
        MAX_JOBS=str(jobs),
        CMAKE_BUILD_PARALLEL_LEVEL=str(jobs),
        SOURCE_DATE_EPOCH=str(TIME),
        PATH=TOOLS + "/bin:" + os.environ["PATH"],
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONPATH=SPACE + "/customize",
        TMPDIR=SPACE + "/tmp",  # uv leaves a lock there
        UV_NO_INSTALLER_METADATA="1",  # it holds the time at which the wheel was made
    )


def install_tools(wheels, env):
    """Make the environment of the build: its tools, and nothing else."""
    run([*UV, "venv", "--python", sys.executable, TOOLS], env, SPACE, subprocess.STDOUT)
    if paths := sorted(glob.glob(glob.escape(wheels) + "/*.whl")):
        words = f"pip install --no-index --no-deps --link-mode copy --python {PYTHON}".split()
        run([*UV, *words, *paths], env, SPACE, subprocess.STDOUT)
    set_times(TOOLS, files_in(TOOLS))


def set_times(folder, names):
    for name in names:
        os.utime(os.path.join(folder, name), (TIME, TIME))


def settings(jobs):
    """Return the settings of backends that start ninja: the build directory, and how many compilers run at once."""
    project = os.path.join(SOURCE, "pyproject.toml")
    backend = NINJA_BACKENDS.search(read(project)) if os.path.isfile(project) else None
    if not backend:
        return []
    tidy(BUILD, lambda _: True)
    given = ["--config-setting=build-dir=" + BUILD]
    if backend[1] == b"mesonpy":
        os.makedirs(
            BUILD + "/meson-private", exist_ok=True
        )  # otherwise Meson refuses a folder that is not empty
        given.append("--config-setting=compile-args=-j%d" % jobs)
    return given


def rewrite(source, target):
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
