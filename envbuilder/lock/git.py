"""Put a git commit with its submodules into the store, as a tar whose bytes depend on the files alone."""

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from envbuilder.core.beneath import FILE_LIMIT, read_beneath
from envbuilder.core.cache import Store, sha256_file
from envbuilder.core.errors import CommandError, FetchError, UsageError
from envbuilder.core.plain import pasted
from envbuilder.core.process import Command, Runner
from envbuilder.lock.model import Artifact
from envbuilder.sources.deadline import PATIENCE, deadline
from envbuilder.steps import fetch_commit

_SETTINGS: Final = ("-c", "core.autocrlf=false", "-c", "advice.detachedHead=false")
# No prompt, and no large files that a filter would fetch: what a build compiles is text.
_QUIET: Final = (("GIT_TERMINAL_PROMPT", "0"), ("GIT_LFS_SKIP_SMUDGE", "1"))
# Without a limit, git waits for ever. Servers send something every few seconds while they pack a commit.
_PATIENCE: Final = (
    ("GIT_HTTP_LOW_SPEED_LIMIT", "1"),
    ("GIT_HTTP_LOW_SPEED_TIME", "30"),
)  # bytes a second, seconds
_ACCESS: Final = "`git ls-remote {url}` must answer without a question; for a private repository, give git a credential helper or an SSH agent"


def export_commit(url: str, commit: str, *, store: Store, runner: Runner) -> Artifact:
    """Fetch a commit and put its tree into the store. Raises FetchError if git cannot, ToolError without git."""
    with store.workspace() as work:
        tree = work / "tree"
        check_out(url, commit, tree, runner)
        archive = work / "tree.tar"
        fetch_commit.pack(tree, archive, partial(read_beneath, limit=FILE_LIMIT))
        digest, size = sha256_file(archive), archive.stat().st_size
        store.add_artifact(digest, archive)
    name = url.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return Artifact(
        kind="git", name=name, version=commit, sha256=digest, size=size, source="git", path=f"{commit}.tar"
    )


def check_out(url: str, commit: str, tree: Path, runner: Runner, *, patience: float = PATIENCE) -> None:
    """Make a folder with the files of a commit and of its submodules. Raises FetchError if git cannot, ToolError without git.

    All of it may take `patience` seconds.
    """
    tree.mkdir()
    with deadline(runner, f"fetching `{url}`", patience) as bounded:
        _check_out(url, commit, tree, bounded)


def _check_out(url: str, commit: str, tree: Path, runner: Runner) -> None:
    def git(*words: str, why: str) -> None:
        argv = ("git", "-C", str(tree), *_SETTINGS, *words)
        runner.run(Command(argv=argv, why=why, env=(*_QUIET, *_PATIENCE)))

    git("init", "--quiet", why="make an empty repository")
    why = f"fetch the commit {commit} of `{url}`"
    try:
        git("fetch", "--quiet", "--depth", "1", "--", url, commit, why=why)
    except CommandError:  # some servers do not send a single commit: fetch everything
        with _explained(f"the repository `{url}` cannot be read", _ACCESS.format(url=pasted(url))):
            git("fetch", "--quiet", "--", url, "+refs/*:refs/remotes/all/*", why=f"fetch `{url}`")
    hint = f"`git ls-remote {pasted(url)}` lists its branches and tags with their commits"
    with _explained(f"the repository `{url}` has no commit {commit}", hint):
        git("checkout", "--quiet", "--detach", commit, why=f"check out the commit {commit}")
    if (tree / ".gitmodules").exists():
        git("remote", "add", "origin", url, why="name the repository")  # relative URLs need it
        hint = f"`.gitmodules` of that commit names their addresses: {_ACCESS.format(url='ADDRESS')}"
        with _explained(f"the submodules of `{url}` at {commit} cannot be fetched", hint):
            why = f"fetch the submodules of `{url}`"
            git("submodule", "--quiet", "update", "--init", "--recursive", why=why)


@contextlib.contextmanager
def _explained(message: str, hint: str) -> Iterator[None]:
    """Raise a failure of git in the block as a FetchError, with git's own words and without its command.

    The command names a temporary folder.
    """
    try:
        yield
    except CommandError as error:
        lines = (line.strip() for line in error.message.splitlines()[1:])
        messages = "; ".join(dict.fromkeys(line for line in lines if line.startswith(("fatal: ", "error: "))))
        raise FetchError(f"{message}: {messages}" if messages else message, hint=hint) from error


def find_commit(url: str, revision: str, runner: Runner) -> str:
    """Return the commit of a branch, a tag or `HEAD`; a whole commit as it is. Raises UsageError if there is none."""
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    with (
        _explained(f"the repository `{url}` cannot be read", _ACCESS.format(url=pasted(url))),
        deadline(runner, f"reading the branches of `{url}`") as bounded,
    ):
        argv = ("git", "ls-remote", "--", url, revision, f"{revision}^{{}}")
        why = f"find the commit of `{revision}` in `{url}`"
        listed = bounded.run(Command(argv=argv, why=why, env=(*_QUIET, *_PATIENCE))).split()
    if not listed:
        hint = f"`git ls-remote {pasted(url)}` lists them"
        raise UsageError(f"`{url}` has no branch or tag `{revision}`", hint=hint)
    return listed[-2]  # a tag's commit follows the tag itself
