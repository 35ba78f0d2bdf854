"""The interfaces that each version of NCCL takes by itself, and whether a job can use them.

`nccl_choice` simulates NCCL's `ncclFindInterfaces` (`docs/evidence/nccl.md#interface-choice`), so "nothing to set" is a
result of the facts.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envbuilder.node.nccl.facts import Address, Facts, Interface

MOST = 16  # NCCL's MAX_IFS
SKIPS_IDLE = (2, 28, 3)  # from here NCCL takes only interfaces with IFF_RUNNING, and virbr* last

# What containers, hypervisors and tunnels make; such an address reaches no other node, or not at speed.
VIRTUAL = re.compile(
    r"docker|podman|br-|veth|virbr|vnet\d|cni|flannel|cali|cilium|lxc|lxd|incus|kube|nodelocaldns|weave|"
    r"vxlan|genev|geneve|ovs|ovn|tun|tap|wg|tailscale|zt|utun|ppp|ipsec|nebula|vboxnet|vmnet|ifb|dummy|sit\d|gre|ip6tnl|teql|vethernet"
)
USB = re.compile(r"usb\d|enx[0-9a-f]{12}$|en\w*u\d+(u\d+)*(i\d+)?(c\d+)?$|idrac|bmc")
WIRELESS = re.compile(r"wl")
SLINGSHOT = re.compile(r"hsn\d+")
UNREAD, MASKED = "its addresses are not known", "its addresses are masked"
PHYSICAL = re.compile(r"(en|eth|em\d|p\d+p\d|ib|hsn|slingshot|rail|roce|rdma|mlx|bond|team|opa)")


@dataclass(frozen=True)
class Judgement:
    """One interface: `fault` is empty where it can carry a job; `physical` where it is hardware."""

    name: str
    fault: str
    physical: bool
    certain: bool = True  # False where a fact that decides is unknown


def nccl_choice(
    interfaces: tuple[Interface, ...], version: tuple[int, ...] | None, wanted: str = ""
) -> tuple[str, ...]:
    """Return the names that NCCL takes, in order; `wanted` is NCCL_SOCKET_IFNAME. An unknown version counts as old.

    Ranks meet over the first; the socket transport uses all of them.
    """
    modern = version is not None and version >= SKIPS_IDLE
    names = _named(interfaces, idle=not modern)
    if len(wanted) > 1:
        return names_matching(names, wanted)[:MOST]
    others = ("^docker,lo,virbr", "docker", "lo", "virbr") if modern else ("^docker,lo", "docker", "lo")
    searches = (names_matching(names, search) for search in ("ib", *others))
    return next((matching[:MOST] for matching in searches if matching), ())


def names_matching(names: tuple[str, ...], wanted: str) -> tuple[str, ...]:
    """Match names in NCCL's syntax: prefixes, `^` to exclude, `=` for whole names."""
    negative = wanted.startswith("^")
    wanted = wanted[1:] if negative else wanted
    exact = wanted.startswith("=")
    parts = [part for part in (wanted[1:] if exact else wanted).split(",") if part]
    return tuple(
        name
        for name in names
        if any(name == part if exact else name.startswith(part) for part in parts) != negative
    )


def _named(interfaces: tuple[Interface, ...], *, idle: bool) -> tuple[str, ...]:
    """Return the names of getifaddrs, aliases included, that have an address that NCCL counts."""
    names = (
        address.label or interface.name
        for interface in interfaces
        if idle or interface.running is not False
        for address in interface.addresses or ()
        if address.text != "::1"
    )
    return tuple(dict.fromkeys(names))


def judge_named(name: str, interfaces: tuple[Interface, ...]) -> Judgement:
    """Judge an interface that NCCL took. An alias such as `eno1:avahi` has only its own address."""
    plain = name.partition(":")[0]
    label = name if ":" in name else ""
    for interface in interfaces:
        if interface.name == plain:
            known = interface.addresses
            meant = None if known is None else tuple(address for address in known if address.label == label)
            return judge(replace(interface, addresses=meant), interfaces)
    return Judgement(name, "it is not in the list of interfaces", physical=False, certain=False)


def judge(interface: Interface, others: tuple[Interface, ...]) -> Judgement:
    """Judge whether a job on several nodes can use an interface."""
    name, kind, addresses = interface.name, interface.kind, interface.addresses or ()
    physical = _is_physical(interface, others)
    is_virtual = VIRTUAL.match(name) or kind in ("veth", "tunnel", "bridge")
    faults = (
        (kind == "loopback" or re.fullmatch(r"lo\d*", name), "it is the loopback"),
        (interface.up is False, "it is down"),
        (interface.master, f"it is a port of `{interface.master}`"),
        (interface.usb or (interface.hardware is None and USB.match(name)), "it is a USB or management port"),
        (not physical and is_virtual, "it was made by containers, virtual machines or a tunnel"),
        (interface.running is False, "it has no carrier"),
        (interface.addresses is None, UNREAD),
        (not addresses, "it has no address"),
        (any(map(_is_routable, addresses)), ""),
        (any(not address.text for address in addresses), MASKED),
        (True, "it has only link-local addresses"),
    )
    fault = next(fault for applies, fault in faults if applies)
    return Judgement(name, fault, physical, fault not in (UNREAD, MASKED))


def _is_routable(address: Address) -> bool:
    if not address.text:
        return False
    value = ipaddress.ip_address(address.text)
    return not (value.is_link_local or value.is_loopback or value.is_unspecified or value.is_multicast)


def _is_physical(interface: Interface, others: tuple[Interface, ...], depth: int = 3) -> bool:
    """Whether it is hardware, or a bond, team, VLAN or bridge on hardware."""
    if interface.hardware:
        return True
    ports = [other for other in others if other.master == interface.name or other.name in interface.lower]
    if depth and any(_is_physical(port, others, depth - 1) for port in ports):
        return True
    is_named_so = PHYSICAL.match(interface.name) or WIRELESS.match(interface.name)
    return interface.hardware is None and is_named_so is not None


def spelled(name: str, interfaces: tuple[Interface, ...]) -> str:
    """Return the value for NCCL_SOCKET_IFNAME: `=name` where the plain name is a prefix of another."""
    others = [interface.name for interface in interfaces if interface.name != name]
    others += [address.label for interface in interfaces for address in interface.addresses or ()]
    return f"={name}" if any(other.startswith(name) for other in others) else name


def networks(names: list[str], interfaces: tuple[Interface, ...]) -> int:
    """Count the IPv4 networks of these interfaces; an address without a mask is one of its own."""
    listed = (interface.addresses or () for interface in interfaces if interface.name in names)
    ipv4 = [place for places in listed for place in places if place.text and ":" not in place.text]
    return len({ipaddress.ip_interface(f"{place.text}/{place.prefix or 32}").network for place in ipv4})


def choose(facts: Facts) -> tuple[str, str]:
    """Return the right interface and the reason, or an empty name where there is no single one."""
    interfaces = facts.interfaces or ()
    judged = (judge(interface, interfaces) for interface in interfaces)
    fit = [judgement for judgement in judged if not judgement.fault]
    names = {judgement.name for judgement in fit}
    if facts.job.peer_device in names and facts.job.peer_device:
        return facts.job.peer_device, f"it is the way to `{facts.job.peer}`"
    routes = sorted(facts.routes or (), key=lambda route: route.metric)
    best = {route.device for route in routes if route.metric == routes[0].metric}
    if len(best) == 1 and routes[0].device in names:
        return routes[0].device, "the default route goes through it"
    physical = [judgement.name for judgement in fit if judgement.physical]
    if len(physical) == 1:
        return physical[0], "it is the only physical interface that is up and has an address"
    return "", ""
