"""The page of an environment: whatever stands in it is text and asks nobody."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import IO

import pytest

from envbuilder.layers.entry import Entry, Kind
from envbuilder.verify.report import Page, ReportTable, Section, layer_sizes, measure, render
from tests.support.browser import browse

HOSTILE = "<script>alert(1)</script><img src=https://evil.example/x>\"'&"


class FakeTree:
    """A tree whose files are texts."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files
        self.entries = tuple(
            Entry(path=path, kind=Kind.FILE, mode=0o644, uid=0, gid=0, mtime=0, size=len(text))
            for path, text in files.items()
        )

    def open(self, path: str) -> IO[bytes]:
        return io.BytesIO(self._files[path].encode())


class Reader(HTMLParser):
    """Collects tags with their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_each_byte_is_counted_once_for_who_brought_it():
    files = {
        "var/lib/dpkg/info/libc6:amd64.list": "/.\n/lib\n/lib/libc.so.6\n/usr/share/doc/libc6\n",
        "usr/lib/libc.so.6": "c" * 100,
        "etc/passwd": "p" * 7,
        "opt/env/lib/python3.11/site-packages/torch-2.6.0.dist-info/RECORD": "torch/a.py,,\ntorch/lib/b.so,,\n../../../bin/torchrun,,\n",
        "opt/env/lib/python3.11/site-packages/torch/a.py": "a" * 20,
        "opt/env/lib/python3.11/site-packages/torch/lib/b.so": "b" * 1000,
        "opt/env/lib/python3.11/site-packages/torch/__pycache__/a.pyc": "y" * 5,
        "opt/env/bin/torchrun": "t" * 3,
        "opt/env/pyvenv.cfg": "v",
        "usr/local/cuda-12.4/bin/nvcc": "n" * 50,
        "opt/envbuilder/extensions/fused-0123/fused.so": "f" * 9,
        "opt/envbuilder/lock.json": "l" * 4,
    }
    parts = {(part.layer, part.name): part.size for part in measure(FakeTree(files))}
    listed = len(files["var/lib/dpkg/info/libc6:amd64.list"])
    record = len(files["opt/env/lib/python3.11/site-packages/torch-2.6.0.dist-info/RECORD"])
    assert parts == {
        ("os", "libc6"): 100,
        ("os", "made while installing"): 7 + listed,
        ("python", "torch"): 20 + 1000 + 5 + 3,
        ("python", "byte code and start-up"): 1 + record,
        ("cuda", "bin of the toolkit"): 50,
        ("extensions", "fused-0123"): 9,
        ("envbuilder", "lock, plan, start-up"): 4,
    }
    assert sum(parts.values()) == sum(map(len, files.values()))
    assert next(iter(layer_sizes(measure(FakeTree(files))))) == "python"


def hostile_page() -> Page:
    table = ReportTable(head=(HOSTILE,), rows=((HOSTILE,),), title=HOSTILE)
    lines = ((HOSTILE, HOSTILE),)
    sections = (
        Section(title="Audit", text=HOSTILE, tables=(table,), lines=lines),
        Section(title="Build times", tables=(ReportTable(head=("a",), rows=(), empty=HOSTILE),)),
    )
    return Page(title=HOSTILE, summary=HOSTILE, figures=((HOSTILE, HOSTILE),), sections=sections, version="1")


def test_whatever_stands_in_it_is_text():
    reader = Reader()
    reader.feed(render(hostile_page()))
    assert {tag for tag, _ in reader.tags} & {"script", "img", "iframe", "link", "object", "base"} == set()
    assert any(HOSTILE in word for word in reader.words)
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)


def test_the_page_asks_no_other_machine():
    reader = Reader()
    reader.feed(render(hostile_page()))
    for _, attributes in reader.tags:
        for name in ("src", "href", "data", "action"):
            assert (attributes.get(name) or "#").startswith("#")
    style = render(hostile_page()).partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    policy = next(
        one["content"] for tag, one in reader.tags if one.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_a_date_is_one_word():
    table = ReportTable(head=("a", "b"), rows=(("x y", "the list of wheels, read 2026-11-24"),))
    section = Section(title="Pins", tables=(table,))
    text = render(Page(title="t", summary="", figures=(), sections=(section,), version="1"))
    assert 'the list of wheels, read <span class="date">2026-11-24</span></td>' in text


def test_numbers_stand_right_and_codes_are_one_word():
    rows = (("EB412", "1.5 MB", "-", "a b"), ("EB720", "12.0 MB", "47.9 s", ""))
    table = ReportTable(head=("code", "size", "time", "message"), rows=rows)
    assert table.kinds == ("code", "number", "number", "text")
    path = "/home/somebody/a-project/recipes/a100.yaml:12:7"
    assert ReportTable(head=("written in",), rows=((path,),)).kinds == ("text",)
    page = Page(
        title="x", summary="", figures=(), version="1",
        sections=(Section(title="s", tables=(table,), lines=(("l", "a" * 64),)),),
    )  # fmt: skip
    reader = Reader()
    reader.feed(render(page))
    assert ("td", {"class": "number", "data-head": "size"}) in reader.tags
    assert ("code", {"class": "digest"}) in reader.tags


# Writes into the title each text that is hard to read: WCAG's contrast to what lies below it is under 4.5.
CONTRAST = """<script>
const parts = color => color.match(/[\\d.]+/g).map(Number);
const over = ([r, g, b, a = 1], below) => [r, g, b].map((one, at) => one * a + below[at] * (1 - a));
const light = color => color.map(one => one / 255).map(one => one <= .04045 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4)
  .reduce((sum, one, at) => sum + one * [.2126, .7152, .0722][at], 0);
const canvas = document.body.appendChild(document.createElement("i"));
canvas.style.background = "Canvas";
const paper = parts(getComputedStyle(canvas).backgroundColor);
const below = one => one ? over(parts(getComputedStyle(one).backgroundColor), below(one.parentElement)) : paper;
const wrong = [];
for (const one of document.querySelectorAll("body *")) {
  if (![...one.childNodes].some(node => node.nodeType == 3 && node.data.trim()) || one.tagName == "SCRIPT") continue;
  const ground = below(one), two = [light(over(parts(getComputedStyle(one).color), ground)), light(ground)];
  if ((Math.max(...two) + .05) / (Math.min(...two) + .05) < 4.5) wrong.push(one.textContent.trim());
}
document.title = (light(paper) < .1 ? "dark" : "light") + ": " + wrong.join("; ");
</script>"""


@pytest.mark.programs
@pytest.mark.parametrize(("scheme", "number"), [("dark", 0), ("light", 1)])  # as Blink numbers them
def test_all_of_it_can_be_read_in_the_dark_and_in_the_light(scheme: str, number: int, tmp_path: Path):
    page = replace(hostile_page(), title="x")
    options = ("--dump-dom", f"--blink-settings=preferredColorScheme={number}")
    dom, _ = browse(with_script(page, CONTRAST, tmp_path), tmp_path, *options)
    assert re.findall("<title>(.*)</title>", dom)[0] == f"{scheme}: "


CUT = """<script>
const cut = [...document.querySelectorAll(".lines code, .wide")].filter(one => one.scrollWidth > one.clientWidth);
document.title = "cut: " + cut.map(one => one.textContent).join("; ");
</script>"""


@pytest.mark.programs
def test_a_long_path_is_not_cut_on_a_narrow_screen(tmp_path: Path):
    path = "/home/somebody/projects/a-long-name/recipes/a100.yaml:12:7"
    pins = ReportTable(
        head=("key", "value", "written in"), rows=(("python", "3.11", path), ("cuda", "12.4", path))
    )
    section = Section(title="Pins", tables=(pins,), lines=(("lock", f"{path}, as of 2026"),))
    page = Page(title="x", summary="", figures=(), sections=(section,), version="1")
    dom, _ = browse(with_script(page, CUT, tmp_path), tmp_path, "--dump-dom", size=(480, 3000))
    assert re.findall("<title>(.*)</title>", dom)[0] == "cut: "


def with_script(page: Page, script: str, folder: Path) -> Path:
    """Write the page with a script, which its own policy would keep from running."""
    shown = folder / "page.html"
    free = re.sub(r"<meta http-equiv=[^>]*>", "", render(page))
    shown.write_text(free.replace("</body>", f"{script}</body>"))
    return shown


def test_a_section_without_rows_says_so():
    page = Page(
        title="x",
        summary="",
        figures=(),
        sections=(Section(title="Audit", tables=(ReportTable(head=("a",), rows=(), empty="none"),)),),
        version="1",
    )
    reader = Reader()
    reader.feed(render(page))
    assert "none" in reader.words
    assert "table" not in {tag for tag, _ in reader.tags}


@pytest.mark.parametrize("title", ["Build times", "Audit"])
def test_every_section_can_be_jumped_to(title: str):
    reader = Reader()
    reader.feed(render(hostile_page()))
    anchor = title.lower().replace(" ", "-")
    assert ("section", {"id": anchor}) in reader.tags
    assert ("a", {"href": f"#{anchor}"}) in reader.tags


def test_the_page_has_no_password_and_no_sign_that_turns_the_text():
    section = Section(
        title="x",
        tables=(ReportTable(head=("a",), rows=(("https://me:s3cr3tPW99@host \u202ex\x1b]0;y\x07",),)),),
    )
    page = render(Page(title="x", summary="\u202ex", figures=(), sections=(section,), version="1"))
    assert "https://***@host x" in page
    assert not [sign for sign in page if not (sign.isprintable() or sign == "\n")]
