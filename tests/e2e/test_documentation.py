"""The documentation as a reader has it: a site in a real browser, and commands that need a built environment."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import browse, picture
from tests.support.disk import view_of_cache
from tests.support.workbench import ROOT, Built, open_folder, run

sys.path.insert(0, str(ROOT / "tests"))
from tests.support import pages

pytestmark = pytest.mark.builds
SECONDS = 600  # a page may build, and wait for other builds
WITH_BUILT = [page for page in pages.PAGES if any(pages.BUILT in block.words for block in pages.blocks(page))]


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
