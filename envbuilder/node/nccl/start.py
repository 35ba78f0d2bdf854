"""One decision at the start of a job: settings and messages, from this node's facts or from a profile that fits it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping

from envbuilder.node.nccl.decide import Decision, decide
from envbuilder.node.nccl.probe import ProbeIO, import_nvml, probe, run_program
from envbuilder.node.nccl.profile import misfit, parse_measured, parse_profile
from envbuilder.node.nccl.report import as_text

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
