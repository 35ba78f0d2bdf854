"""Pack a git commit with its submodules as a tar whose bytes depend on the files alone.

`git archive` leaves submodules out and its bytes have changed between releases of git, so the tar is written here.
"""

import hashlib
import os
import stat
from pathlib import Path
from typing import IO, Final

from envbuilder.core.cache import Sha256, Store
from envbuilder.core.errors import CommandError
from envbuilder.core.process import Command, Runner
from envbuilder.layers.entry import Entry, Kind
from envbuilder.layers.tar import END, make_header, padded
from envbuilder.lock.model import Artifact

# No prompt, and no large files that a filter would fetch: what a build compiles is text.
_QUIET: Final = (("GIT_TERMINAL_PROMPT", "0"), ("GIT_LFS_SKIP_SMUDGE", "1"))


def export_commit(url: str, commit: str, *, store: Store, runner: Runner) -> Artifact:
    """Fetch a commit and put its tree into the store. Raises CommandError if git fails, ToolError without git."""
    with store.workspace() as work:
        tree = work / "tree"
        tree.mkdir()
        _git(runner, tree, "init", "--quiet", why="make an empty repository")
        why = f"fetch the commit {commit} of `{url}`"
        try:
            _git(runner, tree, "fetch", "--quiet", "--depth", "1", "--", url, commit, why=why)
        except CommandError:  # a server need not give a commit by its name: take everything
            _git(
                runner,
                tree,
                "fetch",
                "--quiet",
                "--",
                url,
                "+refs/*:refs/remotes/all/*",
                why=f"fetch `{url}`",
            )
        _git(runner, tree, "checkout", "--quiet", "--detach", commit, why=f"check out the commit {commit}")
        if (tree / ".gitmodules").exists():
            _git(
                runner, tree, "remote", "add", "origin", url, why="name the repository"
            )  # relative URLs need it
            _git(
                runner, tree, "submodule", "--quiet", "update", "--init", "--recursive",
                why=f"fetch the submodules of `{url}`",
            )  # fmt: skip
        archive = work / "tree.tar"
        digest = _write_tar(tree, archive)
        size = archive.stat().st_size
        store.add_artefact(digest, archive)
    name = url.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return Artifact(
        kind="git", name=name, version=commit, sha256=digest, size=size, source="git", path=f"{commit}.tar"
    )


def _git(runner: Runner, folder: Path, *words: str, why: str) -> None:
    settings = ("-c", "core.autocrlf=false", "-c", "advice.detachedHead=false")
    runner.run(Command(argv=("git", "-C", str(folder), *settings, *words), why=why, env=_QUIET))


def _write_tar(tree: Path, out: Path) -> Sha256:
    """Pack every file and link in the order of names, with one time and owner, without git's own files."""
    with out.open("wb") as stream:
        for path in sorted(_files(tree)):
            _add(stream, tree / path, path)
        stream.write(END)
    with out.open("rb") as stream:
        return Sha256(hashlib.file_digest(stream, "sha256").hexdigest())


def _files(tree: Path) -> list[str]:
    found: list[str] = []
    for parent, folders, names in os.walk(tree):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        folders[:] = [name for name in folders if name != ".git" and name not in links]
        inside = Path(parent).relative_to(tree)
        found += [(inside / name).as_posix() for name in (*names, *links) if name != ".git"]
    return found


def _add(stream: IO[bytes], file: Path, path: str) -> None:
    status = file.lstat()
    if stat.S_ISLNK(status.st_mode):
        link = Entry(
            path=path, kind=Kind.LINK, mode=0o777, uid=0, gid=0, mtime=0, target=str(file.readlink())
        )
        stream.write(make_header(link))
        return
    content = file.read_bytes()
    mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
    stream.write(
        make_header(Entry(path=path, kind=Kind.FILE, mode=mode, uid=0, gid=0, mtime=0, size=len(content)))
    )
    stream.write(padded(content))
