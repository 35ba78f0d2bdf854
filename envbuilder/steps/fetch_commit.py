"""Fetch a git commit with its submodules and pack it: `fetch_commit.py URL COMMIT FILE`.

A printed text runs this in place of envbuilder, whose `lock` calls `check_out` and `pack`. `git archive` leaves submodules out, and its bytes have
changed between releases of git. So the tar is written here: files in the order of their names, with one time and one owner, without
git's own files.
"""

import functools
import os
import subprocess
import sys
import tempfile
from typing import Any

BLOCK = 512
SETTINGS = ("-c", "core.autocrlf=false", "-c", "advice.detachedHead=false")


def main(url, commit, file):
    with tempfile.TemporaryDirectory() as tree:
        check_out(url, commit, tree, functools.partial(run_git, tree))
        pack(tree, file)


def run_git(tree, *words, check=True):
    environment = dict(os.environ, GIT_TERMINAL_PROMPT="0", GIT_LFS_SKIP_SMUDGE="1")
    argv = ("git", "-C", tree, *SETTINGS, *words)
    return not subprocess.run(argv, env=environment, check=check).returncode


def check_out(url: Any, commit: Any, tree: Any, git: Any) -> None:
    """Make the files of a commit and of its submodules. `git` runs git there, and without `check` returns whether it succeeded."""
    git("init", "--quiet")
    if not git("fetch", "--quiet", "--depth", "1", "--", url, commit, check=False):
        # Some servers do not send a single commit.
        git("fetch", "--quiet", "--", url, "+refs/*:refs/remotes/all/*")
    git("checkout", "--quiet", "--detach", commit)
    if os.path.exists(os.path.join(tree, ".gitmodules")):
        git("remote", "add", "origin", url)  # relative addresses need it
        git("submodule", "--quiet", "update", "--init", "--recursive")


def read_file(tree, path):
    with open(os.path.join(tree, path), "rb") as stream:
        return stream.read()


def pack(tree: Any, file: Any, read: Any = read_file) -> None:
    """Write every file and link of a tree to the tar `file`. `read` returns the content of a file of the tree."""
    with open(file, "wb") as out:
        out.writelines(member(tree, path, read) for path in sorted(files(tree)))
        out.write(bytes(2 * BLOCK))


def files(tree):
    """Yield every file and every link, links to folders included."""
    for parent, folders, names in os.walk(tree):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in (*names, *links):
            path = os.path.relpath(os.path.join(parent, name), tree)
            if ".git" not in path.split(os.sep):
                yield path


def member(tree, path, read):
    full = os.path.join(tree, path)
    if os.path.islink(full):
        return header(path, 0o777, b"2", target=os.fsencode(os.readlink(full)))
    content = read(tree, path)
    mode = 0o755 if os.stat(full).st_mode & 0o100 else 0o644
    return header(path, mode, b"0", size=len(content)) + padded(content)


def header(path, mode, kind, *, size=0, target=b""):
    """Return a ustar header, with a PAX header in front where ustar has no room (pax(1))."""
    name = os.fsencode(path)
    fields = [(b"path", name), (b"linkpath", target)]
    records = [(key, value) for key, value in fields if len(value) > 100 or not value.isascii()]
    extended = b""
    if records:
        if any(value.decode(errors="ignore").encode() != value for _, value in records):
            records.insert(0, (b"hdrcharset", b"BINARY"))
        body = b"".join(record(key, value) for key, value in records)
        extended = ustar(b"././@PaxHeader", 0o644, b"x", len(body), b"") + padded(body)
    return extended + ustar(name[:100], mode, kind, size, target[:100])


def ustar(name, mode, kind, size, target):
    before = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (name.ljust(100, b"\0"), mode, 0, 0, size, 0)
    after = (b"%b%bustar\00000" % (kind, target.ljust(100, b"\0"))).ljust(BLOCK - 156, b"\0")
    return b"%b%06o\0 %b" % (before, sum(before) + 8 * 0x20 + sum(after), after)


def record(key, value):
    """Return a PAX record. It begins with its own length in decimal digits."""
    rest = b" %b=%b\n" % (key, value)
    size = len(rest)
    while len(b"%d" % size) + len(rest) != size:
        size = len(b"%d" % size) + len(rest)
    return b"%d%b" % (size, rest)


def padded(content):
    return content + bytes(-len(content) % BLOCK)


if __name__ == "__main__":
    main(*sys.argv[1:])
