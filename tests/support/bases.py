"""Make small base images for tests: some like those that people build on, some broken in one way."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import zstandard

from envbuilder.artifacts.oci.model import parse_configuration
from envbuilder.compat.image_facts import Base
from envbuilder.compat.inspect_image import Inside, inspect_tree, is_wanted
from envbuilder.core.cache import Sha256
from envbuilder.layers.overlay import Overlay
from envbuilder.lock.model import Blob, LockedBase

EPOCH = 1_700_000_000
DIRECTORY = "/"  # a path that ends so is a folder
LINK = " -> "  # `bin -> usr/bin`

Files = Mapping[str, bytes | str]


def elf(machine: int = 62, content: bytes = b"") -> bytes:
    """Return the part of a 64-bit ELF header that the tests read."""
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + machine.to_bytes(2, "little")
    return head + bytes(44) + content


def glibc(version: str, machine: int = 62) -> bytes:
    return elf(machine, f"\0GNU C Library (made for a test) stable release version {version}.\n\0".encode())


def make_tar(files: Files) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in files.items():
            name, _, target = path.partition(LINK)
            item = tarfile.TarInfo(name.rstrip("/"))
            item.mtime, item.mode = EPOCH, 0o755
            data = content.encode() if isinstance(content, str) else content
            if path.endswith("/"):
                item.type = tarfile.DIRTYPE
            elif target:
                item.type, item.linkname = tarfile.SYMTYPE, target
            else:
                item.size = len(data)
            archive.addfile(item, io.BytesIO(data))
    return out.getvalue()


@dataclass(frozen=True)
class Shape:
    """A base image before it is packed: its layers' files, and its config."""

    layers: Sequence[Files]
    env: Sequence[str] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
    architecture: str = "amd64"
    more: Mapping[str, object] = field(default_factory=dict)  # of the config's `config`


@dataclass(frozen=True)
class Packed:
    """An image as a registry holds it."""

    config: bytes
    blobs: Sequence[bytes]  # the layers, the lowest first
    media_types: Sequence[str]

    @property
    def manifest(self) -> bytes:
        def describe(data: bytes, kind: str) -> dict[str, object]:
            return {"mediaType": kind, "digest": sha256(data), "size": len(data)}

        kind = "application/vnd.oci.image.manifest.v1+json"
        config = describe(self.config, "application/vnd.oci.image.config.v1+json")
        layers = [describe(data, media) for data, media in zip(self.blobs, self.media_types, strict=True)]
        manifest = {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers}
        return json.dumps(manifest).encode()


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def pack(shape: Shape) -> Packed:
    """Pack the image. Layers alternate between gzip and zstd, as in images that several tools made."""
    tars = [make_tar(files) for files in shape.layers]
    packers = (partial(gzip.compress, mtime=0), zstandard.ZstdCompressor().compress)
    config = {
        "architecture": shape.architecture,
        "os": "linux",
        "config": {"Env": list(shape.env), **shape.more},
        "rootfs": {"type": "layers", "diff_ids": [sha256(tar) for tar in tars]},
    }
    packing = ["gzip" if number % 2 == 0 else "zstd" for number in range(len(tars))]
    return Packed(
        config=json.dumps(config).encode(),
        blobs=[packers[number % 2](tar) for number, tar in enumerate(tars)],
        media_types=[f"application/vnd.oci.image.layer.v1.tar+{kind}" for kind in packing],
    )


def stanza(name: str, version: str, state: str = "install ok installed") -> str:
    return (
        f"Package: {name}\nStatus: {state}\nArchitecture: amd64\nVersion: {version}\nDescription: x\n more\n"
    )


BOOKWORM: dict[str, str] = {
    "libc6": "2.36-9+deb12u10", "libcrypt1": "1:4.4.33-2", "libcrypt-dev": "1:4.4.33-2", "gcc-12": "12.2.0-14",
    "g++-12": "12.2.0-14", "python3.11-minimal": "3.11.2-6", "libpython3.11-dev": "3.11.2-6", "make": "4.3-4.1",
    "ninja-build": "1.11.1-2~deb12u1", "binutils": "2.40-2", "ca-certificates": "20230311", "libc6-dev": "2.36-9+deb12u10",
}  # fmt: skip


def status(packages: Mapping[str, str]) -> str:
    return "\n".join(stanza(name, version) for name, version in packages.items())


def gcc(version: str) -> dict[str, bytes | str]:
    """A compiler for C and C++, as Debian lays it out."""
    major = version.partition(".")[0]
    triple = "x86_64-linux-gnu"
    files: dict[str, bytes | str] = {
        f"usr/lib/gcc/{triple}/{major}/cc1": elf(),
        f"usr/lib/gcc/{triple}/{major}/cc1plus": elf(),
    }
    for tool in ("gcc", "g++"):
        files[f"usr/bin/{triple}-{tool}-{major}"] = elf(content=f"\0{version}\0".encode())
        files[f"usr/bin/{tool}-{major} -> {triple}-{tool}-{major}"] = ""
    return files


def plain_gcc(major: str) -> dict[str, bytes | str]:
    return {f"usr/bin/gcc -> gcc-{major}": "", f"usr/bin/g++ -> g++-{major}": ""}


def python(version: str, prefix: str = "usr") -> dict[str, bytes | str]:
    minor = ".".join(version.split(".")[:2])
    return {
        f"{prefix}/bin/python{minor}": elf(),
        f"{prefix}/bin/python3 -> python{minor}": "",
        f"{prefix}/include/python{minor}/Python.h": "",
        f"{prefix}/include/python{minor}/patchlevel.h": f'#define PY_VERSION      "{version}"\n',
    }


def crypt() -> dict[str, bytes | str]:
    lib = "usr/lib/x86_64-linux-gnu"
    return {
        f"{lib}/libcrypt.so.1 -> libcrypt.so.1.1.0": "",
        f"{lib}/libcrypt.so.1.1.0": elf(content=b"\0XCRYPT_2.0\0XCRYPT_4.4\0XCRYPT_4.3\0"),
        "usr/include/crypt.h": "",
    }


def system(packages: Mapping[str, str] = BOOKWORM) -> dict[str, bytes | str]:
    """The parts of Debian 12 that envbuilder reads: merged /usr, C library, dpkg's database."""
    return {
        "usr/": "", "bin -> usr/bin": "", "lib -> usr/lib": "", "lib64 -> usr/lib64": "",
        "usr/lib/os-release": 'PRETTY_NAME="Debian GNU/Linux 12"\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nID=debian\n',
        "etc/os-release -> ../usr/lib/os-release": "",
        "usr/lib/x86_64-linux-gnu/libc.so.6": glibc("2.36"),
        "var/lib/dpkg/status": status(packages),
    }  # fmt: skip


def cuda(version: str, *, static: int = 3000, nvcc: bool = True) -> dict[str, bytes | str]:
    """A toolkit in the folder that NVIDIA's images use."""
    minor = ".".join(version.split(".")[:2])
    root, target = f"usr/local/cuda-{minor}", f"usr/local/cuda-{minor}/targets/x86_64-linux"
    parts = {"cuda": version, "cuda_nvcc": f"{minor}.131", "cuda_cudart": f"{minor}.127"}
    files: dict[str, bytes | str] = {
        f"{root}/version.json": json.dumps(
            {name: {"name": name, "version": number} for name, number in parts.items()}
        ),
        f"{root}/lib64 -> targets/x86_64-linux/lib": "",
        f"{root}/include -> targets/x86_64-linux/include": "",
        f"{target}/lib/libcudart.so.{minor}.127": elf(),
        f"{target}/lib/libcublas.so.{minor}.5.8": bytes(2000),
    }
    if nvcc:
        major, number = minor.split(".")
        files |= {
            f"{root}/bin/nvcc": elf(),
            f"{target}/include/cuda_runtime.h": "",
            f"{target}/include/cuda.h": f"#define CUDA_VERSION {major}0{number}0\n",
            f"{target}/lib/libcublas_static.a": bytes(static),
        }
    return files


def plain_cuda(minor: str) -> dict[str, bytes | str]:
    """The links that NVIDIA's packages make for a toolkit."""
    return {
        "usr/local/cuda -> /etc/alternatives/cuda": "",
        f"etc/alternatives/cuda -> /usr/local/cuda-{minor}": "",
    }


REQUIRE = (
    "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=tesla,driver>=535,driver<536 "
    "brand=geforce,driver>=535,driver<536"
)


def debian() -> Shape:
    """An image like `FROM debian` with a compiler and Python."""
    return Shape([system(), gcc("12.2.0") | plain_gcc("12"), python("3.11.2") | crypt()])


def devel() -> Shape:
    """An image like `nvidia/cuda:*-devel`: a toolkit, its driver requirement and NVIDIA's packages."""
    lib = "usr/lib/x86_64-linux-gnu"
    return Shape(
        [
            system(BOOKWORM | {"libnccl2": "2.21.5-1+cuda12.4", "cuda-nvcc-12-4": "12.4.131-1"}),
            gcc("12.2.0") | plain_gcc("12") | python("3.11.2") | crypt(),
            cuda("12.4.1") | plain_cuda("12.4"),
            {
                f"{lib}/libnccl.so.2.21.5": elf(),
                f"{lib}/libnccl.so.2 -> libnccl.so.2.21.5": "",
                f"{lib}/libcudnn.so.9.1.0": elf(),
                "etc/apt/sources.list.d/cuda.list": "deb [signed-by=/usr/share/keyrings/cuda.gpg] https://index.example/cuda /\n",
            },
        ],
        env=(
            "PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
            "CUDA_VERSION=12.4.1",
            f"NVIDIA_REQUIRE_CUDA={REQUIRE}",
        ),
        more={"Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"], "User": "1000", "WorkingDir": "/work"},
    )


def without(shape: Shape, *starts: str) -> Shape:
    """Return the files without the paths that start with these prefixes."""
    layers = [{path: files[path] for path in files if not path.startswith(starts)} for files in shape.layers]
    return Shape(layers, env=shape.env, architecture=shape.architecture, more=shape.more)


def over(shape: Shape, files: Files) -> Shape:
    """Return the image with one more layer on top."""
    return Shape([*shape.layers, files], env=shape.env, architecture=shape.architecture, more=shape.more)


def look(shape: Shape) -> Inside:
    packed = pack(shape)
    configuration = parse_configuration(packed.config)
    tree = Overlay(is_wanted)
    for data, diff_id in zip(packed.blobs, configuration.diff_ids, strict=True):
        digest = sha256(data).removeprefix("sha256:")
        tree.lay_over(io.BytesIO(data), name="layer", sha256=digest, diff_id=diff_id)
    return inspect_tree(tree, tree.contents(), configuration)


def base(shape: Shape) -> Base:
    found = look(shape)
    return Base(facts=found.facts, packages=found.packages)


def locked(shape: Shape, reference: str = "site/base:1", registry: str = "") -> LockedBase:
    packed, inside = pack(shape), look(shape)

    def blob(data: bytes, kind: str) -> Blob:
        return Blob(digest=Sha256(sha256(data).removeprefix("sha256:")), size=len(data), media_type=kind)

    return LockedBase(
        reference=reference, registry=registry, repository="site/base",
        manifest=blob(packed.manifest, "application/vnd.oci.image.manifest.v1+json"),
        config=blob(packed.config, "application/vnd.oci.image.config.v1+json"),
        layers=tuple(blob(data, kind) for data, kind in zip(packed.blobs, packed.media_types, strict=True)),
        facts=inside.facts, packages=inside.packages,
    )  # fmt: skip


BASE = locked(devel())
