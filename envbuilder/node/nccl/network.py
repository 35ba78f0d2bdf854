"""The network of this machine: interfaces and default routes from the kernel's files, addresses as NCCL asks for them."""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
from typing import TYPE_CHECKING, Callable, ClassVar, Dict, Tuple

from envbuilder.node.nccl.facts import Address, Facts, Interface, RdmaPort, Route, origin
from envbuilder.node.nccl.files import names, text

if TYPE_CHECKING:
    from pathlib import Path

IFF_UP, IFF_RUNNING = 0x1, 0x40
LOOPBACK, INFINIBAND, NO_LINK_LAYER = 772, 32, 65534
KINDS = {
    "wlan": "wireless", "vlan": "vlan", "bond": "bond", "bridge": "bridge", "vxlan": "tunnel", "wireguard": "tunnel",
}  # fmt: skip
RUNNING = {"up": True, "down": False, "lowerlayerdown": False, "notpresent": False}  # by operstate
Addresses = Dict[str, Tuple[Address, ...]]


def probe_network(root: Path, addresses: Callable[[], Addresses | None]) -> Facts:
    """Probe interfaces, default routes and RDMA ports; what cannot be read stays unknown."""
    known = addresses()
    source = "/sys/class/net" + (", getifaddrs" if known is not None else "")
    folder = root / "sys/class/net"
    listed = names(folder)
    interfaces = None
    if listed is not None:
        devices = [folder / name for name in listed if (folder / name / "ifindex").exists()]
        devices.sort(key=lambda device: int(text(device / "ifindex") or 0))
        interfaces = tuple(
            _interface(device, None if known is None else known.get(device.name, ())) for device in devices
        )
    routes, rdma = _routes(root), _rdma(root)
    table = "/proc/net/route"
    infiniband = "/sys/class/infiniband" if rdma else "there is no /sys/class/infiniband"
    sources = origin(
        interfaces=source if interfaces is not None else "/sys/class/net cannot be read",
        routes=table if routes is not None else f"{table} cannot be read",
        rdma=infiniband if rdma is not None else "/sys cannot be read",
    )
    return Facts(interfaces=interfaces, routes=routes, rdma=rdma, sources=sources)


def _interface(device: Path, addresses: tuple[Address, ...] | None) -> Interface:
    flags = int(text(device / "flags") or "0", 16)
    running = {"1": True, "0": False}.get(text(device / "carrier") or "")
    if running is None:
        running = RUNNING.get(text(device / "operstate") or "")
    lower = tuple(name[6:] for name in names(device) or () if name.startswith("lower_"))
    behind = (device / "device").resolve() if (device / "device").exists() else None
    return Interface(
        name=device.name,
        kind=_kind(device, lower),
        up=bool(flags & IFF_UP),
        running=running,
        addresses=addresses,
        master=(device / "master").resolve().name if (device / "master").is_symlink() else "",
        lower=lower,
        hardware=behind is not None,
        usb=behind is not None and any(part.startswith("usb") for part in behind.parts),
    )


def _kind(device: Path, lower: tuple[str, ...]) -> str:
    number = int(text(device / "type") or 0)
    if number == LOOPBACK:
        return "loopback"
    if (device / "bonding").is_dir():
        return "bond"
    if (device / "bridge").is_dir():
        return "bridge"
    if (device / "tun_flags").exists() or number == NO_LINK_LAYER:
        return "tunnel"
    uevent = dict(line.partition("=")[::2] for line in (text(device / "uevent") or "").splitlines())
    if uevent.get("DEVTYPE") in KINDS:
        return KINDS[uevent["DEVTYPE"]]
    if (device / "wireless").is_dir() or (device / "phy80211").exists():
        return "wireless"
    masters = {(device.parent / name / "master").resolve().name for name in lower}
    if lower and masters == {device.name}:
        return "team"  # the kernel marks bonds and bridges; teamd's ports only point at it
    return {1: "ethernet", INFINIBAND: "infiniband"}.get(number, "")


def _routes(root: Path) -> tuple[Route, ...] | None:
    """Return the default routes of IPv4, otherwise those of IPv6."""
    table = text(root / "proc/net/route")
    if table is None:
        return None
    rows = [line.split() for line in table.splitlines()[1:]]
    routes = [Route(row[0], int(row[6])) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"]
    if not routes:
        rows = [line.split() for line in (text(root / "proc/net/ipv6_route") or "").splitlines()]
        routes = [
            Route(row[9], int(row[5], 16))
            for row in rows
            if len(row) == 10 and row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo"
        ]
    return tuple(sorted(dict.fromkeys(routes), key=lambda route: route.metric))


def _rdma(root: Path) -> tuple[RdmaPort, ...] | None:
    if not (root / "sys").is_dir():
        return None
    ports = []
    folder = root / "sys/class/infiniband"
    for device in names(folder) or ():
        for port in names(folder / device / "ports") or ():
            files = (folder / device / "ports" / port / name for name in ("state", "link_layer", "rate"))
            state, layer, rate = (text(file) or "" for file in files)
            state = state.partition(":")[2].strip()  # of "4: ACTIVE"
            ports.append(RdmaPort(device, int(port), state, layer, rate))
    return tuple(ports)


class _SocketAddress(ctypes.Structure):
    """`sockaddr_in` or `sockaddr_in6`; only what belongs to the family may be read."""

    _fields_: ClassVar = (("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26))  # type: ignore[mutable-override]


class _Entry(ctypes.Structure):
    """`ifaddrs` of the C library."""


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SocketAddress)),
    ("netmask", ctypes.POINTER(_SocketAddress)),
]
PARTS = {socket.AF_INET: slice(2, 6), socket.AF_INET6: slice(6, 22)}  # of `data`: the address


def system_addresses() -> Addresses | None:
    """Return what getifaddrs returns, as NCCL asks it; aliases are labels of their interface."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        first = ctypes.POINTER(_Entry)()
        if libc.getifaddrs(ctypes.byref(first)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    known: dict[str, list[Address]] = {}
    try:
        entry = first
        while entry:  # type: ignore[truthy-bool]  # a null pointer is false
            item = entry.contents
            if item.address and item.address.contents.family in PARTS:
                label = (item.name or b"").decode()
                name = label.partition(":")[0]
                text = socket.inet_ntop(item.address.contents.family, _bytes(item.address))
                prefix = sum(bin(byte).count("1") for byte in _bytes(item.netmask)) if item.netmask else None
                known.setdefault(name, []).append(Address(text, prefix, label if label != name else ""))
            entry = item.next
    finally:
        libc.freeifaddrs(first)
    return {name: tuple(addresses) for name, addresses in known.items()}


def _bytes(place: ctypes._Pointer[_SocketAddress]) -> bytes:
    return bytes(place.contents.data[PARTS[place.contents.family]])
