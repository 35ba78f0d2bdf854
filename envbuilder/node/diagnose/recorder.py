"""Read dumps of torch's flight recorder, pickles and JSON, without running anything in them."""

import io
import json
import pickle
import struct
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import IO, Final, NoReturn

from envbuilder.node.diagnose.collectives import Ranks, State, Work
from envbuilder.node.diagnose.line import rank_of_file
from envbuilder.node.diagnose.logs import DAMAGED

MAX_BYTES: Final = 512 << 20  # a dump of 20,000 entries with stacks has about 60 MB
_PICKLE: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def is_dump(head: bytes) -> bool:
    """Whether a file with this head is a dump, and not a log."""
    names = (b'"entries"', b'"pg_config"', b'"collective_seq_id"')
    is_json = head.lstrip().startswith(b"{") and any(name in head for name in names)
    return is_json or head.startswith(_PICKLE)


_OPCODES: Final = b"}]()qrhjXJKMGNaesutR.c\x80\x85\x86\x87\x88\x89\x8a\x8c\x94\x95"
# What damaged or hostile bytes raise.
_DAMAGE: Final = (
    pickle.UnpicklingError, ValueError, EOFError, RecursionError, ArithmeticError, LookupError, TypeError, AttributeError,
    MemoryError, struct.error, *DAMAGED,
)  # fmt: skip


def read_dump(stream: IO[bytes], name: str, ranks: Ranks) -> bool:
    """Add the states of a dump to `ranks`. Return False where it is damaged or no dump."""
    try:
        data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            return False
        value = _Plain(io.BytesIO(data)).load() if data.startswith(_PICKLE) else json.loads(data)
        if not isinstance(value, Mapping) or "entries" not in value:
            return False
        written = value.get("rank")
        rank = written if isinstance(written, int) else rank_of_file(name)
        states, world = _states(value, PurePath(name).name), _world(value)
    except _DAMAGE:
        return False
    if rank is None:
        return False
    ranks.add_world(world)
    for group, state in states.items():
        ranks.add_state(group, rank, state)
    return True


class _Plain(pickle._Unpickler):  # noqa: SLF001 - the one in C obeys every opcode
    """Takes numbers, texts, lists and maps, and refuses what would import or call something.

    torch writes dumps with its own pickler, which names no class but, for typed lists, its own list builders. Only the opcodes
    that it and Python's pickler use for such values are obeyed: some of the others can take any amount of memory.
    """

    dispatch = {code: pickle._Unpickler.dispatch[code] for code in _OPCODES}  # noqa: SLF001, RUF012

    def find_class(self, module_name: str, global_name: str, /) -> type[list[object]]:
        if (
            module_name == "torch.jit._pickle"
            and global_name.startswith("build_")
            and global_name.endswith("list")
        ):
            return list
        return self._refuse(f"{module_name}.{global_name}")

    def persistent_load(self, pid: object) -> NoReturn:
        self._refuse(f"object {pid}")

    def _refuse(self, what: str) -> NoReturn:
        raise pickle.UnpicklingError(f"a dump does not hold {what}")


def _states(value: Mapping[object, object], name: str) -> dict[str, State]:
    """Return the progress of the rank in each group."""
    states: dict[str, State] = {}
    entries = value["entries"]
    for entry in entries if isinstance(entries, Sequence) else ():
        if not isinstance(entry, Mapping) or entry.get("is_p2p"):
            continue
        number = entry.get("collective_seq_id", entry.get("seq_id"))
        if not isinstance(number, int):
            continue
        state = states.setdefault(_group(entry), State(evidence=name))
        op = str(entry.get("profiling_name", "")).removeprefix("nccl:")
        state.works[number] = Work(op=op, size=_size(entry), place=_place(entry))
        state.enqueued = max(state.enqueued or 0, number)
        if isinstance(created := entry.get("time_created_ns"), int):
            state.started[number] = created / 1e9
        if entry.get("state") == "completed" or (entry.get("retired") is True and entry.get("state") is None):
            state.completed = max(state.completed or 0, number)
    for state in states.values():
        state.waiting = min(
            (number for number in state.works if number > (state.completed or 0)), default=None
        )
    return states


def _world(value: Mapping[object, object]) -> int:
    """Return the world size, or 0 where the dump does not state it."""
    config = value.get("pg_config")
    for one in config.values() if isinstance(config, Mapping) else ():
        members = one.get("ranks") if isinstance(one, Mapping) else None
        if isinstance(members, str) and isinstance(one, Mapping) and one.get("desc") == "default_pg":
            return len([word for word in members.strip("[]").split(",") if word.strip()])
    return 0


def _group(entry: Mapping[object, object]) -> str:
    group = entry.get("process_group")
    if isinstance(group, Sequence) and not isinstance(group, str) and len(group) == 2:
        return str(group[0])  # the other item is a description, which groups of one kind share
    return str(entry.get("pg_name", entry.get("pg_id", "")))


def _size(entry: Mapping[object, object]) -> str:
    sizes = entry.get("input_sizes")
    return json.dumps(sizes, default=list).replace(" ", "") if isinstance(sizes, Sequence) else ""


def _place(entry: Mapping[object, object]) -> str:
    """Return the user's own line: the innermost frame outside torch."""
    frames = entry.get("frames")
    for frame in frames if isinstance(frames, Sequence) else ():
        if isinstance(frame, Mapping):
            file = str(frame.get("filename", ""))
            if file and "/torch/" not in file and not file.endswith(("c10d_logger.py", ".cpp", ".h", "??")):
                return f"{PurePath(file).name}:{frame.get('line')}"
    return ""
