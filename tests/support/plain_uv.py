"""Ask uv itself, in one plain `uv pip compile`, for the versions that meet a recipe's requirements."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import uv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder.sources.names import Sources


def compiled(
    requirements: Sequence[str], sources: Sources, folder: Path, *, constraints: Sequence[str] = (), finals: Sequence[str] = (),
    build: str = "", python: str = "3.11", glibc: str = "2.36",
) -> dict[str, str]:  # fmt: skip
    """Return the versions by name, nothing if no set of packages fits."""
    (folder / "plain.in").write_text("".join(f"{one}\n" for one in requirements))
    (folder / "plain-constraints.in").write_text("".join(f"{one}\n" for one in constraints))
    main, *more = [*sources.indexes, *([f"{sources.pytorch}{build}/"] if build else [])]
    argv = [
        uv.find_uv_bin(), "pip", "compile", "plain.in", "--constraints", "plain-constraints.in", "--no-config",
        "--cache-dir", "plain-cache", "--python-version", python, "--index-strategy", "unsafe-best-match",
        "--python-platform", f"x86_64-manylinux_{glibc.replace('.', '_')}", "--default-index", main,
        *(f"--index={one}" for one in more), *(f"--find-links={one}" for one in sources.folders),
        *(f"--prerelease-package={one}=disallow" for one in finals), "--no-header", "--no-annotate", "--quiet",
    ]  # fmt: skip
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "No solution found" in done.stderr, done.stderr
    pins = [Requirement(line) for line in done.stdout.splitlines()]
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in pins}
