"""Each audit finds what is planted for it and is silent about a tree that is as it should be."""

import hashlib
import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.core.findings import Severity
from envbuilder.core.processor import AARCH64, X86_64, Processor
from envbuilder.layers.entry import Entry, Kind
from envbuilder.verify.audit import AuditCode, ImageTexts, audit
from tests.support.elves import gpu_library, library

SITE = "opt/env/lib/python3.11/site-packages"
CONDA = "opt/conda-env/lib"
SEEN = f"{CONDA}/python3.11/site-packages/environment.pth"
SYSTEM = "usr/lib/x86_64-linux-gnu"
FATBINS = Path(__file__).parent / "fatbins"
SM_70_80 = (FATBINS / "cuda-11.2.fatbin").read_bytes()  # sm_70, sm_80 and PTX for 8.0
SM_80_90A = (FATBINS / "cuda-12.4-compressed.fatbin").read_bytes()  # sm_80, sm_90a and PTX for 9.0
CERTIFICATE = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n"


@dataclass(frozen=True)
class MadeTree:
    """A tree out of a table; `->` in front of a text makes a link."""

    entries: tuple[Entry, ...]
    contents: Mapping[str, bytes]

    def open(self, path: str) -> IO[bytes]:
        return io.BytesIO(self.contents[path])


def make_tree(
    files: Mapping[str, bytes | str], modes: Mapping[str, int] = {}, folders: Mapping[str, int] = {}
) -> MadeTree:
    entries = []
    contents = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
    above = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."}
    for name in sorted(above | folders.keys()):
        mode = folders.get(name, 0o755)
        entries.append(Entry(path=name, kind=Kind.DIRECTORY, mode=mode, uid=0, gid=0, mtime=0))
    for name, content in contents.items():
        plain = Entry(path=name, kind=Kind.FILE, mode=modes.get(name, 0o644), uid=0, gid=0, mtime=0)
        if content.startswith(b"->"):
            entries.append(replace(plain, kind=Kind.LINK, target=content[2:].decode()))
        else:
            digest = hashlib.sha256(content).hexdigest()
            entries.append(replace(plain, size=len(content), sha256=digest))
    return MadeTree(tuple(entries), contents)


CLEAN: dict[str, bytes | str] = {
    f"{SYSTEM}/libc.so.6": library(soname="libc.so.6", gives=("GLIBC_2.2.5", "GLIBC_2.36")),
    f"{SYSTEM}/libstdc++.so.6.0.30": library(soname="libstdc++.so.6", gives=("GLIBCXX_3.4", "GLIBCXX_3.4.30")),
    f"{SYSTEM}/libcrypt.so.1": library(soname="libcrypt.so.1", gives=("XCRYPT_2.0",)),
    "lib": "->usr/lib",
    "usr/bin/su": library(needed=("libc.so.6",)),
    f"{SITE}/torch/lib/libtorch_cuda.so": library(
        soname="libtorch_cuda.so", needed=("libcudart.so.12",), runpath="$ORIGIN:$ORIGIN/../../nvidia/cuda_runtime/lib:/usr/local/cuda/lib64",
        needs={"libc.so.6": ("GLIBC_2.2.5",), "libstdc++.so.6": ("GLIBCXX_3.4.30",)}, sections={".nv_fatbin": SM_80_90A},
    ),
    f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12": library(soname="libcudart.so.12", needs={"libc.so.6": ("GLIBC_2.2.5",)}),
    f"{SYSTEM}/libibverbs.so.1.14.44.0": library(soname="libibverbs.so.1", needed=("libnl-3.so.200", "libc.so.6")),
    f"{SYSTEM}/libibverbs.so.1": "->libibverbs.so.1.14.44.0",
    f"{SYSTEM}/libnl-3.so.200": library(soname="libnl-3.so.200"),
    f"{SYSTEM}/libibverbs/libmlx5-rdmav34.so": library(needed=("libibverbs.so.1",)),
    "etc/libibverbs.d/mlx5.driver": "driver mlx5\n",
    f"{SITE}/tornado/test/test.key": "-----BEGIN PRIVATE KEY-----\n",
    "usr/local/cuda/lib64/libcudart.so": f"->/{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12",
    "opt/envbuilder/extensions/fused/fused.so": library(needs={"libcrypt.so.1": ("XCRYPT_2.0",)}, sections={".nv_fatbin": SM_70_80}),
    "usr/share/ca-certificates/mozilla/one.crt": CERTIFICATE.format("AAAA"),
    "etc/ssl/certs/ca-certificates.crt": CERTIFICATE.format("AAAA"),
    "etc/machine-id": "",
    "etc/pip.conf": "[global]\nindex-url = https://index.example.org/simple\n",
}  # fmt: skip
MODES = {"usr/bin/su": 0o4755}


def found(tree: MadeTree, **options: object) -> list[tuple[str, str]]:
    return [(finding.code, finding.where) for finding in audit(tree, **{"gpus": ("8.0",), **options})]


def with_files(files: Mapping[str, bytes | str]) -> MadeTree:
    return make_tree(CLEAN | dict(files), MODES)


def test_a_tree_that_is_as_it_should_be_has_no_findings():
    tree = make_tree(CLEAN, MODES, {"tmp": 0o1777})
    assert audit(tree, gpus=("8.0",), oldest_glibc="2.28", outside=ORDINARY, processor=X86_64) == ()


ORDINARY = ImageTexts(
    environment=(
        ("PATH", "/opt/env/bin"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("WANDB_TOKEN_FILE", "/run/secrets/wandb"),
    ),
    texts=(
        ("config.Labels.maintainer", "maintainer=someone@example.org"),
        (
            "history[0].created_by",
            "RUN /bin/sh -c export API_TOKEN=$(cat /run/secrets/token) && git clone https://h.example/a",
        ),
        ("history[1].created_by", "ENV SECRET="),
        ("history[2].created_by", "ARG TOKEN=/run/secrets/token"),
    ),
)

PLANTED = {
    "a GPU without code": ({}, {"gpus": ("8.0", "7.5")}, AuditCode.NO_CODE, f"/{SITE}/torch/lib/libtorch_cuda.so"),
    "a GPU with PTX alone": (
        {"opt/envbuilder/extensions/b/b.so": library(sections={".nv_fatbin": SM_70_80})},
        {"gpus": ("8.0", "9.0")}, AuditCode.ONLY_PTX, "/opt/envbuilder/extensions/b/b.so",
    ),
    "a fat binary that cannot be read": (
        {"opt/envbuilder/extensions/b/b.so": library(sections={".nv_fatbin": b"no fat binary at all"})},
        {}, AuditCode.UNREADABLE, "/opt/envbuilder/extensions/b/b.so",
    ),
    "a newer glibc": ({f"{SITE}/a.so": library(needs={"libc.so.6": ("GLIBC_2.38",)})}, {}, AuditCode.SYMBOLS, f"/{SITE}/a.so"),
    "a newer libstdc++": ({f"{SITE}/a.so": library(needs={"libstdc++.so.6": ("CXXABI_1.3.15",)})}, {}, AuditCode.SYMBOLS, f"/{SITE}/a.so"),
    "a newer libstdc++ that conda alone has": (
        {f"{SITE}/a.so": library(needs={"libstdc++.so.6": ("CXXABI_1.3.15",)}), f"{CONDA}/libstdc++.so.6": library(soname="libstdc++.so.6", gives=("CXXABI_1.3.15",))},
        {}, AuditCode.SYMBOLS, f"/{SITE}/a.so",
    ),
    "a second CUDA runtime, of conda": (
        {f"{CONDA}/libcudart.so.12": library(soname="libcudart.so.12")}, {}, AuditCode.COPIES, f"/{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12",
    ),
    "an older libstdc++ of conda, in the Python of both": (
        {f"{CONDA}/libstdc++.so.6": library(soname="libstdc++.so.6", gives=("GLIBCXX_3.4",)), SEEN: "import site"},
        {}, AuditCode.SYMBOLS, f"/{SITE}/torch/lib/libtorch_cuda.so",
    ),
    "a newer libxcrypt": ({f"{SITE}/a.so": library(needs={"libcrypt.so.1": ("XCRYPT_4.4",)})}, {}, AuditCode.SYMBOLS, f"/{SITE}/a.so"),
    "an older host": (
        {f"{SITE}/a.so": library(needs={"libc.so.6": ("GLIBC_2.2.5", "GLIBC_2.36")})}, {"oldest_glibc": "2.31"}, AuditCode.OLDEST_HOST, f"/{SITE}/a.so",
    ),
    "a second NCCL": (
        {f"{SITE}/nvidia/nccl/lib/libnccl.so.2": library(soname="libnccl.so.2"), f"{SYSTEM}/libnccl.so.2": library(soname="libnccl.so.2", gives=("A",)),
         f"{SITE}/b.so": library(needed=("libnccl.so.2",), runpath="$ORIGIN/nvidia/nccl/lib")},
        {}, AuditCode.COPIES, f"/{SITE}/nvidia/nccl/lib/libnccl.so.2",
    ),
    "a run path that the image has not": ({f"{SITE}/a.so": library(runpath="/opt/elsewhere/lib")}, {}, AuditCode.RUNPATH, f"/{SITE}/a.so"),
    "a run path that others may write": ({f"{SITE}/a.so": library(rpath="/tmp/build/lib")}, {}, AuditCode.RUNPATH, f"/{SITE}/a.so"),
    "a run path where it is started": ({f"{SITE}/a.so": library(runpath="$ORIGIN:")}, {}, AuditCode.RUNPATH, f"/{SITE}/a.so"),
    "a run path above the root": ({"opt/a.so": library(runpath="$ORIGIN/../../lib")}, {}, AuditCode.RUNPATH, "/opt/a.so"),
    "a token": ({"root/.netrc": "machine a.example login b password c"}, {}, AuditCode.SECRET, "/root/.netrc"),
    "a password in an index": ({"etc/pip.conf": "index-url = https://me:s3cret@index.example/simple"}, {}, AuditCode.SECRET, "/etc/pip.conf"),
    "where a package came from": ({f"{SITE}/a.dist-info/direct_url.json": '{"url": "https://me:s3cret@h.example/a.whl"}'}, {}, AuditCode.SECRET,
                                  f"/{SITE}/a.dist-info/direct_url.json"),
    "a private key": ({"etc/ssl/private/host.key": "-----BEGIN RSA PRIVATE KEY-----\n"}, {}, AuditCode.SECRET, "/etc/ssl/private/host.key"),
    "an identity": ({"etc/machine-id": "0123456789abcdef0123456789abcdef\n"}, {}, AuditCode.SECRET, "/etc/machine-id"),
    "a token in the environment": ({}, {"outside": ImageTexts(environment=(("HF_TOKEN", "hf_" + "a" * 34),))}, AuditCode.SECRET, "the environment's HF_TOKEN"),
    "a password in the environment": ({}, {"outside": ImageTexts(environment=(("DB_PASSWORD", "correcthorse"),))}, AuditCode.SECRET, "the environment's DB_PASSWORD"),
    "a token in a label": ({}, {"outside": ImageTexts(texts=(("config.Labels.ci.token", "ci.token=0123456789"),))}, AuditCode.SECRET,
                           "the image's config.Labels.ci.token"),
    "an index's password in the history": (
        {}, {"outside": ImageTexts(texts=(("history[3].created_by", "RUN /bin/sh -c pip install --index-url https://me:s3cret@h.example/s numpy"),))},
        AuditCode.SECRET, "the image's history[3].created_by",
    ),
    "a build argument in the history": (
        {}, {"outside": ImageTexts(texts=(("history[1].created_by", "RUN |1 PIP_TOKEN=s3cr3t-word /bin/sh -c make"),))}, AuditCode.SECRET,
        "the image's history[1].created_by",
    ),
    "a file that a later layer removed": ({}, {"outside": ImageTexts(hidden=(("root/.netrc", "a password for a host"),))}, AuditCode.SECRET,
                                          "/root/.netrc of a lower layer"),
    "a proxy's authority": ({"usr/local/share/ca-certificates/proxy.crt": CERTIFICATE.format("BBBB")}, {}, AuditCode.AUTHORITY,
                            "/usr/local/share/ca-certificates/proxy.crt"),
    "a proxy's authority in the bundle": ({"etc/ssl/certs/ca-certificates.crt": CERTIFICATE.format("AAAA") + CERTIFICATE.format("BBBB")}, {},
                                          AuditCode.AUTHORITY, "/etc/ssl/certs/ca-certificates.crt"),
}  # fmt: skip

GOMP = {
    f"{SITE}/torch/lib/libtorch_cpu.so": library(soname="libtorch_cpu.so", needed=("libgomp-1a2b.so.1",), runpath="$ORIGIN"),
    f"{SITE}/torch/lib/libgomp-1a2b.so.1": library(soname="libgomp-1a2b.so.1"),
}  # fmt: skip
IOMP = library(soname="libiomp5.so")
BY_CONDA = library(needed=("libsolve.so",), runpath=f"/{CONDA}")
TWO_OPENMPS = {
    "conda's, by a run path": (
        {f"{SITE}/solve.so": BY_CONDA, f"{CONDA}/libsolve.so": library(needed=("libomp.so",), runpath="$ORIGIN"), f"{CONDA}/libomp.so": library()},
        f"/{CONDA}/libomp.so",
    ),
    "of a module of conda, in the Python of both": (
        {f"{CONDA}/python3.11/site-packages/solve.so": BY_CONDA, f"{CONDA}/libsolve.so": library(needed=("libomp.so",), runpath="$ORIGIN"),
         f"{CONDA}/libomp.so": library(), SEEN: "import site"},
        f"/{CONDA}/libomp.so",
    ),
    "opened by MKL": ({"opt/env/lib/libiomp5.so": IOMP}, "/opt/env/lib/libiomp5.so"),
    "Intel's of two wheels": ({f"{SITE}/a.libs/libiomp5-12ab.so": library(soname="libiomp5-12ab.so"), "opt/env/lib/libiomp5.so": IOMP}, "/opt/env/lib/libiomp5.so"),
}  # fmt: skip
ONE_OPENMP = {
    "of two wheels": {f"{SITE}/a.so": library(needed=("libgomp-3c4d.so.1",), runpath="$ORIGIN"), f"{SITE}/libgomp-3c4d.so.1": library()},
    "conda's, in a Python of its own": {
        f"{CONDA}/python3.11/site-packages/solve.so": BY_CONDA, f"{CONDA}/libsolve.so": library(needed=("libomp.so",), runpath="$ORIGIN"), f"{CONDA}/libomp.so": library(),
    },
    "conda's for conda alone": {f"{CONDA}/libomp.so": library(), f"{CONDA}/tool.so": library(needed=("libomp.so",), runpath="$ORIGIN")},
    "the system's": {f"{SYSTEM}/libomp.so.5": library(soname="libomp.so.5")},
}  # fmt: skip


def openmp_findings(files: Mapping[str, bytes | str]) -> list[tuple[str, str]]:
    return [
        (one.where, one.message)
        for one in audit(with_files(GOMP | dict(files)))
        if one.code == AuditCode.OPENMP
    ]


@pytest.mark.parametrize("case", TWO_OPENMPS)
def test_two_openmps_that_one_process_may_load_are_found(case: str):
    files, place = TWO_OPENMPS[case]
    ((where, message),) = openmp_findings(files)
    assert where == place
    assert f"/{SITE}/torch/lib/libgomp-1a2b.so.1 by /{SITE}/torch/lib/libtorch_cpu.so" in message


@pytest.mark.parametrize("case", ONE_OPENMP)
def test_openmps_that_go_together_are_no_finding(case: str):
    assert openmp_findings(ONE_OPENMP[case]) == []


TAGGED = "cpython-311-x86_64-linux-gnu.so"
BOOKWORM = {"var/lib/dpkg/status": "Package: libssl3\n"}
GL = library(needed=("libGL.so.1",))


def needed_findings(files: Mapping[str, bytes | str], **environment: str) -> list[tuple[str, str, str, str]]:
    outside = ImageTexts(environment=tuple(environment.items()))
    tree = make_tree(CLEAN | BOOKWORM | dict(files), MODES)
    found = [one for one in audit(tree, outside=outside, processor=X86_64) if one.code == AuditCode.NEEDED]
    return [(one.severity, one.where.rpartition("/")[2], one.message, one.hint) for one in found]


IMPORTED = {
    "the recipe's extension": {"opt/envbuilder/extensions/view-0123/view.so": GL},
    "a module beside the packages": {f"{SITE}/view.{TAGGED}": GL},
    "a module of its package's name": {f"{SITE}/view/view.abi3.so": GL, f"{SITE}/view/__init__.py": "boot()"},
    "imported beside": {f"{SITE}/view/_gl.{TAGGED}": GL, f"{SITE}/view/__init__.py": "from ._gl import *"},
    "imported by name": {f"{SITE}/view/_gl.{TAGGED}": GL, f"{SITE}/view/__init__.py": "import view._gl as gl"},
    "imported further down": {
        f"{SITE}/view/__init__.py": "from . import draw", f"{SITE}/view/draw/__init__.py": "from .lines import line",
        f"{SITE}/view/draw/lines.py": "from ..core._gl import line", f"{SITE}/view/core/__init__.py": "", f"{SITE}/view/core/_gl.{TAGGED}": GL,
    },
    "a library of its wheel": {
        f"{SITE}/view.{TAGGED}": library(needed=("libdraw-1.so",), runpath="$ORIGIN/view.libs"), f"{SITE}/view.libs/libdraw-1.so": GL,
    },
}  # fmt: skip


@pytest.mark.parametrize("case", IMPORTED)
def test_an_import_that_lacks_a_library_is_an_error_and_names_the_package(case: str):
    ((severity, _, message, hint),) = needed_findings(IMPORTED[case])
    assert severity == Severity.ERROR
    assert message == "`import view` fails: nothing in the image has `libGL.so.1`"
    assert hint == "add `apt: [libgl1]` to the recipe, then `envbuilder lock`"


OPTIONAL = {
    "a plugin": {f"{SITE}/view/plugins/libview_gl.so": GL},
    "never imported": {f"{SITE}/view/_gl.{TAGGED}": GL, f"{SITE}/view/__init__.py": "import os"},
    "in a function": {f"{SITE}/view/_gl.{TAGGED}": GL, f"{SITE}/view/__init__.py": "def f():\n  from . import _gl"},
    "if it works": {
        f"{SITE}/view/_gl.{TAGGED}": GL, f"{SITE}/view/__init__.py": "try:\n  from . import _gl\nexcept ImportError:\n  _gl = None",
    },
    "a module for another Python": {f"{SITE}/view.cpython-39-x86_64-linux-gnu.so": GL},
    "not to be read": {f"{SITE}/view/_gl.{TAGGED}": GL, f"{SITE}/view/__init__.py": "from . import _gl ((("},
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONAL)
def test_a_part_that_may_never_be_loaded_is_a_warning(case: str):
    ((severity, _, message, hint),) = needed_findings(OPTIONAL[case])
    assert severity == Severity.WARNING
    assert message == "a part of `view` cannot be loaded: nothing in the image has `libGL.so.1`"
    assert hint == "if you use that part: add `apt: [libgl1]` to the recipe, then `envbuilder lock`"


BROUGHT = {
    "by the system": {f"{SYSTEM}/libGL.so.1": "->libGL.so.1.7.0", f"{SYSTEM}/libGL.so.1.7.0": library(soname="libGL.so.1")},
    "by a folder of the cache": {"etc/ld.so.conf.d/gl.conf": "/usr/lib/gl\n", "usr/lib/gl/libGL.so.1": library(soname="libGL.so.1")},
    "by a run path": {f"{SITE}/view.{TAGGED}": library(needed=("libGL.so.1",), rpath="${ORIGIN}/a"), f"{SITE}/a/libGL.so.1": library()},
    "by a package that is imported first": {f"{SITE}/torch/lib/libGL.so.1": library(soname="libGL.so.1")},
    "by a file of another name": {f"{SITE}/nvidia/gl/lib/libGL-5.so": library(soname="libGL.so.1")},
}  # fmt: skip


@pytest.mark.parametrize("case", BROUGHT)
def test_a_library_that_the_loader_finds_is_not_missing(case: str):
    assert needed_findings({f"{SITE}/view.{TAGGED}": GL} | BROUGHT[case]) == []


@pytest.mark.parametrize("text", ["-" * 100_000 + "1", "a" + ".b" * 50_000])
def test_a_module_that_is_nested_without_end_is_not_read(text: str):
    files = {f"{SITE}/view/_gl.{TAGGED}": GL, f"{SITE}/view/__init__.py": text}
    assert [severity for severity, *_ in needed_findings(files)] == [Severity.WARNING]


def test_conda_s_packages_have_their_own_libraries():
    newer = library(soname="libstdc++.so.6", gives=("CXXABI_1.3.15",))
    user = library(needs={"libstdc++.so.6": ("CXXABI_1.3.15",)}, runpath="$ORIGIN")
    tree = make_tree(
        CLEAN | {f"{CONDA}/libstdc++.so.6": newer, f"{CONDA}/libuser.so": user}, MODES, {"tmp": 0o1777}
    )
    assert audit(tree, gpus=("8.0",), oldest_glibc="2.28", outside=ORDINARY, processor=X86_64) == ()


def test_a_library_of_conda_is_none_of_the_environment():
    assert len(needed_findings({f"{SITE}/view.{TAGGED}": GL, f"{CONDA}/libGL.so.1": library()})) == 1
    conda = f"{CONDA}/python3.12/site-packages/view.{TAGGED}"
    assert needed_findings({conda: GL, f"{CONDA}/libGL.so.1": library()}) == []


def test_a_library_in_a_folder_of_ld_library_path_is_not_missing():
    files = {f"{SITE}/view.{TAGGED}": GL, "usr/lib/gl/libGL.so.1": library()}
    assert needed_findings(files, LD_LIBRARY_PATH="/nowhere:/usr/lib/gl") == []
    assert len(needed_findings(files)) == 1  # a folder of the system that its cache does not have


def test_the_drivers_libraries_and_files_for_other_processors_are_not_missed():
    driver = library(needed=("libcuda.so.1", "libnvidia-ml.so.1", "libEGL_nvidia.so.0"))
    foreign = library(needed=("libGL.so.1",), machine=AARCH64.elf)
    fabric = library(needed=("libfabric.so.1",))
    assert (
        needed_findings({f"{SITE}/view.{TAGGED}": driver, f"{SITE}/view/attach_linux_arm64.so": foreign})
        == []
    )
    assert needed_findings({f"{SITE}/nvidia/nvshmem/lib/nvshmem_transport_libfabric.so.3": fabric}) == []


def test_a_variant_for_another_version_is_not_missed_beside_one_that_loads():
    variants = {
        f"{SITE}/codec/libcodec{at}.so": library(needed=(f"libavutil.so.{50 + at}",)) for at in (4, 5, 6)
    }
    ((_, _, _, hint),) = needed_findings(variants)
    assert "`apt: [ffmpeg]`" in hint
    assert needed_findings(variants | {f"{SYSTEM}/libavutil.so.55": library(soname="libavutil.so.55")}) == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("Package: libssl3t64\n", "add `apt: [libgl1, libglib2.0-0t64]` to the recipe"),
        ("Package: libssl3\n", "add `apt: [libgl1, libglib2.0-0]` to the recipe"),
        ("", "take a base that has them; Debian's packages are `apt: [libgl1, libglib2.0-0]`"),
    ],
)
def test_packages_are_named_as_the_images_distribution_names_them(status: str, words: str):
    needed = ("libgthread-2.0.so.0", "libGL.so.1", "libglib-2.0.so.0", "libmine.so.2")
    files = {f"{SITE}/view.{TAGGED}": library(needed=needed), "var/lib/dpkg/status": status}
    ((*_, hint),) = needed_findings(files)
    assert hint.startswith(words)
    assert hint.endswith("for `libmine.so.2`, take another build of the package")


def test_a_preloaded_library_is_in_the_image():
    files = {"opt/x/libx.so": library()}
    (found,) = needed_findings(
        files, LD_PRELOAD="/opt/x/libx.so:/usr/lib/x86_64-linux-gnu/libjemalloc.so.2:libcuda.so.1"
    )
    assert found[:2] == (Severity.WARNING, "the environment's LD_PRELOAD")
    assert found[2].startswith("`/usr/lib/x86_64-linux-gnu/libjemalloc.so.2` is not in the image")
    assert "`apt: [libjemalloc2]`" in found[3]


ARM_FILES = {
    "usr/lib/aarch64-linux-gnu/libc.so.6": library(soname="libc.so.6", machine=AARCH64.elf, alignment=65536),
    f"{SITE}/a/a.so": library(machine=AARCH64.elf, alignment=1 << 21),
}


def processor_findings(files: Mapping[str, bytes | str], processor: Processor) -> list[tuple[str, str, str]]:
    found = audit(make_tree(files, dict.fromkeys(files, 0o755)), processor=processor)
    return [(one.code, one.severity, one.where) for one in found]


@pytest.mark.parametrize(
    ("path", "planted", "code", "severity"),
    [
        ("usr/lib/aarch64-linux-gnu/libz.so.1", library(), AuditCode.FOREIGN, Severity.ERROR),
        (f"{SITE}/torch/lib/libc10.so", library(), AuditCode.FOREIGN, Severity.ERROR),
        ("usr/lib/x86_64-linux-gnu/libz.so.1", library(), AuditCode.FOREIGN, Severity.ERROR),
        ("usr/bin/tool", library(), AuditCode.FOREIGN, Severity.ERROR),
        (f"{SITE}/debugpy/attach_linux_amd64.so", library(), AuditCode.FOREIGN, Severity.WARNING),
        (f"{SITE}/debugpy/attach_linux_x86.so", library(machine=3), AuditCode.FOREIGN, Severity.WARNING),
        (
            "opt/envbuilder/extensions/b/b.so",
            library(machine=183, alignment=4096),
            AuditCode.PAGES,
            Severity.ERROR,
        ),
        ("usr/bin/tool", library(machine=183, alignment=16384), AuditCode.PAGES, Severity.ERROR),
    ],
)
def test_a_file_that_an_arm_machine_cannot_load_is_found_and_named(path, planted, code, severity):
    assert processor_findings(ARM_FILES, AARCH64) == []
    assert processor_findings(ARM_FILES | {path: planted}, AARCH64) == [(code, severity, f"/{path}")]


def test_an_arm_library_in_an_image_for_x86_64_is_found_and_named():
    assert processor_findings(CLEAN | ARM_FILES, X86_64)[0][:2] == (AuditCode.FOREIGN, Severity.ERROR)
    (finding,) = [
        one for one in audit(with_files(ARM_FILES), processor=X86_64) if one.code == AuditCode.FOREIGN
    ]
    assert finding.message == (
        f"it is for 64-bit Arm, and the image is for x86-64; the same in 1 more: /{SITE}/a/a.so"
    )


def test_the_message_about_pages_names_both_sizes_and_the_flag_of_the_linker():
    files = ARM_FILES | {f"{SITE}/b.so": library(machine=AARCH64.elf)}
    (finding,) = audit(make_tree(files), processor=AARCH64)
    assert finding.message.startswith("its segments are aligned to 4096 bytes, and kernels for 64-bit Arm")
    assert "max-page-size=65536" in finding.hint


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found_and_nothing_else(name: str):
    files, options, code, where = PLANTED[name]
    seen = found(with_files(files), **options)
    assert (code, where) in seen
    assert {one for one, _ in seen} == {code}


@pytest.mark.parametrize(
    ("files", "modes", "folders", "code", "where"),
    [
        ({"opt/x": "x"}, {"opt/x": 0o666}, {}, AuditCode.WRITABLE, "/opt/x"),
        ({}, {}, {"opt/open": 0o777}, AuditCode.WRITABLE, "/opt/open"),
        (
            {"usr/bin/helper": "#!/bin/sh\n"},
            {"usr/bin/helper": 0o4755},
            {},
            AuditCode.SET_ID,
            "/usr/bin/helper",
        ),
        (
            {"usr/bin/helper": "#!/bin/sh\n"},
            {"usr/bin/helper": 0o2755},
            {},
            AuditCode.SET_ID,
            "/usr/bin/helper",
        ),
    ],
)
def test_rights_that_go_too_far_are_found(files, modes, folders, code, where):
    tree = make_tree(CLEAN | files, MODES | modes, folders)
    assert found(tree) == [(code, where)]


def test_a_second_copy_says_who_loads_which_and_what_it_costs():
    files, _, _, _ = PLANTED["a second NCCL"]
    (finding,) = [one for one in audit(with_files(files)) if one.code == AuditCode.COPIES]
    assert f"/{SITE}/nvidia/nccl/lib/libnccl.so.2 is loaded by /{SITE}/b.so" in finding.message
    assert "different bytes" in finding.message
    assert finding.hint.endswith("MB")


def test_files_with_the_same_run_paths_are_one_finding_and_each_is_named_once():
    odd = library(runpath="/ci/intel64:/ci/win-x64:/lib/intel64:/tmp/build")
    files = {f"{SITE}/torch/bin/{name}Test": odd for name in "ABCDEF"} | {
        f"{SITE}/x.so": library(runpath="/x")
    }
    one, other = [
        each
        for each in audit(make_tree(CLEAN | files, MODES | dict.fromkeys(files, 0o755)))
        if each.code == AuditCode.RUNPATH
    ]
    assert (one.where, other.where) == (f"/{SITE}/torch/bin/ATest", f"/{SITE}/x.so")
    assert one.message == (
        "looks for libraries in `/ci/intel64`, `/ci/win-x64` (not in the image), and `/tmp/build` (not the image's, and"
        f" others may write there); the same in 5 more: /{SITE}/torch/bin/BTest, /{SITE}/torch/bin/CTest, /{SITE}/torch/bin/DTest, …"
    )
    assert other.message == "looks for libraries in `/x` (not in the image)"


def test_a_secret_is_never_shown():
    tree = with_files({"root/.git-credentials": "https://me:s3cretpassword@code.example"})
    (finding,) = [one for one in audit(tree) if one.code == AuditCode.SECRET]
    assert "s3cret" not in str(finding) + finding.hint
    assert finding.severity is Severity.ERROR


def test_a_file_for_other_gpus_beside_that_for_the_recipes_is_no_finding():
    for_hopper = {f"{SITE}/ops/_C_90a.so": gpu_library("sm_90a")}
    assert found(with_files(for_hopper)) == [(AuditCode.NO_CODE, f"/{SITE}/ops/_C_90a.so")]
    assert found(with_files(for_hopper | {f"{SITE}/ops/_C.so": gpu_library("sm_80")})) == []
    assert found(with_files(for_hopper | {f"{SITE}/other/_C.so": gpu_library("sm_80")})) != []


def test_without_gpus_their_code_is_not_judged():
    assert AuditCode.NO_CODE not in {code for code, _ in found(make_tree(CLEAN, MODES), gpus=())}


@pytest.mark.parametrize(
    ("without", "messages"),
    [
        (
            f"{SYSTEM}/libibverbs.so.1.14.44.0",
            ["`libibverbs.so.1` is not"],
        ),
        (f"{SYSTEM}/libibverbs/libmlx5-rdmav34.so", ["a provider of libibverbs is not"]),
        ("etc/libibverbs.d/mlx5.driver", ["a provider of libibverbs is not"]),
    ],
)
def test_nccl_without_whole_libraries_for_infiniband_is_reported(without: str, messages: list[str]):
    tree = make_tree({path: text for path, text in CLEAN.items() if path != without}, MODES)
    findings = [one for one in audit(tree, gpus=("8.0",)) if one.code != AuditCode.NEEDED]
    assert [finding.code for finding in findings] == ["EB722"] * len(messages)
    assert all(part in finding.message for part, finding in zip(messages, findings, strict=True))


def test_a_tree_without_nccl_needs_none_of_them():
    tree = make_tree({f"{SYSTEM}/libc.so.6": CLEAN[f"{SYSTEM}/libc.so.6"]}, {})
    assert audit(tree) == ()


WHOLE = library(
    soname="a.so", needed=("libc.so.6",), runpath="$ORIGIN", needs={"libc.so.6": ("A", "B")}, gives=("C",)
)


@settings(max_examples=80, deadline=1000)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.sampled_from((0, 1, 127, 255))), max_size=6))
def test_a_damaged_elf_file_is_told_soon_and_never_a_crash(damage: list[tuple[int, int]]):
    content = bytearray(WHOLE)
    for at, value in damage:
        content[at] = value
    assert {code for code, _ in found(make_tree({"opt/a.so": bytes(content)}))} <= {
        AuditCode.UNREADABLE,
        AuditCode.RUNPATH,
        AuditCode.SYMBOLS,  # a version that nobody asked for before
    }


def test_a_list_without_an_end_is_told():
    content = library(soname="a.so", gives=("C",))  # its only entry names itself as the next
    entries = content.rindex(struct.pack("<2I", 1, 1)) + 4  # how many the head of the section promises
    endless = content[:entries] + b"\xff" * 4 + content[entries + 4 :]
    assert found(make_tree({"opt/a.so": content})) == []
    assert found(make_tree({"opt/a.so": endless})) == [(AuditCode.UNREADABLE, "/opt/a.so")]


# Symbols

CHECK = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
OLD_CHECK = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
GONE = "_ZN2at4_ops4gone4callERKNS_6TensorE"
C10 = {
    f"{SITE}/torch/lib/libc10.so": library(soname="libc10.so", defined=(CHECK, "_ZN3c1010TensorImplD1Ev")),
    f"{SITE}/torch-2.8.0.dist-info/METADATA": "Name: torch\n",
    "opt/python/bin/python3.11": library(defined=("XML_Parse",)),
}
OPS = "opt/envbuilder/extensions/ops-0123/ops.so"


def linked(*undefined: str, needed: tuple[str, ...] = ("libc10.so",), weak: tuple[str, ...] = ()) -> bytes:
    return library(needed=needed, undefined=undefined, weak=weak)


def undefined_findings(files: Mapping[str, bytes | str]) -> list[tuple[str, str, str]]:
    tree = make_tree(CLEAN | C10 | dict(files), MODES | {"opt/python/bin/python3.11": 0o755})
    found = [one for one in audit(tree, processor=X86_64) if one.code == AuditCode.UNDEFINED]
    return [(one.severity, one.where.rpartition("/")[2], one.message) for one in found]


UNLINKED = {
    "of another torch": (linked(CHECK, GONE), f"torch 2.8.0 does not define `{GONE}`"),
    "of another C++ ABI": (
        linked(OLD_CHECK),
        f"torch 2.8.0 does not define `{OLD_CHECK}`; it is compiled with _GLIBCXX_USE_CXX11_ABI=0, and torch with 1 (the last such torch is 2.6.0)",
    ),
    "of Python's C functions of torch": (linked("THPVariableClass"), "torch 2.8.0 does not define `THPVariableClass`"),
    "of nobody": (linked("lost", needed=("libc10.so", "libc.so.6")), "torch 2.8.0 does not define `lost`"),
    "of torch, beside the driver": (linked("cuInit", GONE, needed=("libc10.so", "libcuda.so.1")), f"torch 2.8.0 does not define `{GONE}`"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNLINKED)
def test_a_module_that_needs_a_symbol_that_nothing_defines_is_found(case: str):
    module, message = UNLINKED[case]
    assert undefined_findings({OPS: module}) == [("error", "ops.so", f"`import ops` fails: {message}")]


LINKED = {
    "torch defines them": {OPS: linked(CHECK)},
    "they are weak": {OPS: linked(weak=(GONE, "lost"))},
    "Python defines them": {OPS: linked("PyList_New", "_PyThreadState_Current", "XML_Parse")},
    "the C library defines them": {OPS: linked("printf", needed=("libc10.so", "libc.so.6")), f"{SYSTEM}/libc.so.6": library(soname="libc.so.6", gives=("GLIBC_2.2.5", "GLIBC_2.36"), defined=("printf",))},
    "a library below one of the system defines them": {
        OPS: linked("inflate", needed=("libc10.so", "libpng.so.1")),
        f"{SYSTEM}/libpng.so.1": library(needed=("libz.so.1",)),
        f"{SYSTEM}/libz.so.1": library(defined=("inflate",)),
    },
    "a library below defines them": {
        f"{SITE}/view.{TAGGED}": linked("far", GONE, needed=("libc10.so", "libnear.so")),
        f"{SITE}/near/libnear.so": library(needed=("libfar.so",)), f"{SITE}/far/libfar.so": library(defined=("far", GONE)),
    },
    "a library of the package that it loads first defines them": {
        f"{SITE}/view/_ops.{TAGGED}": linked(GONE), f"{SITE}/view/__init__.py": "from . import _ops", f"{SITE}/view/libfirst.so": library(defined=(GONE,)),
    },
    "a library of another package defines them": {OPS: linked("nvte_gelu"), f"{SITE}/te/libte.so": library(defined=("nvte_gelu",))},
    "a library of torch that it links defines them": {OPS: linked("cublasCreate_v2"), f"{SITE}/torch/lib/libtorch.so": library(needed=("libcublas.so.12",)), f"{SITE}/nvidia/cublas/lib/libcublas.so.12": library(defined=("cublasCreate_v2",))},
    "the driver may define them": {OPS: linked("cuInit", needed=("libc10.so", "libcuda.so.1"))},
    "it does not link torch": {OPS: library(undefined=("lost", GONE))},
    "a variant for another torch fits": {
        f"{SITE}/view/libview_torch28.so": linked(CHECK), f"{SITE}/view/libview_torch24.so": linked(GONE),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", LINKED)
def test_a_module_whose_symbols_are_defined_is_not_reported(case: str):
    assert undefined_findings(LINKED[case]) == []


def test_a_part_with_undefined_symbols_that_may_never_be_loaded_is_a_warning():
    files = {f"{SITE}/view/__init__.py": "try:\n  from . import _C\nexcept ImportError:\n  pass", f"{SITE}/view/_C.abi3.so": linked(GONE)}  # fmt: skip
    message = f"a part of `view` cannot be loaded: torch 2.8.0 does not define `{GONE}`"
    assert undefined_findings(files) == [("warning", "_C.abi3.so", message)]


def test_a_table_of_symbols_that_is_damaged_is_a_warning():
    # The place of the first name, behind that of the library.
    damaged = linked(GONE).replace(struct.pack("<IBxH", 11, 0x10, 0), struct.pack("<IBxH", 1 << 28, 0x10, 0))
    assert damaged != linked(GONE)
    tree = make_tree(CLEAN | C10 | {OPS: damaged}, MODES)
    assert [one.severity for one in audit(tree, processor=X86_64) if one.code == AuditCode.UNREADABLE] == [
        "warning"
    ]
