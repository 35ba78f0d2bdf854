"""The registry client: references, credentials from where other tools leave them, and a server that refuses and demands."""

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from envbuilder.artifacts.oci.model import Descriptor, make_index, make_manifest, parse_manifest
from envbuilder.artifacts.oci.naming import Reference, names_registry, parse_reference
from envbuilder.core.cache import sha256_bytes
from envbuilder.core.errors import (
    AbsentError,
    AccessError,
    BusyError,
    ContentError,
    CutError,
    UsageError,
    VerifyError,
)
from envbuilder.core.process import ProcessRunner
from envbuilder.registry import client as client_module
from envbuilder.registry import upload as write_module
from envbuilder.registry.client import Client, probe_settings
from envbuilder.registry.credentials import find_credentials
from envbuilder.registry.download import fetch_blob, read_blob, read_image, read_manifest, read_referrers
from envbuilder.registry.upload import Sent, Source, push_blob, put_manifest
from envbuilder.sources.http.session import CHUNK
from envbuilder.sources.names import is_loopback
from tests.support.runner import FakeRunner
from tests.support.serving import Quiet, ask_directly, serving

DIGEST = "ab" * 32
SECRET = "s3cr3t-planted"  # must never be seen in a message or a log
BLOB = bytes(range(256)) * 4096


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("r.test/a", "r.test", "a", "", None),
        ("r.test:5000/a/b-c/d_e:1.2", "r.test:5000", "a/b-c/d_e", "1.2", None),
        (f"r.test/a:1@sha256:{DIGEST}", "r.test", "a", "1", DIGEST),
        (f"localhost/a@sha256:{DIGEST}", "localhost", "a", "", DIGEST),
        ("[::1]:5000/a:x", "[::1]:5000", "a", "x", None),
        ("oras://r.test/a:1", "r.test", "a", "1", None),
    ],
)
def test_a_reference_is_read_in_its_parts(text, registry, repository, tag, digest):
    found = parse_reference(text)
    assert (found.registry, found.repository, found.tag, found.digest) == (registry, repository, tag, digest)
    assert parse_reference(str(found)) == found


def test_a_name_without_a_registry_is_one_of_the_default_registry():
    assert not names_registry("debian:12")
    assert parse_reference("debian:12").repository == "library/debian"
    assert parse_reference("a/b:12").repository == "a/b"
    assert parse_reference("debian:12").registry == parse_reference("a/b").registry != ""


@pytest.mark.parametrize(
    "text", ["", "R.test/", "r.test/A", "r.test/a:", "r.test/a@md5:00", "r.test/a@sha256:12", "r.test/a b", "r.test/../a", "-r.test/a"]
)  # fmt: skip
def test_what_is_no_reference_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the words differ
        parse_reference(text)


def test_loopback_is_told_from_names_that_look_like_it():
    assert [is_loopback(one) for one in ("127.0.0.1:5000", "localhost", "[::1]:5000")] == [True] * 3
    assert [is_loopback(one) for one in ("localhost.evil.test", "127.evil.test", "r.test")] == [False] * 3


# ------------------------------------------------------------------------------------------------- credentials


def basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def keep(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def find(home: Path, text: str = "r.test/team/a", runner: FakeRunner | None = None, **more: str):
    found = find_credentials(parse_reference(text), {"HOME": str(home), **more}, runner or FakeRunner())
    return (found.user, found.password or found.token) if found else None


@pytest.mark.parametrize(
    ("place", "more"),
    [
        (".docker/config.json", {}),
        (".config/containers/auth.json", {}),
        (".apptainer/docker-config.json", {}),
        ("elsewhere.json", {"REGISTRY_AUTH_FILE": "{}/elsewhere.json"}),
        ("d/config.json", {"DOCKER_CONFIG": "{}/d"}),
        ("run/containers/auth.json", {"XDG_RUNTIME_DIR": "{}/run"}),
    ],
)
def test_credentials_are_found_where_other_tools_leave_them(tmp_path: Path, place: str, more: dict[str, str]):
    keep(tmp_path / place, {"auths": {"r.test": {"auth": basic("ann", SECRET)}}})
    settings = {name: value.format(tmp_path) for name, value in more.items()}
    assert find(tmp_path, **settings) == ("ann", SECRET)
    assert find(tmp_path, "other.test/team/a", **settings) is None


def test_the_longest_name_that_fits_the_repository_decides(tmp_path: Path):
    auths = {"https://r.test/v1/": {"auth": basic("all", "1")}, "r.test/team": {"auth": basic("team", "2")}}
    keep(tmp_path / ".docker/config.json", {"auths": auths})
    assert find(tmp_path) == ("team", "2")
    assert find(tmp_path, "r.test/teamster/a") == ("all", "1")


def test_an_identity_token_takes_the_place_of_a_password(tmp_path: Path):
    keep(tmp_path / ".docker/config.json", {"auths": {"r.test": {"identitytoken": SECRET}}})
    assert find(tmp_path) == ("", SECRET)


@pytest.mark.parametrize(
    "settings", [{"credsStore": "safe", "auths": {"r.test": {}}}, {"credHelpers": {"r.test": "safe"}}]
)
def test_a_helper_program_is_asked_on_its_stdin(tmp_path: Path, settings: dict[str, object]):
    keep(tmp_path / ".docker/config.json", settings)
    answer = json.dumps({"ServerURL": "r.test", "Username": "ann", "Secret": SECRET})
    runner = FakeRunner({"docker-credential-safe": answer})
    assert find(tmp_path, runner=runner) == ("ann", SECRET)
    (command,) = runner.commands
    assert (command.argv, command.input) == (("docker-credential-safe", "get"), b"r.test")


@pytest.mark.programs
def test_a_real_helper_is_asked_and_its_secret_is_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    helper = tmp_path / "bin/docker-credential-safe"
    helper.parent.mkdir()
    helper.write_text(
        "#!/bin/sh\n[ $1 = get ] && read -r server\n"
        f'printf \'{{"ServerURL": "%s", "Username": "ann", "Secret": "{SECRET}"}}\' "$server"\n'
    )
    helper.chmod(0o755)
    keep(tmp_path / ".docker/config.json", {"credsStore": "safe"})
    environment = {"HOME": str(tmp_path), "PATH": f"{helper.parent}:/usr/bin:/bin"}
    with caplog.at_level("DEBUG"):
        found = find_credentials(parse_reference("r.test/a"), environment, ProcessRunner(environment))
    assert found
    assert (found.user, found.password) == ("ann", SECRET)
    assert "docker-credential-safe" in caplog.text
    assert SECRET not in caplog.text + repr(found)


def test_a_helper_that_has_none_and_a_file_that_is_broken_are_passed_over(tmp_path: Path):
    keep(tmp_path / ".docker/config.json", {"credsStore": "safe"})
    (tmp_path / ".config/containers").mkdir(parents=True)
    (tmp_path / ".config/containers/auth.json").write_text("{")
    keep(tmp_path / ".apptainer/docker-config.json", {"auths": {"r.test": {"auth": basic("ann", SECRET)}}})
    runner = FakeRunner({"docker-credential-safe": "credentials not found in native keychain\n"})
    assert find(tmp_path, runner=runner) == ("ann", SECRET)


# ----------------------------------------------------------------------------------------------------- a server


@dataclass
class State:
    """What the registry has, what it demands, and how it fails."""

    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # path below /v2/ → type and content
    demand: str = ""  # "", "basic", "bearer", or a status to give everyone
    password: str = SECRET
    statuses: list[tuple[int, str]] = field(default_factory=list)  # to give first, with Retry-After
    cuts: list[int] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)  # path below /v2/ → where it is now
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # path, Authorization, Range
    uploads: dict[str, bytearray] = field(default_factory=dict)
    sent: list[tuple[str, int, str]] = field(default_factory=list)  # method, bytes of the body, Content-Range
    torn: list[int] = field(default_factory=list)  # bytes of a request's body before the connection ends
    forgets: bool = False  # what it had of a request that was torn, and the upload with it
    counts: bool = False  # what belongs to a manifest
    closed: bool = False  # siblings, to us
    more: dict[str, str] = field(default_factory=dict)  # path → where the next page is
    most: int = 1 << 30  # bytes of a request
    host: str = ""

    def add(self, repository: str, content: bytes, kind: str, *names: str) -> None:
        place = "manifests" if "manifest" in kind or "index" in kind else "blobs"
        for name in (*names, f"sha256:{hashlib.sha256(content).hexdigest()}"):
            self.files[f"{repository}/{place}/{name}"] = (kind, content)


class Handler(Quiet):
    state: State
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        state, shown, wanted = (
            self.state,
            self.headers.get("Authorization", ""),
            self.headers.get("Range", ""),
        )
        path = urlsplit(self.path).path.removeprefix("/v2/")
        state.asked.append((self.path, shown, wanted))
        if path == "/token":
            self._token(shown)
        elif path == "/elsewhere":
            self._answer(200, BLOB)
        elif state.statuses:
            status, after = state.statuses.pop(0)
            self._answer(status, b"", {"Retry-After": after} if after else {})
        elif state.demand.isdecimal():
            self._answer(int(state.demand), b'{"errors": [{"code": "X", "message": "as it\\u001b says"}]}')
        elif state.demand and shown not in (f"Basic {basic('ann', state.password)}", "Bearer good"):
            realm = f'Bearer realm="http://{state.host}/token",service="s",scope="repository:x:pull"'
            self._answer(
                401, b"{}", {"WWW-Authenticate": realm if state.demand == "bearer" else 'Basic realm="r"'}
            )
        elif urlsplit(self.path).path in state.uploads:
            have = len(state.uploads[urlsplit(self.path).path])
            self._answer(204, b"", {"Range": f"0-{max(have - 1, 0)}", "Location": self.path})
        elif path in state.moved:
            self._answer(307, b"", {"Location": state.moved[path]})
        elif path not in state.files:
            self._answer(404, b"{}")
        else:
            kind, content = state.files[path]
            following = {"Link": f'<{state.more[path]}>; rel="next"'} if path in state.more else {}
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            more = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
            self._answer(206 if start else 200, content[start:], {"Content-Type": kind, **more, **following})

    def do_HEAD(self) -> None:
        path = self.path.removeprefix("/v2/")
        self.state.asked.append((self.path, "", "HEAD"))
        self._answer(200 if path in self.state.files else 404, b"")

    def do_POST(self) -> None:
        state, parts = self.state, urlsplit(self.path)
        repository = parts.path.removeprefix("/v2/").partition("/blobs/")[0]
        asked = parse_qs(parts.query)
        theirs = f"{asked.get('from', [''])[0]}/blobs/{asked.get('mount', [''])[0]}"
        if "mount" in asked and state.closed:
            self._answer(401, b"{}")
            return
        if theirs in state.files:
            state.files[theirs.replace(asked["from"][0], repository, 1)] = state.files[theirs]
            self._answer(201, b"")
            return
        name = f"/v2/{repository}/blobs/uploads/u{len(state.uploads)}"
        state.uploads[name] = bytearray()
        self._answer(202, b"", {"Location": f"{name}?state=0"})

    def do_PATCH(self) -> None:
        upload = self._take()
        if upload is not None:
            self._answer(202, b"", {"Location": f"{urlsplit(self.path).path}?state={len(upload)}"})

    def do_PUT(self) -> None:
        state, parts = self.state, urlsplit(self.path)
        if "/manifests/" in parts.path:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            repository, _, name = parts.path.removeprefix("/v2/").partition("/manifests/")
            state.add(repository, body, self.headers["Content-Type"], name)
            self._answer(201, b"", {"OCI-Subject": "x"} if state.counts else {})
            return
        upload = self._take()
        if upload is None:
            return
        (digest,) = parse_qs(parts.query)["digest"]
        if f"sha256:{hashlib.sha256(upload).hexdigest()}" != digest:
            self._answer(400, b"{}")
            return
        state.files[f"{parts.path.removeprefix('/v2/').partition('uploads/')[0]}{digest}"] = (
            "x",
            bytes(upload),
        )
        self._answer(201, b"")

    def _take(self) -> bytearray | None:
        """Add the body to the upload; None when something else was answered, or the connection ended."""
        state, name = self.state, urlsplit(self.path).path
        size, place = int(self.headers.get("Content-Length", 0)), self.headers.get("Content-Range", "")
        state.sent.append((self.command, size, place))
        if size > state.most:
            self._answer(413, b"")
            self.close_connection = True
            return None
        if name not in state.uploads or (place and int(place.partition("-")[0]) != len(state.uploads[name])):
            self.rfile.read(size)
            self._answer(416 if name in state.uploads else 404, b"{}")
            return None
        torn = bool(size and state.torn)
        state.uploads[name] += self.rfile.read(state.torn.pop(0) if torn else size)
        if torn:
            if state.forgets:
                del state.uploads[name]
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return None
        return state.uploads[name]

    def _token(self, shown: str) -> None:
        if shown and shown != f"Basic {basic('ann', self.state.password)}":
            self._answer(401, b"{}")
        else:
            self._answer(200, json.dumps({"token": "good" if shown else "anonymous"}).encode())

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        length = {"Content-Length": str(len(body))}
        if self.state.cuts and status < 300 and body:
            body = body[: self.state.cuts.pop(0)]
            self.close_connection = True
        self.reply(status, body, length | (headers or {}))


@pytest.fixture
def state() -> Iterator[State]:
    state = State()
    with serving(type("RegistryHandler", (Handler,), {"state": state})) as state.host:
        yield state


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_directly(monkeypatch)


def blob(content: bytes, kind: str = "application/octet-stream") -> Descriptor:
    return Descriptor(media_type=kind, digest=sha256_bytes(content), size=len(content))


IMAGE = make_manifest(
    config=blob(b"{}", "application/vnd.oci.image.config.v1+json"), layers=[blob(BLOB)], annotations={}
)


def here(state: State, repository: str = "team/a", tag: str = "1") -> Reference:
    return Reference(registry=state.host, repository=repository, tag=tag)


def client(home: Path, **more: str):
    return Client({"HOME": str(home), **more}, FakeRunner())


class Silent:
    def advance(self, count: int, /) -> None:
        pass


def test_a_manifest_and_its_blobs_are_read(state: State, tmp_path: Path):
    state.add("team/a", IMAGE.content, IMAGE.media_type, "1")
    state.add("team/a", b"{}", "x")
    found = read_manifest(client(tmp_path), here(state))
    assert found == IMAGE
    assert found.config
    assert read_blob(client(tmp_path), here(state), found.config) == b"{}"
    assert read_manifest(client(tmp_path), here(state).with_digest(found.digest)) == IMAGE


def test_an_index_leads_to_the_image_of_the_platform(state: State, tmp_path: Path):
    listed = Descriptor(
        media_type=IMAGE.media_type, digest=IMAGE.digest, size=len(IMAGE.content), platform="linux/amd64"
    )
    state.add("team/a", IMAGE.content, IMAGE.media_type)
    index = make_index([listed])
    state.add("team/a", index.content, index.media_type, "1")
    assert read_image(client(tmp_path), here(state), "linux/amd64") == IMAGE
    with pytest.raises(AbsentError, match=r"no image for linux/arm64") as caught:
        read_image(client(tmp_path), here(state), "linux/arm64")
    assert caught.value.hint == "it has them for: linux/amd64"


@pytest.mark.parametrize("demand", ["basic", "bearer"])
def test_credentials_are_shown_as_the_registry_demands(state: State, tmp_path: Path, demand: str):
    state.demand = demand
    state.add("team/a", IMAGE.content, IMAGE.media_type, "1")
    keep(tmp_path / ".docker/config.json", {"auths": {state.host: {"auth": basic("ann", SECRET)}}})
    one = client(tmp_path)
    assert read_manifest(one, here(state)) == IMAGE
    before = len(state.asked)
    read_manifest(one, here(state))
    assert len(state.asked) == before + 1  # what was granted is kept
    if demand == "bearer":
        (question,) = [path for path, _, _ in state.asked if path.startswith("/token")]
        assert parse_qs(urlsplit(question).query) == {"service": ["s"], "scope": ["repository:team/a:pull"]}


@pytest.mark.parametrize("demand", ["basic", "bearer", "403"])
@pytest.mark.parametrize("password", ["", "wrong-" + SECRET])
def test_refused_access_says_who_was_asked_with_what(
    state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture, demand: str, password: str
):
    state.demand = demand
    if password:
        keep(tmp_path / ".docker/config.json", {"auths": {state.host: {"auth": basic("ann", password)}}})
    with caplog.at_level("DEBUG"), pytest.raises(AccessError) as caught:
        read_manifest(client(tmp_path), here(state))
    told = f"{caught.value.message} {caught.value.hint} {caplog.text}"
    assert f"`{state.host}` refuses access to `team/a`" in told
    assert f"docker login {state.host}" in told
    assert ("with the credentials of `ann` from" if password else "without credentials") in told
    assert str(tmp_path / ".docker/config.json") in told
    assert SECRET not in told
    assert basic("ann", password) not in told
    assert "\x1b" not in told


@pytest.mark.parametrize(("tag", "sought"), [("1", "1"), ("", "latest")])
def test_what_is_not_there_is_named(state: State, tmp_path: Path, tag: str, sought: str):
    with pytest.raises(AbsentError, match=rf"there is no `127\.0\.0\.1:\d+/team/a:{sought}` \(404\)"):
        read_manifest(client(tmp_path), here(state, tag=tag))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_registry_is_asked_again(state: State, tmp_path: Path, status: int):
    state.add("team/a", IMAGE.content, IMAGE.media_type, "1")
    state.statuses = [(status, "0")] * 3
    assert read_manifest(client(tmp_path), here(state)) == IMAGE
    state.statuses = [(status, "")] * 4
    with pytest.raises(BusyError, match=f"{status}"):
        read_manifest(client(tmp_path), here(state))


def test_a_registry_that_does_not_answer_is_told(tmp_path: Path):
    nowhere = Reference(registry="127.0.0.1:9", repository="a", tag="1")
    with pytest.raises(CutError, match=r"no registry answers for .*: the connection was refused") as caught:
        read_manifest(client(tmp_path), nowhere)
    assert caught.value.hint == "look at the name and the port of the registry"


def test_a_blob_that_is_cut_is_resumed_by_range(state: State, tmp_path: Path):
    state.add("team/a", BLOB, "x")
    state.cuts = [CHUNK + 99, 2 * CHUNK]
    fetch_blob(
        client(tmp_path), here(state), blob(BLOB), tmp_path / "p/x", progress=Silent(), stop=threading.Event()
    )
    assert (tmp_path / "p/x").read_bytes() == BLOB
    assert [wanted for _, _, wanted in state.asked] == [
        "",
        f"bytes={CHUNK + 99}-",
        f"bytes={3 * CHUNK + 99}-",
    ]


def test_what_came_before_the_end_is_kept_and_what_is_wrong_is_not(state: State, tmp_path: Path):
    state.add("team/a", BLOB, "x")
    state.cuts = [CHUNK, 0, 0, 0]
    partial, stop = tmp_path / "p/x", threading.Event()
    with pytest.raises(CutError, match="cut") as caught:
        fetch_blob(client(tmp_path), here(state), blob(BLOB), partial, progress=Silent(), stop=stop)
    assert "goes on where it ended" in caught.value.hint
    assert partial.stat().st_size == CHUNK
    state.files = {path: (kind, bytes(len(BLOB))) for path, (kind, _) in state.files.items()}
    with pytest.raises(ContentError, match="than its digest says"):
        fetch_blob(client(tmp_path), here(state), blob(BLOB), partial, progress=Silent(), stop=stop)
    assert not partial.exists()


def test_a_wrong_manifest_and_a_wrong_config_are_refused(state: State, tmp_path: Path):
    other = make_manifest(config=blob(b"{}"), layers=[], annotations={"a": "b"})
    state.files[f"team/a/manifests/sha256:{IMAGE.digest}"] = (IMAGE.media_type, other.content)
    state.files[f"team/a/blobs/sha256:{sha256_bytes(b'{}')}"] = ("x", b"[]")
    with pytest.raises(ContentError):
        read_manifest(client(tmp_path), here(state).with_digest(IMAGE.digest))
    with pytest.raises(ContentError):
        read_blob(client(tmp_path), here(state), blob(b"{}"))


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"[" * 100_000, b'{"schemaVersion": 1}', b'{"schemaVersion": 2, "manifests": 3}', b'{"schemaVersion": 2}',
     b'{"schemaVersion": 2, "config": {"digest": "sha256:../../x", "size": 1}}', b'{"schemaVersion": 2, "mediaType": "x"}'],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(state: State, tmp_path: Path, content: bytes):
    with pytest.raises(ValueError):  # noqa: PT011 - the words differ
        parse_manifest(content)
    state.files["team/a/manifests/1"] = (IMAGE.media_type, content)
    with pytest.raises(ContentError, match="cannot be used"):
        read_manifest(client(tmp_path), here(state))


def test_referrers_are_found_through_the_api_and_through_the_tag(state: State, tmp_path: Path):
    listed = Descriptor(
        media_type=IMAGE.media_type, digest=IMAGE.digest, size=1, artifact_type="application/x"
    )
    index = make_index([listed])
    subject = here(state).with_digest(IMAGE.digest)
    assert read_referrers(client(tmp_path), subject) == ()
    state.files[f"team/a/manifests/sha256-{IMAGE.digest}"] = (index.media_type, index.content)
    assert read_referrers(client(tmp_path), subject, "application/x") == (listed,)
    state.files = {f"team/a/referrers/sha256:{IMAGE.digest}": (index.media_type, index.content)}
    assert read_referrers(client(tmp_path), subject, "application/x") == (listed,)
    assert read_referrers(client(tmp_path), subject, "application/y") == ()


def test_referrers_on_several_pages_are_all_found(state: State, tmp_path: Path):
    pages = [
        make_index([Descriptor(media_type=IMAGE.media_type, digest=sha256_bytes(text), size=1)])
        for text in (b"1", b"2")
    ]
    first, second = f"team/a/referrers/sha256:{IMAGE.digest}", "team/a/referrers/next"
    state.files = {first: ("x", pages[0].content), second: ("x", pages[1].content)}
    state.more = {first: f"/v2/{second}"}
    found = read_referrers(client(tmp_path), here(state).with_digest(IMAGE.digest))
    assert found == (*pages[0].manifests, *pages[1].manifests)


def test_a_mirror_is_asked_first_and_the_registry_when_it_fails(state: State, tmp_path: Path):
    state.add("hub/team/a", IMAGE.content, IMAGE.media_type, "1")
    far = Reference(registry="r.invalid", repository="team/a", tag="1")
    one = client(tmp_path, ENVBUILDER_REGISTRY_MIRRORS=f"r.invalid={state.host}/hub/ other.test=127.0.0.1:9")
    assert read_manifest(one, far) == IMAGE
    with pytest.raises(CutError, match=r"r\.invalid"):
        read_manifest(one, Reference(registry="r.invalid", repository="team/b", tag="1"))


def test_a_mirror_that_is_none_is_refused():
    with pytest.raises(UsageError, match="ENVBUILDER_REGISTRY_MIRRORS"):
        probe_settings({"ENVBUILDER_REGISTRY_MIRRORS": "https://mirror.test"})


def test_where_a_registry_sends_us_for_a_blob_its_credentials_are_not_shown(state: State, tmp_path: Path):
    state.demand = "basic"
    state.add("team/a", BLOB, "x")
    keep(tmp_path / ".docker/config.json", {"auths": {state.host: {"auth": basic("ann", SECRET)}}})
    elsewhere = f"http://localhost:{state.host.rpartition(':')[2]}/elsewhere"
    state.moved[f"team/a/blobs/sha256:{sha256_bytes(BLOB)}"] = elsewhere
    assert read_blob(client(tmp_path), here(state), blob(BLOB)) == BLOB
    assert [(path, shown) for path, shown, _ in state.asked if path == "/elsewhere"] == [("/elsewhere", "")]


def test_one_registry_may_have_an_authority_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_module, "CERTIFICATES", (tmp_path,))
    (tmp_path / "r.test:5000").mkdir()
    (tmp_path / "r.test:5000/ca.crt").touch()
    settings = probe_settings({"SSL_CERT_FILE": "/site.pem"})
    assert settings.certificates == Path("/site.pem")
    assert settings.certificates_of("r.test:5000") == tmp_path / "r.test:5000/ca.crt"
    assert settings.certificates_of("r.test") is None


def test_plain_http_is_for_loopback_and_for_what_a_setting_names():
    settings = probe_settings({"ENVBUILDER_REGISTRY_HTTP": "r.test"})
    assert [settings.scheme(one) for one in ("r.test", "127.0.0.1:1", "s.test")] == ["http", "http", "https"]


# ------------------------------------------------------------------------------------------------------- sending

PIECE = 1 << 18


def send(state: State, home: Path, content: bytes | Path = BLOB, *, sibling: str = "") -> tuple[Sent, int]:
    """Push a blob; what became of it, and the bytes that the person was told of."""

    class Counter:
        total = 0

        def advance(self, count: int, /) -> None:
            self.total += count

    counter = Counter()
    sent = push_blob(
        client(home), here(state), Source(blob=blob(BLOB), content=content), sibling=sibling, progress=counter,
        stop=threading.Event(),
    )  # fmt: skip
    return sent, counter.total


def has(state: State, repository: str = "team/a") -> bool:
    return state.files.get(f"{repository}/blobs/sha256:{sha256_bytes(BLOB)}", ("", b""))[1] == BLOB


def test_a_blob_is_sent_in_one_request_and_only_once(state: State, tmp_path: Path):
    (tmp_path / "blob").write_bytes(BLOB)
    assert send(state, tmp_path, tmp_path / "blob") == (Sent(sent=len(BLOB)), len(BLOB))
    assert state.sent == [("PUT", len(BLOB), "")]
    assert has(state)
    assert send(state, tmp_path) == (Sent(there=True), len(BLOB))
    assert len(state.sent) == 1


def test_a_blob_that_a_sibling_has_is_not_sent(state: State, tmp_path: Path):
    state.add("team/b", BLOB, "x")
    assert send(state, tmp_path, sibling="team/b") == (Sent(mounted=True), len(BLOB))
    assert has(state)
    assert state.sent == []
    state.files = {}
    assert send(state, tmp_path, sibling="team/b")[0] == Sent(sent=len(BLOB))


def test_a_sibling_that_is_closed_to_us_does_not_stop_a_push(state: State, tmp_path: Path):
    state.closed = True
    assert send(state, tmp_path, sibling="team/b")[0] == Sent(sent=len(BLOB))
    assert has(state)


def test_an_upload_goes_on_where_the_registry_says_that_it_is(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(write_module, "PIECE", PIECE)
    state.torn = [300_000, 50_000]
    sent, told = send(state, tmp_path)
    assert has(state)
    assert (sent.saved, told) == (650_000, len(BLOB))
    assert [place.partition("-")[0] for method, _, place in state.sent if method == "PATCH"] == [
        "300000", "350000", str(350_000 + PIECE), str(350_000 + 2 * PIECE)
    ]  # fmt: skip


def test_a_registry_that_forgot_the_upload_gets_it_anew(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(write_module, "PIECE", PIECE)
    state.torn, state.forgets = [300_000, 100_000], True
    sent, told = send(state, tmp_path)
    assert has(state)
    assert (sent.saved, told) == (0, len(BLOB))


def test_a_request_that_is_too_large_is_sent_in_pieces(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(write_module, "PIECE", PIECE)
    state.most = PIECE
    assert send(state, tmp_path)[1] == len(BLOB)
    assert has(state)


def test_a_file_that_changed_since_is_not_taken(state: State, tmp_path: Path):
    (tmp_path / "blob").write_bytes(bytes(len(BLOB)))
    with pytest.raises(VerifyError, match="is damaged: its sha256 is"):
        send(state, tmp_path, tmp_path / "blob")
    assert not has(state)
    (tmp_path / "blob").write_bytes(BLOB[:1000])
    with pytest.raises(ContentError, match="became shorter"):
        send(state, tmp_path, tmp_path / "blob")


@pytest.mark.parametrize("counts", [True, False])
def test_what_belongs_to_a_manifest_is_listed_by_the_registry_or_else_by_us(
    state: State, tmp_path: Path, counts: bool
):
    state.counts = counts
    one, subject = client(tmp_path), here(state).with_digest(IMAGE.digest)
    notes = [
        make_manifest(
            config=blob(b"{}"), layers=[blob(text)], artifact_type=f"application/{text.decode()}",
            subject=IMAGE.descriptor(), annotations={},
        )
        for text in (b"x", b"y")
    ]  # fmt: skip
    for note in (*notes, notes[0]):
        put_manifest(one, subject.with_digest(note.digest), note)
    assert (f"team/a/manifests/sha256-{IMAGE.digest}" in state.files) is not counts
    if not counts:
        listed = read_referrers(one, subject)
        assert [(found.digest, found.artifact_type) for found in listed] == [
            (note.digest, note.artifact_type) for note in notes
        ]
