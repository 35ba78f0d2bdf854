"""Facts of this machine, or of one whose outputs were saved, and NCCL's settings for it."""

import json
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from envbuilder.core.answer import Answer
from envbuilder.core.cache import save_text
from envbuilder.core.errors import CommandError, ToolError, UsageError
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.process import Command, Runner
from envbuilder.node.nccl.decide import Decision, Left, Setting
from envbuilder.node.nccl.facts import Facts, Interface, Measured, Nic, merge, version_key
from envbuilder.node.nccl.interface import nccl_choice
from envbuilder.node.nccl.measure import measured_path
from envbuilder.node.nccl.probe import ProbeIO, import_nvml, probe
from envbuilder.node.nccl.profile import Profile, parse_measured, profile_data
from envbuilder.node.pasted import parse_pasted

MOST_BYTES: Final = 64 << 20  # of one saved output; what matters in an NCCL log stands in its first lines
# Saved output → the facts in it.
READS: Final = {
    "`nvidia-smi topo -m`": "how each pair of GPUs is linked",
    "`nvidia-smi topo -p2p r`": "whether the driver lets them reach each other's memory; `w` and `n` as well",
    "`nvidia-smi`": "the GPUs and the driver; `nvidia-smi -L` the GPUs alone",
    "`ip addr`": "the interfaces with their addresses; `ip -br addr` and `ip -j addr` as well",
    "`ip route`": "which interface has the default route",
    "`ifconfig`": "the interfaces with their addresses",
    "`lscpu`": "whose CPU it is; `/proc/cpuinfo` as well",
    "`python -m torch.utils.collect_env`": "torch, NCCL, the driver and the GPUs",
    "a log with `NCCL_DEBUG=INFO`": "NCCL, the interface that it took, and its adapters",
}


class DetectCode(CodeEnum):
    DAMAGED = "EB660", "a saved output is cut or cannot be read"
    NOTHING_FOUND = "EB661", "no output that `detect` knows"
    NO_INTERFACE = "EB662", "NCCL_SOCKET_IFNAME, as it is set, matches no interface"


class DetectedMachine(Answer):
    """The facts of a machine and what follows for NCCL: settings, and variables that are left unset, with reasons."""

    gpus: int | None
    links: tuple[tuple[str, ...], ...]
    nics: tuple[Nic, ...]
    interfaces: tuple[Interface, ...]
    settings: tuple[Setting, ...]
    hints: tuple[str, ...]
    left: tuple[Left, ...]
    damage: tuple[str, ...]
    facts: Facts


def answer(facts: Facts, decision: Decision) -> DetectedMachine:
    return DetectedMachine(
        gpus=None if facts.gpus is None else len(facts.gpus), links=facts.links or (), nics=facts.nics or (),
        interfaces=facts.interfaces or (), settings=decision.settings, hints=decision.hints, left=decision.left,
        damage=facts.damage, facts=facts,
    )  # fmt: skip


def save_profile(path: Path, facts: Facts, decision: Decision) -> None:
    """Write the profile that `check --host` and a recipe's `nccl: {profile: …}` read."""
    data = profile_data(Profile(facts, decision.settings))
    save_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def stored_verdict(environment: Mapping[str, str]) -> Measured | None:
    """Return the stored verdict of an earlier `--measure` on this machine, or None."""
    try:
        text = measured_path(environment, platform.node()).read_text(encoding="utf-8")
        return parse_measured(json.loads(text))
    except (OSError, ValueError):
        return None


def probe_here(environment: Mapping[str, str], runner: Runner) -> Facts:
    """Probe this machine without root."""

    def run(argv: tuple[str, ...]) -> str | None:
        try:
            return runner.run(Command(argv=argv, why="ask the driver for its GPUs"))
        except (CommandError, ToolError):
            return None

    return probe(ProbeIO(environment=environment, nvml=import_nvml(), run=run))


def detect_here(
    environment: Mapping[str, str], runner: Runner, versions: Facts, measured: Measured | None = None
) -> tuple[Facts, tuple[Finding, ...]]:
    """Return the facts of this machine; `versions` win over what it says, and `measured` over a stored test."""
    facts = merge(probe_here(environment, runner), versions)
    facts = replace(facts, measured=measured or stored_verdict(environment))
    return facts, _own_interfaces(facts, environment)


def _own_interfaces(facts: Facts, environment: Mapping[str, str]) -> tuple[Finding, ...]:
    """Warn where the user's NCCL_SOCKET_IFNAME matches no interface: NCCL then fails."""
    wanted, known = environment.get("NCCL_SOCKET_IFNAME", ""), facts.interfaces
    if len(wanted) < 2 or known is None or nccl_choice(known, version_key(facts.nccl), wanted):
        return ()
    names = ", ".join(interface.name for interface in known)
    message = f"`{wanted}` matches no interface with an address here"
    return (_warning(DetectCode.NO_INTERFACE, "NCCL_SOCKET_IFNAME", message, f"there are {names}"),)


def detect_pasted(path: Path, versions: Facts) -> tuple[Facts, tuple[Finding, ...]]:
    """Return the facts in the saved outputs of one machine, a file or a folder; raises UsageError."""
    parsed = parse_pasted(_texts(path))
    facts = merge(parsed, versions)
    anew = "save the whole output anew, for instance `nvidia-smi topo -m > topo.txt`"
    findings = tuple(_warning(DetectCode.DAMAGED, str(path), damage, anew) for damage in facts.damage)
    if parsed == Facts():
        message, reads = "no output that `detect` knows was found", f"it reads {', '.join(READS)}"
        findings += (_warning(DetectCode.NOTHING_FOUND, str(path), message, reads),)
    return facts, findings


def _warning(code: DetectCode, where: str, message: str, hint: str) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, where=where, message=message, hint=hint)


def _texts(path: Path) -> dict[str, str]:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    try:
        return {str(file.relative_to(path)) if file != path else file.name: _text(file) for file in files}
    except OSError as error:
        hint = "give a file of saved output, or a folder of them"
        raise UsageError(f"`{error.filename}` cannot be read: {error.strerror}", hint=hint) from error


def _text(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(MOST_BYTES).decode(errors="replace")
