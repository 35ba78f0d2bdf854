"""The page of a real environment in a real browser: whole without a script, and no request leaves it."""

import hashlib
import html
import json
import re
from pathlib import Path

import pytest

from tests.support.browser import browse, picture
from tests.support.workbench import ENVBUILDER, ROOT, Built, run

pytestmark = pytest.mark.builds
# Writes into the title what does not fit the screen, and which codes take more than one line.
MEASURE = """<script>
const wrong = innerWidth < document.documentElement.scrollWidth ? ["the page is wider than the screen"] : [];
for (const one of document.querySelectorAll("td.code, td.number, code.digest")) {
  const style = getComputedStyle(one);
  if (one.innerText && one.getClientRects().length && new Set([...range(one)].map(box => box.top)).size > 1) wrong.push(one.innerText);
  if (one.className == "number" && innerWidth > 640 && style.textAlign != "right") wrong.push("left: " + one.innerText);
}
function range(one) { const all = document.createRange(); all.selectNodeContents(one); return all.getClientRects(); }
for (const one of document.querySelectorAll("code.digest"))
  if (one.scrollWidth > one.clientWidth) wrong.push("cut off: " + one.innerText);
document.title = "wrong: " + wrong.join("; ");
</script>"""
SCRIPT = "<script>document.title='ran'; fetch('http://127.0.0.1:9/')</script><img src='http://127.0.0.1:9/x'>"


@pytest.fixture(scope="module")
def page(cpu: Built) -> Path:
    answer = json.loads(run(ENVBUILDER, "report", "cpu", "--artifacts", cpu.output, "--json"))
    assert answer["data"]["file"] == str(cpu.output / "cpu.html")
    return cpu.output / "cpu.html"


def test_a_browser_shows_all_of_it_and_asks_nobody(page: Path, cpu: Built, tmp_path: Path):
    dom, asked = browse(page, tmp_path, "--dump-dom")
    assert asked == set()
    titles = "Identity", "Run it", "Proof", "Pins", "Sizes", "Extensions", "Build times", "Licenses", "SBOM"
    assert tuple(re.findall("<h2>(.*)</h2>", dom)) == titles
    for words in (
        "recipes/cpu.yaml:",
        "2.13.0",
        "fused",
        ">torch</td>",
        "libc6",
        "BSD-3-Clause",
        "Image and SIF hold the same",
        *(str(digest).removeprefix("sha256:") for digest in cpu.digests),
        hashlib.sha256((ROOT / "recipes/cpu.lock").read_bytes()).hexdigest(),
    ):
        assert words in dom, words


def test_its_commands_run(page: Path, cpu: Built, tmp_path: Path):
    """The lines to copy, with `python -V` in place of the user's program."""
    lines = dict(re.findall("<dt>([^<]*)</dt><dd><code>([^<]*)</code></dd>", page.read_text()))
    for way in ("envbuilder", "Apptainer", "Docker"):
        line = html.unescape(lines[way]).replace("python train.py", "python -V")
        line = line.replace("envbuilder exec", f"{ENVBUILDER} exec --artifacts .")
        assert run("bash", "-c", line, cwd=cpu.output) == "Python 3.11.2\n"


def test_it_tells_the_build_that_made_it(page: Path, cpu: Built):
    """Its tests and its times, also after a later build that failed and replaced the log."""
    log = cpu.output / "cpu.log"
    kept = log.read_text()
    log.write_text("of a later build\n")
    try:
        run(ENVBUILDER, "report", "cpu", "--artifacts", cpu.output)
    finally:
        log.write_text(kept)
    text = page.read_text()
    assert ">SIF, image</td>" in text
    assert re.search(r"write the SIF</td><td class=\"number\" data-head=\"time\">\d+\.\d s<", text)


@pytest.mark.parametrize("width", [480, 900, 1400])
def test_nothing_is_cut_off_or_broken(page: Path, tmp_path: Path, width: int):
    measured = tmp_path / "measured.html"
    free = re.sub(r"<meta http-equiv=[^>]*>", "", page.read_text()).replace("<details>", "<details open>")
    measured.write_text(free.replace("</body>", f"{MEASURE}</body>"))
    dom, _ = browse(measured, tmp_path, "--dump-dom", size=(width, 3000))
    assert re.findall("<title>(.*)</title>", dom)[0] == "wrong: "


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
    answer = json.loads(run(ENVBUILDER, "report", "cpu", "--artifacts", cpu.output, "--json"))
    total, tree = sum(answer["data"]["layers"].values()), int(str(cpu.data["tree_bytes"]))
    assert tree <= total < 1.01 * tree  # a file with two names counts under each
    assert (
        answer["data"]["layers"]["python"]
        > answer["data"]["layers"]["os"]
        > answer["data"]["layers"]["extensions"]
        > 0
    )
