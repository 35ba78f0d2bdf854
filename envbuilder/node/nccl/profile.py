"""The profile of a machine: facts and settings as one JSON text, kept for another time or another machine.

`detect --save` writes it; `check --host`, `build --host` and a recipe's `nccl: {profile: …}` read it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from envbuilder.node.nccl.decide import Setting
from envbuilder.node.nccl.facts import Address, Facts, Gpu, Interface, Job, Measured, Nic, RdmaPort, Route

VERSION = 1


@dataclass(frozen=True)
class Profile:
    """Facts, the decision from them, and the settings that a site fixes by hand (`fixed`)."""

    facts: Facts
    settings: tuple[Setting, ...] = ()
    fixed: tuple[tuple[str, str], ...] = ()


def profile_data(profile: Profile) -> dict[str, object]:
    """Return the profile as JSON data; `driver` and `gpus` stand in front, for a person and for `check`."""
    facts = profile.facts
    return {
        "version": VERSION,
        **({"driver": facts.driver} if facts.driver else {}),
        "gpus": [gpu.name for gpu in facts.gpus or () if gpu.name],
        "settings": [asdict(setting) for setting in profile.settings],
        "fixed": dict(profile.fixed),
        # What is not known is left out, so that an older envbuilder can read what it knows.
        "facts": {name: value for name, value in asdict(facts).items() if name in facts.known},
    }


def parse_profile(data: object) -> Profile:
    """Read a profile; raises ValueError with the place of the first thing that is wrong."""
    top = _expect(dict, data, "$")
    version = top.get("version", VERSION)
    if version != VERSION:
        raise ValueError(f"$.version: this is profile version {version!r}, and {VERSION} can be read")
    facts: Facts = _read("Facts", top.get("facts", {}), "$.facts")
    if not facts.driver and isinstance(top.get("driver"), str):
        facts = replace(facts, driver=top["driver"] or None)
    if facts.gpus is None and top.get("gpus"):
        names = _read("tuple[str, ...]", top["gpus"], "$.gpus")
        facts = replace(facts, gpus=tuple(Gpu(name=name) for name in names))
    settings = _read("tuple[Setting, ...]", top.get("settings", []), "$.settings")
    fixed = _expect(dict, top.get("fixed", {}), "$.fixed")
    pairs = tuple((name, _expect(str, value, f"$.fixed.{name}")) for name, value in fixed.items())
    return Profile(facts, settings, pairs)


def parse_measured(data: object) -> Measured:
    """Read what `detect --measure` stored; raises ValueError."""
    found: Measured = _read("Measured", data, "$")
    return found


def misfit(profile: Profile, node: Facts) -> str:
    """Return why a profile does not fit this node, or an empty text.

    All that decides P2P has to agree: driver, kernel, GPUs in their order, links and IOMMU. Interfaces that are named have
    to be here. A fact that either side does not know is not compared.
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
    here = {interface.name for interface in node.interfaces or ()}
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


CLASSES = {
    kind.__name__: kind
    for kind in (Address, Facts, Gpu, Interface, Job, Measured, Nic, RdmaPort, Route, Setting)
}
PLAIN = {"str": str, "int": int, "bool": bool}
NAMES = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}


def _read(kind: str, value: Any, where: str) -> Any:
    """Read a value as an annotation says. It is a text, because Python 3.8 cannot evaluate `tuple[str, ...] | None`."""
    optional, tuple_of = " | None", "tuple["
    if kind.endswith(optional):
        return None if value is None else _read(kind[: -len(optional)], value, where)
    if kind.startswith(tuple_of):
        item, _, length = kind[len(tuple_of) : -1].rpartition(", ")
        items = _expect(list, value, where)
        if length != "..." and len(items) != 2:
            raise ValueError(f"{where}: expected a pair, found {len(items)} items")
        return tuple(_read(item, element, f"{where}[{number}]") for number, element in enumerate(items))
    if kind in PLAIN:
        return _expect(PLAIN[kind], value, where)
    known = {field.name: str(field.type) for field in fields(CLASSES[kind])}
    values: dict[str, Any] = {}
    for name, inner in _expect(dict, value, where).items():
        if name not in known:
            raise ValueError(f"{where}.{name}: unknown key")
        values[name] = _read(known[name], inner, f"{where}.{name}")
    try:
        return CLASSES[kind](**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error


def _expect(kind: type, value: Any, where: str) -> Any:
    """Return the value; True is no whole number here, and a tuple is a list."""
    if type(value) is kind or (kind is list and isinstance(value, tuple)):
        return value
    raise ValueError(f"{where}: expected {NAMES[kind]}, found {type(value).__name__}")
