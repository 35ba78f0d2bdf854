"""The documentation and the page of a real environment in a real browser, and the documentation's commands that need a build."""

import hashlib
import html
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import pages
from tests.support.browser import browse, picture
from tests.support.disk import view_of_cache
from tests.support.workbench import ENVBUILDER, ROOT, Built, open_folder, run

pytestmark = pytest.mark.builds
SECONDS = 600  # a page may build, and wait for other builds
WITH_BUILT = [page for page in pages.PAGES if any(pages.BUILT in block.words for block in pages.blocks(page))]
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
WIDTHS = [480, 900, 1600]
# Writes into the title which pages are wider than the screen, and which pictures are not there.
FRAMES = """<script>
const wrong = [];
(async () => {
  for (const page of PAGES) {
    const frame = document.createElement("iframe");
    await new Promise(done => { frame.onload = done; frame.src = page; document.body.append(frame); });
    const inside = frame.contentDocument;
    for (const width of WIDTHS) {
      frame.style.width = width + "px";
      if (inside.documentElement.scrollWidth > width) wrong.push(`${page} is wider than ${width}`);
    }
    for (const shown of inside.images) await shown.decode().catch(() => wrong.push(`${page} lacks ${shown.src}`));
    frame.remove();
  }
  document.title = "wrong: " + wrong.join("; ");
})();
</script>"""
SCRIPT = "<script>document.title='ran'; fetch('http://127.0.0.1:9/')</script><img src='http://127.0.0.1:9/x'>"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run("scripts/docs", folder)
    return folder


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("index", ("one page, five minutes", "Something fails?", "Why it is reproducible")),
        ("trouble/gcc", ("unsupported GNU version", "error[EB315]", "debian/trixie")),
        (
            "reference/commands",
            ("envbuilder build", "--offline", "print the plan and the commands; write nothing"),
        ),
    ],
)
def test_a_browser_shows_it_and_asks_nobody_else(
    site: Path, page: str, words: tuple[str, ...], tmp_path: Path
):
    file = site / f"{page}.html"
    dom, asked = browse(file, tmp_path, "--dump-dom")
    assert asked == set()
    text = re.sub(r"<[^>]*>", "", dom.partition('role="main"')[2])
    for word in words:
        assert word in text
    # What a reader sees is more than an unstyled text: an empty page of this size has 8 kB.
    assert len(picture(file, tmp_path, tmp_path / "page.png", (1200, 900))) > 40_000
    assert len(picture(file, tmp_path, tmp_path / "phone.png", (400, 800))) > 15_000


def test_no_page_is_wider_than_a_screen_or_lacks_a_picture(site: Path, tmp_path: Path):
    names = [str(page.relative_to(site)) for page in site.rglob("*.html") if page.parent.name != "_static"]
    script = FRAMES.replace("PAGES", json.dumps(sorted(names))).replace("WIDTHS", str(WIDTHS))
    frames = site / "_static/frames.html"
    frames.write_text(f'<base href="{site.as_uri()}/"><body style="margin: 0">{script}</body>')
    waits = ("--allow-file-access-from-files", "--virtual-time-budget=10000000")
    dom, _ = browse(frames, tmp_path, *waits, "--dump-dom", size=(1600, 900))
    frames.unlink()
    assert re.findall("<title>(.*)</title>", dom) == ["wrong: "]


def test_every_page_is_reached_from_the_first(site: Path):
    seen, todo = set(), [site / "index.html"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        for target, anchor in re.findall(
            r'href="([^"#:]*\.html)?(#[^"]*)?"', page.read_text(encoding="utf-8")
        ):
            goal = (page.parent / target).resolve() if target else page
            assert goal.is_file(), f"{page}: {target}"
            assert len(anchor) < 2 or f'id="{anchor[1:]}"' in goal.read_text(encoding="utf-8"), (
                f"{page}: {anchor}"
            )
            todo.append(goal)
    made = {page for page in site.rglob("*.html") if page.parent.name != "_static"}
    assert made - seen == set()
    assert len(seen) > len(pages.PAGES)


@pytest.fixture(scope="module")
def cache() -> Iterator[Path]:
    """The user's, without package lists, by which `check` would warn of the updates of today."""
    with view_of_cache("pages") as view:
        shutil.rmtree(view / "apt", ignore_errors=True)
        yield view


@pytest.mark.parametrize("page", WITH_BUILT, ids=lambda page: page.stem)
def test_commands_print_what_the_page_says(
    page: Path, cpu: Built, cache: Path, request: pytest.FixtureRequest
):
    """In a clone's folder where the recipe `cpu` was built already, or is built by the page itself."""
    with open_folder() as folder:
        pages.place(folder)
        if page.stem != "start":
            run("cp", "-a", cpu.output, folder / "build")  # a copy: `sign` writes into the SIF
        env = {"ENVBUILDER_CACHE": str(cache)}
        different = pages.differences(page, folder, built=True, env=env, seconds=SECONDS)
    if request.config.getoption("--update-golden"):
        pages.update(page, different)
    assert not different, pages.report(different)


# The page of an environment: whole without a script, and no request leaves it.


@pytest.fixture(scope="module")
def report(cpu: Built) -> Path:
    answer = json.loads(run(ENVBUILDER, "report", "cpu", "--artifacts", cpu.output, "--json"))
    assert answer["data"]["file"] == str(cpu.output / "cpu.html")
    return cpu.output / "cpu.html"


def test_a_browser_shows_all_of_a_report_and_asks_nobody(report: Path, cpu: Built, tmp_path: Path):
    dom, asked = browse(report, tmp_path, "--dump-dom")
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


def test_the_commands_of_a_report_run(report: Path, cpu: Built, tmp_path: Path):
    """The lines to copy, with `python -V` in place of the user's program."""
    lines = dict(re.findall("<dt>([^<]*)</dt><dd><code>([^<]*)</code></dd>", report.read_text()))
    for way in ("envbuilder", "Apptainer", "Docker"):
        line = html.unescape(lines[way]).replace("python train.py", "python -V")
        line = line.replace("envbuilder exec", f"{ENVBUILDER} exec --artifacts .")
        assert run("bash", "-c", line, cwd=cpu.output) == "Python 3.11.2\n"


def test_a_report_tells_the_build_that_made_it(report: Path, cpu: Built):
    """Its tests and its times, also after a later build that failed and replaced the log."""
    log = cpu.output / "cpu.log"
    kept = log.read_text()
    log.write_text("of a later build\n")
    try:
        run(ENVBUILDER, "report", "cpu", "--artifacts", cpu.output)
    finally:
        log.write_text(kept)
    text = report.read_text()
    assert ">SIF, image</td>" in text
    assert re.search(r"write the SIF</td><td class=\"number\" data-head=\"time\">\d+\.\d s<", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_of_a_report_is_cut_off_or_broken(report: Path, tmp_path: Path, width: int):
    measured = tmp_path / "measured.html"
    free = re.sub(r"<meta http-equiv=[^>]*>", "", report.read_text()).replace("<details>", "<details open>")
    measured.write_text(free.replace("</body>", f"{MEASURE}</body>"))
    dom, _ = browse(measured, tmp_path, "--dump-dom", size=(width, 3000))
    assert re.findall("<title>(.*)</title>", dom)[0] == "wrong: "


def test_the_screenshot_of_a_report_is_a_picture_of_that_size(report: Path, tmp_path: Path):
    shot = tmp_path / "page.png"
    assert len(picture(report, tmp_path, shot)) > 50_000  # an empty page of that size has 15 kB


def test_the_policy_of_a_report_keeps_a_foreign_script_from_running(report: Path, tmp_path: Path):
    """The other tests cannot miss a script: the browser runs none in this page, nor does it fetch a picture."""
    harmed = tmp_path / "harmed.html"
    harmed.write_text(report.read_text().replace("</body>", f"{SCRIPT}</body>"))
    dom, asked = browse(harmed, tmp_path, "--dump-dom")
    assert "<title>cpu" in dom
    assert asked == set()
    free = tmp_path / "free.html"
    free.write_text(re.sub(r"<meta http-equiv=[^>]*>", "", harmed.read_text()))
    dom, asked = browse(free, tmp_path, "--dump-dom")
    assert "<title>ran" in dom
    assert asked


def test_the_sizes_of_a_report_are_those_of_the_layers(report: Path, cpu: Built):
    answer = json.loads(run(ENVBUILDER, "report", "cpu", "--artifacts", cpu.output, "--json"))
    total, tree = sum(answer["data"]["layers"].values()), int(str(cpu.data["tree_bytes"]))
    assert tree <= total < 1.01 * tree  # a file with two names counts under each
    assert (
        answer["data"]["layers"]["python"]
        > answer["data"]["layers"]["os"]
        > answer["data"]["layers"]["extensions"]
        > 0
    )
