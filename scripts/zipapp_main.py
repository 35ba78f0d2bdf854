"""The start of the single file: unpack envbuilder into the user's caches once, then run it there.

Compiled modules cannot be loaded from a zip, so the file holds wheels and the lock that names them. uv is one of
them and installs them. This module must be readable by Python 3.6, to say that it is too old.
"""

import os
import platform
import sys

OLDEST = (3, 11)


def refuse(message, hint):
    sys.stderr.write("error: %s\n\nhint: %s\n" % (message, hint))
    sys.exit(8)


def check_machine(pythons):
    """End with a sentence unless this machine and this Python can run the wheels."""
    found = "%d.%d" % sys.version_info[:2]
    if sys.version_info[:2] < OLDEST:
        refuse(
            "envbuilder needs Python 3.11 or newer, and this is Python %s" % found,
            "`uv python install 3.11` brings one without root; then `$(uv python find 3.11) %s`"
            % sys.argv[0],
        )
    elsewhere = (
        "install the wheel of the same release: `uv tool install ./envbuilder_hpc-VERSION-py3-none-any.whl`"
    )
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError):  # another system, or another C library
        libc = ""
    machine = "%s %s" % (platform.system(), platform.machine())
    if machine != "Linux x86_64" or not libc.startswith("glibc "):
        refuse("this file is for x86-64 Linux with glibc, and this is %s %s" % (machine, libc), elsewhere)
    if tuple(map(int, libc.split()[1].split(".")[:2])) < (2, 28):
        refuse("envbuilder needs glibc 2.28 or newer, and this is %s" % libc, "use a newer distribution")
    if found not in pythons:
        refuse("this file is for Python %s, and this is Python %s" % (", ".join(pythons), found), elsewhere)


def unpack(archive, folder):
    """Install the wheels of the file into a virtual environment at `folder`."""
    import shutil
    import subprocess
    import tempfile
    import zipfile
    from pathlib import Path

    home = folder.parent
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = home.lstat()
    except OSError as error:  # a user without a home
        refuse("`%s` could not be made: %s" % (home, error), "set XDG_CACHE_HOME")
    if status.st_uid != os.geteuid() or status.st_mode & 0o022 or home.is_symlink():
        refuse("`%s` must be a folder of yours that nobody else can write" % home, "set XDG_CACHE_HOME")
    sys.stderr.write("envbuilder: unpacking into %s, once\n" % folder)
    scratch = Path(tempfile.mkdtemp(prefix="new-", dir=str(home)))
    # The user's settings of uv and of Python must not change what is installed.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("UV_", "PYTHON", "VIRTUAL_ENV", "CONDA"))
    }
    try:
        archive.extractall(str(scratch / "file"))
        wheels = scratch / "file/wheels"
        with zipfile.ZipFile(next(wheels.glob("uv-*.whl"))) as wheel:
            program = next(name for name in wheel.namelist() if name.endswith(".data/scripts/uv"))
            uv = Path(wheel.extract(program, str(scratch)))
        uv.chmod(0o755)
        venv = scratch / "venv"
        lock = scratch / "file/requirements.txt"
        for words in (
            ("venv", "--relocatable", "--python", sys.executable, venv),
            ("pip", "install", "--no-index", "--find-links", wheels, "--require-hashes", "--link-mode", "copy",
             "--python", venv / "bin/python", "-r", lock),
        ):  # fmt: skip
            options = ("--quiet", "--no-config", "--no-cache", "--offline")
            subprocess.run([str(word) for word in (uv, *options, *words)], env=environment, check=True)
        try:
            venv.rename(folder)
        except OSError:  # another start was faster
            if not folder.is_dir():
                raise
    except (OSError, subprocess.CalledProcessError) as error:
        refuse(
            "envbuilder could not be unpacked into `%s`: %s" % (home, error),
            "it needs 200 MB where programs may be executed; XDG_CACHE_HOME names another folder",
        )
    finally:
        shutil.rmtree(str(scratch))


def main():
    import hashlib
    import zipfile
    from pathlib import Path

    with zipfile.ZipFile(os.path.dirname(__file__)) as archive:
        check_machine(archive.read("pythons.txt").decode().split())
        # The lock names every wheel by its hash. A virtual environment belongs to one Python.
        inputs = (
            archive.read("requirements.txt")
            + sys.version.encode()
            + os.path.realpath(sys.executable).encode()
        )
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(caches, "envbuilder-app", hashlib.sha256(inputs).hexdigest()[:16])
        if not os.path.isdir(str(folder)):  # False as well where a parent may not be entered
            unpack(archive, folder)
    python = str(folder / "bin/python")
    isolated = ["-I"] if sys.flags.isolated else []
    sys.stdout.flush()
    os.execv(python, [python, *isolated, str(folder / "bin/envbuilder"), *sys.argv[1:]])


main()
