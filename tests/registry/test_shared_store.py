"""What one machine puts into a store, another gets to the byte; whatever else lies there is refused by name."""

import json
import os
import re
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.model import Descriptor, Manifest, describe, make_manifest
from envbuilder.artifacts.oci.naming import Reference
from envbuilder.core.cache import Sha256, Store, sha256_text
from envbuilder.core.errors import BusyError, UsageError
from envbuilder.layers.layer import load_layer, write_layer
from envbuilder.registry.client import Client
from envbuilder.registry.download import read_manifest
from envbuilder.registry.shared_store import ENTRY_KEY, ENTRY_TYPE, SharedStore, open_store
from envbuilder.registry.upload import put_manifest
from envbuilder.sources.http import session as wire
from tests.support.registries import Fault, Proxy, Registry, faulty, registry, upload
from tests.support.stores import SETTING, Listening, open_shared, settings, write_keys
from tests.support.workbench import ROOT

pytestmark = pytest.mark.programs
KEY, OTHER = sha256_text("key"), sha256_text("other")


@dataclass(frozen=True)
class Machine:
    """A cache of its own, and the store as this machine's settings open it."""

    cache: Store
    store: SharedStore
    console: Listening

    def fetch(self, key: Sha256 = KEY, *, packed: bool = True) -> bool:
        return self.store.fetch(key, self.cache.extension(key), "a thing", packed=packed)

    def put(self, folder: Path, key: Sha256 = KEY, *, packed: bool = True) -> None:
        self.store.put(key, folder, "a thing", packed=packed)

    @property
    def said(self) -> str:
        return "\n".join(self.console.said)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as one:
        yield one


@pytest.fixture
def proxy(real: Registry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr(wire, "PAUSES", (0.0, 0.0))
    with faulty(real) as one:
        yield one


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PEM files: the team's private and public key, and a stranger's private key."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("team", "stranger"):
        write_keys(folder, name)
    return folder


@pytest.fixture
def machine(
    proxy: Proxy, keys: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[..., Machine]:
    repository = "team/" + sha256_text(request.node.name)[:12]

    def make(name: str, key: str = "team.pem", *, host: str = "") -> Machine:
        cache, console = Store(tmp_path / name), Listening()
        file = key if key == "none" else keys / key
        store = open_shared(f"{host or proxy.host}/{repository}", file, cache, console)
        return Machine(cache, store, console)

    return make


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """The folder of a compiled project, as the cache has it."""
    folder = tmp_path / "compiled"
    (folder / "tree/bin").mkdir(parents=True)
    (folder / "compiled.json").write_text("{}\n")
    (folder / "tree/core.so").write_bytes(bytes(range(256)) * 2000)
    (folder / "tree/bin/run").write_text("#!/bin/sh\n")
    (folder / "tree/bin/run").chmod(0o755)
    (folder / "tree/link.so").symlink_to("core.so")
    return folder


def files(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    return {
        str(path.relative_to(folder)): (
            stat.S_IMODE(path.lstat().st_mode) & 0o100,
            str(path.readlink()) if path.is_symlink() else path.read_bytes(),
        )
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def entry(machine: Machine, key: Sha256 = KEY) -> tuple[Client, Reference, Manifest]:
    store = machine.store
    client, reference = store.client, store.place.with_tag(key)
    return client, reference, read_manifest(client, reference)


def rewrite(machine: Machine, layers: tuple[Descriptor, ...], *, key: Sha256 = KEY) -> None:
    """Put a manifest of these blobs under the tag `KEY`, as an entry of the key."""
    client, reference, manifest = entry(machine)
    assert manifest.config
    put_manifest(
        client, reference.with_tag(KEY),
        make_manifest(
            config=manifest.config, layers=layers, artifact_type=ENTRY_TYPE, annotations={ENTRY_KEY: f"sha256:{key}"}
        ),
    )  # fmt: skip


def test_a_second_machine_gets_the_files_modes_and_links(machine: Callable[..., Machine], compiled: Path):
    machine("first").put(compiled)
    second = machine("second", "team.pub")
    assert second.fetch()
    assert files(second.cache.extension(KEY)) == files(compiled)
    assert second.said == ""


def test_a_layer_travels_as_it_is(machine: Callable[..., Machine], compiled: Path, tmp_path: Path):
    made = write_layer(name="os", tree=compiled, folder=tmp_path / "layer", epoch=7, threads=1)
    machine("first").put(made.folder, packed=False)
    second = machine("second")
    assert second.fetch(packed=False)
    got = load_layer(second.cache.extension(KEY))
    assert got is not None
    assert (got.name, got.digest, got.blob.read_bytes()) == ("os", made.digest, made.blob.read_bytes())


def test_what_the_store_lacks_is_no_news(machine: Callable[..., Machine]):
    one = machine("first")
    assert not one.fetch()
    assert (one.said, one.cache.extension(KEY).exists()) == ("", False)


def test_an_entry_that_is_there_is_not_sent_again(
    machine: Callable[..., Machine], compiled: Path, proxy: Proxy
):
    machine("first").put(compiled)
    before = proxy.received
    machine("second").put(compiled)
    assert proxy.received == before > 0


def test_several_machines_may_put_and_fetch_one_entry_at_once(
    machine: Callable[..., Machine], compiled: Path
):
    machines = [machine(str(number)) for number in range(4)]
    for work in (lambda one: one.put(compiled), Machine.fetch):
        with ThreadPoolExecutor() as pool:
            list(pool.map(work, machines))
    assert [one.said for one in machines] == [""] * 4
    assert all(one.fetch() and files(one.cache.extension(KEY)) == files(compiled) for one in machines)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_blob_whose_link_a_registry_is_writing_is_asked_for_again(
    machine: Callable[..., Machine],
    compiled: Path,
    real: Registry,
    monkeypatch: pytest.MonkeyPatch,
    comes_back: bool,
):
    """While another machine sends the same blob, its link is empty for a moment, and the manifest is refused."""
    one = machine("first")
    one.put(compiled)
    _, reference, manifest = entry(one)
    folder = real.folder / "data/docker/registry/v2/repositories" / reference.repository / "_layers/sha256"
    link = folder / manifest.layers[0].digest / "link"
    text, pauses = link.read_text(), list[float]()
    link.write_text("")

    def wait(seconds: float, _stop: threading.Event) -> None:
        pauses.append(seconds)
        if comes_back:
            link.write_text(text)

    monkeypatch.setattr(wire, "wait", wait)
    if comes_back:
        rewrite(one, manifest.layers)
        assert len(pauses) == 1
    else:
        with pytest.raises(BusyError, match=r"after several tries: it answered 400.*blob unknown"):
            rewrite(one, manifest.layers)
        assert len(pauses) == len(wire.PAUSES)


@pytest.mark.parametrize("times", [1, 30])
def test_a_cut_connection_leaves_a_whole_entry_or_none(
    machine: Callable[..., Machine], compiled: Path, proxy: Proxy, times: int
):
    machine("first").put(compiled)
    second = machine("second")
    proxy.faults += [Fault(method="GET", path="/blobs/", cut_answer=10) for _ in range(times)]
    assert second.fetch() == (times == 1)
    assert second.cache.extension(KEY).exists() == (times == 1)
    assert ("goes on without the store" in second.said) == (times != 1)


# ---- what is refused


def other_bytes(one: Machine, _compiled: Path, proxy: Proxy) -> None:
    blob = entry(one)[2].layers[0]
    proxy.faults += [Fault(method="GET", path=f"blobs/sha256:{blob.digest}", flip=True) for _ in range(4)]


def another_keys_entry(one: Machine, compiled: Path, _proxy: Proxy) -> None:
    one.put(compiled, OTHER)
    client, reference, manifest = entry(one, OTHER)
    put_manifest(client, reference.with_tag(KEY), manifest)


def another_keys_signature(one: Machine, compiled: Path, _proxy: Proxy) -> None:
    (compiled / "tree/core.so").write_bytes(b"of another key")
    one.put(compiled, OTHER)
    rewrite(one, entry(one, OTHER)[2].layers)


def one_file_of_another(one: Machine, compiled: Path, _proxy: Proxy) -> None:
    (compiled / "tree/core.so").write_bytes(b"of another key")
    one.put(compiled, OTHER)
    layers, others = entry(one)[2].layers, entry(one, OTHER)[2].layers
    rewrite(one, (others[0], *layers[1:]))


def no_signature(one: Machine, _compiled: Path, _proxy: Proxy) -> None:
    rewrite(one, entry(one)[2].layers[:4])


def no_file(one: Machine, _compiled: Path, _proxy: Proxy) -> None:
    rewrite(one, entry(one)[2].layers[1:])


def no_statement(one: Machine, _compiled: Path, proxy: Proxy) -> None:
    layers = entry(one)[2].layers
    content = json.dumps({"dsseEnvelope": []}).encode()
    upload(proxy.host, one.store.place.repository, content)
    rewrite(one, (*layers[:4], describe(content, layers[4].media_type)))


@pytest.mark.parametrize(
    ("poison", "why"),
    [
        (other_bytes, "the registry sends other bytes"),
        (another_keys_entry, "it is the entry of another key"),
        (another_keys_signature, "its signature is that of another entry"),
        (one_file_of_another, "its signature is that of another entry"),
        (no_signature, "it is not signed"),
        (no_file, "it is no entry of a store"),
        (no_statement, "is not a signed statement"),
    ],
)
def test_a_poisoned_entry_is_refused_and_named_and_then_replaced(
    machine: Callable[..., Machine], compiled: Path, proxy: Proxy, poison: Callable[..., None], why: str
):
    first, second = machine("first"), machine("second")
    first.put(compiled)
    wanted = files(compiled)
    poison(first, compiled, proxy)
    assert not second.fetch()
    assert not second.cache.extension(KEY).exists()
    assert f"warning: the entry `{second.store.place}:{KEY}` is refused: " in second.said
    assert why in second.said
    if poison is not other_bytes:
        (compiled / "tree/core.so").write_bytes(bytes(range(256)) * 2000)
        second.put(compiled)  # what this machine made itself
        third = machine("third", "team.pub")
        assert third.fetch()
        assert files(third.cache.extension(KEY)) == wanted


def test_the_entry_of_another_signer_is_refused(machine: Callable[..., Machine], compiled: Path):
    machine("stranger", "stranger.pem").put(compiled)
    one = machine("first", "team.pub")
    assert not one.fetch()
    assert "is refused: `its statement` is not signed with this key" in one.said


def test_only_who_says_none_takes_what_nobody_signed(machine: Callable[..., Machine], compiled: Path):
    machine("careless", "none").put(compiled)
    assert machine("other", "none").fetch()
    one = machine("first", "team.pub")
    assert not one.fetch()
    assert "it is not signed" in one.said


def test_a_public_key_reads_and_puts_nothing(machine: Callable[..., Machine], compiled: Path, proxy: Proxy):
    machine("first", "team.pub").put(compiled)
    assert proxy.asked == []


def test_the_commands_of_the_page_delete_what_no_lock_names(
    machine: Callable[..., Machine], real: Registry, compiled: Path, tmp_path: Path
):
    one, gone = machine("first", host=real.host), [sha256_text(str(number)) for number in range(3)]
    for key in (KEY, *gone):
        one.put(compiled, key)
    page = (ROOT / "docs/how-to/share.md").read_text()
    (block,) = re.findall(r"```text\n(set -.*?\n)STORE=.*?\n(.*?)```", page, re.DOTALL)
    commands = "".join(block).replace("docker://", "--tls-verify=false docker://")

    def clean_up(keys: str) -> int:
        script = commands.replace('envbuilder cache keys --recipes "$folder"', keys)
        env = os.environ | {"STORE": str(one.store.place)}
        return subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=env, check=False, timeout=60
        ).returncode

    second = machine("second")
    for failing in ("false", "true"):  # without keys nothing is deleted
        assert clean_up(failing) == 1
    assert second.fetch(gone[0])
    assert clean_up(f"echo {KEY}") == 0
    third = machine("third")
    assert [third.fetch(key) for key in (KEY, *gone)] == [True, False, False, False]
    assert third.said == ""


# ---- settings and failures


def test_without_a_key_the_store_is_not_used_and_a_warning_says_so(tmp_path: Path):
    console = Listening()
    environment = settings("r.invalid/team/extensions", "", tmp_path)
    assert open_store(SETTING, environment, Store(tmp_path / "cache"), console) is None
    assert "`r.invalid/team/extensions` is not used" in console.said[0]
    assert "ENVBUILDER_STORE_KEY" in console.said[0]


@pytest.mark.parametrize("wrong", ["r.invalid/team/extensions:1", "r.invalid/Team", "extensions"])
def test_a_setting_that_is_no_repository_is_a_mistake(tmp_path: Path, wrong: str):
    with pytest.raises(UsageError):
        open_store(SETTING, settings(wrong, "none", tmp_path), Store(tmp_path / "cache"), Listening())


def test_a_store_that_nobody_reaches_is_named_once(
    machine: Callable[..., Machine], compiled: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wire, "PAUSES", (0.0,))
    one = machine("first", host="127.0.0.1:9")
    assert not one.fetch()
    assert not one.fetch(OTHER)
    one.put(compiled)
    assert len(one.console.said) == 1
    assert "warning: the build goes on without the store `127.0.0.1:9/team/" in one.said


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault(method="POST", status=403), "refuses access"),
        (Fault(method="PUT", status=400), "did not accept what was sent"),
        (Fault(method="GET", status=401), "refuses access"),
    ],
)
def test_a_store_that_takes_nothing_fails_no_build(
    machine: Callable[..., Machine], compiled: Path, proxy: Proxy, fault: Fault, code: str
):
    proxy.faults += [fault for _ in range(9)]
    one = machine("first")
    one.put(compiled)
    one.put(compiled, OTHER)
    assert len(one.console.said) == 1
    assert code in one.said
