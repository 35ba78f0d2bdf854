"""The fetcher against a real server on this machine that can be told to misbehave."""

import contextlib
import functools
import hashlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from envbuilder.core.cache import Store
from envbuilder.core.errors import FetchError
from envbuilder.lock.model import Artifact, blobs
from envbuilder.registry.client import Client
from envbuilder.registry.download import fetch_part
from envbuilder.sources import fetch as fetch_module
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.http import session as wire_module
from envbuilder.sources.names import BLOBS, Sources
from tests.support import bases
from tests.support.bases import locked
from tests.support.locks import CONTENT, make_deb, make_wheel
from tests.support.runner import FakeRunner
from tests.support.serving import Quiet, ask_directly, serving, silent_server


@dataclass
class Site:
    """What the server has, what it was asked, and how it fails: answers to give first, by path."""

    files: dict[str, bytes] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)  # send so many bytes, then close
    stall: threading.Event | None = None  # send nothing until it is set
    ranges: bool = True
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # path, Range, Authorization
    url: str = ""


class Handler(Quiet):
    site: Site
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def answer(self, *, with_body: bool) -> None:
        site, path = self.site, unquote(self.path)
        wanted = self.headers.get("Range", "")
        site.asked.append((path, wanted, self.headers.get("Authorization", "")))
        waiting = site.statuses.get(path, [])
        status = waiting.pop(0) if waiting else 200 if path in site.files else 404
        body = site.files.get(path, b"") if status == 200 else b""
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and site.ranges and body else 0
        self.send_response(206 if start else status)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.send_header("Content-Type", "text/html" if path.endswith("/") else "application/octet-stream")
        self.end_headers()
        body = body[start:]
        if site.cuts.get(path):
            body = body[: site.cuts[path].pop(0)]
            self.close_connection = True
        if site.stall:
            site.stall.wait()
        if with_body:
            self.wfile.write(body)


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site()
    with serving(type("SiteHandler", (Handler,), {"site": state})) as host:
        state.url = f"http://{host}/"
        yield state


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_directly(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


class Counter:
    def __init__(self) -> None:
        self.total = 0
        self.guard = threading.Lock()

    def advance(self, count: int, /) -> None:
        with self.guard:
            self.total += count


def make_fetcher(
    store: Store, site: Site, *, folders: tuple[Path, ...] = (), offline: bool = False
) -> Fetcher:
    sources = Sources(
        debian=(f"{site.url}debian/",),
        indexes=(f"{site.url}simple/",),
        pytorch=f"{site.url}whl/",
        folders=folders,
        snapshot=f"{site.url}snapshot/",
        security=(f"{site.url}debian-security/",),
        ubuntu=(f"{site.url}ubuntu/",),
        ubuntu_files=f"{site.url}files/",
    )
    return Fetcher(store, lambda: sources, offline=offline)


def test_a_deb_comes_from_the_mirror_and_every_byte_is_reported(store: Store, site: Site) -> None:
    deb, seen = make_deb(), Counter()
    site.files["/debian/pool/tool_1.0_amd64.deb"] = CONTENT
    make_fetcher(store, site).fetch([deb], seen)
    assert store.artifact(deb.sha256).read_bytes() == CONTENT
    assert seen.total == len(CONTENT)


def test_a_wheel_is_looked_up_in_the_index(store: Store, site: Site) -> None:
    wheel = make_wheel()
    site.files["/simple/tool/"] = (
        b'<a href="../../files/tool-1.0-py3-none-any.whl">tool-1.0-py3-none-any.whl</a>'
    )
    site.files["/files/tool-1.0-py3-none-any.whl"] = CONTENT
    make_fetcher(store, site).fetch([wheel])
    assert store.artifact(wheel.sha256).is_file()


def test_a_build_of_pytorch_is_looked_up_below_its_own_index(store: Store, site: Site) -> None:
    wheel = make_wheel(source="pytorch", path="cu126/tool/tool-1.0+cu126-py3-none-any.whl")
    site.files["/whl/cu126/tool/"] = (
        b'<a href="/whl/cu126/tool-1.0%2Bcu126-py3-none-any.whl">tool-1.0+cu126-py3-none-any.whl</a>'
    )
    site.files["/whl/cu126/tool-1.0+cu126-py3-none-any.whl"] = CONTENT
    make_fetcher(store, site).fetch([wheel])
    assert store.artifact(wheel.sha256).is_file()


def test_a_standalone_python_comes_from_the_first_mirror_that_has_it(store: Store, site: Site) -> None:
    name = "cpython-3.10.22+20261009-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
    wanted = replace(make_deb(), kind="archive", source="python-build-standalone", path=f"20261009/{name}")
    site.files[f"/second/20261009/{name}"] = CONTENT
    sources = Sources(debian=(), standalone=(f"{site.url}/first/", f"{site.url}/second/"))
    Fetcher(store, lambda: sources).fetch([wanted])
    assert store.artifact(wanted.sha256).read_bytes() == CONTENT


def test_a_cut_connection_is_resumed_where_it_ended(store: Store, site: Site) -> None:
    deb, seen = make_deb(), Counter()
    path = "/debian/pool/tool_1.0_amd64.deb"
    site.files[path] = CONTENT
    site.cuts[path] = [700_000]
    make_fetcher(store, site).fetch([deb], seen)
    ranges = [wanted for _, wanted, _ in site.asked]
    assert ranges[0] == ""
    assert 0 < int(ranges[1].removeprefix("bytes=").removesuffix("-")) <= 700_000
    assert store.artifact(deb.sha256).read_bytes() == CONTENT
    assert seen.total == len(CONTENT)


def test_a_server_that_cannot_resume_sends_everything_again(store: Store, site: Site) -> None:
    deb, seen = make_deb(), Counter()
    path = "/debian/pool/tool_1.0_amd64.deb"
    site.files[path] = CONTENT
    site.cuts[path] = [700_000]
    site.ranges = False
    make_fetcher(store, site).fetch([deb], seen)
    assert store.artifact(deb.sha256).read_bytes() == CONTENT
    assert seen.total == len(CONTENT)


def test_a_connection_that_never_gets_further_is_given_up(store: Store, site: Site) -> None:
    path = "/debian/pool/tool_1.0_amd64.deb"
    site.files[path] = CONTENT
    site.cuts[path] = [0] * 20
    with pytest.raises(FetchError, match="no source that could be reached has it"):
        make_fetcher(store, site).fetch([make_deb()])
    assert [asked for asked, _, _ in site.asked].count(path) == 4


def test_a_busy_server_is_asked_again(store: Store, site: Site) -> None:
    deb = make_deb()
    path = "/debian/pool/tool_1.0_amd64.deb"
    site.files[path] = CONTENT
    site.statuses[path] = [503, 429]
    make_fetcher(store, site).fetch([deb])
    assert len(site.asked) == 3


def test_wrong_bytes_are_refused_and_nothing_is_kept(store: Store, site: Site) -> None:
    deb, seen = make_deb(), Counter()
    wrong = CONTENT[:-1] + b"!"
    site.files["/debian/pool/tool_1.0_amd64.deb"] = wrong
    with pytest.raises(FetchError) as caught:
        make_fetcher(store, site).fetch([deb], seen)
    for text in (
        "tool_1.0_amd64.deb",
        deb.sha256,
        hashlib.sha256(wrong).hexdigest(),
        f"{site.url}debian/pool",
    ):
        assert text in caught.value.message
    assert not store.artifact(deb.sha256).exists()
    assert not list((store.root / "partial").iterdir())
    assert seen.total == 0


def test_more_bytes_than_locked_are_refused(store: Store, site: Site) -> None:
    site.files["/debian/pool/tool_1.0_amd64.deb"] = CONTENT + b"more"
    with pytest.raises(FetchError, match=f"larger than the {len(CONTENT)} bytes"):
        make_fetcher(store, site).fetch([make_deb()])


def test_what_is_gone_is_named_with_the_places_that_were_tried(store: Store, site: Site) -> None:
    with pytest.raises(FetchError) as caught:
        make_fetcher(store, site).fetch([make_deb()])
    assert "tool 1.0" in caught.value.message
    assert f"{site.url}debian/pool/tool_1.0_amd64.deb: not found (404)" in caught.value.message
    assert "--upgrade" in caught.value.hint


def test_a_file_that_the_index_does_not_list_is_gone(store: Store, site: Site) -> None:
    site.files["/simple/tool/"] = b'<a href="/f/tool-2.0-py3-none-any.whl">tool-2.0-py3-none-any.whl</a>'
    with pytest.raises(FetchError, match=r"there is no `tool-1\.0-py3-none-any\.whl`"):
        make_fetcher(store, site).fetch([make_wheel()])


def test_without_a_network_the_error_says_so_and_hints(store: Store) -> None:
    nobody = Site(url="http://127.0.0.1:9/")
    with pytest.raises(FetchError) as caught:
        make_fetcher(store, nobody).fetch([make_deb()])
    assert "the connection was refused" in caught.value.message
    assert "ENVBUILDER_FOLDERS" in caught.value.hint


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("make", [make_deb, make_wheel])
def test_a_source_that_refuses_access_is_not_one_that_cannot_be_reached(
    store: Store, site: Site, status: int, make: Callable[[], Artifact]
) -> None:
    guarded = Site(url=site.url.replace("//", "//reader:s3cret@"))
    for path in ("/simple/tool/", "/debian/pool/tool_1.0_amd64.deb"):
        site.statuses[path] = [status]
    with pytest.raises(FetchError) as caught:
        make_fetcher(store, guarded).fetch([make()])
    assert "refused access" in caught.value.message
    assert f"({status})" in caught.value.message
    assert "~/.netrc" in caught.value.hint
    assert "s3cret" not in caught.value.message + caught.value.hint
    assert sum(path in site.statuses for path, *_ in site.asked) == 1  # asking again would lock an account


def test_no_mirror_at_all_is_said_before_any_request(store: Store) -> None:
    with pytest.raises(FetchError, match="no source for `debian` is known"):
        Fetcher(store, lambda: Sources(debian=(), snapshot="")).fetch([make_deb()])


def test_offline_lists_everything_that_is_missing_before_anything_else(store: Store, site: Site) -> None:
    debs = [make_deb(name="one"), make_deb(b"two", name="two")]
    with pytest.raises(FetchError) as caught:
        make_fetcher(store, site, offline=True).fetch(debs)
    assert "one_1.0_amd64.deb" in caught.value.message
    assert "two_1.0_amd64.deb" in caught.value.message
    assert not site.asked


def test_offline_takes_what_a_folder_has(store: Store, site: Site, tmp_path: Path) -> None:
    deb = make_deb()
    (tmp_path / deb.filename).write_bytes(CONTENT)
    make_fetcher(store, site, folders=(tmp_path,), offline=True).fetch([deb])
    assert store.artifact(deb.sha256).is_file()
    assert not site.asked


def test_a_folder_comes_before_the_network(store: Store, site: Site, tmp_path: Path) -> None:
    wheel = make_wheel(source="pytorch", path="cpu/tool/tool-1.0+cpu-py3-none-any.whl")
    (tmp_path / "tool-1.0+cpu-py3-none-any.whl").write_bytes(CONTENT)
    make_fetcher(store, site, folders=(tmp_path,)).fetch([wheel])
    assert store.artifact(wheel.sha256).is_file()
    assert not site.asked


def test_a_wrong_file_in_a_folder_is_passed_over(store: Store, site: Site, tmp_path: Path) -> None:
    deb = make_deb()
    (tmp_path / deb.filename).write_bytes(b"x" * len(CONTENT))
    site.files["/debian/pool/tool_1.0_amd64.deb"] = CONTENT
    make_fetcher(store, site, folders=(tmp_path,)).fetch([deb])
    assert store.artifact(deb.sha256).read_bytes() == CONTENT


def test_what_is_in_the_store_is_not_asked_for_and_no_source_is_probed(store: Store, site: Site) -> None:
    deb = make_deb()
    site.files["/debian/pool/tool_1.0_amd64.deb"] = CONTENT
    make_fetcher(store, site).fetch([deb])

    def probe() -> Sources:
        pytest.fail("probed although nothing is missing")

    Fetcher(store, probe).fetch([deb])
    assert len(site.asked) == 1


@pytest.mark.parametrize("damage", [CONTENT[:1000], b"?" * len(CONTENT)], ids=["truncated", "same-size"])
def test_a_damaged_cache_entry_is_fetched_again(store: Store, site: Site, damage: bytes) -> None:
    deb = make_deb()
    site.files["/debian/pool/tool_1.0_amd64.deb"] = CONTENT
    make_fetcher(store, site).fetch([deb])
    store.artifact(deb.sha256).write_bytes(damage)
    make_fetcher(store, site).fetch([deb])
    assert store.artifact(deb.sha256).read_bytes() == CONTENT


def test_many_files_come_at_once_and_each_only_once(store: Store, site: Site) -> None:
    debs = [make_deb(f"content {number}".encode(), name=f"tool{number}") for number in range(40)]
    for number, deb in enumerate(debs):
        site.files[f"/debian/{deb.path}"] = f"content {number}".encode()
    fetchers = [make_fetcher(store, site) for _ in range(3)]
    threads = [threading.Thread(target=fetcher.fetch, args=([*debs, *debs],)) for fetcher in fetchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(store.artifact(deb.sha256).is_file() for deb in debs)
    assert len(site.asked) == len(debs)


# What images consist of


@dataclass(frozen=True)
class Image:
    """An image of a registry, as a lock names it, and the bytes of each of its files."""

    files: tuple[Artifact, ...]
    contents: dict[str, bytes]  # by sha256


def make_image(site: Site) -> Image:
    """An image that the site serves as its registry."""
    packed = bases.pack(bases.debian())
    host = site.url.removeprefix("http://").rstrip("/")
    files = blobs(locked(bases.debian(), f"{host}/site/base:1", host))
    contents = {bases.sha256(data): data for data in (packed.manifest, packed.config, *packed.blobs)}
    for file in files:
        site.files[f"/v2/site/base/{file.path}"] = contents[f"sha256:{file.sha256}"]
    return Image(files, {digest.removeprefix("sha256:"): data for digest, data in contents.items()})


def with_registry(store: Store, *folders: Path, offline: bool = False) -> Fetcher:
    client = Client({}, FakeRunner())
    sources = Sources(debian=(), folders=folders)
    return Fetcher(store, lambda: sources, offline=offline, registry=functools.partial(fetch_part, client))


def test_an_image_comes_from_its_registry_and_every_byte_is_reported(store: Store, site: Site) -> None:
    image, seen = make_image(site), Counter()
    with_registry(store).fetch(image.files, seen)
    assert {one.sha256: store.artifact(one.sha256).read_bytes() for one in image.files} == image.contents
    assert seen.total == sum(one.size for one in image.files)
    asked = len(site.asked)
    with_registry(store).fetch(image.files)
    assert len(site.asked) == asked == len(image.files)


def test_a_layout_folder_serves_before_the_registry_without_a_network(
    store: Store, site: Site, tmp_path: Path
) -> None:
    image = make_image(site)
    (tmp_path / BLOBS).mkdir(parents=True)
    for digest, content in image.contents.items():
        (tmp_path / BLOBS / digest).write_bytes(content)
    with_registry(store, tmp_path, offline=True).fetch(image.files)
    assert {one.sha256: store.artifact(one.sha256).read_bytes() for one in image.files} == image.contents
    assert not site.asked


def test_a_damaged_layer_in_the_cache_or_in_a_folder_is_fetched_again(
    store: Store, site: Site, tmp_path: Path
) -> None:
    image = make_image(site)
    with_registry(store).fetch(image.files)
    layer = image.files[-1]
    (tmp_path / BLOBS).mkdir(parents=True)
    for path in (store.artifact(layer.sha256), tmp_path / BLOBS / layer.sha256):
        path.write_bytes(bytes(layer.size))
    with_registry(store, tmp_path).fetch(image.files)
    assert store.artifact(layer.sha256).read_bytes() == image.contents[layer.sha256]


def test_offline_what_is_lost_of_an_image_is_named_with_the_packages(store: Store, site: Site) -> None:
    image = make_image(site)
    with pytest.raises(FetchError, match="6 files are not in the cache") as caught:
        with_registry(store, offline=True).fetch([make_deb(), *image.files])
    manifest, config, *_, layer = image.files
    assert "tool_1.0_amd64.deb (1.0 MB)" in caught.value.message
    for one, part in ((manifest, "manifest"), (config, "config"), (layer, "layer 3 of 3")):
        assert f"sha256:{one.sha256}, {part} of `{layer.name}`" in caught.value.message
    assert "cache vendor" in caught.value.hint
    assert not site.asked


def test_what_a_registry_no_longer_has_is_named_with_all_that_is_lost(store: Store, site: Site) -> None:
    image = make_image(site)
    _, config, layer, *_ = image.files
    del site.files[f"/v2/site/base/{layer.path}"], site.files[f"/v2/site/base/{config.path}"]
    with pytest.raises(FetchError, match="could not fetch 2 of the files") as caught:
        with_registry(store).fetch(image.files)
    told = "\n".join(one.message for one in caught.value.findings)
    assert f"`sha256:{config.sha256}` ({layer.name} config): it is gone from every source" in told
    assert f"`sha256:{layer.sha256}` ({layer.name} layer 1 of 3): it is gone from every source" in told
    assert "ENVBUILDER_FOLDERS" in caught.value.hint


def test_everything_that_is_lost_is_named_at_once_and_the_rest_is_kept(store: Store, site: Site) -> None:
    debs = [make_deb(f"content {number}".encode(), name=f"tool{number}") for number in range(20)]
    for number, deb in enumerate(debs[2:], 2):
        site.files[f"/debian/{deb.path}"] = f"content {number}".encode()
    site.files[f"/debian/{debs[1].path}"] = b"other bytes"
    with pytest.raises(FetchError, match="could not fetch 2 of the files") as caught:
        make_fetcher(store, site).fetch(debs)
    gone, wrong = caught.value.findings
    assert "tool0_1.0_amd64.deb" in gone.message
    assert "gone from every source" in gone.message
    assert "tool1_1.0_amd64.deb" in wrong.message
    assert "no source has the file of this sha256" in wrong.message
    assert [deb.name for deb in make_fetcher(store, site).missing(debs)] == ["tool0", "tool1"]
    assert not list((store.root / "partial").iterdir())


def test_a_source_that_cannot_be_reached_stops_the_rest(store: Store) -> None:
    debs = [make_deb(f"content {number}".encode(), name=f"tool{number}") for number in range(200)]
    nobody = Site(url="http://127.0.0.1:9/")
    began = time.monotonic()
    with pytest.raises(FetchError, match=r"tool\d+_1\.0.*no source could be reached"):
        make_fetcher(store, nobody).fetch(debs)
    assert time.monotonic() - began < 3


def keep(site: Site, deb: Artifact, content: bytes = CONTENT) -> None:
    """Let the archive of all days have a package."""
    digest = hashlib.sha1(content).hexdigest()
    places = [{"name": deb.filename, "archive_name": "debian", "path": "/pool", "size": len(content)}]
    other = [{"name": deb.filename.replace("amd64", "arm64"), "archive_name": "debian"}]
    question = f"/snapshot/mr/binary/{deb.name}/{deb.version}/binfiles?fileinfo=1"
    site.files[question] = json.dumps({"fileinfo": {"0" * 40: other, digest: places}}).encode()
    site.files[f"/snapshot/file/{digest}"] = content


@pytest.mark.parametrize("mirror", [None, b"other bytes"], ids=["gone", "wrong"])
def test_what_the_mirrors_no_longer_have_comes_from_the_archive_of_all_days(
    store: Store, site: Site, mirror: bytes | None
) -> None:
    deb = make_deb()
    keep(site, deb)
    if mirror:
        site.files[f"/debian/{deb.path}"] = mirror
    make_fetcher(store, site).fetch([deb])
    assert store.artifact(deb.sha256).read_bytes() == CONTENT


def test_a_superseded_security_update_comes_from_the_archive_of_all_days(store: Store, site: Site) -> None:
    """Its answer has files of both archives."""
    deb = replace(make_deb(), source="debian-security", path="pool/updates/main/t/tool/tool_1.0_amd64.deb")
    keep(site, deb)
    make_fetcher(store, site).fetch([deb])
    assert store.artifact(deb.sha256).read_bytes() == CONTENT
    assert site.asked[0][0] == f"/debian-security/{deb.path}"


def test_a_superseded_package_of_ubuntu_comes_from_the_archive_of_all_files(store: Store, site: Site) -> None:
    deb = replace(make_deb(), source="ubuntu", path="pool/universe/t/tool/tool_1.0-1~ubuntu1_amd64.deb")
    site.files[f"/files/{deb.filename}"] = CONTENT
    make_fetcher(store, site).fetch([deb])
    assert store.artifact(deb.sha256).read_bytes() == CONTENT
    assert [path for path, _, _ in site.asked] == [f"/ubuntu/{deb.path}", f"/files/{deb.filename}"]


def test_the_archive_of_all_days_is_not_asked_for_what_the_mirrors_have(store: Store, site: Site) -> None:
    deb = make_deb()
    site.files[f"/debian/{deb.path}"] = CONTENT
    make_fetcher(store, site).fetch([deb])
    assert [path for path, _, _ in site.asked] == [f"/debian/{deb.path}"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b'{"fileinfo": {}}', "there never was a"),
        (b"<html>", "no answer of an archive"),
        (b'{"fileinfo": {"../../up": [{"name": "tool_1.0_amd64.deb"}]}}', "there never was a"),
        (b'{"fileinfo": []}', "no answer of an archive"),
    ],
)
def test_an_answer_without_the_file_is_told(store: Store, site: Site, answer: bytes, why: str) -> None:
    site.files["/snapshot/mr/binary/tool/1.0/binfiles?fileinfo=1"] = answer
    with pytest.raises(FetchError, match=why):
        make_fetcher(store, site).fetch([make_deb()])


def cut_for_good(store: Store, site: Site, deb: Artifact) -> None:
    """A download that gives up after some bytes, as one that is killed does."""
    path = f"/debian/{deb.path}"
    site.files[path] = CONTENT
    site.cuts[path] = [700_000, *[0] * 9]
    with pytest.raises(FetchError, match="the connection was cut"):
        make_fetcher(store, site).fetch([deb])
    site.cuts[path] = []
    site.asked.clear()


def test_a_later_download_goes_on_where_the_last_one_ended(store: Store, site: Site) -> None:
    deb, seen = make_deb(), Counter()
    cut_for_good(store, site, deb)
    had = store.partial(deb.sha256).stat().st_size
    assert had > 0
    make_fetcher(store, site).fetch([deb], seen)
    assert [wanted for _, wanted, _ in site.asked] == [f"bytes={had}-"]
    assert store.artifact(deb.sha256).read_bytes() == CONTENT
    assert seen.total == len(CONTENT)
    assert not store.partial(deb.sha256).exists()


@pytest.mark.parametrize("left", [b"x" * 1000, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 1)])
def test_a_beginning_that_is_wrong_is_fetched_again(store: Store, site: Site, left: bytes) -> None:
    deb, seen = make_deb(), Counter()
    site.files[f"/debian/{deb.path}"] = CONTENT
    store.partial(deb.sha256).write_bytes(left)
    make_fetcher(store, site).fetch([deb], seen)
    assert store.artifact(deb.sha256).read_bytes() == CONTENT
    assert seen.total == len(CONTENT)


def test_a_download_that_was_whole_before_the_kill_is_not_asked_for(store: Store, site: Site) -> None:
    deb = make_deb()
    store.partial(deb.sha256).write_bytes(CONTENT)
    make_fetcher(store, site).fetch([deb])
    assert store.artifact(deb.sha256).read_bytes() == CONTENT
    assert not site.asked


@pytest.mark.parametrize(
    "link", ["../../tool-1.0-py3-none-any.whl", "http://127.0.0.1:9/tool-1.0-py3-none-any.whl"]
)
def test_offline_an_index_on_disk_serves_what_it_holds_itself(
    store: Store, tmp_path: Path, link: str
) -> None:
    wheel = make_wheel()
    (tmp_path / "simple/tool").mkdir(parents=True)
    (tmp_path / "simple/tool/index.html").write_text(f'<a href="{link}">{wheel.filename}</a>')
    (tmp_path / wheel.filename).write_bytes(CONTENT)
    sources = Sources(debian=(), indexes=("http://127.0.0.1:9/", f"{(tmp_path / 'simple').as_uri()}/"))
    fetcher = Fetcher(store, lambda: sources, offline=True)
    if link.startswith("http"):
        with pytest.raises(FetchError, match="offline, and 1 file is not in the cache"):
            fetcher.fetch([wheel])
    else:
        fetcher.fetch([wheel])
        assert store.artifact(wheel.sha256).is_file()


def test_credentials_reach_the_server_but_no_message(store: Store, site: Site) -> None:
    site.files["/simple/tool/"] = (
        b'<a href="/files/tool-1.0-py3-none-any.whl?token=hidden">tool-1.0-py3-none-any.whl</a>'
    )
    secret = site.url.replace("http://", "http://someone:secret@")
    sources = Sources(debian=(), indexes=(f"{secret}simple/",))
    with pytest.raises(FetchError) as caught:
        Fetcher(store, lambda: sources).fetch([make_wheel()])
    assert [authorization.partition(" ")[0] for _, _, authorization in site.asked] == ["Basic", "Basic"]
    assert "secret" not in caught.value.message + caught.value.hint
    assert "hidden" not in caught.value.message


def test_a_package_index_on_disk_serves_as_well(store: Store, site: Site, tmp_path: Path) -> None:
    wheel = make_wheel()
    (tmp_path / "simple/tool").mkdir(parents=True)
    (tmp_path / "simple/tool/index.html").write_text(f'<a href="../../{wheel.filename}">{wheel.filename}</a>')
    (tmp_path / wheel.filename).write_bytes(CONTENT)
    sources = Sources(debian=(), indexes=(f"{site.url}simple/", f"{(tmp_path / 'simple').as_uri()}/"))
    Fetcher(store, lambda: sources, offline=False).fetch([wheel])
    assert store.artifact(wheel.sha256).is_file()
    assert not site.asked


def test_sizes_are_measured_without_fetching(store: Store, site: Site, tmp_path: Path) -> None:
    site.files["/files/tool.whl"] = CONTENT
    (tmp_path / "here.whl").write_bytes(b"123")
    urls = [f"{site.url}files/tool.whl", (tmp_path / "here.whl").as_uri()]
    assert make_fetcher(store, site).measure(urls) == (len(CONTENT), 3)


def test_a_size_that_cannot_be_asked_for_is_an_error(store: Store, site: Site) -> None:
    with pytest.raises(FetchError, match="not found"):
        make_fetcher(store, site).measure([f"{site.url}files/nothing.whl"])


def test_an_interrupt_ends_a_download_that_hangs(
    store: Store, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "JOIN", 0.1)
    site.files["/debian/pool/tool_1.0_amd64.deb"] = CONTENT
    site.stall = threading.Event()
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        make_fetcher(store, site).fetch([make_deb()])
    assert time.monotonic() - started < 2
    assert not list((store.root / "work").iterdir())
    site.stall.set()
    timer.join()


def test_what_an_index_on_disk_lists_but_lacks_is_gone(store: Store, tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool/index.html").write_text(
        '<a href="tool-1.0-py3-none-any.whl">tool-1.0-py3-none-any.whl</a>'
    )
    sources = Sources(debian=(), indexes=(f"{tmp_path.as_uri()}/",))
    with pytest.raises(FetchError, match="not found"):
        Fetcher(store, lambda: sources).fetch([make_wheel()])


def test_a_host_that_never_answers_is_asked_once_and_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_module, "FIRST", 0.1)
    told = []

    def waiting(pending: Callable[[], Iterable[str]]) -> contextlib.AbstractContextManager[None]:
        told.extend(pending())
        return contextlib.nullcontext()

    with silent_server() as (place, _):
        sources = Sources(debian=(), indexes=(f"http://someone:secret@{place}/simple/",))
        with pytest.raises(FetchError, match=rf"http://{place}/simple/tool/: no answer in 0 s"):
            Fetcher(store, lambda: sources, waiting=waiting).fetch([make_wheel()])
    assert told == [f"http://{place}/simple/tool/"]
