"""A sandbox's root of this machine's own programs, with a torch of a few lines, and a home whose files no build may reach."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envbuilder.builder.extensions.compile import ExtensionBuilder, join_extensions
from envbuilder.builder.extensions.compiled import CachedExtension
from envbuilder.builder.job import BuildJob
from envbuilder.builder.sandbox.layer_folders import LayerFolder
from envbuilder.builder.sandbox.root import SandboxRoot
from envbuilder.core.cache import sha256_text
from envbuilder.core.process import ProcessRunner
from envbuilder.lock.model import LockedExtension, SourceFile
from envbuilder.plan.model import ExtensionsStep
from tests.support.plans import LOCK, RECIPE, make_job, make_plan
from tests.support.sdists import own_backend

SECRET = "the private key of the user"
# As torch's: `load` compiles and loads what it compiled, and importing torch takes a while.
TORCH = {
    "__init__.py": """
import time
from types import SimpleNamespace
from torch import _ops, library
time.sleep(0.6)
__version__, version = "2.13.0", SimpleNamespace(cuda=None)
_C = SimpleNamespace(
    _GLIBCXX_USE_CXX11_ABI=True, _jit_get_all_schemas=list, _jit_get_schemas_for_operator=lambda name: [],
)
""",
    "_ops.py": """
class _OpNamespace:
    def __getattr__(self, name): raise AttributeError(name)
""",
    "library.py": "class Library:\n    def impl(self, op_name): pass\n",
    "utils/__init__.py": "",
    "utils/cpp_extension.py": """
import ctypes, subprocess
def load(name, sources, build_directory=None, is_standalone=False, verbose=False, **others):
    library = "%s/%s" % (build_directory, name if is_standalone else name + ".so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-o", library, *sources], check=True)
    ctypes.CDLL(library)
def load_inline(name, cpp_sources): pass
""",
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A user's machine: a home with a secret and a start file, a cache, and the root in which projects run."""

    home: Path
    job: BuildJob
    root: SandboxRoot

    @property
    def start_file(self) -> Path:
        return self.home / ".bashrc"

    def job_of(self, *extensions: LockedExtension) -> BuildJob:
        lock = replace(LOCK, extensions=extensions)
        return replace(self.job, plan=make_plan(replace(RECIPE, python="3.11"), lock, architectures=()))

    def build(self, *extensions: LockedExtension) -> tuple[CachedExtension, ...]:
        with deadline():
            return ExtensionBuilder(self.job_of(*extensions), lambda _: self.root).build()

    def join(self, built: tuple[CachedExtension, ...], work: Path, *extensions: LockedExtension) -> None:
        """Join what was built of these extensions in `work/out`."""
        job = self.job_of(*extensions)
        (step,) = (step for step in job.plan.steps if isinstance(step, ExtensionsStep))
        join_extensions(step, built, job, self.root, work)

    def project(self, name: str, files: Mapping[str, str], **change: object) -> LockedExtension:
        """Return an extension of these files. They are put into the store."""
        sources = []
        for path, text in files.items():
            (self.home.parent / "new").write_text(text)
            self.job.store.add_artifact(sha256_text(text), self.home.parent / "new")
            sources.append(SourceFile(path=path, sha256=sha256_text(text), size=len(text)))
        extension = LockedExtension(
            name=name, sources=(), include=(), cflags=(), cuda_cflags=(), files=tuple(sources), path=name
        )
        return replace(extension, **change)

    def hostile(self, name: str, code: str, *, mark: str = "", **files: str) -> LockedExtension:
        """Return a project whose build runs `code`, with HOME as the path of the user's home."""
        project = own_backend(name, "1.0")
        code = code.replace("HOME", str(self.home))
        project["backend.py"] += f"\n{code}\n# {mark}\n"
        return self.project(name, {f"{name}/{path}": text for path, text in (project | files).items()})

    def need_untouched(self) -> None:
        """Fail if a file of the home changed, or if a file of the cache has what the secret says."""
        assert {path.name for path in self.home.rglob("*")} == {
            "private", "id_ed25519", "key.h", "key.so", ".bashrc", "empty",
        }  # fmt: skip
        assert self.start_file.read_text() == "# mine\n"
        for path in self.job.store.root.rglob("*"):
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20:
                assert SECRET.encode() not in path.read_bytes(), path


def make_machine(folder: Path) -> Machine:
    system = Path("/usr/bin/python3.11")
    if not system.exists() or not Path("/usr/bin/gcc").exists():
        pytest.skip("the distribution has no Python 3.11 or no gcc")
    home = folder / "home"
    (home / "private").mkdir(parents=True)
    (home / "empty").mkdir()
    (home / ".bashrc").write_text("# mine\n")
    for name in ("id_ed25519", "key.h"):
        (home / "private" / name).write_text(SECRET)
    argv = ("gcc", "-shared", "-fPIC", "-x", "c", "-o", home / "private/key.so", "-")
    subprocess.run(argv, input=f'const char key[] = "{SECRET}";', text=True, check=True)
    python = folder / "python/opt/env"
    for name, text in TORCH.items():
        path = python / "lib/python3.11/site-packages/torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (python / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (python / "bin").mkdir()
    (python / "bin/python").symlink_to(system)
    (python / "bin/ninja").write_text("#!/bin/sh\n")
    (python / "bin/ninja").chmod(0o755)
    job = make_job(folder, runner=ProcessRunner({"PATH": "/usr/bin:/bin", "HOME": str(home)}))
    return Machine(
        home=home,
        job=job,
        root=SandboxRoot(
            os=LayerFolder(place=Path("/")), environment=(LayerFolder(place=folder / "python"),)
        ),
    )


@contextlib.contextmanager
def deadline(seconds: int = 60) -> Iterator[None]:
    """Fail if the block hangs, as a build whose sandbox does not end."""

    def end(*_: object) -> None:
        for task in Path("/proc/self/task").iterdir():
            for child in (task / "children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        raise AssertionError(f"it takes more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
