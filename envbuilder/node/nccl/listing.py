"""What `ip`, `ifconfig` and `ip route` print → interfaces and default routes, as far as the text says."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass, replace
from typing import Any, Iterable

from envbuilder.node.nccl.facts import Address, Interface, Route

IP_HEAD = re.compile(r"^\s*(?:\d+):\s+([^\s:@]+(?::[^\s:@]+)?)(?:@(\S+?))?:\s+<([A-Z0-9_,\- ]*)>")
IP_TORN_HEAD = re.compile(r"^\s*\d+:\s+[^\s:@]+(?:@\S+?)?:\s+<[^>]*$")
IP_ADDRESS = re.compile(r"\b(inet6?)\s+(\S+?)(?:/(\d+))?(?=\s|$)(?:\s+peer\s+\S+?/(\d+))?")
IP_LABEL = re.compile(r"\bscope\s+\w+\s+(?:\w+\s+)*?(\S+)\s*$")
BR_STATE = "UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT|NOTPRESENT|TESTING"
BR_LINE = re.compile(rf"^\s*([^\s:@]+)(?:@(\S+))?\s+({BR_STATE})(?:\s+(.*))?$")
MAC = re.compile(r"^(?:[0-9a-fA-F]{2}:){5,}[0-9a-fA-F]{2}$")
IFCONFIG_HEAD = re.compile(r"^\s*(\S+?):\s+flags=\d+<([A-Z0-9_,\-]*)>")
IFCONFIG_OLD_HEAD = re.compile(r"^(\S+)\s+Link encap:(\S+)")
IFCONFIG_ADDRESS = re.compile(r"^\s*(inet6?)\s+(?:addr:\s*)?(\S+?)(?:/(\d+))?(?=\s|$)(.*)$")
ROUTE = re.compile(r"^\s*default\b(?:\s+via\s+\S+)?\s+dev\s+(\S+)(.*)$")
LINK_TYPES = {"ether": "ethernet", "infiniband": "infiniband", "loopback": "loopback", "none": "tunnel"}
INFO_KINDS = {"ipoib": "infiniband", "wireguard": "tunnel", "tun": "tunnel", "vxlan": "tunnel"}


@dataclass(frozen=True)
class Listing:
    """The interfaces and routes of one text; None for what it does not mention."""

    interfaces: tuple[Interface, ...] | None = None
    routes: tuple[Route, ...] | None = None
    damage: str = ""


def parse_listing(text: str) -> Listing:
    """Parse every listing of interfaces or routes, and merge those of one host by name."""
    lines = text.split("\n")
    routes = tuple(
        Route(found[1], int(metric[1]) if (metric := re.search(r"\bmetric\s+(\d+)", found[2])) else 0)
        for line in lines
        if (found := ROUTE.match(line))
    )
    forms = [_from_json(text), _from_ip(lines), _from_brief(lines), _from_ifconfig(lines)]
    interfaces = join(interface for form in forms for interface in form[0])
    more_routes = tuple(route for form in forms for route in form[1])
    damage = next((form[2] for form in forms if form[2]), "")
    return Listing(interfaces or None, (*routes, *more_routes) or None, damage)


def join(interfaces: Iterable[Interface]) -> tuple[Interface, ...]:
    """Merge the entries of each name; a field that any listing has is kept."""
    known: dict[str, Interface] = {}
    for one in interfaces:
        before = known.get(one.name)
        if before is None:
            known[one.name] = one
            continue
        blank = Interface(one.name)
        fields = ("kind", "up", "running", "master", "lower", "hardware", "usb")
        told = {name: getattr(one, name) for name in fields if getattr(one, name) != getattr(blank, name)}
        if one.addresses is not None:
            told["addresses"] = tuple(dict.fromkeys((*(before.addresses or ()), *one.addresses)))
        known[one.name] = replace(before, **told)
    return tuple(known.values())


def address(text: str, prefix: str | int | None = None, label: str = "") -> Address:
    """Parse an address; a masked one becomes an empty text."""
    bare = text.partition("%")[0]
    bare, _, inner = bare.partition("/")
    prefix = prefix if prefix is not None else inner
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        bare = ""
    return Address(bare, int(prefix) if prefix not in ("", None) and str(prefix).isdigit() else None, label)


def _flags(text: str) -> tuple[bool, bool]:
    """Up and running, of `<BROADCAST,UP,LOWER_UP>`: `ip` says LOWER_UP for what the kernel calls RUNNING."""
    flags = set(text.replace(" ", "").split(","))
    return "UP" in flags, bool({"LOWER_UP", "RUNNING"} & flags) and "NO-CARRIER" not in flags


def _from_ip(lines: list[str]) -> tuple[list[Interface], list[Route], str]:
    """`ip addr` and `ip link`, indented or not, with headers that were wrapped."""
    blocks: list[tuple[re.Match[str], list[str]]] = []
    damage = ""
    for line in lines:
        head = IP_HEAD.match(line)
        if head:
            blocks.append((head, [line[head.end() :]]))
        elif IP_TORN_HEAD.match(line):
            damage = f"`ip addr` is cut in the line `{line.strip()[:40]}`"
            break
        elif blocks and BR_LINE.match(line) is None and not ROUTE.match(line):
            blocks[-1][1].append(line)
    return [_ip_block(head, rest) for head, rest in blocks], [], damage or _cut(blocks)


def _cut(blocks: list[tuple[re.Match[str], list[str]]]) -> str:
    """`ip addr` ends each address with its lifetime; where others have one and the last has none, the end is missing."""
    lines = [line for _, rest in blocks for line in rest]
    last = max((number for number, line in enumerate(lines) if IP_ADDRESS.search(line)), default=None)
    if last is None or not any("valid_lft" in line for line in lines):
        return ""
    return (
        ""
        if any("valid_lft" in line for line in lines[last:])
        else f"`ip addr` is cut after `{lines[last].strip()}`"
    )


def _ip_block(head: re.Match[str], rest: list[str]) -> Interface:
    body = "\n".join(rest)
    up, running = _flags(head[3])
    kind_word = re.search(r"\blink/(\w+)", body)
    master = re.search(r"\bmaster\s+(\S+)", body)
    state = re.search(r"\bstate\s+(\w+)", body)
    detail = re.search(r"^\s+(bond|team|vlan|bridge|veth|vxlan|tun|wireguard|ipoib)\b", body, re.MULTILINE)
    kind = LINK_TYPES.get(kind_word[1], "") if kind_word else ""
    if detail:
        kind = INFO_KINDS.get(detail[1], detail[1])
    addresses = []
    for line in rest:
        for found in IP_ADDRESS.finditer(line):
            label = IP_LABEL.search(line)
            text = label[1] if label and label[1].startswith(f"{head[1]}:") else ""
            addresses.append(address(found[2], found[3] or found[4], text))
    silent = kind_word is None and not addresses and state is None
    lower = (head[2],) if head[2] and not head[2].startswith("if") and head[2] != "NONE" else ()
    return Interface(
        head[1], kind, up, running, None if silent else tuple(addresses), master[1] if master else "", lower
    )


def _from_brief(lines: list[str]) -> tuple[list[Interface], list[Route], str]:
    """`ip -br addr`, whose third column are addresses, and `ip -br link`, where it is a MAC."""
    interfaces = []
    for line in lines:
        found = BR_LINE.match(line)
        if not found:
            continue
        words = (found[4] or "").split()
        is_link = bool(words and MAC.match(words[0]))
        flags = re.search(r"<([A-Z0-9_,\-]*)>", found[4] or "")
        lower = (found[2],) if found[2] and not found[2].startswith("if") and found[2] != "NONE" else ()
        up = found[3] in ("UP", "UNKNOWN")  # UNKNOWN: a device without a notion of carrier, such as lo or tun
        running = up
        if flags:
            up, running = _flags(flags[1])
        addresses = None
        if not is_link and not flags:
            addresses = tuple(address(word) for word in words if re.match(r"^[0-9a-fA-F*x.:]+/\d+$", word))
        interfaces.append(Interface(found[1], "", up, running, addresses, "", lower))
    return interfaces, [], ""


def _from_ifconfig(lines: list[str]) -> tuple[list[Interface], list[Route], str]:
    """`ifconfig` of net-tools, both its layouts."""
    blocks: list[tuple[str, str, list[str]]] = []
    for line in lines:
        new, old = IFCONFIG_HEAD.match(line), IFCONFIG_OLD_HEAD.match(line)
        if new:
            blocks.append((new[1], new[2], []))
        elif old:
            blocks.append((old[1], "", [f"encap {old[2]}"]))
        elif blocks:
            blocks[-1][2].append(line)
    return [_ifconfig_block(*block) for block in blocks], [], ""


def _ifconfig_block(name: str, flags: str, rest: list[str]) -> Interface:
    body = "\n".join(rest)
    if not flags:
        words = re.search(r"^\s+((?:[A-Z]+\s+)+)MTU:", body, re.MULTILINE)
        flags = ",".join(words[1].split()) if words else ""
    up, running = _flags(flags)
    kind = ""
    for word, meaning in (
        ("infiniband", "infiniband"),
        ("loop", "loopback"),
        ("ether", "ethernet"),
        ("unspec", "tunnel"),
    ):
        if re.search(rf"\b{word}", body, re.IGNORECASE):
            kind = meaning
            break
    addresses = []
    for line in rest:
        found = IFCONFIG_ADDRESS.match(line)
        if not found:
            continue
        mask = re.search(r"(?:netmask\s+|Mask:)(\S+)|prefixlen\s+(\d+)", found[4])
        length = found[3] or (mask and (mask[2] or _mask_length(mask[1])))
        addresses.append(address(found[2], length))
    plain, colon, _ = name.partition(":")
    if colon:  # an alias is an address of its interface
        return Interface(plain, kind, up, running, tuple(replace(one, label=name) for one in addresses))
    return Interface(name, kind, up, running, tuple(addresses))


def _mask_length(mask: str) -> int | None:
    try:
        return ipaddress.ip_network(f"0.0.0.0/{mask}").prefixlen
    except ValueError:
        return None


def _from_json(text: str) -> tuple[list[Interface], list[Route], str]:
    """`ip -j addr`, `ip -j link` and `ip -j route`, with or without `-d`."""
    interfaces: list[Interface] = []
    routes: list[Route] = []
    damage = ""
    for start in re.finditer(r"^[^\n\[{]*(\[\s*\{)", text, re.MULTILINE):
        try:
            value, _ = json.JSONDecoder().raw_decode(text[start.start(1) :])
        except ValueError:
            if re.search(r'"ifname"|"ifindex"|"dst"', text[start.start(1) :]):
                damage = "the JSON of `ip -j` is cut"
            continue
        for item in value:
            if isinstance(item, dict) and isinstance(item.get("ifname"), str):
                interfaces.append(_json_interface(item))
            elif isinstance(item, dict) and item.get("dst") == "default" and isinstance(item.get("dev"), str):
                metric = item.get("metric", 0)
                routes.append(Route(item["dev"], metric if isinstance(metric, int) else 0))
    return interfaces, routes, damage


def _json_interface(item: dict[str, Any]) -> Interface:
    flags = item.get("flags")
    up, running = _flags(",".join(map(str, flags))) if isinstance(flags, list) else (None, None)
    info = item.get("linkinfo")
    detail = str(info.get("info_kind", "")) if isinstance(info, dict) else ""
    listed = item.get("addr_info")
    addresses = None
    if isinstance(listed, list):
        addresses = tuple(
            address(str(one.get("local")), one.get("prefixlen"), _alias(item["ifname"], one.get("label")))
            for one in listed
            if isinstance(one, dict) and one.get("local")
        )
    link = item.get("link")
    kind = INFO_KINDS.get(detail, detail) or LINK_TYPES.get(str(item.get("link_type")), "")
    return Interface(
        item["ifname"],
        kind,
        up,
        running,
        addresses,
        str(item.get("master") or ""),
        (link,) if isinstance(link, str) else (),
    )


def _alias(name: str, label: object) -> str:
    return label if isinstance(label, str) and label.startswith(f"{name}:") else ""
