"""Ask git: the commit of a branch or a tag, and the files of a commit with its submodules."""

import re
from pathlib import Path
from typing import Final

from envbuilder.core.errors import CommandError, FetchError, UsageError
from envbuilder.core.plain import pasted
from envbuilder.core.process import Command, Runner
from envbuilder.sources.fetch import PATIENCE, deadline
from envbuilder.steps import fetch_commit

# No prompt, and no large files that a filter would fetch: what a build compiles is text.
_QUIET: Final = (("GIT_TERMINAL_PROMPT", "0"), ("GIT_LFS_SKIP_SMUDGE", "1"))
# Bytes a second, and seconds. Without a limit, git waits for ever. Servers send something every few seconds while they pack a commit.
_PATIENCE: Final = (("GIT_HTTP_LOW_SPEED_LIMIT", "1"), ("GIT_HTTP_LOW_SPEED_TIME", "30"))
_ACCESS: Final = "`git ls-remote {url}` must answer without a question; for a private repository, give git a credential helper or an SSH agent"


def check_out(url: str, commit: str, tree: Path, runner: Runner, *, patience: float = PATIENCE) -> None:
    """Make a folder with the files of a commit and of its submodules. Raises FetchError if git cannot, ToolError without git.

    All of it may take `patience` seconds.
    """
    tree.mkdir()
    lists = f"`git ls-remote {pasted(url)}` lists its branches and tags with their commits"
    names = f"`.gitmodules` of that commit names their addresses: {_ACCESS.format(url='ADDRESS')}"
    refusals = {  # by the command of git that fails: message and hint
        "fetch": (f"the repository `{url}` cannot be read", _ACCESS.format(url=pasted(url))),
        "checkout": (f"the repository `{url}` has no commit {commit}", lists),
        "submodule": (f"the submodules of `{url}` at {commit} cannot be fetched", names),
    }

    def git(*words: str, check: bool = True) -> bool:
        argv = ("git", "-C", str(tree), *fetch_commit.SETTINGS, *words)
        why = f"fetch the commit {commit} of `{url}`"
        try:
            bounded.run(Command(argv=argv, why=why, env=(*_QUIET, *_PATIENCE)))
        except CommandError as error:
            if not check:
                return False
            if words[0] not in refusals:
                raise
            raise _refused(error, *refusals[words[0]]) from error
        return True

    with deadline(runner, f"fetching `{url}`", patience) as bounded:
        fetch_commit.check_out(url, commit, tree, git)


def _refused(error: CommandError, message: str, hint: str) -> FetchError:
    """Return a failure of git with its own words and without its command, which names a temporary folder."""
    lines = (line.strip() for line in error.message.splitlines()[1:])
    messages = "; ".join(dict.fromkeys(line for line in lines if line.startswith(("fatal: ", "error: "))))
    return FetchError(f"{message}: {messages}" if messages else message, hint=hint)


def find_commit(url: str, revision: str, runner: Runner) -> str:
    """Return the commit of a branch, a tag or `HEAD`; a whole commit as it is. Raises UsageError if there is none."""
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    argv = ("git", "ls-remote", "--", url, revision, f"{revision}^{{}}")
    command = Command(argv=argv, why=f"find the commit of `{revision}` in `{url}`", env=(*_QUIET, *_PATIENCE))
    try:
        with deadline(runner, f"reading the branches of `{url}`") as bounded:
            listed = bounded.run(command).split()
    except CommandError as error:
        message = f"the repository `{url}` cannot be read"
        raise _refused(error, message, _ACCESS.format(url=pasted(url))) from error
    if not listed:
        hint = f"`git ls-remote {pasted(url)}` lists them"
        raise UsageError(f"`{url}` has no branch or tag `{revision}`", hint=hint)
    return listed[-2]  # a tag's commit follows the tag itself
