"""One call of torch's `load()` or `load_inline()`, as a recipe describes it or as a project was seen to make it."""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Final

from envbuilder.lock.model import LockedExtension

SPACE: Final = "/space"  # where the sandbox has the compile folder
SOURCE: Final = f"{SPACE}/src"
KEPT: Final = f"{SPACE}/kept"  # copies of sources that a project itself copied elsewhere before its call


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments that decide what is compiled; paths are the sandbox's. `functions` is JSON: null, a list or a map."""

    function: str  # load | load_inline
    name: str
    sources: tuple[str, ...] = ()
    cpp_sources: tuple[str, ...] = ()
    cuda_sources: tuple[str, ...] = ()
    functions: str = "null"
    extra_cflags: tuple[str, ...] = ()
    extra_cuda_cflags: tuple[str, ...] = ()
    extra_ldflags: tuple[str, ...] = ()
    extra_include_paths: tuple[str, ...] = ()
    with_cuda: bool | None = None
    with_pytorch_error_handling: bool = True
    is_python_module: bool = True
    is_standalone: bool = False
    others: str = "{}"  # JSON: arguments that only newer releases of torch take

    @property
    def has_cuda(self) -> bool:
        """Whether nvcc is to compile something, by torch's own rule."""
        if self.with_cuda is not None:
            return self.with_cuda
        return bool(self.cuda_sources) or any(source.endswith((".cu", ".cuh")) for source in self.sources)

    @property
    def library(self) -> str:
        """The file that it makes."""
        return self.name if self.is_standalone else f"{self.name}.so"

    @property
    def base(self) -> str:
        """What the paths of sources and headers are relative to, wherever the project lies later."""
        folders = [str(PurePosixPath(source).parent) for source in self.sources] or list(
            self.extra_include_paths
        )
        return posixpath.commonpath(folders) if folders else ""

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def parse_call(value: Mapping[str, object]) -> Call:
    """Read what `to_json` wrote, or the capture program in the sandbox; raises TypeError for other keys."""
    given = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    return Call(**given)  # type: ignore[arg-type]


def written_call(extension: LockedExtension) -> Call:
    """The call that a recipe's `sources` stand for."""
    return Call(
        function="load",
        name=extension.name,
        sources=tuple(f"{SOURCE}/{source}" for source in extension.sources),
        extra_include_paths=tuple(f"{SOURCE}/{folder}" for folder in extension.include),
        extra_cflags=extension.cflags,
        extra_cuda_cflags=extension.cuda_cflags,
        with_cuda=any(source.endswith(".cu") for source in extension.sources),
    )


def relative(path: str, base: str) -> str:
    """A path of the sandbox relative to the base; it may climb."""
    return posixpath.relpath(path, base or "/")
