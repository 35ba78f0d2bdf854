"""Wheels are judged by what is compiled in them, before a lock is written; planted ones do not fit for one reason each."""

import dataclasses
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.core.cache import Store, sha256_bytes
from envbuilder.core.console import Console
from envbuilder.core.errors import IncompatibleError
from envbuilder.lock.model import Artifact, Chosen, Lock, LockedKernel
from envbuilder.sources.http import session as wire
from envbuilder.sources.names import Sources
from envbuilder.verify import examine_locked, wheels
from envbuilder.verify.audit.linked import TorchSymbols
from envbuilder.verify.wheels import WheelTarget, judge, judge_wheels, open_wheel
from tests.support.elves import gpu_library, library
from tests.support.locks import make_artifact, make_lock, make_means, make_recipe, make_task
from tests.support.package_sources import write_wheel
from tests.support.serving import ask_directly, serving
from tests.support.wheel_index import Handler, Site, zipped

GIVEN, GONE = "_ZN3c1010TensorImplD1Ev", "_ZN2at4_ops4gone4callERKNS_6TensorE"
WRAP = "_Z16THPVariable_WrapN2at10TensorBaseE"
TAG = "cp311-cp311-manylinux_2_28_x86_64"
TORCH = TorchSymbols(title="torch 2.13.0", libraries=frozenset({"libc10.so"}), given=frozenset({GIVEN}))
TARGET = WheelTarget(
    python="3.11",
    machine=62,
    gpus=("9.0",),
    glibc="2.36",
    libstdcxx="12.2.0",
    cudas=frozenset({"12"}),
    torch=TORCH,
)
FITS = library(
    needed=("libc10.so", "libcudart.so.12", "libcuda.so.1"), undefined=(GIVEN, "cuInit"), weak=(GONE,)
)
WITHOUT_CUDA = library(needed=("libc10.so",), undefined=(GIVEN,))
OTHER = library(needed=("libc10.so",), undefined=(GONE,))


def verdicts(folder: Path, files: dict[str, bytes | str]) -> list[tuple[str, str, str, str]]:
    wheel = write_wheel(folder, "view", "1", tag=TAG, files=files)
    with open_wheel(wheel, Store(folder / "cache"), "3.11") as image:
        found = tuple(judge(image, TARGET))
    return [(one.severity, one.code, one.where.rpartition("/")[2], one.message) for one in found]


WRONG = {
    "a symbol": (OTHER, "error", "EB726", f"`import view` fails: torch 2.13.0 does not define `{GONE}`"),
    "a mangled function of its Python": (
        library(needed=("libc10.so",), undefined=(WRAP,)), "error", "EB726",
        f"`import view` fails: torch 2.13.0 does not define `{WRAP}`",
    ),
    "a library of torch": (
        library(needed=("libc10.so", "libc10_cuda.so")), "error", "EB726",
        "`import view` fails: it needs `libc10_cuda.so`, and torch 2.13.0 does not have it",
    ),
    "another CUDA": (
        library(needed=("libc10.so", "libcudart.so.11.0"), undefined=(GONE,)), "error", "EB725",
        "`import view` fails: needs `libcudart.so.11.0`, and the environment has CUDA 12",
    ),
    "a newer glibc": (
        library(needs={"libc.so.6": ("GLIBC_2.2.5", "GLIBC_2.38")}), "error", "EB713",
        "`import view` fails: needs glibc 2.38, and the base has glibc 2.36",
    ),
    "a newer libstdc++": (
        library(needs={"libstdc++.so.6": ("GLIBCXX_3.4.21", "GLIBCXX_3.4.32", "CXXABI_1.3.9", "CXXABI_FLOAT128")}), "error", "EB713",
        "`import view` fails: needs `GLIBCXX_3.4.32`, and the base has `GLIBCXX_3.4.30` of gcc 12.2.0",
    ),
    "a newer C++ ABI": (
        library(needs={"libstdc++.so.6": ("CXXABI_1.3.15",), "libc.so.6": ("GLIBC_2.38", "GLIBC_2.39")}), "error", "EB713",
        "`import view` fails: needs `CXXABI_1.3.15` and glibc 2.39, and the base has glibc 2.36 and `CXXABI_1.3.13` of gcc 12.2.0",
    ),
    "PTX alone": (
        gpu_library("sm_80", "compute_80"), "warning", "EB712",
        "the wheel has no machine code for a GPU of capability 9.0, but compute_80 sm_80: the first start compiles its PTX, which takes minutes",
    ),
    "no code": (
        gpu_library("sm_80"), "warning", "EB711",
        "the wheel has no machine code for a GPU of capability 9.0, but sm_80: what it compiled for GPUs does not run there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_module_that_does_not_fit_is_reported_with_the_first_reason(case: str, tmp_path: Path):
    module, severity, code, message = WRONG[case]
    assert verdicts(tmp_path, {"view.abi3.so": module}) == [(severity, code, "view.abi3.so", message)]


FITTING = {
    "all": {"view.abi3.so": FITS},
    "a library of its own": {
        "view.abi3.so": library(needed=("libcudart.so.11.0",)), "view.libs/libcudart-0a.so": library(soname="libcudart.so.11.0"),
    },
    "a libstdc++ of its own": {
        "view.abi3.so": library(needed=("libstdc++.so.6",), needs={"libstdc++.so.6": ("GLIBCXX_3.4.32",)}),
        "view.libs/libstdc++-0a.so": library(soname="libstdc++.so.6", gives=("GLIBCXX_3.4.32",)),
    },
    "one of the variants": {"view/libview_cuda118.so": library(needed=("libcudart.so.11.0",)), "view/libview_cuda124.so": FITS},
    "code for each GPU in a file": {"view/sm80.so": gpu_library("sm_80"), "view/sm90.so": gpu_library("sm_90a")},
    "a file for another processor": {"view/arm.so": library(needed=("libc10.so",), undefined=(GONE,), machine=183)},
    "a symbol that its own library defines": {
        "view.abi3.so": OTHER, "view/lib/libops.so": library(defined=(GONE,)), "view-1.data/platlib/view/__init__.py": "",
    },
}  # fmt: skip


@pytest.mark.parametrize("case", FITTING)
def test_a_wheel_that_loads_has_no_findings(case: str, tmp_path: Path):
    files = FITTING[case]
    if case.startswith("a symbol"):  # its module is in the package that has the library
        files = {
            "view/_ops.abi3.so" if name == "view.abi3.so" else name: file for name, file in files.items()
        }
    assert verdicts(tmp_path, files) == []


def test_a_part_that_its_package_can_do_without_is_a_warning(tmp_path: Path):
    files = {
        "view/__init__.py": "try:\n  from . import _C\nexcept ImportError:\n  pass",
        "view/_C.abi3.so": OTHER,
    }
    message = f"a part of `view` will not load: torch 2.13.0 does not define `{GONE}`"
    assert verdicts(tmp_path, files) == [("warning", "EB726", "_C.abi3.so", message)]


# The wheels of a lock

C10 = {"torch/lib/libc10.so": library(soname="libc10.so", defined=(GIVEN,)), "torch/__init__.py": ""}


class Bench:
    """A recipe with torch whose wheels lie in one folder, as ENVBUILDER_FOLDERS names it."""

    def __init__(self, folder: Path, *indexes: str) -> None:
        self.folder = folder / "wheels"
        self.context = make_means(folder, Sources(debian=(), folders=(self.folder,), indexes=indexes))
        self.recipe = make_recipe(folder, packages=("view",))

    def wheel(self, name: str, files: dict[str, bytes | str], *requires: str) -> Artifact:
        path = write_wheel(
            self.folder,
            name,
            "2.13.0+cpu" if name == "torch" else "1",
            tag=TAG,
            files=files,
            requires=requires,
        )
        made, content = make_artifact(name, path.name.split("-")[1]), path.read_bytes()
        return Artifact(
            kind="wheel", name=name, version=made.version, sha256=sha256_bytes(content), size=len(content), source="pypi", path=f"{name}/{path.name}",
        )  # fmt: skip

    def kernel(self, module: bytes) -> LockedKernel:
        """Return a kernel of the hub whose files are in the cache."""
        top, files = f"team/relu/resolve/{'0' * 40}/build/torch213-cpu", []
        for name, content in {"__init__.py": b"from . import _relu\n", "_relu.abi3.so": module}.items():
            (self.folder / name).write_bytes(content)
            digest = sha256_bytes(content)
            self.context.store.add_artifact(digest, self.folder / name)
            files.append(
                Artifact(
                    kind="kernel", name="team.relu", version="0" * 40, sha256=digest, size=len(content), source="hub",
                    path=f"{top}/{name}",
                )
            )  # fmt: skip
        return LockedKernel(name="team/relu", revision="0" * 40, variant="torch213-cpu", files=tuple(files))

    def judge(self, *wheels: Artifact) -> None:
        judge_wheels(make_task(self.recipe, self.context), self.lock(wheels))

    def lock(self, wheels: Iterable[Artifact]) -> Lock:
        plain = make_lock(dataclasses.replace(self.recipe, cuda=""))
        return Lock(
            recipe=plain.recipe, epoch=plain.epoch, platform=plain.platform, inputs=plain.inputs, debs=(), toolkit=(),
            wheels=tuple(wheels), extensions=(),
        )  # fmt: skip


def test_a_wheel_that_cannot_load_refuses_the_lock(tmp_path: Path):
    bench = Bench(tmp_path)
    torch, view = bench.wheel("torch", C10), bench.wheel("view", {"view.abi3.so": OTHER}, "torch>=2")
    with pytest.raises(IncompatibleError) as caught:
        bench.judge(torch, view)
    (finding,) = caught.value.findings
    assert finding.where == f"view-1-{TAG}.whl: view.abi3.so"
    assert finding.message == f"`import view` fails: torch 2.13.0+cpu does not define `{GONE}`"


@pytest.mark.parametrize(("module", "fits"), [(WITHOUT_CUDA, True), (OTHER, False)])
def test_a_kernel_of_the_hub_is_judged_as_a_wheel(tmp_path: Path, module: bytes, fits: bool):
    bench = Bench(tmp_path)
    torch = bench.wheel("torch", C10)
    kernel = bench.kernel(module)
    lock = replace(bench.lock((torch,)), kernels=(kernel,))
    if fits:
        judge_wheels(make_task(bench.recipe, bench.context), lock)
        return
    with pytest.raises(IncompatibleError, match="1 module of the chosen wheels and kernels") as caught:
        judge_wheels(make_task(bench.recipe, bench.context), lock)
    (finding,) = caught.value.findings
    assert finding.where == "team/relu: _relu.abi3.so"
    assert f"does not define `{GONE}`" in finding.message


def test_a_wheel_that_lock_chose_must_have_code_for_the_gpus(tmp_path: Path):
    bench = Bench(tmp_path)
    bench.recipe = make_recipe(tmp_path, packages=("view",), gpus=("H100",))
    torch, view = bench.wheel("torch", C10), bench.wheel("view", {"view.abi3.so": gpu_library("sm_80")})
    task, lock = make_task(bench.recipe, bench.context), bench.lock((torch, view))
    judge_wheels(task, lock)  # no package of torch's by name or requirement: not judged
    choice = Chosen(name="view", wheel="view @ https://host/view.whl", why="it fits by its name")
    with pytest.raises(IncompatibleError) as caught:
        judge_wheels(task, replace(lock, chosen=(choice,)))
    (finding,) = caught.value.findings
    assert finding.code == "EB711"


def test_torch_is_read_once_and_kept_in_the_cache(tmp_path: Path):
    bench = Bench(tmp_path)
    torch, view = bench.wheel("torch", C10), bench.wheel("view", {"view.abi3.so": WITHOUT_CUDA}, "torch>=2")
    bench.judge(torch, view)
    assert not bench.context.store.has_artifact(torch.sha256), "its libraries are read, and it is not fetched"
    (bench.folder / torch.filename).unlink()
    bad = bench.wheel("view", {"view.abi3.so": OTHER}, "torch>=2")
    with pytest.raises(IncompatibleError):
        bench.judge(torch, bad)


def test_a_wheel_for_exactly_this_torch_does_not_fetch_it(tmp_path: Path):
    bench = Bench(tmp_path)
    torch, view = bench.wheel("torch", C10), bench.wheel("view", {"view.abi3.so": OTHER}, "torch==2.13.0")
    bench.judge(torch, view)
    assert bench.context.store.has_artifact(view.sha256)
    assert not bench.context.store.has_artifact(torch.sha256)


def test_a_package_that_does_not_require_torch_is_not_fetched(tmp_path: Path):
    bench = Bench(tmp_path)
    torch, view = bench.wheel("torch", C10), bench.wheel("view", {"view.abi3.so": OTHER}, "numpy")
    bench.judge(torch, view)
    assert not bench.context.store.has_artifact(view.sha256)


def test_a_package_of_cuda_code_is_judged_if_it_links_torch_undeclared(tmp_path: Path):
    bench = Bench(tmp_path)
    torch = bench.wheel("torch", C10)
    bench.judge(
        torch, bench.wheel("spconv", {"spconv.abi3.so": library(needs={"libc.so.6": ("GLIBC_2.99",)})})
    )
    kernel = bench.wheel("sgl_kernel", {"sgl_kernel.abi3.so": OTHER}, "numpy")
    with pytest.raises(IncompatibleError, match="1 module of the chosen wheels"):
        bench.judge(torch, dataclasses.replace(kernel, name="sgl-kernel"))


def test_a_package_in_the_cache_that_the_recipe_names_is_judged_if_it_links_torch(tmp_path: Path):
    bench = Bench(tmp_path)
    torch, view = bench.wheel("torch", C10), bench.wheel("view", {"view.abi3.so": OTHER}, "numpy")
    bench.context.fetcher.fetch((view,))
    with pytest.raises(IncompatibleError, match="1 module of the chosen wheels"):
        bench.judge(torch, view)


@pytest.mark.parametrize("defined", [("ncclSend",), ("ncclSend", "ncclCommShrink")], ids=["older", "newer"])
def test_the_recipes_nccl_must_define_what_torch_needs(tmp_path: Path, defined: tuple[str, ...]):
    bench = Bench(tmp_path)
    bench.recipe = dataclasses.replace(
        bench.recipe, cuda="12.8", gpus=("A100",), pytorch="2.8.0", nccl_version="2.21.5"
    )
    linked = library(
        soname="libtorch_cuda.so", needed=("libnccl.so.2",), undefined=("ncclSend", "ncclCommShrink"), weak=("ncclNew",)
    )  # fmt: skip
    torch = bench.wheel("torch", {**C10, "torch/lib/libtorch_cuda.so": linked})
    nccl = bench.wheel(
        "nvidia_nccl_cu12", {"nvidia/nccl/lib/libnccl.so.2": library(soname="libnccl.so.2", defined=defined)}
    )
    nccl = dataclasses.replace(nccl, name="nvidia-nccl-cu12")
    if len(defined) == 2:
        bench.judge(torch, nccl)
        return
    with pytest.raises(IncompatibleError) as caught:
        bench.judge(torch, nccl)
    (finding,) = caught.value.findings
    assert finding.where.endswith(".whl: nvidia/nccl/lib/libnccl.so.2")
    assert finding.message == (
        "`import torch` fails: torch 2.13.0+cpu needs `ncclCommShrink`, and NCCL 1 does not define it"
    )
    assert "2.27.3" in finding.hint


def test_a_wheel_that_nobody_gives_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    bench = Bench(tmp_path)
    torch, view = bench.wheel("torch", C10), bench.wheel("view", {"view.abi3.so": OTHER}, "torch>=2")
    (bench.folder / view.filename).unlink()
    with caplog.at_level(logging.WARNING):
        bench.judge(torch, view)
    assert f"view-1-{TAG}.whl is not judged" in caplog.text


# Which torch has what the locked one lacks


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An index on loopback that gives parts of files."""
    ask_directly(monkeypatch)
    monkeypatch.setattr(wire, "PAUSES", (0.0,))
    state = Site()
    with serving(type("SiteHandler", (Handler,), {"site": state})) as host:
        state.url = f"http://{host}/"
        yield state


def publish(site: Site, version: str, *defined: str, tag: str = TAG) -> None:
    linked = library(soname="libtorch_cpu.so", defined=defined)
    site.put("torch", f"torch-{version}-{tag}.whl", zipped({"torch/lib/libtorch_cpu.so": linked}))


def refusal(bench: Bench, torch: Artifact, view: Artifact) -> str:
    """Return what the refusal of a lock says after the symbol that is not defined."""
    with pytest.raises(IncompatibleError) as caught:
        bench.judge(torch, view)
    (finding,) = caught.value.findings
    lead, symbol, rest = finding.message.partition(f"`{GONE}`")
    assert (lead, symbol) == ("`import view` fails: torch 2.13.0+cpu does not define ", f"`{GONE}`")
    return rest


WHICH = {
    "torch>=2": "; torch 2.12.1+cpu defines it (looked at 2.14.1+cpu, 2.12.1+cpu)",
    "torch>=2.13": "; of torch 2.14.1+cpu, 2.15.0+cpu none defines it",
    "torch<2.12": "; torch 2.11.0+cpu defines it (looked at 2.11.0+cpu)",
    "torch!=2.12.*,!=2.14.*": "; torch 2.11.0+cpu defines it (looked at 2.15.0+cpu, 2.11.0+cpu)",
}


@pytest.mark.parametrize("requires", WHICH)
def test_the_nearest_torch_that_has_the_symbol_is_named(requires: str, site: Site, tmp_path: Path):
    bench = Bench(tmp_path, site.url)
    for version in ("2.12.0+cpu", "2.12.1+cpu", "2.11.0+cpu", "2.14.0", "2.14.2a1+cpu"):
        publish(site, version, GIVEN, GONE)
    publish(site, "2.14.0+cpu", GIVEN, GONE, tag="cp312-cp312-manylinux_2_28_x86_64")
    publish(site, "2.14.1+cpu", GIVEN)
    publish(site, "2.15.0+cpu", GIVEN)
    torch, view = bench.wheel("torch", C10), bench.wheel("view", {"view.abi3.so": OTHER}, requires)
    assert refusal(bench, torch, view) == WHICH[requires]
    asked = len(site.asked)
    assert refusal(bench, torch, view) == WHICH[requires]
    assert len(site.asked) == asked, "the verdict is kept"


def test_an_index_without_an_answer_leaves_the_verdict_as_it_is(site: Site, tmp_path: Path):
    bench = Bench(tmp_path, site.url)
    publish(site, "2.12.1+cpu", GIVEN, GONE)
    torch, view = bench.wheel("torch", C10), bench.wheel("view", {"view.abi3.so": OTHER}, "torch>=2")
    site.ranges = False
    assert refusal(bench, torch, view) == ""
    site.ranges, site.failing_below = True, "/torch/"
    assert refusal(bench, torch, view) == ""
    site.failing_below = ""
    assert "torch 2.12.1+cpu defines it" in refusal(bench, torch, view), "it is asked again"


@pytest.mark.parametrize("ranges", [True, False])
def test_torch_is_fetched_where_no_parts_of_it_are_given(ranges: bool, site: Site, tmp_path: Path):
    bench = Bench(tmp_path, site.url)
    torch, view = bench.wheel("torch", C10), bench.wheel("view", {"view.abi3.so": WITHOUT_CUDA}, "torch>=2")
    site.put("torch", torch.filename, (bench.folder / torch.filename).read_bytes())
    (bench.folder / torch.filename).unlink()
    site.ranges = ranges
    bench.judge(torch, view)
    assert bench.context.store.has_artifact(torch.sha256) is not ranges


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_large_wheel_is_refused_before_it_is_fetched(
    is_readable: bool, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wheels, "_LARGE", 0)
    bench = Bench(tmp_path, site.url)
    more = {} if is_readable else {"view_libs/more.so": FITS[:100]}
    torch = bench.wheel("torch", C10)
    view = bench.wheel("view", {"view.abi3.so": OTHER, **more}, "torch>=2")
    site.put("view", view.filename, (bench.folder / view.filename).read_bytes())
    (bench.folder / view.filename).unlink()
    for _ in range(2):
        with pytest.raises(IncompatibleError, match="1 module of the chosen wheels"):
            bench.judge(torch, view)
    assert bench.context.store.has_artifact(view.sha256) is not is_readable


# What `check` says of the wheels in the cache


def examined(bench: Bench, lock: Lock) -> tuple[list[str], tuple[str, ...], tuple[str, ...]]:
    store, console = bench.context.store, Console(quiet=True)
    verdicts = examine_locked(bench.recipe, lock, store=store, runner=bench.context.runner, console=console)
    return [finding.message for finding in verdicts.findings], verdicts.absent, verdicts.in_part


def test_wheels_of_the_cache_are_examined_and_others_are_named(tmp_path: Path):
    bench = Bench(tmp_path)
    torch, plain = bench.wheel("torch", C10), bench.wheel("numpy", {"numpy.abi3.so": FITS})
    view = bench.wheel("view", {"view.abi3.so": OTHER}, "torch>=2")
    lock = bench.lock((plain, torch, view))
    assert examined(bench, lock) == ([], ("view",), ())
    bench.context.fetcher.fetch((view, plain))
    assert examined(bench, lock) == ([], (), ("view",)), "nothing is fetched to compare it with"
    bench.context.fetcher.fetch((torch,))
    wrong = [f"`import view` fails: torch 2.13.0+cpu does not define `{GONE}`"]
    assert examined(bench, lock) == (wrong, (), ())
    for wheel in (torch, view):  # the verdict is kept, so no file is read again
        bench.context.store.artifact(wheel.sha256).write_bytes(b"")
    assert examined(bench, lock) == (wrong, (), ())


def test_a_damaged_wheel_of_the_cache_is_named_as_not_judged(tmp_path: Path):
    bench = Bench(tmp_path)
    torch, view = bench.wheel("torch", C10), bench.wheel("view", {"view.abi3.so": FITS}, "torch>=2")
    bench.context.fetcher.fetch((torch, view))
    bench.context.store.artifact(view.sha256).write_bytes(b"damaged")
    assert examined(bench, bench.lock((torch, view))) == ([], ("view",), ())


def test_kernels_and_the_nccl_of_the_cache_are_examined(tmp_path: Path):
    bench = Bench(tmp_path)
    bench.recipe = replace(bench.recipe, cuda="12.8", gpus=("A100",), pytorch="2.8.0", nccl_version="2.21.5")
    linked = library(soname="libtorch_cuda.so", needed=("libnccl.so.2",), undefined=("ncclCommShrink",))
    torch = bench.wheel("torch", {**C10, "torch/lib/libtorch_cuda.so": linked})
    nccl = bench.wheel("nvidia_nccl_cu12", {"nvidia/nccl/lib/libnccl.so.2": library(soname="libnccl.so.2")})
    nccl = replace(nccl, name="nvidia-nccl-cu12")
    lock = replace(bench.lock((nccl, torch)), kernels=(bench.kernel(OTHER),))
    assert examined(bench, lock) == ([], ("nvidia-nccl-cu12",), ("team/relu",))
    bench.context.fetcher.fetch((torch, nccl))
    assert [message.partition(": ")[0] for message in examined(bench, lock)[0]] == [
        "`import relu` fails",
        "`import torch` fails",
    ]


def test_a_damaged_module_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    bench = Bench(tmp_path)
    torch, view = bench.wheel("torch", C10), bench.wheel("view", {"view.abi3.so": FITS[:100]}, "torch>=2")
    with caplog.at_level(logging.WARNING):
        bench.judge(torch, view)
    assert f"view-1-{TAG}.whl: view.abi3.so: it is damaged" in caplog.text
