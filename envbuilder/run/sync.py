"""Send a SIF over SSH to a machine that has an older one: only the parts that are missing there.

The other machine needs Python 3.8 and no envbuilder: the program that receives comes on stdin
(`envbuilder/artifacts/receive.py`). Each batch of parts is a call of its own, so an interrupted
transfer goes on where it was, and a lost connection leaves nothing running.
"""

import json
import shlex
import zlib
from collections.abc import Collection, Iterator, Sequence
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import NonNegativeInt

from envbuilder.artifacts.outputs import Outputs
from envbuilder.artifacts.parts_index import make_index
from envbuilder.core.answer import Answer
from envbuilder.core.cache import Sha256
from envbuilder.core.console import Console
from envbuilder.core.errors import FetchError, SpaceError, UsageError, VerifyError
from envbuilder.core.plain import pasted
from envbuilder.core.process import Command, Runner

BATCH: Final = 32 << 20  # bytes that one call sends
ANSWER: Final = (
    64 << 20
)  # bytes that one call answers: the numbers of the missing parts, of a SIF of a terabyte too
TRIES: Final = 2  # times that a part is sent; it is sent again when a file there changed meanwhile
_MODULES: Final = ("core.private", "artifacts.parts", "artifacts.history", "artifacts.receive")
_BOOT: Final = """
import json, sys, types
texts, request = json.loads(sys.stdin.buffer.readline())
for name in ("envbuilder", "envbuilder.core", "envbuilder.artifacts", *texts):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, module)
    exec(compile(texts.get(name, ""), name, "exec"), module.__dict__)
module.main(request)
"""


class Synced(Answer):
    """The SIF on the other machine, and how many bytes were sent and were there."""

    sif: str
    sha256: str
    bytes_sent: int
    bytes_there: int

    def text(self) -> str:
        there = f", {self.bytes_there / 1e6:.1f} MB were there" if self.bytes_there else ""
        return f"{self.sif}  sha256:{self.sha256}\n{self.bytes_sent / 1e6:.1f} MB sent{there}"


def parse_target(target: str) -> tuple[str, str]:
    """Return host and folder of `HOST:FOLDER`; raises UsageError."""
    host, colon, folder = target.partition(":")
    if not (host and colon) or host.startswith("-") or "/" in host:
        raise UsageError(f"`{target}` is no HOST:FOLDER", hint="such as `login.site.org:/scratch/me/sifs`")
    return host, folder or "."


def sync(
    outputs: Outputs, target: str, *, sha256: Sha256, versions: int, python: str, runner: Runner, console: Console
) -> Synced:  # fmt: skip
    """Put the SIF into the folder of another machine. It gets its name when it is whole and has its digest.

    Raises CommandError, FetchError, SpaceError, UsageError and VerifyError.
    """
    host, folder = parse_target(target)
    with console.step(f"read {outputs.sif.name}"):
        parts = [(part.size, part.digest) for part in make_index(outputs.sif, {}).parts]
    other = _Other(host, python, runner, parts=len(parts))
    request = {"folder": folder, "name": outputs.name, "sha256": sha256, "versions": versions}
    index = zlib.compress(json.dumps(parts).encode())
    answer = other.ask({**request, "index": len(index)}, index)
    there, sizes = answer.here, dict(enumerate(size for size, _ in parts))
    with console.step(f"send to {host}", sum(sizes.get(number, 0) for number in answer.missing)) as step:
        for _ in range(TRIES):
            missing = set(answer.missing) & sizes.keys()
            for numbers, data in _batches(outputs.sif, parts, missing):
                answer = other.ask({**request, "missing": sorted(missing), "sent": numbers}, data)
                missing.difference_update(numbers)
                step.advance(len(data))
    if not answer.done:
        raise VerifyError(
            f"`{outputs.sif.name}` could not be put together on `{host}`: a file changed meanwhile, here or there",
            hint="the same command goes on where it ended",
        )
    return Synced(
        sif=f"{host}:{PurePosixPath(folder, outputs.sif.name)}",
        sha256=sha256,
        bytes_sent=other.sent,
        bytes_there=there,
    )


def module_text(name: str) -> str:
    """Return the text of a module of envbuilder that runs on machines without it, such as `artifacts.parts`."""
    return (files("envbuilder") / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")


class _Answer(Answer):
    """What the other machine says."""

    missing: tuple[NonNegativeInt, ...] = ()
    done: bool = False
    here: NonNegativeInt = 0
    error: str = ""
    full: bool = False


class _Other:
    """The Python of the other machine."""

    def __init__(self, host: str, python: str, runner: Runner, *, parts: int) -> None:
        self.sent = 0
        self._parts = parts
        self._host, self._runner = host, runner
        boot = "import sys;exec(sys.stdin.buffer.readline())"  # one line, for any shell
        self._argv = ("ssh", "--", host, shlex.join((python, "-c", boot)))
        self._texts = {f"envbuilder.{name}": module_text(name) for name in _MODULES}

    def ask(self, request: dict[str, object], data: bytes) -> _Answer:
        """Send a request with its bytes; raises CommandError, FetchError, SpaceError and UsageError."""
        head = f"exec({_BOOT!r})\n{json.dumps([self._texts, request])}\n"
        content = head.encode() + data
        command = Command(argv=self._argv, why=f"put the SIF together on {self._host}", input=content)
        with self._runner.read(command) as stream:
            said = stream.read(ANSWER + 1)
            if len(said) > ANSWER:
                raise self._misunderstood(f"more than {ANSWER} bytes")
        self.sent += len(content)
        try:
            answer = _Answer.model_validate_json(said.splitlines()[-1])  # a shell's start file may print too
        except (ValueError, IndexError) as error:
            raise self._misunderstood("what is no answer of the program that receives") from error
        if not all(0 <= number < self._parts for number in answer.missing) or answer.here < 0:
            raise self._misunderstood("parts that the SIF does not have")
        if answer.full:
            raise SpaceError(
                f"no space left on `{self._host}`: {answer.error}", hint="free space there, then run it again"
            )
        if answer.error:
            raise UsageError(f"`{self._host}` refuses: {answer.error}", hint="choose another folder there")
        return answer

    def _misunderstood(self, found: str) -> FetchError:
        return FetchError(
            f"`{self._host}` sends {found}",
            hint=f"`ssh {pasted(self._host)} true` shows what a start file of the shell there prints; the Python there must be 3.8 or newer",
        )


def _batches(
    sif: Path, parts: Sequence[tuple[int, str]], missing: Collection[int]
) -> Iterator[tuple[list[int], bytes]]:
    """Yield the numbers and the bytes of missing parts, for one call each."""
    numbers, data, at = list[int](), bytearray(), 0
    with sif.open("rb") as stream:
        for number, (size, _) in enumerate(parts):
            if number in missing:
                if data and len(data) + size > BATCH:
                    yield numbers, bytes(data)
                    numbers, data = [], bytearray()
                stream.seek(at)
                numbers.append(number)
                data += stream.read(size)
            at += size
    if numbers:
        yield numbers, bytes(data)
