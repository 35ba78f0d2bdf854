"""What `detect` prints of facts and a decision, and the decision at the start of a job, which says the same."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping

from envbuilder.node.nccl.decide import Decision, decide
from envbuilder.node.nccl.probe import ProbeIO, import_nvml, probe, run_program
from envbuilder.node.nccl.profile import misfit, parse_measured, parse_profile

if TYPE_CHECKING:
    from envbuilder.node.nccl.decide import Setting
    from envbuilder.node.nccl.facts import Facts, Gpu, Interface

UNKNOWN = "unknown"
LINE = 112  # where a line ends that no terminal ends


def as_text(facts: Facts, decision: Decision, environment: Mapping[str, str], width: int = LINE) -> str:
    """Show the facts with their sources, each setting with its reason, and each variable left unset."""
    every = _fact_rows(facts)
    rows = [row for row in every if row[1] != UNKNOWN or row[2]]
    silent = [name for name, value, source in every if value == UNKNOWN and not source]
    wide = max(len(name) for name, _, _ in rows)
    lines = ["facts"]
    for name, value, source in rows:
        lines += _wrapped(f"{name:<{wide}}  {value}{_bracketed(source)}", width, hang=wide + 2)
    for interface in facts.interfaces or ():
        lines += _wrapped(_interface(interface), width, indent=wide + 4)
    lines += _wrapped(f"not known: {', '.join(silent)}", width) if silent else []
    lines += _matrix_lines(facts)
    lines += ["", "settings"]
    for setting in decision.settings:
        lines += _setting_lines(setting, environment, width)
    if not decision.settings:
        lines.append("  nothing to set")
    lines += ["", "left unset"]
    reasons: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for left in decision.left:
        reasons.setdefault((left.reason, left.evidence), []).append(left.name)
    for (reason, evidence), names in reasons.items():
        lines += _wrapped(f"{', '.join(names)}: {reason}", width)
        lines += [line for words in evidence for line in _wrapped(words, width, indent=6)]
    if decision.hints:
        lines += ["", "hints", *(line for hint in decision.hints for line in _wrapped(hint, width))]
    return "\n".join(lines)


def user_variable(setting: Setting, environment: Mapping[str, str]) -> str:
    """Return the variable of the user that prevents this setting; an empty value counts as set."""
    return next((name for name in setting.unless if name in environment), "")


def _setting_lines(setting: Setting, environment: Mapping[str, str], width: int) -> list[str]:
    variable = user_variable(setting, environment)
    kept_by = f"  (not set: {variable} is the user's own)" if variable else ""
    lines = _wrapped(f"{setting.name}={setting.value}{kept_by}", width)
    lines += _wrapped(f"because {setting.reason}", width, indent=4)
    for evidence in setting.evidence:
        lines += _wrapped(evidence, width, indent=6)
    return lines + (_wrapped(f"lapses {setting.lapses}", width, indent=4) if setting.lapses else [])


def _wrapped(text: str, width: int, *, indent: int = 2, hang: int = 2) -> list[str]:
    """Wrap text two columns before `width`, with a hanging indent."""
    blank = " " * indent
    return textwrap.wrap(
        text,
        max(width - 2, 40),
        initial_indent=blank,
        subsequent_indent=blank + " " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fact_rows(facts: Facts) -> list[tuple[str, str, str]]:
    job = f"{facts.job.nodes or UNKNOWN} nodes" if facts.job.slurm_id or facts.job.nodes else "none"
    values: list[tuple[str, str, str | None]] = [
        ("GPUs", "gpus", None if facts.gpus is None else _gpu_names(facts.gpus)),
        ("driver", "driver", facts.driver),
        ("NCCL", "nccl", facts.nccl),
        ("torch", "torch", facts.torch),
        ("kernel", "kernel", facts.kernel),
        ("CPU", "cpu", facts.cpu),
        ("virtual machine", "virtual", "no" if facts.virtual == "" else facts.virtual),
        ("container", "container", "no" if facts.container == "" else facts.container),
        ("IOMMU of the GPUs", "gpus", _iommu(facts.gpus)),
        ("/dev/shm", "shm", None if facts.shm is None else f"{facts.shm / (1 << 30):.1f} GiB"),
        ("RDMA ports", "rdma", None if facts.rdma is None else ", ".join(
            f"{port.device}:{port.port} {port.layer} {port.state}" for port in facts.rdma) or "none"),
        ("libibverbs", "verbs", None if facts.verbs is None else "yes" if facts.verbs else "no"),
        ("default route", "routes", None if facts.routes is None else ", ".join(
            route.device for route in facts.routes) or "none"),
        ("job", "job", f"{job}" + (f", ranks meet at {facts.job.peer}" if facts.job.peer else "")),
        ("interfaces", "interfaces", None if facts.interfaces is None else str(len(facts.interfaces))),
    ]  # fmt: skip
    if facts.plugin is not None:
        values.append(("NCCL's network plugin", "plugin", "yes" if facts.plugin else "no"))
    if facts.imex is not None:
        values.append(("IMEX channels", "imex", ", ".join(facts.imex) or "none"))
    return [(name, UNKNOWN if value is None else value, facts.source(field)) for name, field, value in values]


def _gpu_names(gpus: tuple[Gpu, ...]) -> str:
    counts = Counter(gpu.name or "of unknown name" for gpu in gpus)
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _iommu(gpus: tuple[Gpu, ...] | None) -> str | None:
    kinds = sorted({gpu.iommu for gpu in gpus or () if gpu.iommu is not None})
    return ", ".join(kinds) or None


def _interface(one: Interface) -> str:
    state = {None: UNKNOWN, False: "down", True: "no carrier" if one.running is False else "up"}[one.up]
    addresses = " ".join(address.text or "masked" for address in one.addresses or ())
    return f"{one.name} ({' '.join(filter(None, (one.kind, state, addresses)))})"


def _matrix_lines(facts: Facts) -> list[str]:
    if not facts.links or len(facts.links) < 2:
        return []
    names = [f"GPU{number}" for number in range(len(facts.links))]
    head = "".join(f"{name:<6}" for name in names)
    named = [*zip(names, facts.links), *((nic.name, nic.links) for nic in facts.nics or ())]
    wide = max(8, *(len(name) for name, _ in named))
    rows = [f"  {name:<{wide}} {''.join(f'{cell:<6}' for cell in row)}" for name, row in named]
    title = f"  {'links':<{wide}} {head}{_bracketed(facts.source('links'))}"
    return ["", title, *(row.rstrip() for row in rows)]


def _bracketed(source: str) -> str:
    return f"  [{source}]" if source else ""


if TYPE_CHECKING:
    from envbuilder.node.nccl.facts import Facts


def node_facts(root: str, packages: list[str], environment: Mapping[str, str]) -> Facts:
    """Probe the node from a process of the image."""
    folders = tuple(map(Path, packages))
    nvml = import_nvml(packages)
    return probe(ProbeIO(Path(root), environment, folders, nvml, run_program))


def decide_start(
    root: str, packages: list[str], environment: Mapping[str, str], baked: Mapping[str, Any], measured: object
) -> dict[str, Any]:
    """Return settings, warnings and their explanation as JSON data."""
    facts = node_facts(root, packages, environment)
    warnings: list[str] = []
    if measured:
        try:
            facts = replace(facts, measured=parse_measured(measured))
        except ValueError as error:
            warnings.append(f"the stored test of this node cannot be read: {error}")
    decision, misfits = _with_profile(facts, baked)
    return {
        "settings": [asdict(setting) for setting in decision.settings],
        "warnings": [*warnings, *misfits],
        "text": as_text(facts, decision, environment),
    }


def _with_profile(facts: Facts, baked: Mapping[str, Any]) -> tuple[Decision, list[str]]:
    """Return the settings of a profile that fits this node, otherwise those of the node's facts."""
    by_rules = decide(facts)
    if baked.get("mode") != "profile":
        return by_rules, []
    profile = parse_profile(baked.get("profile"))
    reason = misfit(profile, facts)
    if reason:
        return by_rules, [f"the site's NCCL profile is not used, for it does not fit this node: {reason}"]
    if facts.measured is not None and not facts.measured.lapsed(facts):
        return by_rules, []  # a test on this very node beats what was captured on another
    return Decision(profile.settings, by_rules.left, by_rules.hints), []
