"""The page of a real environment in a real browser: whole without a script, and no request leaves it."""

import json
import re
from pathlib import Path

import pytest

from tests.support.browser import browse, picture
from tests.support.workbench import ENVBUILDER, Built, run

pytestmark = pytest.mark.builds
SCRIPT = "<script>document.title='ran'; fetch('http://127.0.0.1:9/')</script><img src='http://127.0.0.1:9/x'>"


@pytest.fixture(scope="module")
def page(cpu: Built) -> Path:
    answer = json.loads(run(ENVBUILDER, "report", "cpu", "--output", cpu.output, "--json"))
    assert answer["data"]["file"] == str(cpu.output / "cpu.html")
    return cpu.output / "cpu.html"


def test_a_browser_shows_all_of_it_and_asks_nobody(page: Path, cpu: Built, tmp_path: Path):
    dom, asked = browse(page, tmp_path, "--dump-dom")
    assert asked == set()
    for title in ("Pins", "Sizes", "Extensions", "Audit", "Build times", "Licenses", "SBOM"):
        assert f"<h2>{title}</h2>" in dom
    assert dom.count("<rect ") > 10
    for words in (
        "recipes/cpu.yaml:",
        "2.13.0",
        "fused",
        "torch (python):",
        "libc6",
        "BSD-3-Clause",
        "image and SIF hold the same",
    ):
        assert words in dom, words


def test_its_screenshot_is_a_picture_of_that_size(page: Path, tmp_path: Path):
    shot = tmp_path / "page.png"
    assert len(picture(page, tmp_path, shot)) > 50_000  # an empty page of that size has 15 kB


def test_its_own_policy_keeps_a_foreign_script_from_running(page: Path, tmp_path: Path):
    """The other tests cannot miss a script: the browser runs none in this page, nor does it fetch a picture."""
    harmed = tmp_path / "harmed.html"
    harmed.write_text(page.read_text().replace("</body>", f"{SCRIPT}</body>"))
    dom, asked = browse(harmed, tmp_path, "--dump-dom")
    assert "<title>cpu" in dom
    assert asked == set()
    free = tmp_path / "free.html"
    free.write_text(re.sub(r"<meta http-equiv=[^>]*>", "", harmed.read_text()))
    dom, asked = browse(free, tmp_path, "--dump-dom")
    assert "<title>ran" in dom
    assert asked


def test_its_sizes_are_those_of_the_layers(page: Path, cpu: Built):
    answer = json.loads(run(ENVBUILDER, "report", "cpu", "--output", cpu.output, "--json"))
    total, tree = sum(answer["data"]["layers"].values()), int(str(cpu.data["tree_bytes"]))
    assert tree <= total < 1.01 * tree  # a file with two names counts under each
    assert (
        answer["data"]["layers"]["python"]
        > answer["data"]["layers"]["os"]
        > answer["data"]["layers"]["extensions"]
        > 0
    )
