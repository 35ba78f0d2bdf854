"""Push and pull against a real registry, through a proxy that breaks what it can, and what others' tools make of it."""

import base64
import hashlib
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.layout import read_layout, write_layout
from envbuilder.artifacts.oci.model import ImageConfig
from envbuilder.artifacts.oci.naming import FORMS, Form, Reference, sif_reference
from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.cache import Store, sha256_file
from envbuilder.core.console import Console
from envbuilder.core.errors import RegistryError
from envbuilder.registry import upload as write
from envbuilder.registry.client import Client
from envbuilder.registry.download import read_manifest, read_referrers
from envbuilder.registry.pull import Pulled, pull
from envbuilder.registry.push import push
from envbuilder.sources.http import session as wire
from tests.support.damage import flip_alone
from tests.support.registries import PASSWORD, USER, Fault, Proxy, Registry, faulty, registry
from tests.support.runner import FakeRunner
from tests.support.stranger import STRANGER, as_user, reachable_folder
from tests.support.toys import EPOCH, LOCK, make_toy
from tests.support.workbench import ENVBUILDER, NO_ENGINE, Built, attempt, run

pytestmark = pytest.mark.builds


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """An image and a SIF of a few MB that do not compress, with the documents of a real build."""
    random_bytes = random.Random(7)
    layers = {name: random_bytes.randbytes(1_500_000) for name in ("os", "python")}
    return make_toy(tmp_path_factory.mktemp("toy"), layers)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as one:
        yield one


@pytest.fixture
def proxy(real: Registry) -> Iterator[Proxy]:
    with faulty(real) as one:
        yield one


def quick(home: Path) -> Client:
    return Client({"HOME": str(home)}, FakeRunner())


def send(toy: Outputs, where: Reference, home: Path, memory: str = "memory"):
    memory_file = home / f"{memory}.json"
    return push(toy, where, quick(home), forms=FORMS, memory=memory_file, console=Console(quiet=True))


def bring(where: Reference, folder: Path, home: Path, forms: Sequence[Form] = FORMS) -> Pulled:
    return pull(
        where, quick(home), outputs=Outputs(folder=folder, name="toy"), forms=forms, key=None,
        store=Store(home / f"cache-{folder.name}"), console=Console(quiet=True),  # one that knows no layer is here
    )  # fmt: skip


def named(host: str, repository: str, tag: str = "1") -> Reference:
    return Reference(registry=host, repository=repository, tag=tag)


def same(one: Outputs, other: Outputs) -> bool:
    """Whether both artifacts hold the same bytes, read from disk."""
    blobs = {path.name: sha256_file(path) for path in (other.image / "blobs/sha256").iterdir()}
    wanted = {path.name: path.name for path in (one.image / "blobs/sha256").iterdir()}
    return blobs == wanted and sha256_file(one.sif) == sha256_file(other.sif)


def in_registry(real: Registry) -> dict[str, str]:
    """Every blob that the registry keeps: the digest that it says, and that of the bytes."""
    blobs = (real.folder / "data/docker/registry/v2/blobs/sha256").glob("*/*/data")
    return {path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in blobs}


# ------------------------------------------------------------------------------------------------ faulty transfers


def make_faults(dice: random.Random, *, pushing: bool) -> list[Fault]:
    """One to four things that go wrong; some more often than anyone has patience for, some for good."""
    faults: list[Fault] = []
    blob, body = ("/blobs/uploads/", "PUT") if pushing else ("/blobs/sha256", "GET")
    for _ in range(dice.randint(1, 4)):
        match dice.randrange(8):
            case 0:
                faults.append(Fault(method="GET", path="/manifests/", status=500))
            case 1:
                faults.append(Fault(path=blob, status=429, retry_after="0"))
            case 2:
                faults += [Fault(path=blob, status=503)] * dice.choice([1, 3, 60])
            case 3:
                faults.append(Fault(path="/blobs/", delay=0.05))
            case 4 if pushing:
                faults += [Fault(method=body, path=blob, cut_request=dice.randrange(1_400_000))] * 2
                faults.append(Fault(method="PATCH", path=blob, cut_request=50_000, after=dice.randint(1, 4)))
            case 5 if pushing:
                faults.append(
                    Fault(method=dice.choice(["PUT", "PATCH", "POST"]), path=blob, cut_answer=0, status=502)
                )
            case 6 if pushing:
                faults += [Fault(path=blob, cut_request=0, after=dice.randint(1, 9))] * 60
            case 6:
                faults.append(Fault(method="GET", path=dice.choice(["/manifests/", blob]), flip=True))
            case _:
                cuts = [dice.randrange(100_000, 1_400_000) for _ in range(dice.randint(1, 3))]
                faults += [Fault(method=body, path=blob, cut_answer=cut) for cut in cuts]
                if pushing:
                    faults.append(Fault(method="HEAD", path="/blobs/", status=500))
    return faults


@pytest.mark.release  # one fault at a time: tests/registry/test_transfer.py
def test_faulty_transfers_leave_nothing_corrupt(
    toy: Outputs, real: Registry, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each ends well or with one of our errors; what has a final name is right; the next try, undisturbed, ends well."""
    monkeypatch.setattr(wire, "PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(write, "PIECE", 1 << 18)
    count, dice, ends, saved = 100, random.Random(20), Counter[str](), Counter[str]()
    send(toy, named(real.host, "team/toy"), tmp_path)
    for number in range(count):
        pushing = number % 2 == 0
        what = "push" if pushing else "pull"
        folder = tmp_path / f"in{number}"
        place = named(proxy.host, f"p{number}/toy" if pushing else "team/toy")
        proxy.faults, proxy.used = make_faults(dice, pushing=pushing), []
        for attempted in ("disturbed", "again"):
            try:
                if pushing:
                    saved[what] += send(toy, place, tmp_path, f"m{number}").bytes_resumed
                else:
                    saved[what] += bring(place, folder, tmp_path).bytes_resumed
            except RegistryError as error:
                ends[f"{what}: {error.code}"] += 1
                out = Outputs(folder=folder, name="toy")
                assert not out.sif.exists() or sha256_file(out.sif) == sha256_file(toy.sif)
            else:
                ends[f"{what}: {attempted}"] += 1
                break
            proxy.faults = []
        if pushing:  # what is named there must be whole: pull it past the proxy
            bring(named(real.host, f"p{number}/toy"), folder, tmp_path)
        assert same(toy, Outputs(folder=folder, name="toy"))
        assert sorted(path.name for path in folder.iterdir()) == ["toy.oci", "toy.sif"]
        shutil.rmtree(folder)
    corrupt = [digest for digest, actual in in_registry(real).items() if digest != actual]
    with_faults = f"{count} transfers, {sum(ends.values())} attempts: {dict(sorted(ends.items()))}"
    print(f"\n{with_faults}\nbytes resumed: {dict(saved)}; corrupt: {len(corrupt)}")
    assert corrupt == []
    assert sum(ends[f"{what}: {how}"] for what in ("push", "pull") for how in ("disturbed", "again")) == count
    assert ends["push: again"] > 3
    assert ends["pull: again"] > 3
    assert saved["push"] > 10_000 * count
    assert saved["pull"] > 10_000 * count


# --------------------------------------------------------------------------------------------------- what is sent


def test_what_the_registry_has_is_not_sent_again(toy: Outputs, real: Registry, proxy: Proxy, tmp_path: Path):
    first = send(toy, named(proxy.host, "once/toy"), tmp_path)
    received = proxy.received
    assert received >= first.bytes_sent > 6_000_000
    again = send(toy, named(proxy.host, "once/toy", "2"), tmp_path)
    assert (again.blobs.sent, again.blobs.mounted, again.bytes_sent) == (0, 0, 0)
    elsewhere = send(toy, named(proxy.host, "twice/toy"), tmp_path)
    assert (elsewhere.blobs.sent, elsewhere.blobs.there, elsewhere.bytes_sent) == (0, 0, 0)
    assert proxy.received == received
    assert first.sif_sha256 == sha256_file(toy.sif)


def test_image_sif_and_lock_point_at_each_other_and_the_image_keeps_its_digest(
    toy: Outputs, real: Registry, tmp_path: Path
):
    place = named(real.host, "marks/toy")
    pushed = send(toy, place, tmp_path)
    image, sif = (read_manifest(quick(tmp_path), reference) for reference in (place, sif_reference(place)))
    assert image.digest == json.loads((toy.image / "index.json").read_text())["manifests"][0]["digest"][7:]
    marks = dict(sif.annotations)
    assert marks["io.envbuilder.image"] == f"sha256:{image.digest}"
    assert marks["io.envbuilder.lock"] == f"sha256:{LOCK}"
    assert sif.subject
    assert sif.subject.digest == image.digest
    listed = read_referrers(quick(tmp_path), place.with_digest(image.digest))
    assert {referrer.artifact_type for referrer in listed} == {
        "application/vnd.sylabs.sif.config.v1+json", "application/spdx+json", "application/vnd.in-toto+json"
    }  # fmt: skip
    assert {dict(referrer.annotations)["io.envbuilder.lock"] for referrer in listed} == {f"sha256:{LOCK}"}
    assert pushed.attached == 4


def test_a_sif_of_another_image_is_not_taken_for_its_own(toy: Outputs, real: Registry, tmp_path: Path):
    other = Outputs(folder=tmp_path / "other", name="toy")
    write_layout(
        layers=[], config=ImageConfig(), epoch=EPOCH, platform="linux/amd64", folder=other.image, name="a:1"
    )
    place = named(real.host, "mixed/toy")
    send(toy, place, tmp_path)
    client = quick(tmp_path)
    push(other, place, client, forms=("image",), memory=tmp_path / "m.json", console=Console(quiet=True))
    with pytest.raises(RegistryError, match="there is no SIF of"):
        bring(place, tmp_path / "in", tmp_path)


@pytest.mark.parametrize("which", ["layer", "config", "manifest"])
def test_a_blob_with_other_bytes_is_fetched_again(toy: Outputs, real: Registry, tmp_path: Path, which: str):
    place = named(real.host, "team/toy")
    send(toy, place, tmp_path)
    assert 3_000_000 < bring(place, tmp_path / "in", tmp_path).bytes < 3_100_000  # one of both forms
    layout = read_layout(tmp_path / "in/toy.oci")
    blob = {
        "layer": layout.layers[0].blob,
        "config": layout.config_blob,
        "manifest": layout.manifest.descriptor(),
    }[which]
    flip_alone(layout.path(blob))
    again = bring(place, tmp_path / "in", tmp_path)
    # A manifest is asked for anyway, and the cache has the layers.
    assert again.bytes == (blob.size if which == "config" else 0)
    assert same(toy, Outputs(folder=tmp_path / "in", name="toy"))
    assert bring(place, tmp_path / "in", tmp_path).bytes == 0


@pytest.mark.parametrize("damage", ["other bytes", "cut off", "gone"])
def test_a_damaged_image_is_not_blamed_on_the_registry(
    toy: Outputs, real: Registry, proxy: Proxy, tmp_path: Path, damage: str
):
    shutil.copytree(toy.folder, tmp_path / "out", symlinks=True)
    layout = read_layout(tmp_path / "out/toy.oci")
    blob = layout.path(layout.layers[0].blob)
    match damage:
        case "other bytes":
            flip_alone(blob)
        case "cut off":
            blob.write_bytes(blob.read_bytes()[:-1])
        case _:
            blob.unlink()
    ended = attempt(
        ENVBUILDER, "push", "toy", f"{proxy.host}/damaged/toy:1", "--artifacts", tmp_path / "out", "--json",
        env={"ENVBUILDER_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    (finding,) = json.loads(ended.stdout)["findings"]
    assert (ended.returncode, finding["code"]) == (7, "EB700")
    assert f"`{blob}` is damaged" in finding["message"]
    tries = [path for method, path in proxy.asked if method == "PUT" and blob.name in path]
    assert len(tries) == (1 if damage == "other bytes" else 0)


# ---------------------------------------------------------------------------------------------- others' programs


def test_others_tools_pull_what_was_pushed(tiny: Built, real: Registry, tmp_path: Path):
    place = f"{real.host}/team/tiny"
    words = ("push", "tiny", f"{place}:1", "--artifacts", tiny.output, "--json")
    answer = json.loads(run(ENVBUILDER, *words))["data"]
    digest = str(tiny.data["manifest"])
    assert answer["image"] == f"{place}:1@{digest}"
    got = tmp_path / "got.sif"
    env = {"APPTAINER_CACHEDIR": str(tmp_path / "cache")}
    run("apptainer", "pull", "--no-https", got, f"oras://{place}:1-sif", env=env)
    assert sha256_file(got) == tiny.data["sif_sha256"]
    run("skopeo", "copy", "-q", "--src-tls-verify=false", f"docker://{place}:1", f"oci:{tmp_path}/sk:1")
    assert json.loads((tmp_path / "sk/index.json").read_text())["manifests"][0]["digest"] == digest
    run("docker", "pull", "-q", f"{place}:1")
    try:
        shown = run("docker", "image", "inspect", "--format", "{{index .RepoDigests}}", f"{place}:1")
        assert f"{place}@{digest}" in shown
        printed = run("docker", "run", "--rm", f"{place}:1", "python", "-c", "import filelock; print(6 * 7)")
        assert printed == "42\n"
    finally:
        run("docker", "image", "rm", f"{place}:1")


def test_what_is_for_others_is_theirs_under_a_closed_umask(tiny: Built, real: Registry):
    """A build, a pull and a module, in a folder of this run, in a home that is closed, and in the folder of a group."""
    place, group = f"{real.host}/shared/tiny:1", "4711"
    run(ENVBUILDER, "push", "tiny", place, "--artifacts", tiny.output)

    def closed(*words: object) -> str:
        ended = attempt("sh", "-c", 'umask 077; exec "$0" "$@"', ENVBUILDER, *words, env=NO_ENGINE)
        assert ended.returncode == 0, ended.stderr
        return ended.stderr

    def unreadable(folder: Path, groups: str = "") -> set[str]:
        ended = attempt(*as_user(STRANGER, "find", folder, "!", "-readable", groups=groups))
        return {Path(line).name for line in ended.stdout.splitlines()} | set(ended.stderr.splitlines())

    with reachable_folder() as folder:
        home, lab = folder / "home", folder / "lab"
        home.mkdir(mode=0o700)
        lab.mkdir()
        os.chown(lab, -1, int(group))
        lab.chmod(0o2770)
        for parent in (folder / "new", home, lab):
            warnings = closed("build", tiny.recipe, "--output", parent / "built/here")
            warnings += closed("pull", place, "--output", parent / "pulled/here")
            warnings += closed("module", parent / "built/here/tiny.sif", "--write", parent / "modules/here")
            wanted = f"others cannot enter `{home}`; `chmod go+x {home}` lets them, or choose another `--"
            expected = (3, True) if parent is home else (0, False)
            assert (warnings.count(wanted), "cannot" in warnings) == expected, warnings
        assert unreadable(folder / "new") == {"tiny.log"}  # of a build: it may show its environment
        assert unreadable(lab, group) == {"tiny.log"}
        assert unreadable(lab)
        files = [
            path for path in lab.rglob("*") if path.parent.name != "sha256"
        ]  # a blob is a link to the cache's
        assert {path.lstat().st_gid for path in files} == {int(group)}
        (folder / "link").symlink_to(home / "built")
        warnings = closed("module", folder / "link/here/tiny.sif", "--write", folder / "new/modules/here")
        repair = f"`chmod go+x {home}` lets them, or give the path of a SIF"
        assert f"others cannot enter `{home}`; {repair}" in warnings


def test_others_tools_pull_each_platform_of_one_name(toy: Outputs, real: Registry, tmp_path: Path):
    contents = {"os": random.Random(64).randbytes(300_000)}
    arm = make_toy(tmp_path / "arm", contents, "linux/arm64")
    for outputs in (toy, arm):
        send(outputs, named(real.host, "team/pair"), tmp_path)
    place, env = f"{real.host}/team/pair:1", {"APPTAINER_CACHEDIR": str(tmp_path / "cache")}
    for outputs, name, suffix in ((toy, "amd64", ""), (arm, "arm64", "-arm64")):
        digest = read_layout(outputs.image).manifest.digest
        got = tmp_path / f"{name}.sif"
        run("apptainer", "pull", "--no-https", got, f"oras://{place}{suffix}-sif", env=env)
        assert sha256_file(got) == sha256_file(outputs.sif)
        copy = ("copy", "-q", "--src-tls-verify=false", f"docker://{place}", f"oci:{tmp_path}/{name}:1")
        run("skopeo", f"--override-arch={name}", *copy)
        listed = json.loads((tmp_path / name / "index.json").read_text())["manifests"][0]["digest"]
        assert listed == f"sha256:{digest}"
        run("docker", "pull", "-q", f"--platform=linux/{name}", place)
        try:
            machine = run("docker", "image", "inspect", "--format", "{{.Architecture}}", place)
            assert machine == f"{name}\n"
        finally:
            run("docker", "image", "rm", place)


def test_apptainer_refuses_a_thin_sif(toy: Outputs, real: Registry, tmp_path: Path):
    place = f"{real.host}/thin/toy:1"
    words = ("push", "toy", place, "--thin", "--artifacts", toy.folder)
    pushed = json.loads(run(ENVBUILDER, *words, "--json"))["data"]
    assert (pushed["thin"], pushed["sif_sha256"]) == (True, sha256_file(toy.sif))
    env = {"APPTAINER_CACHEDIR": str(tmp_path / "cache")}
    ended = attempt("apptainer", "pull", "--no-https", tmp_path / "got.sif", f"oras://{place}-sif", env=env)
    assert ended.returncode != 0
    assert not (tmp_path / "got.sif").exists()
    run(ENVBUILDER, "pull", place, "--output", tmp_path / "own")
    assert same(toy, Outputs(folder=tmp_path / "own", name="toy"))
    assert attempt(ENVBUILDER, *words, "--only", "sif").returncode == 2


def test_what_apptainer_pushed_is_pulled(toy: Outputs, real: Registry, tmp_path: Path):
    run("apptainer", "push", "--no-https", toy.sif, f"oras://{real.host}/theirs/toy:9")
    run(ENVBUILDER, "pull", "--only", "sif", f"oras://{real.host}/theirs/toy:9", "--output", tmp_path)
    assert (tmp_path / "toy.sif").read_bytes() == toy.sif.read_bytes()


def test_a_login_node_needs_python_alone_and_one_command(toy: Outputs, real: Registry, tmp_path: Path):
    send(toy, named(real.host, "team/toy", "latest"), tmp_path)
    env = {"ENVBUILDER_REGISTRY": f"{real.host}/team", "PATH": "/nonexistent", "HOME": str(tmp_path)}
    run("/usr/bin/env", "-i", *(f"{key}={value}" for key, value in env.items()),
        ENVBUILDER, "pull", "--only", "sif", "toy", cwd=tmp_path)  # fmt: skip
    assert (tmp_path / "build/toy.sif").read_bytes() == toy.sif.read_bytes()


# ------------------------------------------------------------------------------------ credentials and signatures


def test_a_login_is_needed_used_and_never_shown(toy: Outputs, tmp_path: Path):
    with registry(tmp_path / "registry", login=True) as closed:
        place = f"{closed.host}/team/toy:1"
        command = (ENVBUILDER, "push", "toy", place, "--artifacts", toy.folder, "-vv")
        env = {"HOME": str(tmp_path), "DOCKER_CONFIG": "", "ENVBUILDER_CACHE": str(tmp_path / "cache")}
        refused = attempt(*command, env=env)
        assert refused.returncode == 5
        assert "without credentials" in refused.stderr
        (tmp_path / ".docker").mkdir()
        auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        settings = tmp_path / ".docker/config.json"
        settings.write_text(json.dumps({"auths": {closed.host: {"auth": auth}}}))
        taken = attempt(*command, env=env)
        assert taken.returncode == 0, taken.stderr
        wrong = base64.b64encode(f"{USER}:x{PASSWORD}".encode()).decode()
        settings.write_text(json.dumps({"auths": {closed.host: {"auth": wrong}}}))
        denied = attempt(ENVBUILDER, "pull", place, "--output", tmp_path / "in", "-vv", env=env)
        assert denied.returncode == 5
        assert f"with the credentials of `{USER}`" in denied.stderr
        printed = "".join(ended.stdout + ended.stderr for ended in (refused, taken, denied))
        assert [secret for secret in (PASSWORD, auth, wrong) if secret in printed] == []


def test_a_registry_with_tls_is_held_to_the_authorities_that_are_set(toy: Outputs, tmp_path: Path):
    """In a network of its own, for on loopback no registry is expected to have TLS."""
    address = "10.9.8.7"
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=registry", "-addext", f"subjectAltName=IP:{address}",
        "-keyout", tmp_path / "key.pem", "-out", tmp_path / "ca.pem")  # fmt: skip
    (tmp_path / "settings.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/data}}}}\n"
        f"http: {{addr: '{address}:5000', tls: {{certificate: {tmp_path}/ca.pem, key: {tmp_path}/key.pem}}}}\n"
    )
    push_it = f"'{ENVBUILDER}' push toy {address}:5000/team/toy:1 --artifacts {toy.folder}"
    script = f"""
        ip link set lo up && ip address add {address}/32 dev lo
        docker-registry serve {tmp_path}/settings.yml >{tmp_path}/log 2>&1 & server=$!
        for _ in $(seq 100); do (: </dev/tcp/{address}/5000) 2>/dev/null && break; sleep 0.1; done
        unset REQUESTS_CA_BUNDLE CURL_CA_BUNDLE SSL_CERT_FILE
        {push_it}; echo "without: $?"
        SSL_CERT_FILE={tmp_path}/ca.pem {push_it} >/dev/null; echo "with: $?"
        kill $server"""
    env = {"ENVBUILDER_CACHE": str(tmp_path / "cache")}
    ended = attempt("unshare", "--net", "bash", "-c", script, env=env)
    assert ended.stdout == "without: 5\nwith: 0\n", ended.stderr
    assert "the certificate was not accepted" in ended.stderr


def make_keys(folder: Path) -> None:
    for name in ("mine", "other"):
        run("openssl", "genpkey", "-algorithm", "ed25519", "-out", folder / f"{name}.pem")
        run("openssl", "pkey", "-in", folder / f"{name}.pem", "-pubout", "-out", folder / f"{name}.pub")


def test_a_key_lets_only_signed_artifacts_in(toy: Outputs, real: Registry, tmp_path: Path):
    make_keys(tmp_path)
    shutil.copytree(toy.folder, tmp_path / "out", symlinks=True)
    place, env = f"{real.host}/signed/toy:1", {"ENVBUILDER_CACHE": str(tmp_path / "cache")}
    push_it = (ENVBUILDER, "push", "toy", place, "--artifacts", tmp_path / "out")
    pull_it = (ENVBUILDER, "pull", place, "--output", tmp_path / "in", "--key")
    run(*push_it, env=env)
    unsigned = attempt(*pull_it, tmp_path / "mine.pub")
    run(*push_it, "--sign", tmp_path / "mine.pem", env=env)
    foreign = attempt(*pull_it, tmp_path / "other.pub")
    assert [unsigned.returncode, foreign.returncode] == [7, 7]
    assert "is not signed with the key" in unsigned.stderr
    assert list((tmp_path / "in").iterdir()) == []
    assert "signature verified" in run(*pull_it, tmp_path / "mine.pub")
    pulled = Outputs(folder=tmp_path / "in", name="toy")
    assert same(Outputs(folder=tmp_path / "out", name="toy"), pulled)
    run("apptainer", "verify", "--key", tmp_path / "mine.pub", pulled.sif)
    (tmp_path / "out/toy.sigstore.json").write_text((tmp_path / "in/toy.sigstore.json").read_text())
    shutil.copy2(toy.sif, tmp_path / "out/toy.sif")  # no longer what the statement speaks of
    stale = attempt(*push_it, env=env)
    assert (stale.returncode, "does not cover the sif" in stale.stderr) == (7, True)


def test_a_refused_pull_leaves_the_pair_that_was_there_and_its_signature(
    toy: Outputs, real: Registry, tmp_path: Path
):
    """What is refused is an image with a signature whose SIF has none: half of it is right."""
    make_keys(tmp_path)
    shutil.copytree(toy.folder, tmp_path / "out", symlinks=True)
    env, pushed = {"ENVBUILDER_CACHE": str(tmp_path / "cache")}, ("--artifacts", tmp_path / "out")
    good, half = f"{real.host}/signed/toy:2", f"{real.host}/half/toy:1"
    run(ENVBUILDER, "push", "toy", good, *pushed, "--sign", tmp_path / "mine.pem", env=env)
    run(ENVBUILDER, "push", "toy", half, *pushed, "--sign", tmp_path / "other.pem", env=env)
    (tmp_path / "out/toy.sigstore.json").unlink()
    shutil.copy2(toy.sif, tmp_path / "out/toy.sif")
    run(ENVBUILDER, "push", "toy", half, *pushed, "--only", "sif", env=env)
    run(ENVBUILDER, "pull", good, "--output", tmp_path / "in", "--key", tmp_path / "mine.pub")
    (tmp_path / "none").mkdir()
    before = {path: path.read_bytes() for path in (tmp_path / "in").rglob("*") if path.is_file()}
    for folder in ("in", "none"):
        words = ("pull", half, "--output", tmp_path / folder, "--key", tmp_path / "other.pub")
        refused = attempt(ENVBUILDER, *words)
        assert (refused.returncode, "the sif at" in refused.stderr) == (7, True)
    assert {path: path.read_bytes() for path in (tmp_path / "in").rglob("*") if path.is_file()} == before
    assert list((tmp_path / "none").iterdir()) == []


def test_a_name_without_a_registry_is_wrong_use(tmp_path: Path):
    ended = attempt(ENVBUILDER, "pull", "toy", "--output", tmp_path, env={"ENVBUILDER_REGISTRY": ""})
    assert (ended.returncode, "is no name of an image" in ended.stderr, "ENVBUILDER_REGISTRY" in ended.stderr) == (
        2, True, True
    )  # fmt: skip


def test_a_pull_whose_cache_cannot_be_written_fetches_the_whole_file(
    toy: Outputs, real: Registry, tmp_path: Path
):
    send(toy, named(real.host, "team/toy"), tmp_path)
    env = {"ENVBUILDER_CACHE": "/proc/nowhere"}
    words = ("pull", "--only", "sif", f"{real.host}/team/toy:1", "--output", tmp_path / "out")
    ended = attempt(ENVBUILDER, *words, env=env)
    assert ended.returncode == 0, ended.stderr
    assert "the whole file is fetched: the cache cannot be written" in ended.stderr
    assert sha256_file(tmp_path / "out/toy.sif") == sha256_file(toy.sif)
