"""A source that is cited can be opened: each citation leads to a heading of `docs/evidence`, which has public links or packages."""

import re
from pathlib import Path

import pytest
import yaml

from envbuilder.node.nccl.decide import HINTS
from envbuilder.node.nccl.rules import INTERFACE_RULES, P2P_RULES

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs/evidence"
TABLES = sorted((ROOT / "envbuilder/compat/tables").glob("*.yaml"))
FILES = [
    path
    for folder in ("envbuilder", "docs", "tests", "scripts", "sites")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".yaml", ".md", ".sh") and path != Path(__file__)
] + [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
CITATION = re.compile(r"evidence/([\w-]+\.md)#([\w-]+)")
OPENABLE = re.compile(r"\]\(https://|`pip download [\w-]+`")
UNOPENABLE = re.compile(r"\b(?:[Ff]acts|[Dd]esign) [A-Z]?\d|\bfacts/|\b[Ff]acts on\b|\b[Dd]esign notes?\b")


def slug(heading: str) -> str:
    """The anchor that GitHub and the documentation site make of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def sections(name: str) -> dict[str, str]:
    """Anchor → text of each section of an evidence page."""
    parts = re.split(r"^##+ (.+)\n", (EVIDENCE / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(map(slug, parts[1::2]), parts[2::2], strict=True))


ANCHORS = {path.name: sections(path.name) for path in EVIDENCE.glob("*.md")}


def test_each_citation_names_a_heading():
    cited = [
        (path.relative_to(ROOT), name, anchor)
        for path in FILES
        for name, anchor in CITATION.findall(path.read_text(encoding="utf-8"))
    ]
    assert cited
    assert [citation for citation in cited if citation[2] not in ANCHORS.get(citation[1], {})] == []


def test_each_rule_and_hint_names_a_heading():
    cited = {anchor for rule in (*P2P_RULES, *INTERFACE_RULES) for anchor in rule.evidence}
    cited |= {hint.evidence for hint in HINTS}
    assert cited - set(ANCHORS["nccl.md"]) == set()


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_each_source_of_a_table_has_a_heading(table: Path):
    data = yaml.safe_load(table.read_text(encoding="utf-8"))
    names = data.get("sources", [table.stem])
    assert {slug(name) for name in names} - set(ANCHORS["compat.md"]) == set()


@pytest.mark.parametrize("name", ANCHORS)
def test_each_heading_has_a_link_or_a_package_that_can_be_opened(name: str):
    bare = [anchor for anchor, text in ANCHORS[name].items() if text.strip() and not OPENABLE.search(text)]
    assert bare == []


def test_no_citation_names_a_document_outside_the_repository():
    named = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in FILES
        for match in UNOPENABLE.finditer(path.read_text(encoding="utf-8"))
    ]
    assert named == []
