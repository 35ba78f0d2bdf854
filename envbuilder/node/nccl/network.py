"""The network of this machine: interfaces and default routes from the kernel's files, addresses as NCCL asks for them."""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
from typing import TYPE_CHECKING, Callable, ClassVar, Dict, Tuple

from envbuilder.node.nccl.facts import Address, Facts, Interface, RdmaPort, Route
from envbuilder.node.nccl.roots import Roots, names, text

if TYPE_CHECKING:
    from pathlib import Path

IFF_UP, IFF_RUNNING = 0x1, 0x40
LOOPBACK, INFINIBAND, NO_LINK_LAYER = 772, 32, 65534
KINDS = {
    "wlan": "wireless",
    "vlan": "vlan",
    "bond": "bond",
    "bridge": "bridge",
    "vxlan": "tunnel",
    "wireguard": "tunnel",
}
Addresses = Dict[str, Tuple[Address, ...]]


def probe_network(roots: Roots, addresses: Callable[[], Addresses | None]) -> Facts:
    """Probe interfaces, default routes and RDMA ports; what cannot be read stays unknown."""
    known = addresses()
    source = "/sys/class/net" + (", getifaddrs" if known is not None else "")
    folder = roots.sys / "class/net"
    listed = names(folder)
    interfaces = None
    if listed is not None:
        devices = [folder / name for name in listed if (folder / name / "ifindex").exists()]
        devices.sort(key=lambda device: int(text(device / "ifindex") or 0))
        interfaces = tuple(
            _interface(device, None if known is None else known.get(device.name, ())) for device in devices
        )
    routes = _routes(roots)
    rdma = _rdma(roots)
    return Facts(
        interfaces=interfaces,
        routes=routes,
        rdma=rdma,
        sources=(
            ("interfaces", source if interfaces is not None else "/sys/class/net cannot be read"),
            ("routes", "/proc/net/route" if routes is not None else "/proc/net/route cannot be read"),
            (
                "rdma",
                "/sys/class/infiniband"
                if rdma
                else "there is no /sys/class/infiniband"
                if rdma is not None
                else "/sys cannot be read",
            ),
        ),
    )


def _interface(device: Path, addresses: tuple[Address, ...] | None) -> Interface:
    flags = int(text(device / "flags") or "0", 16)
    carrier, operational = text(device / "carrier"), text(device / "operstate")
    running = {"1": True, "0": False}.get(carrier or "")
    if running is None and operational is not None:
        running = {"up": True, "down": False, "lowerlayerdown": False, "notpresent": False}.get(operational)
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
    told = dict(line.partition("=")[::2] for line in (text(device / "uevent") or "").splitlines()).get(
        "DEVTYPE", ""
    )
    if told in KINDS:
        return KINDS[told]
    if (device / "wireless").is_dir() or (device / "phy80211").exists():
        return "wireless"
    masters = {(device.parent / name / "master").resolve().name for name in lower}
    if lower and masters == {device.name}:
        return "team"  # the kernel marks bonds and bridges; teamd's ports only point at it
    return {1: "ethernet", INFINIBAND: "infiniband"}.get(number, "")


def _routes(roots: Roots) -> tuple[Route, ...] | None:
    """The default routes of IPv4, else of IPv6."""
    table = text(roots.proc / "net/route")
    if table is None:
        return None
    rows = [line.split() for line in table.splitlines()[1:]]
    routes = [Route(row[0], int(row[6])) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"]
    if not routes:
        rows = [line.split() for line in (text(roots.proc / "net/ipv6_route") or "").splitlines()]
        routes = [
            Route(row[9], int(row[5], 16))
            for row in rows
            if len(row) == 10 and row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo"
        ]
    return tuple(sorted(dict.fromkeys(routes), key=lambda route: route.metric))


def _rdma(roots: Roots) -> tuple[RdmaPort, ...] | None:
    if not roots.sys.is_dir():
        return None
    found = []
    folder = roots.sys / "class/infiniband"
    for device in names(folder) or ():
        for port in names(folder / device / "ports") or ():
            place = folder / device / "ports" / port
            state = (text(place / "state") or "").partition(":")[2].strip()  # "4: ACTIVE"
            found.append(
                RdmaPort(
                    device, int(port), state, text(place / "link_layer") or "", text(place / "rate") or ""
                )
            )
    return tuple(found)


class _Head(ctypes.Structure):
    _fields_: ClassVar = (("family", ctypes.c_ushort), ("rest", ctypes.c_ubyte * 14))  # type: ignore[mutable-override]


class _Inet6(ctypes.Structure):
    _fields_: ClassVar = (  # type: ignore[mutable-override]
        ("family", ctypes.c_ushort),
        ("port", ctypes.c_ushort),
        ("flow", ctypes.c_uint32),
        ("address", ctypes.c_ubyte * 16),
    )


class _Entry(ctypes.Structure):
    pass


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_Head)),
    ("netmask", ctypes.POINTER(_Head)),
]


def system_addresses() -> Addresses | None:
    """Return what getifaddrs returns, as NCCL asks it; aliases are labels of their interface."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        first = ctypes.POINTER(_Entry)()
        if libc.getifaddrs(ctypes.byref(first)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    found: dict[str, list[Address]] = {}
    try:
        entry = first
        while entry:  # type: ignore[truthy-bool]  # a null pointer is false
            one = entry.contents
            if one.address and one.address.contents.family in (socket.AF_INET, socket.AF_INET6):
                label = (one.name or b"").decode()
                name = label.partition(":")[0]
                found.setdefault(name, []).append(
                    Address(_spelled(one.address), _length(one.netmask), label if label != name else "")
                )
            entry = one.next
    finally:
        libc.freeifaddrs(first)
    return {name: tuple(addresses) for name, addresses in found.items()}


def _bytes(place: ctypes._Pointer[_Head]) -> tuple[int, bytes]:
    family = place.contents.family
    if family == socket.AF_INET:
        return family, bytes(place.contents.rest[2:6])
    return family, bytes(ctypes.cast(place, ctypes.POINTER(_Inet6)).contents.address)


def _spelled(place: ctypes._Pointer[_Head]) -> str:
    family, raw = _bytes(place)
    return socket.inet_ntop(family, raw)


def _length(place: ctypes._Pointer[_Head]) -> int | None:
    # A null pointer is false.
    if not place or place.contents.family not in (socket.AF_INET, socket.AF_INET6):  # type: ignore[truthy-bool]
        return None
    return sum(bin(one).count("1") for one in _bytes(place)[1])
