"""Install conda packages into a prefix of their own, without conda: `conda_prefix.py SPEC INPUTS OUT`.

INPUTS has `conda-tars`, what `conda_tars.py` made. SPEC has `prefix`; `packages`, the names of their files in order; and
`allow_scripts`, the names of packages whose post-link script may run. A package with a script that is not allowed is an error.

The rules are those of conda's "Package specification" (docs.conda.io) and of its accepted enhancement proposals: a placeholder
of the prefix gives way to the prefix, in a text everywhere, in a binary file up to the end of each text in it, whose length stays;
packages of `noarch: python` go to the site-packages of the Python that is among the packages, with a program for each entry point.
Of two packages with one path, the later one has it. Byte code is made anew, because that of the packages knows the times of their files.

Packages are foreign: a path that leaves the prefix is an error, and nothing is written through a link that does.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from glob import glob

# As which old packages were built that do not name their own.
PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3"
HERE = os.path.dirname(os.path.abspath(__file__))
ENTRY = """\
#!{prefix}/bin/python
import sys

from {module} import {name}

if __name__ == "__main__":
    sys.exit({function}())
"""
ENTRY_POINT = re.compile(r"\s*([\w.+-]+)\s*=\s*([\w.]+)\s*:\s*((\w+)[\w.]*)\s*")
MESSAGES = ".messages.txt"  # where a script leaves words for conda's user
OLDEST = (3, 8)  # Python for which `byte_code.py` works


class CondaError(Exception):
    """A package that cannot be installed."""


def safe(name, package):
    path = os.path.normpath(name)
    if os.path.isabs(name) or path.split("/")[0] == ".." or "\0" in name or "\\" in name:
        raise CondaError(f"`{package}` holds `{name}`, which would leave its folder: do not use this package")
    return path


def need_inside(path, folder, package):
    """Raise CondaError for a path whose folder is reached through a link that leaves `folder`."""
    if not f"{os.path.realpath(os.path.dirname(path))}/".startswith(f"{os.path.realpath(folder)}/"):
        shown = os.path.relpath(path, folder)
        raise CondaError(
            f"`{package}` has `{shown}` behind a link that leaves its folder: do not use this package"
        )
    return path


def extract(tar, folder, package):
    """Extract the folders, files and links of a tar. Links come last, so that no file is written through one."""
    size, links = os.path.getsize(tar), []
    with tarfile.open(tar, "r:") as archive:
        for info in archive:
            target = os.path.join(folder, safe(info.name, package))
            if info.isdir():
                os.makedirs(target, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if info.issym():
                links.append((target, info.linkname))
            elif info.islnk():
                shutil.copy2(os.path.join(folder, safe(info.linkname, package)), target)
            elif info.isreg() and info.size <= size:
                content = archive.extractfile(info)
                assert content is not None
                with content, open(target, "wb") as out:
                    shutil.copyfileobj(content, out, 1 << 20)
                os.chmod(target, 0o755 if info.mode & 0o111 else 0o644)
            else:
                raise CondaError(f"`{package}` holds `{info.name}`, which is no file, folder or link")
    for target, to in links:
        os.symlink(to, target)


def relocated(content, placeholder, prefix, *, is_binary):
    """Return a file's bytes with the prefix in place of the placeholder."""
    old, new = placeholder.encode(), prefix.encode()
    if not is_binary:
        return content.replace(old, new)
    if len(new) > len(old):
        raise CondaError(f"its placeholder `{placeholder}` is shorter than `{prefix}`")

    def replaced(match):
        return match[0].replace(old, new).ljust(len(match[0]), b"\0")

    return re.sub(re.escape(old) + rb"[^\0]*", replaced, content)


class Package:
    """An unpacked package: what it is, and the files that it brings."""

    def __init__(self, folder, filename):
        self.folder, self.filename = folder, filename
        self.index = self.read("info/index.json")
        self.name, self.version = str(self.index["name"]), str(self.index["version"])
        noarch = (self.read("info/link.json", {}).get("noarch") or {}) if self.index.get("noarch") else {}
        kind = noarch.get("type") or self.index.get("noarch")
        self.is_python = kind == "python"
        self.entry_points = [str(text) for text in noarch.get("entry_points") or ()]
        # Path, whether it is a folder, placeholder ("" for none), whether it is binary.
        self.rows = list(self.paths())

    def read(self, name, default=None):
        path = os.path.join(self.folder, name)
        if default is not None and not os.path.isfile(path):
            return default
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)

    def lines(self, name):
        path = os.path.join(self.folder, name)
        if not os.path.isfile(path):
            return []
        with open(path, encoding="utf-8") as stream:
            return [line for line in map(str.strip, stream) if line]

    def paths(self):
        paths = self.read("info/paths.json", {}).get("paths")
        if paths is not None:
            for row in paths:
                is_folder, is_binary = row.get("path_type") == "directory", row.get("file_mode") == "binary"
                yield (
                    safe(row["_path"], self.filename),
                    is_folder,
                    row.get("prefix_placeholder") or "",
                    is_binary,
                )
            return
        prefixes = {}
        for line in self.lines("info/has_prefix"):
            words = shlex.split(line)
            placeholder, mode, path = words if len(words) == 3 else (PLACEHOLDER, "text", words[-1])
            prefixes[path] = placeholder, mode == "binary"
        for path in self.lines("info/files"):
            yield (safe(path, self.filename), False, *prefixes.get(path, ("", False)))

    def script(self, moment):
        """Return the path of a script in the prefix, "" for none."""
        folders = ("bin", "python-scripts") if self.is_python else ("bin",)
        file = f".{self.name}-{moment}-link.sh"
        return (
            f"bin/{file}"
            if any(row[0] == f"{folder}/{file}" for folder in folders for row in self.rows)
            else ""
        )


class Prefix:
    """The prefix as it grows below `tree`. It remembers which package a path is from."""

    def __init__(self, tree, prefix, packages):
        self.tree, self.prefix, self.origins = tree, prefix, {}
        python = next((package for package in packages if package.name == "python"), None)
        self.minor = ".".join(python.version.split(".")[:2]) if python else ""
        given = python.index.get("python_site_packages_path") if python else ""
        self.site = safe(given or f"lib/python{self.minor}/site-packages", "python")

    def place(self, package, path):
        """Return where a path of a package belongs."""
        if package.is_python:
            for start, target in (("site-packages/", f"{self.site}/"), ("python-scripts/", "bin/")):
                if path.startswith(start):
                    return target + path[len(start) :]
        return path

    def make_room(self, package, path, source=""):
        """Return the full path for a new file, which is `source` so far. That of a package before gives way."""
        target = need_inside(os.path.join(self.tree, path), self.tree, package.filename)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.lexists(target):
            if not (source and same(source, target)):
                before = self.origins.get(path)
                print(f"`{path}` is from {package.name}, and no longer from {before}", file=sys.stderr)
            os.unlink(target)
        self.origins[path] = package.name
        return target

    def add(self, package):
        """Install a package. Returns the paths of its files."""
        if package.is_python and not self.minor:
            raise CondaError(
                f"`{package.name}` is a package of Python, and `python` is not among the packages"
            )
        files = []
        for path, is_folder, placeholder, is_binary in package.rows:
            source, into = os.path.join(package.folder, path), self.place(package, path)
            if is_folder:
                target = os.path.join(self.tree, into, "")
                os.makedirs(need_inside(target, self.tree, package.filename), exist_ok=True)
                continue
            if not os.path.lexists(need_inside(source, package.folder, package.filename)):
                raise CondaError(f"`{package.filename}` lists `{path}`, and does not hold it")
            if placeholder and not os.path.islink(source):
                with open(source, "rb") as stream:
                    content = relocated(stream.read(), placeholder, self.prefix, is_binary=is_binary)
                with open(source, "wb") as stream:
                    stream.write(content)
            os.rename(source, self.make_room(package, into, source))
            files.append(into)
        for text in package.entry_points if package.is_python else ():
            match = ENTRY_POINT.fullmatch(text)
            if match is None:
                raise CondaError(f"`{package.filename}` has an entry point that cannot be read: {text[:100]}")
            program, module, function, name = match.groups()
            files.append(f"bin/{program}")
            target = self.make_room(package, files[-1])
            with open(target, "x", encoding="utf-8") as out:
                out.write(ENTRY.format(prefix=self.prefix, module=module, name=name, function=function))
            os.chmod(target, 0o755)
        return files

    def record(self, package, files):
        """Note a package as conda does, so that others know what is here."""
        stem = re.sub(r"\.conda$|\.tar\.bz2$", "", package.filename)
        with open(os.path.join(self.tree, "conda-meta", f"{stem}.json"), "x", encoding="utf-8") as out:
            json.dump(
                dict(package.index, fn=package.filename, files=sorted(files)), out, indent=1, sort_keys=True
            )


def same(path, other):
    if os.path.islink(path) or os.path.islink(other) or os.path.isdir(other):
        return os.path.islink(path) and os.path.islink(other) and os.readlink(path) == os.readlink(other)
    with open(path, "rb") as first, open(other, "rb") as second:
        return first.read() == second.read()


def need_no_script(package, allowed):
    """Raise CondaError for a script that would run code of the package, unless that is allowed."""
    if package.script("pre"):
        raise CondaError(
            f"`{package.name}` has a pre-link script (`{package.script('pre')}`), which is never run: take another version"
        )
    if package.script("post") and package.name not in allowed:
        raise CondaError(
            f"`{package.name}` has a script that runs when it is installed, `{package.script('post')}` of `{package.filename}`: "
            f"read it, then write `allow_scripts: [{package.name}]` under `conda` of the recipe, and lock again"
        )


def run_script(package, prefix):
    variables = {
        "PREFIX": prefix, "PKG_NAME": package.name, "PKG_VERSION": package.version,
        "PKG_BUILDNUM": str(package.index.get("build_number", 0)), "PATH": f"{prefix}/bin:{os.environ['PATH']}",
    }  # fmt: skip
    script = subprocess.run(
        ["/bin/sh", f"{prefix}/{package.script('post')}"],
        env=dict(os.environ, **variables),
        cwd=prefix,
        check=False,
    )
    if script.returncode:
        raise CondaError(f"the post-link script of `{package.name}` ended with exit code {script.returncode}")


def compile_python(prefix, tree, minor):
    """Make the byte code of the standard library and of all packages, by the Python of the prefix."""
    library = os.path.dirname(prefix.site)
    for path in glob(os.path.join(glob_escape(tree), library, "**", "*.pyc"), recursive=True):
        os.unlink(path)
    if tuple(map(int, minor.split("."))) >= OLDEST:
        program = os.path.join(HERE, "byte_code.py")
        argv = [f"{prefix.prefix}/bin/python", "-B", program, "compile", f"{prefix.prefix}/{library}"]
        if subprocess.run(argv, check=False).returncode:
            raise CondaError(f"the byte code of Python {minor} was not made")


def glob_escape(path):
    return re.sub(r"([*?[])", r"[\1]", path)


def main(spec_file, inputs, out):
    os.umask(0o022)
    with open(spec_file, encoding="utf-8") as stream:
        spec = json.load(stream)
    tree, work, home = out + spec["prefix"], os.path.join(out, ".work"), spec["prefix"]
    os.makedirs(os.path.join(tree, "conda-meta"))
    packages = []
    for number, filename in enumerate(spec["packages"]):
        print(f"{number}/{2 * len(spec['packages'])} {filename}", flush=True)
        folder = os.path.join(work, str(number))
        os.makedirs(folder)
        for tar in sorted(
            glob(os.path.join(glob_escape(os.path.join(inputs, "conda-tars", filename)), "*.tar"))
        ):
            extract(tar, folder, filename)
        packages.append(Package(folder, filename))
        need_no_script(packages[-1], spec["allow_scripts"])
    prefix = Prefix(tree, home, packages)
    for number, package in enumerate(packages, len(packages)):
        print(f"{number}/{2 * len(packages)} {package.filename}", flush=True)
        prefix.record(package, prefix.add(package))
    shutil.rmtree(work)
    open(os.path.join(tree, "conda-meta/history"), "x", encoding="utf-8").close()
    os.makedirs(os.path.dirname(home), exist_ok=True)
    os.symlink(tree, home)  # its place in the image, which scripts and byte code name
    for package in packages:
        if package.script("post"):
            run_script(package, home)
    if os.path.lexists(os.path.join(tree, MESSAGES)):
        os.unlink(os.path.join(tree, MESSAGES))
    if prefix.minor:
        compile_python(prefix, tree, prefix.minor)
    os.unlink(home)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (
        CondaError,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        tarfile.TarError,
    ) as error:
        sys.exit(
            str(error)
            if isinstance(error, CondaError)
            else f"a package of conda cannot be read: {type(error).__name__}: {error}"
        )
