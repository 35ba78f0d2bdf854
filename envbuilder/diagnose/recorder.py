"""Read dumps of torch's flight recorder, pickles and JSON, without running anything in them."""

from __future__ import annotations

import functools
import io
import json
import pickle
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import IO, Any, Final, NoReturn

from envbuilder.diagnose.collectives import MOST_RANKS, CollectiveState, Ranks, Work
from envbuilder.diagnose.logs import DAMAGED, rank_of_file

MAX_BYTES: Final = 256 << 20  # a dump of 20,000 entries with stacks has about 60 MB
# Values in a dump. Such a dump has about 8 million. An empty list is one byte in a pickle, and 64 in memory.
_MOST_VALUES: Final = 16_000_000
_MOST_TEXT: Final = 4096  # letters
_MOST_NUMBER: Final = 1 << 63
_MOST_SIZES: Final = 64  # tensors of one collective, and dimensions of one tensor
_PICKLE: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def is_dump(head: bytes) -> bool:
    """Whether a file with this head is a dump, and not a log."""
    names = (b'"entries"', b'"pg_config"', b'"collective_seq_id"')
    is_json = head.lstrip().startswith(b"{") and any(name in head for name in names)
    return is_json or head.startswith(_PICKLE)


_OPCODES: Final = b"}]()qrhjXJKMGNaesutR.c\x80\x85\x86\x87\x88\x89\x8a\x8c\x94\x95"
_SET_MANY: Final = b"u"[0]
_SETS: Final = b"su"
_CALL: Final = b"R"[0]
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
        value = _Plain(data).load() if data.startswith(_PICKLE) else _load_json(data)
        if not isinstance(value, Mapping) or "entries" not in value:
            return False
        written = value.get("rank")
        rank = written if isinstance(written, int) else rank_of_file(name)
        states, world = _states(value, PurePath(name).name), _world(value)
    except _DAMAGE:
        return False
    if rank is None or not 0 <= rank < MOST_RANKS:
        return False
    ranks.add_world(world)
    for group, state in states.items():
        ranks.add_state(group, rank, state)
    return True


def _refuse(what: str) -> NoReturn:
    raise pickle.UnpicklingError(f"a dump does not hold {what}")


def _obey(unpickler: Any, code: int) -> None:
    """Obey one opcode, unless it is one too many, or may take more time or memory than the dump is long."""
    unpickler.values += 1
    if unpickler.values > _MOST_VALUES:
        _refuse(f"more than {_MOST_VALUES} values")
    stack = unpickler.stack
    if code in _SETS:  # to hash a tuple of tuples of tuples takes any time
        keys = stack[::2] if code == _SET_MANY else stack[-2:-1]
        if not all(isinstance(key, (str, int)) for key in keys):
            _refuse("a key that is neither a text nor a number")
    if code == _CALL and not (isinstance(stack[-1], tuple) and len(stack[-1]) <= 1):
        _refuse("a call with more than one argument")
    pickle._Unpickler.dispatch[code](unpickler)  # noqa: SLF001


class _Plain(pickle._Unpickler):  # noqa: SLF001 - the one in C obeys every opcode
    """Takes numbers, texts, lists and maps, and refuses what would import or call something.

    torch writes dumps with its own pickler, which names no class but, for typed lists, its own list builders. Only the opcodes
    that it and Python's pickler use for such values are obeyed: some of the others can take any amount of memory.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.values = 0

    dispatch = {code: functools.partial(_obey, code=code) for code in _OPCODES}  # noqa: RUF012

    def find_class(self, module_name: str, global_name: str, /) -> Callable[..., object]:
        name = f"{module_name}.{global_name}"
        return _same_list if re.fullmatch(r"torch\.jit\._pickle\.build_\w*list", name) else _refuse(name)

    def persistent_load(self, pid: object) -> NoReturn:
        _refuse(f"object {pid}")


def _same_list(items: object = ()) -> object:
    """Return the argument, since a copy of each of many references to one list would take any memory."""
    return items if isinstance(items, list) else []


def _load_json(data: bytes) -> object:
    if sum(map(data.count, (b"[", b"{", b","))) > _MOST_VALUES:
        raise ValueError(f"a dump does not hold more than {_MOST_VALUES} values")
    return json.loads(data)


def _words(value: object) -> str:
    """Return a text or a number. A list may hold itself, or one list any number of times."""
    return str(value)[:_MOST_TEXT] if isinstance(value, (str, int)) else ""


def _states(value: Mapping[object, object], name: str) -> dict[str, CollectiveState]:
    """Return the progress of the rank in each group."""
    states: dict[str, CollectiveState] = {}
    entries = value["entries"]
    for entry in entries if isinstance(entries, Sequence) else ():
        if not isinstance(entry, Mapping) or entry.get("is_p2p"):
            continue
        number = entry.get("collective_seq_id", entry.get("seq_id"))
        if not isinstance(number, int) or not 0 <= number < _MOST_NUMBER:
            continue
        state = states.setdefault(_group(entry), CollectiveState(evidence=name))
        op = _words(entry.get("profiling_name", "")).removeprefix("nccl:")
        state.works[number] = Work(op=op, size=_size(entry.get("input_sizes")), place=_place(entry))
        state.enqueued = max(state.enqueued or 0, number)
        if isinstance(created := entry.get("time_created_ns"), int) and 0 <= created < _MOST_NUMBER:
            state.started[number] = created / 1e9
        if entry.get("state") == "completed" or (entry.get("retired") is True and entry.get("state") is None):
            state.completed = max(state.completed or 0, number)
    for state in states.values():
        after = [number for number in state.works if number > (state.completed or 0)]
        state.waiting = min(after, default=None)
    return states


def _world(value: Mapping[object, object]) -> int:
    """Return the world size, or 0 where the dump does not state it."""
    config = value.get("pg_config")
    for group in config.values() if isinstance(config, Mapping) else ():
        is_all = isinstance(group, Mapping) and group.get("desc") == "default_pg"
        if is_all and isinstance(members := group.get("ranks"), str):
            return len(re.findall(r"[^\s,\[\]]+", members))
    return 0


def _group(entry: Mapping[object, object]) -> str:
    group = entry.get("process_group")
    if isinstance(group, Sequence) and not isinstance(group, str) and len(group) == 2:
        return _words(group[0])  # the other item is a description, which groups of one kind share
    return _words(entry.get("pg_name", entry.get("pg_id", "")))


def _size(sizes: object) -> str:
    return _numbers(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str) else ""


def _numbers(value: object, depth: int = 2) -> str:
    """Return numbers, or lists of them up to a depth, as JSON without blanks, and further ones as `…`."""
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and depth:
        shown = [_numbers(item, depth - 1) for item in value[:_MOST_SIZES]]
        return f"[{','.join([*shown, '…'] if len(value) > _MOST_SIZES else shown)}]"
    return _words(value)


def _place(entry: Mapping[object, object]) -> str:
    """Return the user's own line: the innermost frame outside torch."""
    frames = entry.get("frames")
    for frame in frames if isinstance(frames, Sequence) else ():
        if isinstance(frame, Mapping):
            file = _words(frame.get("filename", ""))
            if file and "/torch/" not in file and not file.endswith(("c10d_logger.py", ".cpp", ".h", "??")):
                return f"{PurePath(file).name}:{_words(frame.get('line'))}"
    return ""
