"""Write an archive in the shape of NVIDIA's redistributable one: a manifest, and components cut out of real packages."""

import hashlib
import io
import json
import lzma
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from envbuilder.compat.tables.toolkit import load_toolkits
from envbuilder.core.processor import X86_64, Processor
from envbuilder.lock.file import load_lock
from envbuilder.lock.model import Artifacts
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.lock.resolve.toolkit import resolve_toolkit
from envbuilder.recipe.load import load
from tests.support.locks import make_task
from tests.support.package_sources import write_deb, write_flat
from tests.support.workbench import ROOT

Tree = Mapping[str, bytes | str | Path]  # path in a component → its bytes, the target of a link, or a file
SYSTEM = "usr/lib/x86_64-linux-gnu"
# The `nvcc.profile` that NVIDIA's own 11.8 to 12.4 have.
PROFILE = b"""
TOP              = $(_HERE_)/..

NVVMIR_LIBRARY_DIR = $(TOP)/$(_NVVM_BRANCH_)/libdevice

LD_LIBRARY_PATH += $(TOP)/lib:
PATH            += $(TOP)/$(_NVVM_BRANCH_)/bin:$(_HERE_):

INCLUDES        +=  "-I$(TOP)/$(_TARGET_DIR_)/include" $(_SPACE_)

LIBRARIES        =+ $(_SPACE_) "-L$(TOP)/$(_TARGET_DIR_)/lib$(_TARGET_SIZE_)/stubs" "-L$(TOP)/$(_TARGET_DIR_)/lib$(_TARGET_SIZE_)"

CUDAFE_FLAGS    +=
PTXAS_FLAGS     +=
"""
PROGRAMS = ("bin2c", "cudafe++", "fatbinary", "nvlink", "ptxas")


def write_component(
    folder: Path, name: str, version: str, tree: Tree, processor: Processor = X86_64
) -> dict[str, object]:
    """Write a component's archive for a processor and return its entry in a manifest."""
    platform = processor.redist
    whole = f"{name}-{platform}-{version}-archive"
    path = folder / name / platform / f"{whole}.tar.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wb", preset=0) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for place, content in sorted(tree.items()):
            info = tarfile.TarInfo(f"{whole}/{place}")
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
                continue
            data = content.read_bytes() if isinstance(content, Path) else content
            info.size, info.mode = len(data), 0o755 if "bin/" in place else 0o644
            archive.addfile(info, io.BytesIO(data))
    content = path.read_bytes()
    file = {
        "relative_path": str(path.relative_to(folder)),
        "sha256": hashlib.sha256(content).hexdigest(),
        "md5": hashlib.md5(content).hexdigest(),
        "size": str(len(content)),
    }
    return {"name": name, "license": "CUDA Toolkit", "version": version, platform: file}


def write_release(
    folder: Path,
    release: str,
    components: Mapping[str, tuple[str, Tree]],
    *,
    released: str = "2024-04-02",
    processors: tuple[Processor, ...] = (X86_64,),
) -> None:
    """Write a release: its components by name, each with its version, and its manifest."""
    entries: dict[str, dict[str, object]] = {name: {} for name in components}
    for name, component in components.items():
        for processor in processors:
            entries[name] |= write_component(folder, name, *component, processor)
    text = json.dumps({"release_date": released, **entries}, indent=4)
    (folder / f"redistrib_{release}.json").write_text(text)


def write_small(
    folder: Path, *releases: str, released: str = "2024-04-02", processors: tuple[Processor, ...] = (X86_64,)
) -> Path:
    """Write an archive that has these releases, with a header for each component that a toolkit takes."""
    (row,) = (row for row in load_toolkits().rows if row.source == "archive")
    for release in releases:
        minor = release.rpartition(".")[0]
        names = [part.name for part in (*row.parts_of(minor), *row.parts_of(minor, headers=True))]
        write_release(
            folder, release, {name: (release, {"include/x.h": b""}) for name in names}, released=released,
            processors=processors,
        )  # fmt: skip
    return folder


def unpack(package: Path, folder: Path, *paths: str) -> Path:
    """Unpack a Debian package or a wheel, or only some paths of it."""
    folder.mkdir(parents=True, exist_ok=True)
    if zipfile.is_zipfile(package):
        with zipfile.ZipFile(package) as archive:
            archive.extractall(folder)
        return folder
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as deb:
        wanted = [f"./{path}" for path in paths]
        subprocess.run(["tar", "-x", "-C", folder, *wanted], stdin=deb.stdout, check=True)
    return folder


def below(folder: Path, to: str) -> dict[str, Path]:
    """Return every file below a folder, by its path in a component."""
    return {f"{to}/{path.relative_to(folder)}": path for path in sorted(folder.rglob("*")) if path.is_file()}


def nvcc_of(debian: Path, include: Path) -> Tree:
    """Return the tree of `cuda_nvcc` before 13.0, out of Debian's package and the folder with `crt`."""
    toolkit = debian / "usr/lib/nvidia-cuda-toolkit"
    return {
        **{f"bin/{name}": debian / f"usr/bin/{name}" for name in PROGRAMS}, "bin/nvcc": toolkit / "bin/nvcc",
        "bin/nvcc.profile": PROFILE, **below(toolkit / "bin/crt", "bin/crt"), "nvvm/bin/cicc": toolkit / "bin/cicc",
        **below(toolkit / "libdevice", "nvvm/libdevice"), **below(include / "crt", "include/crt"),
        "include/fatbinary_section.h": include / "fatbinary_section.h",
        "LICENSE": debian / "usr/share/doc/nvidia-cuda-toolkit/copyright",
    }  # fmt: skip


def stub_of(folder: Path) -> Path:
    """Compile a `libcuda.so` to link with."""
    path = folder / "libcuda.so"
    flags = ["-shared", "-Wl,-soname,libcuda.so.1", "-x", "c", "/dev/null"]
    subprocess.run(["gcc", *flags, "-o", path], check=True)
    return path


def without_content(*components: str) -> dict[str, tuple[str, Tree]]:
    """Return components that the real packages do not have, with one header each."""
    return {name: ("1.0", {f"include/{name}.h": b""}) for name in components}


HEADERS = ("cuda_nvrtc", "libcublas", "libcufft", "libcurand", "libcusolver", "libcusparse")


def cut_12_4(folder: Path, packages: Mapping[str, Path], work: Path, *, release: str) -> None:
    """Write a release with the compiler of Debian's 12.4 and the runtime of NVIDIA's wheels, as `a100` locks them.

    Neither has static libraries nor `libcuda.so`: those of the table's row, and one that is compiled, stand in.
    """
    toolkit = "usr/lib/nvidia-cuda-toolkit"
    programs = (f"usr/bin/{name}" for name in (*PROGRAMS, "cuobjdump"))
    license_file = "usr/share/doc/nvidia-cuda-toolkit/copyright"
    deb = unpack(
        packages["nvidia-cuda-toolkit"], work / "deb", *programs, f"{toolkit}/bin", f"{toolkit}/libdevice",
        license_file,
    )  # fmt: skip
    for name in ("libcu++-dev", "libcub-dev", "libthrust-dev"):
        unpack(packages[name], work / "cccl", "usr/include")
    nvcc = unpack(packages["nvidia-cuda-nvcc-cu12"], work / "nvcc") / "nvidia/cuda_nvcc/include"
    runtime = unpack(packages["nvidia-cuda-runtime-cu12"], work / "runtime") / "nvidia/cuda_runtime"
    row = next(row for row in load_toolkits().rows if row.releases == ("12.4.1",))
    texts = {path.rpartition("/")[2]: text.encode() for path, text in row.files}
    components: dict[str, tuple[str, Tree]] = {
        "cuda_nvcc": ("12.4.131", nvcc_of(deb, nvcc)),
        "cuda_cudart": ("12.4.127", {
            **below(runtime / "include", "include"),
            **{f"lib/{name}": texts[name] for name in ("libcudadevrt.a", "libcudart_static.a")},
            "lib/libcudart.so": "libcudart.so.12",
            "lib/libcudart.so.12": runtime / "lib/libcudart.so.12",
            "lib/stubs/libcuda.so": stub_of(work),
        }),
        "cuda_cccl": ("12.4.127", below(work / "cccl/usr/include", "include")),
        "cuda_cuobjdump": ("12.4.127", {"bin/cuobjdump": deb / "usr/bin/cuobjdump"}),
    }  # fmt: skip
    more = without_content("cuda_nvml_dev", "cuda_nvtx", "cuda_profiler_api", *HEADERS)
    write_release(folder, release, components | more)


def fetched(parts: Artifacts, context: ResolveContext) -> Mapping[str, Path]:
    """Fetch packages, and return the file of each by its name."""
    context.fetcher.fetch(parts)
    return {part.name: context.store.artifact(part.sha256) for part in parts}


def archive_of_12_4(folder: Path, context: ResolveContext) -> Path:
    """Write an archive that has 12.4.2, out of 110 MB of packages that `a100` locks. Returns its folder."""
    lock = load_lock(ROOT / "recipes/a100.lock")
    runtime = tuple(wheel for wheel in lock.wheels if wheel.name == "nvidia-cuda-runtime-cu12")
    cut_12_4(folder / "redist", fetched((*lock.toolkit, *runtime), context), folder / "cut", release="12.4.2")
    return folder / "redist"


def repository_of_11_3(folder: Path, context: ResolveContext, work: Path) -> None:
    """Write an apt repository in NVIDIA's layout: Debian's 11.8, 860 MB of packages, under the names of 11.3.

    Its key lies in `work` as `nvidia.gpg`.
    """
    recipe = replace(load(ROOT / "recipes/a100.yaml"), cuda="11.8", pytorch="1.13.1", gcc="11")
    debs = resolve_toolkit(make_task(recipe, context))
    write_repository(folder, components_11_8(fetched(debs, context), work / "cut"), work / "nvidia.gpg")


def cut_11_8(folder: Path, packages: Mapping[str, Path], work: Path, *, release: str) -> None:
    """Write a release with Debian's 11.8: all that it has is NVIDIA's."""
    write_release(folder, release, components_11_8(packages, work))


def components_11_8(packages: Mapping[str, Path], work: Path) -> dict[str, tuple[str, Tree]]:
    deb = unpack(packages["nvidia-cuda-toolkit"], work / "deb", "usr")
    libraries = [f"{SYSTEM}/{name}" for name in ("libcudadevrt.a", "libcudart_static.a", "stubs/libcuda.so")]
    include = unpack(packages["nvidia-cuda-dev"], work / "dev", "usr/include", *libraries) / "usr/include"
    for name in ("libcu++-dev", "libcub-dev", "libthrust-dev"):
        unpack(packages[name], work / "cccl", "usr/include")
    math = ("cublas", "cufft", "curand", "cusolver", "cusparse")
    headers = {f"lib{name}": below_matching(include, f"{name}*") for name in math}
    headers["cuda_nvrtc"] = below_matching(include, "nvrtc*")
    headers["cuda_nvtx"] = below_matching(include, "nvToolsExt*")
    headers["cuda_profiler_api"] = below_matching(include, "cuda*rofiler*")
    taken = {path for tree in headers.values() for path in tree}
    rest = below(include, "include")
    compiler = {
        path for path in rest if path.startswith("include/crt/") or path == "include/fatbinary_section.h"
    }
    components: dict[str, tuple[str, Tree]] = {name: ("11.8.89", tree) for name, tree in headers.items()}
    components |= {
        "cuda_nvcc": ("11.8.89", nvcc_of(deb, include)),
        "cuda_cudart": ("11.8.89", {
            **{path: file for path, file in rest.items() if path not in taken | compiler},
            **{f"lib/{path.removeprefix(f'{SYSTEM}/')}": work / "dev" / path for path in libraries},
        }),
        "cuda_cccl": ("11.8.89", below(work / "cccl/usr/include", "include")),
        "cuda_cuobjdump": ("11.8.89", {"bin/cuobjdump": deb / "usr/bin/cuobjdump"}),
    }  # fmt: skip
    return components | without_content("cuda_nvml_dev")


def below_matching(folder: Path, pattern: str) -> dict[str, Path]:
    return {f"include/{path.name}": path for path in sorted(folder.glob(pattern)) if path.is_file()}


# The packages of NVIDIA's repositories that hold the components of its archive.
PACKAGES = {
    "cuda_cudart": "cuda-cudart-dev", "cuda_cccl": "cuda-thrust", "cuda_profiler_api": "cuda-nvprof",
    "cuda_nvrtc": "cuda-nvrtc-dev", "libcublas": "libcublas-dev", "libcufft": "libcufft-dev",
    "libcurand": "libcurand-dev", "libcusolver": "libcusolver-dev", "libcusparse": "libcusparse-dev",
}  # fmt: skip
STUBS = "lib/stubs/libcuda.so"


def write_repository(folder: Path, components: Mapping[str, tuple[str, Tree]], keyring: Path) -> None:
    """Write an apt repository of NVIDIA's with packages of 11.3 that hold these components, and the key beside it."""
    cudart = dict(components["cuda_cudart"][1])
    trees = {name: tree for name, (_, tree) in components.items()}
    trees |= {"cuda-driver-dev": {STUBS: cudart.pop(STUBS)}, "cuda_cudart": cudart}
    packages = ((f"{PACKAGES.get(name, name.replace('_', '-'))}-11-3", tree) for name, tree in trees.items())
    listing = "\n".join(
        write_deb(folder, name, "11.3.109-1", "", pool=".", files=nvidia_layout(name, tree))
        for name, tree in packages
    )
    write_flat(folder, listing, keyring)


def nvidia_layout(name: str, tree: Tree) -> dict[str, bytes]:
    """Return the files of a component at their places in NVIDIA's packages."""
    root, files = "usr/local/cuda-11.3", {}
    for path, content in tree.items():
        assert not isinstance(content, str), "no link in these"
        place = (
            f"{root}/targets/x86_64-linux/{path}"
            if path.startswith(("include/", "lib/"))
            else f"{root}/{path}"
        )
        place = f"usr/share/doc/{name}/copyright" if path == "LICENSE" else place
        files[place] = content.read_bytes() if isinstance(content, Path) else content
    return files
