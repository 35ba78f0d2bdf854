"""A Hugging Face hub on loopback with one kernel: what its list of files and its files answer."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from envbuilder.core.cache import save_text
from envbuilder.lock.file import lock_text
from envbuilder.lock.resolve.hub import lock_kernels
from envbuilder.recipe.load import load
from tests.support.locks import make_task
from tests.support.serving import Quiet, serving
from tests.support.tiny import make_tiny
from tests.support.workbench import resolve_context

NAME: Final = "team/relu"
REVISION: Final = "0123456789abcdef0123456789abcdef01234567"
CODE: Final = "def relu(values):\n    return [max(value, 0) for value in values]\n"
METADATA: Final = json.dumps(
    {
        "name": "relu",
        "id": "_relu_1",
        "version": 1,
        "license": "MIT",
        "backend": {"type": "cpu"},
        "python-depends": [],
    }
)


def make_files(*variants: str, library: bytes = b"no ELF") -> dict[str, bytes]:
    """Return the files of a repository with these variants: code, and a library that the hub keeps apart from git."""
    files = {"README.md": b"# relu\n"}
    for variant in variants:
        files |= {
            f"build/{variant}/__init__.py": CODE.encode(),
            f"build/{variant}/metadata.json": METADATA.encode(),
            f"build/{variant}/layers/__init__.py": variant.encode(),
            f"build/{variant}/layers/__pycache__/__init__.pyc": b"",
            f"build/{variant}/_relu.abi3.so": library + variant.encode(),
        }
    return files


def make_kernels(folder: Path) -> Path:
    """Write a tiny recipe with the kernel, and its lock, whose files are in the cache. Returns the recipe's file."""
    recipe, lock = make_tiny(folder / "recipes", "kernels", more=f"kernels: [{NAME}@{REVISION}]\n")
    with hub(make_files("torch-universal", "torch-cuda")) as (address, _):
        context = resolve_context(os.environ | {"HF_ENDPOINT": address})
        kernels = lock_kernels(make_task(load(recipe), context), None)
        context.fetcher.fetch(file for kernel in kernels for file in kernel.files)
    save_text(recipe.with_suffix(".lock"), lock_text(replace(lock, kernels=kernels)))
    return recipe


@contextlib.contextmanager
def hub(
    files: Mapping[str, bytes], form: str = "models", *, oid: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of the hub, and the paths that were asked for. `oid` is what it says of each library instead of its sha256."""
    asked: list[str] = []

    def entry(path: str) -> dict[str, object]:
        content = files[path]
        row: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
        if path.endswith(".so"):
            row["lfs"] = {"oid": oid or hashlib.sha256(content).hexdigest(), "size": len(content)}
        return row

    def answer(path: str) -> bytes | None:
        start = f"/api/{form}/{NAME}/tree/{REVISION}/"
        below = "" if form == "models" else f"{form}/"
        content = f"/{below}{NAME}/resolve/{REVISION}/"
        if path == f"{start}build":
            names = sorted({name.split("/")[1] for name in files if name.startswith("build/")})
            return json.dumps(
                [{"type": "directory", "path": f"build/{name}", "size": 0} for name in names]
            ).encode()
        if path.startswith(start):
            folder = path.removeprefix(start)
            return json.dumps([entry(name) for name in files if name.startswith(f"{folder}/")]).encode()
        return files.get(path.removeprefix(content)) if path.startswith(content) else None

    class Handler(Quiet):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = answer(urlsplit(self.path).path)
            self.reply(404 if body is None else 200, body or b"")

    with serving(Handler) as address:
        yield f"http://{address}/", asked
