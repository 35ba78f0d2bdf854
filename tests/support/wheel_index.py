"""Serve tiny wheels on loopback, like PyTorch's and NVIDIA's indexes, for `scripts/refresh_tables`."""

import dataclasses
import gzip
import io
import json
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import pytest

from envbuilder.compat.tables.distribution import archive_name
from envbuilder.compat.tables.table import TABLES
from scripts.refresh_tables import cuda, standalone, torch
from scripts.refresh_tables.rows import parse_rows
from tests.support.debs import make_tar
from tests.support.serving import Quiet, ask_directly, serving

DAY = date(2026, 12, 1)


EXTENSION = """
MINIMUM_GCC_VERSION = (5, 0, 0)
CUDA_GCC_VERSIONS: VersionMap = {'11.2': (MINIMUM_GCC_VERSION, (11, 0)), '12.4': ((6, 0, 0), (13, 2, 1))}
CUDA_MISMATCH_MESSAGE = 'no'
max_excl_compiler_version = 1
cpp_flag = cpp_flag_prefix + 'c++20'
def arches():
    supported_arches = ['3.5', '12.0', '9.0',
                        '9.0a']
"""


ALL_H = "#error C++17 or later compatible compiler is required to use PyTorch.\n"


PTXAS = """--gpu-name <gpu name>  (-arch)
        Allowed values for this option:  'compute_75','lto_75','sm_100','sm_100f',
        'sm_75','sm_90a'.
        Default value:  'sm_75'.

--other  'sm_10'
"""


NVCC = "Options\n--std {c++03|c++17|c++20}  (-std)\n  'c++03','c++17','c++20'.\n\n--more c++99\n"


HOST_CONFIG = """
#error -- unsupported GNU version! gcc versions later than 15 are not supported!
#error -- unsupported HOS clang version! The version must be must be less than 20
#error -- unsupported clang version! clang version must be less than 22 and greater than 3.2
"""


# Of torch's wheel for 64-bit Arm, which is for the CPU alone unless a test changes it.
ARM = {"torch/version.py": "cuda: Optional[str] = None\n"}


@dataclass
class Site:
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    failing: int = 0  # answers to damage
    failing_below: str = ""  # a folder whose files are never given
    ranges: bool = True
    url: str = ""

    def put(self, project: str, filename: str, content: bytes) -> None:
        self.files[f"/{project}/{filename}"] = content

    def drop(self, filename: str) -> None:
        self.files = {path: content for path, content in self.files.items() if not path.endswith(filename)}

    def page(self, path: str) -> bytes | None:
        names = [name for name in self.files if name.startswith(path)]
        links = "".join(f'<a href="{name}">{name.rpartition("/")[2]}</a>\n' for name in names)
        return f"<html><body>{links}</body></html>".encode() if names else None


class Handler(Quiet):
    site: Site
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer waits until its headers are acknowledged

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.site.asked.append((self.path, wanted))
        is_page = self.path.endswith("/")
        body = self.site.page(self.path) if is_page else self.site.files.get(self.path)
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted) if self.site.ranges else None
        status = 404 if body is None else 206 if part else 200
        if part and self.site.failing:
            self.site.failing -= 1
            status, part, body = 503, None, b""
        if self.site.failing_below and self.path.startswith(self.site.failing_below):
            status, body = 503, b""
        body = (body or b"")[int(part[1]) : int(part[2]) + 1] if part else body or b""
        kind = "text/html" if is_page else "application/octet-stream"
        self.reply(status, body, {"Content-Type": kind})

    do_HEAD = do_GET


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    ask_directly(monkeypatch)
    state = Site()
    for version in ("2.15.0", "2.16.0"):
        put_torch(state, version)
    put_cuda(state)
    put_uv(state)
    with serving(type("SiteHandler", (Handler,), {"site": state})) as host:
        state.url = f"http://{host}/"
        yield state


OVERRIDES = """
read: "2026-11-21"
glibc_clashes: ["2.41", "2.42"]
sources: {hand: {text: a person, read: "2026-11-21"}}
cuda: [{for: "13.5 -", source: [hand], set: {gcc_min: "6", confidence: verified}}]
torch:
  - {for: "2.14.1", source: [hand], set: {numpy: "<9"}}
"""


@pytest.fixture
def newest_rows(tmp_path: Path) -> Path:
    """The newest rows of the tables, which a test refreshes."""
    for name, key, order, count in (
        ("torch.yaml", "version", torch.ORDER, 2),
        ("cuda.yaml", "cuda", cuda.ORDER, 1),
        ("standalone.yaml", "python", standalone.ORDER, 1),
    ):
        file = parse_rows((TABLES / name).read_text(), TABLES / name, key)
        (tmp_path / name).write_text(dataclasses.replace(file, rows=file.rows[-count:]).text(order))
    (tmp_path / "overrides.yaml").write_text(OVERRIDES)
    shutil.copy(TABLES / "toolkits.yaml", tmp_path)
    return tmp_path


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in members.items():
            wheel.writestr(zipfile.ZipInfo(name, (2026, 11, 30, 0, 0, 0)), content)
    return stream.getvalue()


def put_torch(
    site: Site,
    version: str,
    *,
    pythons: tuple[str, ...] = ("cp312", "cp313"),
    requires: str = "",
    arm: Mapping[str, str | bytes] | None = None,
    **change: str | bytes,
) -> None:
    members: dict[str, str | bytes] = {
        f"torch-{version}.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\n"
        "Requires-Dist: setuptools>=77; python_version >= '3.12'\nRequires-Dist: nvidia-nccl-cu13==2.31.1\n"
        "Requires-Dist: nvidia-cudnn-cu13 (==9.27.0.1)\nRequires-Dist: cuda-toolkit[nvrtc]==13.2.2\n"
        f"Requires-Dist: numpy<9; extra == 'x'\n{requires}\n",
        "torch/version.py": "cuda: Optional[str] = '13.2'\nhip: Optional[str] = None\n",
        "torch/utils/cpp_extension.py": EXTENSION,
        "torch/lib/libtorch_python.so": b"\x7fELF\0sm_1 sm_2\0sm_75 sm_90 sm_120 compute_120\0",
        "torch/share/cmake/Torch/TorchConfig.cmake": "set(X 1)\n",
        "torch/include/torch/csrc/api/include/torch/all.h": ALL_H,
        "torch/include/c10/util/C++17.h": "#error We need GCC 9 or later.\n",
    }
    for python in pythons:
        abi = python
        name = f"torch-{version}-{python.removesuffix('t')}-{abi}-manylinux_2_28_x86_64.whl"
        site.put("torch", name, zipped(members | change))
    wheel = zipped(ARM | (arm or {}))
    site.put("torch", f"torch-{version}-cp314-cp314-manylinux_2_35_aarch64.whl", wheel)


def put_cuda(site: Site, version: str = "13.6.10", **change: str) -> None:
    tags = "py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64"
    headers = {
        "nvidia/cu13/include/crt/host_config.h": HOST_CONFIG,
        "nvidia/cu13/include/crt/math_functions.h": "#if __GLIBC_PREREQ(2,41) && X\n",
    }
    site.put("nvidia-cuda-crt", f"nvidia_cuda_crt-{version}-{tags}.whl", zipped(headers | change))
    compiler = {
        "nvidia/cu13/bin/nvcc": "", "nvidia/cu13/bin/ptxas": "",
        f"nvidia_cuda_nvcc-{version}.dist-info/METADATA": "Name: nvidia-cuda-nvcc\nRequires-Dist: nvidia-nvvm\n",
    }  # fmt: skip
    site.put("nvidia-cuda-nvcc", f"nvidia_cuda_nvcc-{version}-{tags}.whl", zipped(compiler))
    site.put("nvidia-cuda-nvcc", f"nvidia_cuda_nvcc-{version}.whl", b"no wheel's name")
    minor = version.rpartition(".")[0]
    for release, more in (
        (f"{minor}.0", ""),
        (f"{minor}.1.0", "Requires-Dist: nvidia-nvvm==1; extra == 'nvcc'\n"),
    ):
        metadata = f"Name: cuda-toolkit\nRequires-Dist: nvidia-cuda-nvcc==1; extra == 'nvcc'\n{more}"
        wheel = zipped({f"cuda_toolkit-{release}.dist-info/METADATA": metadata})
        site.put("cuda-toolkit", f"cuda_toolkit-{release}-py3-none-any.whl", wheel)


def standalone_build(version: str, release: str, machine: str, **change: object) -> dict[str, object]:
    """An entry of uv's table of Pythons."""
    major, minor, patch = map(int, version.split("."))
    name = archive_name(version, release, machine).replace("+", "%2B")
    return {
        "name": "cpython", "arch": {"family": machine, "variant": None}, "os": "linux", "libc": "gnu",
        "major": major, "minor": minor, "patch": patch, "prerelease": "", "variant": None, "build": release,
        "url": f"https://example.org/{release}/{name}", "sha256": f"{release}{machine}".encode().hex().ljust(64, "0"),
    } | change  # fmt: skip


def put_uv(site: Site, *more: dict[str, object], version: str = "0.13.9") -> None:
    """A source distribution of uv whose table has Python 3.16.1, `more`, and builds that nobody wants."""
    machines = ("x86_64", "aarch64")
    wanted = [standalone_build("3.16.1", "20261201", machine) for machine in machines]
    others = [
        *(standalone_build("3.16.1", "20261130", machine) for machine in machines),
        *(standalone_build("3.16.0", "20261101", machine) for machine in machines),
        standalone_build("3.7.9", "20200822", "x86_64"),
        standalone_build("3.16.2", "20261202", "x86_64", prerelease="rc1"),
        standalone_build("3.16.2", "20261202", "x86_64", variant="freethreaded"),
        standalone_build("3.16.2", "20261202", "x86_64", libc="musl"),
        standalone_build("3.16.2", "20261202", "x86_64", arch={"family": "x86_64", "variant": "v3"}),
        standalone_build(
            "3.16.2", "20261202", "x86_64", url="https://example.org/20261202/another-form.tar.zst"
        ),
    ]
    table = json.dumps({f"build-{at}": row for at, row in enumerate([*others, *wanted, *more])}).encode()
    tar = make_tar([(f"uv-{version}/crates/uv-python/download-metadata.json", table, 0o644)])
    site.put("uv", f"uv-{version}.tar.gz", gzip.compress(tar))


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.yaml")}
