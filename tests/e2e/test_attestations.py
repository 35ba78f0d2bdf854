"""What others' tools make of the artifacts: their parts list, their provenance, and signatures with a user's own key."""

import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from envbuilder.core.cache import sha256_file
from tests.support.damage import flip_alone
from tests.support.tiny import WHEELS, make_tiny
from tests.support.tmux import terminal
from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    ROOT,
    Built,
    Ended,
    attempt,
    build,
    findings,
    link_tree,
    locked_artifacts,
    run,
)

pytestmark = pytest.mark.builds


def inside(built: Built, path: str) -> str:
    return run("apptainer", "exec", built.sif, "cat", path)


def test_the_parts_list_is_the_same_in_the_image_in_the_sif_and_in_its_descriptor(cpu: Built, tmp_path: Path):
    sbom = json.loads(run(ENVBUILDER, "show", "cpu", "--sbom", "--artifacts", cpu.output, "--json"))["data"]
    assert json.loads(inside(cpu, "/opt/envbuilder/sbom.spdx.json")) == sbom
    listed = run("apptainer", "sif", "list", cpu.sif)
    assert "SBOM (spdx-json)" in listed
    number = next(line.split()[0] for line in listed.splitlines() if "SBOM" in line)
    assert json.loads(run("apptainer", "sif", "dump", number, cpu.sif)) == sbom
    assert len(sbom["packages"]) >= 1 + len(locked_artifacts("cpu"))


def test_the_parts_list_of_a_real_build_is_valid_spdx(cpu: Built, tmp_path: Path):
    path = tmp_path / "cpu.spdx.json"
    path.write_text(run(ENVBUILDER, "show", cpu.sif, "--sbom"))
    assert validate_full_spdx_document(parse_file(str(path))) == []


def test_most_wheels_say_their_licence(cpu: Built):
    packages = json.loads(run(ENVBUILDER, "show", cpu.sif, "--sbom"))["packages"]
    wheels = [one for one in packages if one.get("packageFileName", "").endswith(".whl")]
    certain = [one for one in wheels if one["licenseDeclared"] != "NOASSERTION"]
    assert len(certain) * 2 > len(wheels)


def test_the_provenance_inside_names_the_layers_of_the_image(cpu: Built):
    statement = json.loads(inside(cpu, "/opt/envbuilder/provenance.json"))
    digest = str(cpu.data["manifest"]).removeprefix("sha256:")
    manifest = json.loads((cpu.layout / "blobs/sha256" / digest).read_text())
    config = json.loads((cpu.layout / "blobs/sha256" / manifest["config"]["digest"][7:]).read_text())
    layers = [layer.removeprefix("sha256:") for layer in config["rootfs"]["diff_ids"]]
    assert [subject["digest"]["sha256"] for subject in statement["subject"]] == layers[:-1]
    assert json.loads(run(ENVBUILDER, "show", cpu.sif, "--provenance")) == statement


PASSPHRASE = "correct-horse-battery"
KINDS = {
    "P-256": "EC -pkeyopt ec_paramgen_curve:P-256",
    "Ed25519": "ed25519",
    "RSA": "RSA -pkeyopt rsa_keygen_bits:3072",
    "P-256 with a passphrase": "EC -pkeyopt ec_paramgen_curve:P-256 -aes256",
}


def make_keys(folder: Path, kind: str) -> tuple[Path, Path]:
    private, public = folder / "key.pem", folder / "key.pub"
    secret = ("-pass", f"pass:{PASSPHRASE}") if "aes256" in kind else ()
    run("openssl", "genpkey", "-algorithm", *kind.split(), *secret, "-out", private)
    run("openssl", "pkey", "-in", private, "-passin", f"pass:{PASSPHRASE}", "-pubout", "-out", public)
    return private, public


def with_marks(kind: str) -> tuple[pytest.MarkDecorator, ...]:
    """RSA and a passphrase only before a release: the unit tests of signing have every kind."""
    return (pytest.mark.release,) if kind in ("RSA", "P-256 with a passphrase") else ()


@pytest.fixture(params=[pytest.param(key, id=kind, marks=with_marks(kind)) for kind, key in KINDS.items()])
def keys(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    monkeypatch.setenv("ENVBUILDER_KEY_PASSPHRASE", PASSPHRASE)
    return make_keys(tmp_path, request.param)


@pytest.fixture
def key_pair(tmp_path: Path) -> tuple[Path, Path]:
    """Of one kind, where the kind decides nothing."""
    return make_keys(tmp_path, KINDS["Ed25519"])


@pytest.fixture
def copied(tiny: Built, spacious: Path) -> Built:
    link_tree(tiny.output, spacious / "out")
    return dataclasses.replace(tiny, output=spacious / "out")


def verified(built: Built, public: Path) -> Ended:
    return attempt(ENVBUILDER, "verify", "tiny", "--artifacts", built.output, "--key", public, "--json")


def test_signed_artifacts_are_verified_by_apptainer_and_by_us(tiny: Built, copied: Built, keys):
    private, public = keys
    before = copied.sif.read_bytes()[-4096:]
    assert verified(copied, public).returncode == 7
    run(ENVBUILDER, "sign", "tiny", "--artifacts", copied.output, "--key", private)
    run("apptainer", "verify", "--key", public, copied.sif)
    assert verified(copied, public).returncode == 0
    assert build(str(tiny.recipe), copied.output).data["built"] is False
    assert tiny.sif.read_bytes()[-4096:] == before  # the other name of the unsigned file


def test_verify_says_that_a_signature_is_good_and_that_none_was_looked_at(copied: Built, key_pair):
    private, public = key_pair

    def verified_text(*words: object) -> str:
        return run(ENVBUILDER, "verify", *words, "--artifacts", copied.output)

    run(ENVBUILDER, "sign", "tiny", "--artifacts", copied.output, "--key", private)
    assert "\nno signature was looked at" in verified_text("tiny")
    assert re.search(
        r"\nthe signatures of both are good: tiny:latest, signed 2\S+ \S+ UTC with the key [0-9a-f]{16}",
        verified_text("tiny", "--key", public),
    )
    alone = copied.sif.rename(copied.output / "alone.sif")
    assert "no signature was looked at" in verified_text(alone)
    assert re.search(r"its signature is good, with the key \w{16};", verified_text(alone, "--key", public))


def test_a_passphrase_is_asked_for_at_a_terminal_and_not_shown(copied: Built, tmp_path: Path):
    private, public = make_keys(tmp_path, KINDS["P-256 with a passphrase"])
    with terminal(ROOT, tmp_path, width=100) as screen:
        screen.start(ENVBUILDER, "sign", "tiny", "--artifacts", copied.output, "--key", private)
        screen.wait(lambda: any(line.startswith("passphrase of") for line in screen.screen()), 60)
        screen.type(PASSPHRASE, "Enter")
        assert screen.code(60) == 0
        assert PASSPHRASE not in "".join(screen.screen())
    assert verified(copied, public).returncode == 0


def test_an_image_that_is_not_the_signed_one_is_exit_7(copied: Built, key_pair):
    private, public = key_pair
    run(ENVBUILDER, "sign", "tiny", "--artifacts", copied.output, "--key", private)
    index = copied.layout / "index.json"
    manifest = json.loads(index.read_text())["manifests"][0]
    blobs = copied.layout / "blobs/sha256"
    other = (blobs / manifest["digest"][7:]).read_bytes() + b"\n"
    digest = hashlib.sha256(other).hexdigest()
    (blobs / digest).write_bytes(other)
    text = index.read_text().replace(manifest["digest"][7:], digest)
    index.unlink()
    index.write_text(text.replace(f'"size":{manifest["size"]}', f'"size":{len(other)}'))
    ended = verified(copied, public)
    assert ended.returncode == 7
    assert "does not cover `tiny.oci`" in findings(ended)[0]["message"]


def test_a_changed_byte_in_a_signed_sif_is_exit_7(copied: Built, key_pair):
    private, public = key_pair
    run(ENVBUILDER, "sign", "tiny", "--artifacts", copied.output, "--key", private)
    flip_alone(copied.sif)
    ended = verified(copied, public)
    assert ended.returncode == 7
    assert "is not signed with the key" in findings(ended)[0]["message"]


@pytest.fixture
def pair(tiny: Built, spacious: Path) -> Built:
    """One that is this test's to change."""
    make_tiny(spacious / "recipe")
    return rebuilt(Built("tiny", spacious / "out", {}))


def rebuilt(pair: Built) -> Built:
    built = build(str(pair.output.parent / "recipe/tiny.yaml"), pair.output, env=NO_ENGINE)
    return Built("tiny", built.output, built.data)


def of_tiny(verb: str, built: Built, *words: object) -> Ended:
    return attempt(ENVBUILDER, verb, "tiny", *words, "--artifacts", built.output, "--json")


def test_a_pair_without_a_signature_is_said_to_have_none(pair: Built, tmp_path: Path):
    _, public = make_keys(tmp_path, KINDS["Ed25519"])
    ended = of_tiny("verify", pair, "--key", public)
    (finding,) = findings(ended)
    assert ended.returncode == 7
    assert "are not signed" in finding["message"]
    assert "`envbuilder sign tiny --key KEY`" in finding["hint"]


def test_signing_again_takes_the_place_of_the_earlier_signature(pair: Built, tmp_path: Path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = (make_keys(tmp_path / name, KINDS[kind]) for name, kind in (("old", "P-256"), ("new", "RSA")))
    for private, public in (old, new):
        assert of_tiny("sign", pair, "--key", private).returncode == 0
        assert run("apptainer", "sif", "list", pair.sif).count("|Signature") == 1
        run("apptainer", "verify", "--key", public, pair.sif)
        assert of_tiny("verify", pair, "--key", public).returncode == 0
    assert of_tiny("verify", pair, "--key", old[1]).returncode == 7
    assert rebuilt(pair).data["built"] is False


def test_a_build_of_an_earlier_lock_is_verified_with_a_warning(pair: Built):
    recipe = pair.output.parent / "recipe/tiny.yaml"
    verify = (ENVBUILDER, "verify", recipe, "--artifacts", pair.output, "--json")
    assert json.loads(run(*verify))["findings"] == []
    make_tiny(recipe.parent, wheels=WHEELS[:1])
    (finding,) = json.loads(run(*verify))["findings"]
    assert (finding["code"], finding["severity"]) == ("EB707", "warning")
    assert finding["hint"].startswith(f"`envbuilder build {recipe}`")


def test_a_sif_that_changed_after_its_build_is_neither_signed_nor_pushed(pair: Built, tmp_path: Path):
    private, public = make_keys(tmp_path, KINDS["Ed25519"])
    whole = pair.sif.read_bytes()
    flip_alone(pair.sif)
    changed = sha256_file(pair.sif)
    nowhere = "127.0.0.1:1/team/tiny:1"  # nobody is asked before the bytes are known to be right
    signed = of_tiny("sign", pair, "--key", private)
    pushed = of_tiny("push", pair, nowhere, "--only", "sif")
    for ended in (signed, pushed):
        (finding,) = findings(ended)
        assert ended.returncode == 7
        assert changed in finding["message"]
        assert "`envbuilder build tiny`" in finding["hint"]
    assert sha256_file(pair.sif) == changed
    assert not (pair.output / "tiny.sigstore.json").exists()
    pair.sif.unlink()
    rebuilt(pair)
    assert pair.sif.read_bytes() == whole
    run("apptainer", "sign", "--key", private, pair.sif)  # without our help: then it is as its owner wants it
    assert of_tiny("push", pair, nowhere, "--only", "sif").returncode == 5
    assert of_tiny("sign", pair, "--key", private).returncode == 0
    assert of_tiny("verify", pair, "--key", public).returncode == 0


@pytest.mark.release
def test_a_pgp_key_of_the_user_signs_the_sif_too(copied: Built, spacious: Path):
    """Apptainer's other way, without our help: it takes the SIF as it would any of its own. A PEM key is tried above."""
    home = spacious / "keys"
    home.mkdir(mode=0o700)
    env = {"APPTAINER_CONFIGDIR": str(home), "HOME": str(home)}
    answers = "Tester\ntester@example.org\n\n"
    made = subprocess.run(
        ["apptainer", "key", "newpair", "--name", "Tester", "--email", "t@example.org", "--comment", "", "--password", "x1y2z3", "--push=false"],
        env=env | {"PATH": "/usr/local/bin:/usr/bin:/bin"}, input=answers, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    shutil.copyfile(copied.sif, copied.output / "signed.sif")
    signed = subprocess.run(
        ["apptainer", "sign", copied.output / "signed.sif"],
        env=env | {"PATH": "/usr/local/bin:/usr/bin:/bin"}, input="x1y2z3\n", text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert signed.returncode == 0, signed.stderr
    assert "verified" in run("apptainer", "verify", "--local", copied.output / "signed.sif", env=env).lower()
