"""What a job compiled, taken into the image and found by later jobs, with the real torch and Numba on the CPU.

`tests/runtime/test_start.py`, `tests/steps/test_warm.py` and `tests/lock/test_source_files.py` hold their parts for every change.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.workbench import ENVBUILDER, NO_ENGINE, Built, build, open_folder, recipe_like, run

pytestmark = [pytest.mark.builds, pytest.mark.release]
OPTIONS = ("--runner", "sandbox", "--no-load")
OPS = """\
import numba
import torch


def attention(x, y):
    return torch.softmax(torch.relu(x @ y) * 2 + 1, -1)


def mixed(x):
    return (x.sin() * x.cos() + x.sum(0)).tanh()


@numba.njit(cache=True)
def total(x):
    s = 0.0
    for v in x:
        s += v * v
    return s
"""
JOB = """\
import functools, json, resource, time
import numpy, torch
from torch._dynamo.utils import counters
import ops

torch.manual_seed(0)
x, y = torch.randn(64, 128), torch.randn(128, 96)


def used():
    return sum(resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


begun, seconds = used(), -time.monotonic()
results = torch.compile(ops.attention)(x, y), torch.compile(ops.mixed)(x)
cpu, seconds = used() - begun, seconds + time.monotonic()
right = all(map(functools.partial(torch.allclose, atol=1e-5), results, (ops.attention(x, y), ops.mixed(x))))
right = right and ops.total(numpy.arange(4.0)) == ops.total.py_func(numpy.arange(4.0))
graphs = counters["inductor"]
print(json.dumps({
    "right": bool(right), "hit": graphs["fxgraph_cache_hit"], "miss": graphs["fxgraph_cache_miss"],
    "numba": sum(ops.total.stats.cache_hits.values()), "cpu": cpu, "seconds": seconds,
}))
"""
Answer = dict[str, float]


def fill(folder: Path, ops: str) -> None:
    (folder / "clone").mkdir(exist_ok=True)
    (folder / "clone/ops.py").write_text(ops)
    (folder / "clone/job.py").write_text(JOB)


def start(sif: Path, folder: Path, **env: str) -> Answer:
    """Run the program in an empty home and an empty /tmp; `folder` is what it sees of this machine."""
    words = (
        "apptainer",
        "exec",
        "--containall",
        "--no-home",
        "--bind",
        f"{folder}:/mnt",
        "--pwd",
        "/mnt/clone",
    )
    given = (word for name, value in env.items() for word in ("--env", f"{name}={value}"))
    return dict(json.loads(run(*words, *given, sif, "python", "job.py").splitlines()[-1]))


def job(sif: Path, folder: Path, ops: str = OPS, **env: str) -> Answer:
    fill(folder, ops)
    return start(sif, folder, **env)


def build_with(folder: Path, name: str, *keys: str) -> Built:
    """Build the environment of `cpu` with Numba and these keys."""
    path = recipe_like("cpu", folder / f"{name}.yaml")
    text = path.read_text().replace("  - numpy>=2,<3\n", "  - numpy>=2,<3\n  - numba==0.68.1\n")
    path.write_text(text.replace("extensions:\n", "") + "".join(f"{key}\n" for key in keys))
    run(ENVBUILDER, "lock", path)
    return build(str(path), folder / "built", *OPTIONS, env=NO_ENGINE)


@pytest.fixture(scope="module")
def places() -> Iterator[tuple[Path, Answer, Built]]:
    """A folder in which a job kept what it compiled, what that job said, and the environment that took it."""
    with open_folder() as folder:
        before = build_with(folder, "before")
        first = job(before.sif, folder, ENVBUILDER_KEEP_COMPILED="../kept/cpu")
        assert (first["right"], first["hit"], first["miss"], first["numba"]) == (True, 0, 2, 0)
        yield folder, first, build_with(folder, "after", "warm: {caches: [kept/cpu]}")


def test_a_clone_elsewhere_compiles_nothing(places: tuple[Path, Answer, Built], spacious: Path):
    _, first, after = places
    again = job(after.sif, spacious)
    assert (again["right"], again["hit"], again["miss"], again["numba"]) == (True, 2, 0, 1)
    print(f"compile: {first['cpu']:.1f} s of CPU at first, {again['cpu']:.1f} s with the image's")
    assert again["cpu"] < first["cpu"] / 2


def test_two_processes_at_once_find_it_in_one_cache(places: tuple[Path, Answer, Built], spacious: Path):
    (spacious / "cache").mkdir()
    fill(spacious, OPS)
    with ThreadPoolExecutor(2) as ranks:
        pending = [
            ranks.submit(start, places[2].sif, spacious, TORCHINDUCTOR_CACHE_DIR="/mnt/cache")
            for _ in range(2)
        ]
        answers = [rank.result() for rank in pending]
    assert [(answer["right"], answer["hit"], answer["miss"]) for answer in answers] == [(True, 2, 0)] * 2


def test_what_changed_or_is_for_another_cpu_is_compiled(places: tuple[Path, Answer, Built], spacious: Path):
    changed = OPS.replace("* 2 + 1", "* 3 + 1").replace("v * v", "v + v")
    answer = job(places[2].sif, spacious, changed)
    assert (answer["right"], answer["hit"], answer["miss"], answer["numba"]) == (True, 1, 1, 0)
    answer = job(places[2].sif, spacious, NUMBA_CPU_NAME="x86-64-v3", NUMBA_CPU_FEATURES="")
    assert (answer["right"], answer["hit"], answer["numba"]) == (True, 2, 0)


def test_what_is_damaged_is_compiled(places: tuple[Path, Answer, Built], spacious: Path):
    folder = places[0]
    run("cp", "-r", folder / "kept/cpu", folder / "kept/damaged")
    files = [path for path in (folder / "kept/damaged").rglob("*") if path.is_file()]
    for path in files:
        path.write_bytes(path.read_bytes()[:-20])
    assert {path.suffix for path in files} >= {"", ".so", ".nbc"}
    damaged = build_with(folder, "damaged", "warm: {caches: [kept/damaged]}")
    answer = job(damaged.sif, spacious)
    assert (answer["right"], answer["hit"], answer["numba"]) == (True, 0, 0)
