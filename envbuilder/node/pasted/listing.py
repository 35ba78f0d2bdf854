"""What `ip`, `ifconfig` and `ip route` print → interfaces and default routes, as far as the text says."""

import ipaddress
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from envbuilder.node.nccl.facts import Address, Facts, Interface, Route

IP_HEAD = re.compile(r"^\s*(?:\d+):\s+([^\s:@]+(?::[^\s:@]+)?)(?:@(\S+?))?:\s+<([A-Z0-9_,\-. …]*)>")
IP_TORN_HEAD = re.compile(r"^\s*\d+:\s+[^\s:@]+(?:@\S+?)?:\s+<[^>]*$")
IP_ADDRESS = re.compile(r"\b(inet6?)\s+(\S+?)(?:/(\d+))?(?=\s|$)(?:\s+peer\s+\S+?/(\d+))?")
IP_LABEL = re.compile(r"\bscope\s+\w+\s+(?:\w+\s+)*?(\S+)\s*$")
# Words at the end of an `inet` line without a label.
IP_NO_LABEL = {"dynamic", "noprefixroute", "secondary", "deprecated", "tentative", "permanent", "nodad"}
BR_STATE = "UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT|NOTPRESENT|TESTING"
BR_LINE = re.compile(rf"^\s*([^\s:@]+)(?:@(\S+))?\s+({BR_STATE})(?:\s+(.*))?$")
MAC = re.compile(r"^(?:[0-9a-fA-F]{2}:){5,}[0-9a-fA-F]{2}$")
IFCONFIG_HEAD = re.compile(r"^\s*(\S+?):\s+flags=\d+<([A-Z0-9_,\-]*)>")
IFCONFIG_OLD_HEAD = re.compile(r"^(\S+)\s+Link encap:(\S+)")
IFCONFIG_ADDRESS = re.compile(r"^\s*(inet6?)\s+(?:addr:\s*)?(\S+?)(?:/(\d+))?(?=\s|$)(.*)$")
ROUTE = re.compile(r"^\s*default\b(?:\s+via\s+\S+)?\s+dev\s+(\S+)(.*)$")
LINK_TYPES = {"ether": "ethernet", "infiniband": "infiniband", "loopback": "loopback", "none": "tunnel"}
IFCONFIG_KINDS = {"infiniband": "infiniband", "loop": "loopback", "ether": "ethernet", "unspec": "tunnel"}
INFO_KINDS = {"ipoib": "infiniband", "wireguard": "tunnel", "tun": "tunnel", "vxlan": "tunnel"}


def parse_listing(text: str) -> Facts:
    """Return the interfaces, default routes and damage of every listing in a text, merged by name.

    A listing that is cut gives no interfaces.
    """
    lines = text.split("\n")
    ways = filter(None, map(ROUTE.match, lines))
    routes = [Route(way[1], int(_group(r"\bmetric\s+(\d+)", way[2]) or 0)) for way in ways]
    json_interfaces, json_routes, json_damage = _from_json(text)
    ip_interfaces, ip_damage, doubt = _from_ip(lines)
    interfaces = join([*json_interfaces, *ip_interfaces, *_from_brief(lines), *_from_ifconfig(lines)])
    cut = json_damage or ip_damage
    damage = cut or doubt
    known = None if cut else interfaces or None
    return Facts(interfaces=known, routes=(*routes, *json_routes) or None, damage=(damage,) if damage else ())


def _group(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else ""


def join(interfaces: Iterable[Interface]) -> tuple[Interface, ...]:
    """Merge the entries of each name; a field that any listing has is kept."""
    known: dict[str, Interface] = {}
    for interface in interfaces:
        before = known.get(interface.name)
        if before is None:
            known[interface.name] = interface
            continue
        blank = Interface(interface.name)
        fields = ("kind", "up", "running", "master", "lower", "hardware", "usb")
        values = {name: getattr(interface, name) for name in fields}
        more = {name: value for name, value in values.items() if value != getattr(blank, name)}
        if interface.addresses is not None:
            more["addresses"] = tuple(dict.fromkeys((*(before.addresses or ()), *interface.addresses)))
        known[interface.name] = replace(before, **more)
    return tuple(known.values())


def address(text: str, prefix: str | int | None = None, label: str = "") -> Address:
    """Parse an address; a masked one becomes an empty text."""
    bare, _, inner = text.partition("%")[0].partition("/")
    length = inner if prefix is None else str(prefix)
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        bare = ""
    return Address(bare, int(length) if length.isdigit() else None, label)


def _flags(text: str) -> tuple[bool, bool]:
    """Return up and running from `<BROADCAST,UP,LOWER_UP>`. `ip` says LOWER_UP where the kernel says RUNNING."""
    flags = set(text.replace(" ", "").split(","))
    return "UP" in flags, bool({"LOWER_UP", "RUNNING"} & flags) and "NO-CARRIER" not in flags


def _lower(parent: str | None) -> tuple[str, ...]:
    """Return the interface after `@`; `if7` is in another namespace."""
    return (parent,) if parent and not parent.startswith("if") and parent != "NONE" else ()


def _from_ip(lines: list[str]) -> tuple[list[Interface], str, str]:
    """Return the interfaces of `ip addr` and `ip link`, where the text is cut, and what else is damaged."""
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
    abridged = next((head[1] for head, _ in blocks if re.search(r"\.\.|…", head[3])), "")
    doubt = f"the header of `{abridged}` in `ip addr` is abridged" if abridged else ""
    interfaces, strangers = [], []
    for head, rest in blocks:
        addresses = _ip_addresses(head[1], rest)
        interfaces.append(_ip_block(head, "\n".join(rest), addresses.pop(head[1])))
        strangers += [Interface(name, addresses=places) for name, places in addresses.items()]
    if strangers:
        doubt = f"`ip addr` has no header of `{strangers[0].name}` above its address; the label of the address names it"
    interfaces += strangers
    if not any(interface.addresses for interface in interfaces):  # `ip link` lists none
        interfaces = [replace(interface, addresses=None) for interface in interfaces]
    return interfaces, damage or _cut([line for _, rest in blocks for line in rest]), doubt


def _ip_addresses(name: str, lines: list[str]) -> dict[str, tuple[Address, ...]]:
    """Return the addresses below the header of an interface, and those whose label names another one, by interface."""
    addresses: dict[str, tuple[Address, ...]] = {name: ()}
    for line in lines:
        match = IP_LABEL.search(line) if re.search(r"\binet\s", line) else None
        label = match[1] if match else ""
        owner = label.partition(":")[0]
        if not owner or owner in IP_NO_LABEL:
            owner = name
        alias = label if label.startswith(f"{name}:") else ""
        for place in IP_ADDRESS.finditer(line):
            more = address(place[2], place[3] or place[4], alias)
            addresses[owner] = (*addresses.get(owner, ()), more)
    return addresses


def _cut(lines: list[str]) -> str:
    """Return the damage where the end of `ip addr` is missing: only its last address has no lifetime."""
    last = max((number for number, line in enumerate(lines) if IP_ADDRESS.search(line)), default=None)
    lifetimes = [number for number, line in enumerate(lines) if "valid_lft" in line]
    if last is None or not lifetimes or lifetimes[-1] >= last:
        return ""
    return f"`ip addr` is cut after `{lines[last].strip()}`"


def _ip_block(head: re.Match[str], body: str, addresses: tuple[Address, ...]) -> Interface:
    up, running = _flags(head[3])
    link = _group(r"\blink/(\w+)", body)
    detail = _group(r"^\s+(bond|team|vlan|bridge|veth|vxlan|tun|wireguard|ipoib)\b", body)
    kind = INFO_KINDS.get(detail, detail) if detail else LINK_TYPES.get(link, "")
    is_silent = not link and not addresses and not _group(r"\bstate\s+(\w+)", body)
    known = None if is_silent else addresses
    return Interface(head[1], kind, up, running, known, _group(r"\bmaster\s+(\S+)", body), _lower(head[2]))


def _from_brief(lines: list[str]) -> list[Interface]:
    """Read `ip -br addr`, whose third column are addresses, and `ip -br link`, where it is a MAC."""
    interfaces = []
    for match in filter(None, map(BR_LINE.match, lines)):
        rest = match[4] or ""
        words = rest.split()
        up = running = match[3] in ("UP", "UNKNOWN")  # UNKNOWN: no notion of carrier, such as lo or tun
        flags = re.search(r"<([A-Z0-9_,\-]*)>", rest)
        if flags:
            up, running = _flags(flags[1])
        addresses = None
        if not flags and not (words and MAC.match(words[0])):
            addresses = tuple(address(word) for word in words if re.match(r"^[0-9a-fA-F*x.:]+/\d+$", word))
        interfaces.append(Interface(match[1], "", up, running, addresses, "", _lower(match[2])))
    return interfaces


def _from_ifconfig(lines: list[str]) -> list[Interface]:
    """Read both layouts of `ifconfig` of net-tools."""
    blocks: list[tuple[str, str, list[str]]] = []
    for line in lines:
        new, old = IFCONFIG_HEAD.match(line), IFCONFIG_OLD_HEAD.match(line)
        if new:
            blocks.append((new[1], new[2], []))
        elif old:
            blocks.append((old[1], "", [f"encap {old[2]}"]))
        elif blocks:
            blocks[-1][2].append(line)
    return [_ifconfig_block(*block) for block in blocks]


def _ifconfig_block(name: str, flags: str, rest: list[str]) -> Interface:
    body = "\n".join(rest)
    up, running = _flags(flags or ",".join(_group(r"^\s+((?:[A-Z]+\s+)+)MTU:", body).split()))
    words = (word for word in IFCONFIG_KINDS if re.search(rf"\b{word}", body, re.IGNORECASE))
    kind = IFCONFIG_KINDS.get(next(words, ""), "")
    addresses = []
    for match in filter(None, map(IFCONFIG_ADDRESS.match, rest)):
        mask = re.search(r"(?:netmask\s+|Mask:)(\S+)|prefixlen\s+(\d+)", match[4])
        length = match[3] or (mask and (mask[2] or _mask_length(mask[1])))
        addresses.append(address(match[2], length))
    plain, colon, _ = name.partition(":")
    if colon:  # an alias is an address of its interface
        addresses = [replace(place, label=name) for place in addresses]
    return Interface(plain, kind, up, running, tuple(addresses))


def _mask_length(mask: str) -> int | None:
    try:
        return ipaddress.ip_network(f"0.0.0.0/{mask}").prefixlen
    except ValueError:
        return None


def _from_json(text: str) -> tuple[list[Interface], list[Route], str]:
    """Read `ip -j addr`, `ip -j link` and `ip -j route`, with or without `-d`."""
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
    name, flags, info = item["ifname"], item.get("flags"), item.get("linkinfo")
    up, running = _flags(",".join(map(str, flags))) if isinstance(flags, list) else (None, None)
    detail = str(info.get("info_kind", "")) if isinstance(info, dict) else ""
    kind = INFO_KINDS.get(detail, detail) or LINK_TYPES.get(str(item.get("link_type")), "")
    listed, link = item.get("addr_info"), item.get("link")
    addresses = None
    if isinstance(listed, list):
        places = [entry for entry in listed if isinstance(entry, dict) and entry.get("local")]
        labels = [str(entry.get("label")) for entry in places]
        addresses = tuple(
            address(
                str(entry["local"]), entry.get("prefixlen"), label if label.startswith(f"{name}:") else ""
            )
            for entry, label in zip(places, labels, strict=True)
        )
    lower = (link,) if isinstance(link, str) else ()
    return Interface(name, kind, up, running, addresses, str(item.get("master") or ""), lower)
