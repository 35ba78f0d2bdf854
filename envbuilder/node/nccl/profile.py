"""The profile of a machine: facts and settings as one JSON text, kept for another time or another machine.

`detect --save` writes it; `check --host`, `build --host` and a recipe's `nccl: {profile: …}` read it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Callable, Mapping

from envbuilder.node.nccl.decide import Decision, Setting
from envbuilder.node.nccl.facts import Address, Facts, Gpu, Interface, Job, Measured, RdmaPort, Route

VERSION = 1
KEYS = ("version", "driver", "gpus", "settings", "fixed", "facts")


@dataclass(frozen=True)
class Profile:
    """Facts, the decision from them, and the settings that a site fixes by hand (`fixed`)."""

    facts: Facts
    settings: tuple[Setting, ...] = ()
    fixed: tuple[tuple[str, str], ...] = ()


def make_profile(facts: Facts, decision: Decision) -> Profile:
    return Profile(facts, decision.settings)


def profile_data(profile: Profile) -> dict[str, object]:
    """As JSON has it; `driver` and `gpus` stand in front, for a person and for `check`."""
    facts = profile.facts
    return {
        "version": VERSION,
        **({"driver": facts.driver} if facts.driver else {}),
        "gpus": [gpu.name for gpu in facts.gpus or () if gpu.name],
        "settings": [asdict(setting) for setting in profile.settings],
        "fixed": dict(profile.fixed),
        "facts": asdict(facts),
    }


def parse_profile(data: object) -> Profile:
    """The inverse; raises ValueError with the place of the first thing that is wrong."""
    top = _map(data, "$")
    version = top.get("version", VERSION)
    if version != VERSION:
        raise ValueError(f"$.version: this is profile version {version!r}, and {VERSION} can be read")
    facts = _facts(top.get("facts", {}), "$.facts")
    if not facts.driver and isinstance(top.get("driver"), str):
        facts = replace(facts, driver=top["driver"] or None)
    if facts.gpus is None and top.get("gpus"):
        facts = replace(
            facts, gpus=tuple(Gpu(name=_text(name, "$.gpus")) for name in _list(top["gpus"], "$.gpus"))
        )
    settings = tuple(
        _object(Setting, item, f"$.settings[{number}]", {"evidence": _texts, "unless": _texts})
        for number, item in enumerate(_list(top.get("settings", []), "$.settings"))
    )
    fixed = _map(top.get("fixed", {}), "$.fixed")
    return Profile(
        facts, settings, tuple((name, _text(value, f"$.fixed.{name}")) for name, value in fixed.items())
    )


def parse_measured(data: object) -> Measured:
    """What `detect --measure` stored; raises ValueError."""
    found: Measured = _object(Measured, data, "$", {"gpus": _names})
    return found


def misfit(profile: Profile, node: Facts) -> str:
    """Return why a profile does not fit this node, or an empty text.

    What decides P2P and names has to agree: driver, GPUs in their order, IOMMU, and the interfaces that are named. What
    either side does not know speaks against neither.
    """
    then = profile.facts
    pairs = (
        ("driver", then.driver, node.driver),
        ("kernel", then.kernel, node.kernel),
        ("GPUs", _if_known(then.gpu_names), _if_known(node.gpu_names)),
        ("links between GPUs", then.links, node.links),
        ("IOMMU of the GPUs", _if_known(_iommu(then)), _if_known(_iommu(node))),
    )
    for what, before, now in pairs:
        if before is not None and now is not None and before != now:
            return f"{what}: {_short(before)} in the profile, {_short(now)} here"
    here = {one.name for one in node.interfaces or ()}
    for setting in profile.settings:
        name = setting.value.lstrip("=")
        if setting.name.endswith("_SOCKET_IFNAME") and node.interfaces is not None and name not in here:
            return f"interfaces: there is no `{name}` here"
    return ""


def _iommu(facts: Facts) -> tuple[str | None, ...]:
    return tuple(gpu.iommu for gpu in facts.gpus or ())


def _if_known(values: tuple[str | None, ...]) -> tuple[str | None, ...] | None:
    return values if values and None not in values else None


def _short(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    if value and isinstance(value[0], tuple):
        return "another matrix"
    return ", ".join(map(str, value))


def _facts(data: object, where: str) -> Facts:
    facts: Facts = _object(
        Facts,
        data,
        where,
        {
            "gpus": lambda value, place: _objects(Gpu, value, place, {}),
            "links": _matrix,
            "p2p": _matrix,
            "interfaces": lambda value, place: _objects(
                Interface,
                value,
                place,
                {"addresses": lambda inner, at: _objects(Address, inner, at, {}), "lower": _texts},
            ),
            "routes": lambda value, place: _objects(Route, value, place, {}),
            "taken": _texts,
            "rdma": lambda value, place: _objects(RdmaPort, value, place, {}),
            "job": lambda value, place: _object(Job, value, place, {}),
            "measured": lambda value, place: _object(Measured, value, place, {"gpus": _names}),
            "damage": _texts,
            "sources": lambda value, place: tuple(
                (pair[0], pair[1])
                for pair in (_texts(item, place) for item in _list(value, place))
                if len(pair) == 2
            ),
        },
    )
    return facts


Reader = Callable[[Any, str], Any]


def _object(kind: Any, data: object, where: str, readers: Mapping[str, Reader]) -> Any:
    """One dataclass; a plain field takes text, a number or a truth value, as its default's type or annotation says."""
    known = {field.name: str(field.type) for field in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in _map(data, where).items():
        place = f"{where}.{name}"
        if name not in known:
            raise ValueError(f"{place}: unknown key")
        if value is None and "None" in known[name]:
            values[name] = None
        elif name in readers:
            values[name] = readers[name](value, place)
        else:
            values[name] = _plain(value, known[name], place)
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error


def _objects(kind: Any, data: object, where: str, readers: Mapping[str, Reader]) -> tuple[Any, ...]:
    return tuple(
        _object(kind, item, f"{where}[{number}]", readers) for number, item in enumerate(_list(data, where))
    )


def _plain(value: object, annotation: str, where: str) -> object:
    wanted: type = bool if annotation.startswith("bool") else int if annotation.startswith("int") else str
    if type(value) is not wanted:
        raise ValueError(f"{where}: expected {wanted.__name__}, found {type(value).__name__}")
    return value


def _map(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, found {type(value).__name__}")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{where}: expected a list, found {type(value).__name__}")
    return list(value)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: expected text, found {type(value).__name__}")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    return tuple(_text(item, where) for item in _list(value, where))


def _names(value: object, where: str) -> tuple[str | None, ...]:
    return tuple(None if item is None else _text(item, where) for item in _list(value, where))


def _matrix(value: object, where: str) -> tuple[tuple[str, ...], ...]:
    return tuple(_texts(row, where) for row in _list(value, where))
