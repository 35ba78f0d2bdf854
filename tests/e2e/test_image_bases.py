"""Recipes on images of a real registry: locked without Docker, judged by what is inside.

`tests/compat/test_rules_base_image.py` has the finding for each broken base.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envbuilder.compat.image_facts import Name
from envbuilder.compat.tables.distribution import load_standalones
from envbuilder.core.processor import X86_64
from envbuilder.lock.file import load_lock
from envbuilder.lock.model import Lock
from envbuilder.sources.names import file_path
from tests.support import bases
from tests.support.damage import flip
from tests.support.package_sources import (
    PACKAGES,
    UBUNTU,
    write_deb,
    write_flat,
    write_index,
    write_mirror,
    write_ubuntu,
    write_wheel,
)
from tests.support.registries import IMAGE, Registry, push, put_manifest, registry
from tests.support.serving import served
from tests.support.workbench import ENVBUILDER, attempt, cache_with_toolbox, findings, run

pytestmark = pytest.mark.builds

INDEX = "application/vnd.oci.image.index.v1+json"
RECIPE = 'base: {{image: "{image}"}}\npython: "3.11"\ngcc: "{gcc}"\nlibxcrypt: "4.4"\npytorch: "{torch}"\n'


@dataclass(frozen=True)
class World:
    """A registry with bases in it, and everything else that a lock without CUDA needs, on disk."""

    registry: Registry
    env: dict[str, str]

    def image(self, name: str) -> str:
        return f"{self.registry.host}/site/{name}:1"


def push_index(host: str, name: str, packed: bases.Packed, *platforms: tuple[str, str]) -> None:
    """One manifest for each of these, all the same."""
    digest = bases.sha256(packed.manifest)
    push(host, name, packed, digest)
    entry = {"mediaType": IMAGE, "digest": digest, "size": len(packed.manifest)}
    manifests = [entry | {"platform": {"os": os, "architecture": machine}} for os, machine in platforms]
    text = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}).encode()
    put_manifest(host, f"site/{name}", "1", text, INDEX)


def damage(server: Registry, blob: bytes) -> None:
    """Change a byte of a blob where the registry keeps it: it then serves what its digest is not."""
    digest = hashlib.sha256(blob).hexdigest()
    (data,) = server.folder.glob(f"data/**/{digest}/data")
    flip(data)


UNKNOWN: dict[str, bytes | str] = {"usr/lib/os-release": "ID=ubuntu\nVERSION_CODENAME=mantic\n"}
SHAPES = {
    "debian": bases.debian(),
    "bare": bases.Shape([bases.system({"libc6": "2.36-9"})]),
    "older": bases.Shape([bases.system({"libc6": "2.36-8", "ca-certificates": "0"})]),
    "newer": bases.Shape([bases.system({"libc6": "2.36-9+deb12u1", "ca-certificates": "2"})]),
    "no-os-release": bases.over(bases.debian(), {"usr/lib/.wh.os-release": "", "etc/.wh.os-release": ""}),
    "arm64": replace(bases.debian(), architecture="arm64"),
    "no-python": bases.over(bases.without(bases.debian(), "usr/bin/python"), UNKNOWN),
}  # fmt: skip
DAMAGED = bases.over(bases.debian(), {"only": "here"})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    write_mirror(folder / "mirror", folder / "keyring.gpg")
    wheels = [
        write_wheel(folder / "files", name, version)
        for name, version in (("setuptools", "80.0.0"), ("filelock", "3.0.0"))
    ]
    write_index(folder / "simple", *wheels)
    tag = "cp311-cp311-manylinux_2_28_x86_64"
    write_wheel(folder / "wheels", "torch", "2.13.0+cpu", tag=tag, requires=("filelock",))
    with registry(folder / "registry") as server:
        host, good = server.host, bases.pack(bases.debian())
        for name, shape in SHAPES.items():
            push(host, name, bases.pack(shape))
        push_index(host, "index", good, ("linux", "arm64"), ("unknown", "unknown"), ("linux", "amd64"))
        push_index(host, "no-platform", good, ("linux", "arm64"), ("linux", "ppc64le"))
        push(host, "wrong-bytes", bases.pack(DAMAGED))
        damage(server, bases.pack(DAMAGED).blobs[-1])
        env = {
            "ENVBUILDER_CACHE": str(cache_with_toolbox(folder / "cache")),
            "ENVBUILDER_DEBIAN_MIRROR": f"{(folder / 'mirror').as_uri()}/",
            "ENVBUILDER_DEBIAN_SECURITY": f"{(folder / 'mirror-security').as_uri()}/",
            "ENVBUILDER_DEBIAN_KEYRING": str(folder / "keyring.gpg"),
            "ENVBUILDER_INDEX": f"{(folder / 'simple').as_uri()}/",
            "ENVBUILDER_FOLDERS": str(folder / "wheels"),
        }
        yield World(server, env)


def write(tmp_path: Path, image: str, *, gcc: str = "12", torch: str = "2.13.0", more: str = "") -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE.format(image=image, gcc=gcc, torch=torch) + more)
    return path


def lock(path: Path, world: World, *options: str) -> Lock:
    run(ENVBUILDER, "lock", path, *options, env=world.env)
    return load_lock(path.with_suffix(".lock"))


def test_a_base_is_locked_by_the_digest_of_its_tag_with_all_blobs_and_facts(world: World, tmp_path: Path):
    packed, path = bases.pack(bases.debian()), write(tmp_path, world.image("debian"))
    whole = lock(path, world)
    base = whole.base
    assert base
    assert (base.registry, base.repository) == (world.registry.host, "site/debian")
    assert f"sha256:{base.manifest.digest}" == bases.sha256(packed.manifest)
    assert f"sha256:{base.config.digest}" == bases.sha256(packed.config)
    assert [(f"sha256:{layer.digest}", layer.size, layer.media_type) for layer in base.layers] == [
        (bases.sha256(data), len(data), kind)
        for data, kind in zip(packed.blobs, packed.media_types, strict=True)
    ]
    assert base.inside.distribution == "debian/bookworm"
    assert base.inside.value(Name.GLIBC) == "2.36"
    assert whole.debs == ()  # it has all that the recipe pins
    assert run(ENVBUILDER, "check", path, env=world.env).startswith(f"{path}: no problems found\n")
    shown = run(ENVBUILDER, "show", path, env=world.env)
    assert "base gcc" in shown
    assert "/usr/bin/gcc-12" in shown
    planned = run(ENVBUILDER, "build", path, "--dry-run", env=world.env)
    assert f"step os on {base.pinned}\n" in planned
    assert "docker buildx build" not in planned  # no engine is named


def test_a_locked_tag_keeps_its_digest_and_asks_nobody_until_an_upgrade(world: World, tmp_path: Path):
    host, path = world.registry.host, write(tmp_path, world.image("moving"))
    push(host, "moving", bases.pack(bases.debian()))
    first = lock(path, world).base
    push(host, "moving", bases.pack(bases.over(bases.debian(), bases.gcc("11.3.0"))))
    path.write_text(path.read_text() + "env: {A: b}\n")
    assert lock(path, world).base == first
    printed = run(ENVBUILDER, "lock", path, "--upgrade", env=world.env)
    assert "+ base has gcc 11.3.0 /usr/bin/gcc-11" in printed
    upgraded = load_lock(path.with_suffix(".lock")).base
    assert upgraded
    assert first
    assert upgraded.manifest != first.manifest


def test_lock_takes_linux_amd64_of_an_index_and_a_digest_before_a_tag(world: World, tmp_path: Path):
    digest = bases.sha256(bases.pack(bases.debian()).manifest)
    for image in (world.image("index"), f"{world.registry.host}/site/debian:gone@{digest}"):
        base = lock(write(tmp_path, image), world).base
        assert base
        assert f"sha256:{base.manifest.digest}" == digest


def test_no_registry_remembers_what_a_tag_was_on_a_day(world: World, tmp_path: Path):
    path = write(tmp_path, world.image("debian"))
    ended = attempt(ENVBUILDER, "lock", path, "--before", "2026-01-01", env=world.env)
    assert ended.returncode == 3
    assert "write the digest of that day's image behind it" in ended.stderr


def test_what_a_debian_image_lacks_is_locked_as_apt_would_add_it_there(world: World, tmp_path: Path):
    git = lock(write(tmp_path, world.image("debian"), more="apt: [git]\n"), world)
    assert [deb.name for deb in git.debs] == ["git"]
    bare = lock(write(tmp_path, world.image("bare")), world)
    assert [deb.name for deb in bare.debs] == [
        "binutils", "ca-certificates", "g++-12", "gcc-12", "libc6-dev", "libcrypt-dev", "make", "ninja-build",
        "python3.11", "python3.11-dev",
    ]  # fmt: skip
    assert [wheel.name for wheel in bare.wheels] == ["filelock", "setuptools", "torch"]


def test_a_security_upgrade_moves_what_was_added_and_nothing_else(world: World, tmp_path: Path):
    path = write(tmp_path, world.image("bare"), more="apt: [git]\n")
    old = lock(path, world)
    release = PACKAGES | {"make": ("4.4", "")}
    write_mirror(
        tmp_path / "mirror",
        tmp_path / "keyring.gpg",
        release,
        security={"git": ("1:2.39.5-0+deb12u3", "libc6")},
    )
    settings = {
        "ENVBUILDER_DEBIAN_MIRROR": f"{(tmp_path / 'mirror').as_uri()}/",
        "ENVBUILDER_DEBIAN_SECURITY": f"{(tmp_path / 'mirror-security').as_uri()}/",
        "ENVBUILDER_DEBIAN_KEYRING": str(tmp_path / "keyring.gpg"),
        "ENVBUILDER_FOLDERS": f"{world.env['ENVBUILDER_FOLDERS']}:{file_path(world.env['ENVBUILDER_DEBIAN_MIRROR'])}/pool/main",  # make 4.3
    }
    new = lock(path, replace(world, env=world.env | settings), "--upgrade", "--security")
    moved = [deb.name for deb, other in zip(new.debs, old.debs, strict=True) if deb != other]
    assert moved == ["git"]
    assert {deb.source for deb in new.debs if deb.name == "git"} == {"debian-security"}


def test_an_ubuntu_image_on_a_machine_without_ubuntus_keys_is_trusted_by_its_own(
    world: World, tmp_path: Path
):
    write_ubuntu(tmp_path / "ubuntu", tmp_path / "ubuntu.gpg")
    noble: dict[str, bytes | str] = {
        "usr/lib/os-release": "ID=ubuntu\nVERSION_CODENAME=noble\n",
        "usr/lib/x86_64-linux-gnu/libc.so.6": bases.glibc("2.39"),
        "usr/share/keyrings/ubuntu-archive-keyring.gpg": (tmp_path / "ubuntu.gpg").read_bytes(),
    }
    (tmp_path / "ubuntu.gpg").unlink()
    shape = bases.over(bases.Shape([bases.system({"libc6": UBUNTU["libc6"][0]})]), noble)
    push(world.registry.host, "noble", bases.pack(shape))
    tag = "cp312-cp312-manylinux_2_28_x86_64"
    write_wheel(tmp_path, "torch", "2.13.0+cpu", tag=tag, requires=("filelock",))
    settings = {
        "ENVBUILDER_FOLDERS": str(tmp_path),
        "ENVBUILDER_UBUNTU_MIRROR": f"{(tmp_path / 'ubuntu').as_uri()}/",
        "ENVBUILDER_UBUNTU_KEYRING": str(tmp_path / "ubuntu.gpg"),
    }
    path = write(tmp_path, world.image("noble"), gcc="13")
    path.write_text(path.read_text().replace('"3.11"', '"3.12"'))
    locked = lock(path, replace(world, env=world.env | settings))
    assert {deb.source for deb in locked.debs} == {"ubuntu"}
    assert {"python3.12": "3.12.3-1ubuntu0.9", "gcc-13": "13.3.0-6ubuntu2"}.items() <= {
        deb.name: deb.version for deb in locked.debs
    }.items()


def test_packages_come_from_the_image_s_own_repositories_that_answer(world: World, tmp_path: Path):
    """In the shape of NVIDIA's images. Docker builds are in `test_buildkit.py`; this one copies what they fetch."""
    apt = tmp_path / "repos/ubuntu2204/x86_64"
    write_flat(apt, write_deb(apt, "libcudnn9", "9.1-1", "libc6", pool="."), tmp_path / "cuda.gpg")
    with served(tmp_path / "repos") as address:
        key = "usr/share/keyrings/cuda-archive-keyring.gpg"
        files: dict[str, bytes | str] = {
            "etc/apt/sources.list": "deb http://127.0.0.1:9/debian bookworm main\n",  # the tables know it
            "etc/apt/sources.list.d/cuda.list": f"deb [signed-by=/{key}] {address}ubuntu2204/x86_64 /\n",
            "etc/apt/sources.list.d/ml.list": f"deb [signed-by=/{key}] http://127.0.0.2:9/ml /\n",
            key: (tmp_path / "cuda.gpg").read_bytes(),
        }
        push(world.registry.host, "vendor", bases.pack(bases.over(bases.debian(), files)))
        path = write(tmp_path, world.image("vendor"), more="apt: [libcudnn9]\n")
        ended = attempt(ENVBUILDER, "lock", path, env=world.env)
        assert ended.returncode == 0, ended.stderr
        assert "source http://127.0.0.2:9/ml (apt-image-ml) cannot be read" in ended.stderr
        whole = load_lock(path.with_suffix(".lock"))
        (cudnn,) = whole.debs
        assert (cudnn.source, cudnn.path) == ("apt-image-cuda", "libcudnn9_9.1-1_amd64.deb")
        run(ENVBUILDER, "cache", "vendor", path, tmp_path / "copy", env=world.env)
        assert (tmp_path / "copy/files" / cudnn.filename).is_file()
    path.write_text(path.read_text().replace("libcudnn9", "libnvinfer8"))
    gone = attempt(ENVBUILDER, "lock", path, env=world.env)
    assert gone.returncode == 3
    assert "bookworm has no package `libnvinfer8`" in gone.stderr
    assert "it may be in " in gone.stderr
    assert "(apt-image-cuda)" in gone.stderr


def test_a_base_without_python_gets_a_standalone_build(world: World, tmp_path: Path):
    build = load_standalones().by_name["3.11"]
    archive = tmp_path / "pythons" / build.path(X86_64)
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"an archive")
    mirror = {"UV_PYTHON_INSTALL_MIRROR": (tmp_path / "pythons").as_uri()}
    locked = lock(write(tmp_path, world.image("no-python")), replace(world, env=world.env | mirror))
    assert locked.interpreter is not None
    assert (locked.interpreter.path, locked.interpreter.size) == (build.path(X86_64), len(b"an archive"))
    assert locked.debs == ()
    assert lock(write(tmp_path, world.image("debian")), world).interpreter is None


@pytest.mark.parametrize(("name", "warned"), [("older", False), ("newer", True)])
def test_what_the_new_packages_need_in_the_suites_version_is_moved_to_it(
    world: World, tmp_path: Path, name: str, warned: bool
):
    path = write(tmp_path, world.image(name))
    ended = attempt(ENVBUILDER, "lock", path, env=world.env)
    assert ended.returncode == 0, ended.stderr
    assert ("some are put back to its versions" in ended.stderr) == warned
    debs = {deb.name: deb.version for deb in load_lock(path.with_suffix(".lock")).debs}
    assert debs["libc6"] == "2.36-9"  # libc6-dev wants exactly this one
    assert "ca-certificates" not in debs


@pytest.mark.parametrize(
    ("name", "code", "exit_code", "words"),
    [
        ("no-os-release", "EB341", 0, "does not say which distribution it is"),
        ("arm64", "EB339", 3, "the base is for arm64"),
    ],
)
def test_a_base_that_is_broken_inside_is_told_by_lock_and_then_by_check(
    world: World, tmp_path: Path, name: str, code: str, exit_code: int, words: str
):
    path = write(tmp_path, world.image(name))
    locked = attempt(ENVBUILDER, "lock", path, "--json", env=world.env)
    assert locked.returncode == exit_code, locked.stderr
    assert path.with_suffix(".lock").exists() == (exit_code == 0)
    checked = attempt(ENVBUILDER, "check", path, "--json", env=world.env)
    assert checked.returncode == exit_code
    codes = {finding["code"]: finding for finding in json.loads(checked.stdout)["findings"]}
    assert words in codes[code]["message"]
    assert codes[code]["hint"]
    assert codes[code]["where"].startswith(f"{path}:")


def refused(world: World, path: Path) -> dict[str, str]:
    """What is wrong with an image that cannot be had; nothing of it is kept."""
    ended = attempt(ENVBUILDER, "lock", path, "--json", env=world.env)
    assert ended.returncode == 5, ended.stdout + ended.stderr
    (finding,) = findings(ended)
    assert not list((Path(world.env["ENVBUILDER_CACHE"]) / "partial").iterdir())
    return finding


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("wrong-bytes", "EB525", "than its digest says"),
        ("no-platform", "EB522", "has no image for linux/amd64"),
        ("absent", "EB522", "there is no"),
    ],
)
def test_an_image_that_cannot_be_had_is_an_error_of_its_registry(
    world: World, tmp_path: Path, name: str, code: str, words: str
):
    finding = refused(world, write(tmp_path, world.image(name)))
    assert finding["code"] == code
    assert words in finding["message"]
