"""The generated half of the corpus: recipes made from the tables, sound or broken in one way, with the code that is due.

The tables give the values and this file the judgement, by rules of its own: what a recipe changes of a sound one is what
must be refused. `python tests/compat/corpus/generate.py FOLDER` writes them as files, with the hand-written half beside.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuilder.compat.check import load_tables
from envbuilder.compat.tables.distribution import Distribution
from envbuilder.compat.tables.torch import Torch

HERE = Path(__file__).parent
TABLES = load_tables()
Pins = dict[str, object]

A100: Pins = {
    "gpus": ["A100"], "base": "debian/bookworm", "python": "3.11", "cuda": "12.4", "gcc": "12", "libxcrypt": "4.4",
    "pytorch": "2.6.0",
}  # fmt: skip
H100 = A100 | {"gpus": ["H100"], "cuda": "13.2", "pytorch": "2.15.0"}
T4 = A100 | {
    "gpus": ["T4"], "base": "debian/bullseye", "python": "3.9", "cuda": "11.2", "gcc": "9", "pytorch": "1.13.1",
}  # fmt: skip
SEEDS = {"a100": A100, "h100": H100, "t4": T4}
# What each seed's toolkit and wheel hold, by hand: capabilities from, to.
SPANS = {"a100": ((7, 0), (9, 0)), "h100": ((7, 5), (12, 1)), "t4": ((7, 0), (8, 6))}


@dataclass(frozen=True)
class Sample:
    """One recipe of the corpus."""

    name: str
    text: str
    codes: tuple[str, ...]  # of the errors that are due; none for a sound recipe
    host: str = ""  # the file of the host facts, below this folder
    has_repair: bool = True

    @property
    def is_sound(self) -> bool:
        return not self.codes


def written() -> Iterator[Sample]:
    """The hand-written half: what is due stands in each file's head."""
    for path in sorted(HERE.glob("*.yaml")):
        text = path.read_text()
        due = re.findall(r"^# expect: (.+)$", text, re.MULTILINE)[0].split()
        host = re.findall(r"^# host: (.+)$", text, re.MULTILINE)
        codes = tuple(word for word in due if word.startswith("EB"))
        yield Sample(path.stem, text, codes, host[0] if host else "", has_repair="none" not in due)


def generated() -> Iterator[Sample]:
    yield from _sound_gpus()
    yield from _sound_cpus()
    yield from _sound_pythons()
    yield from _broken_names()
    yield from _broken_compilers()
    yield from _broken_torches()
    yield from _broken_gpus()
    yield from _broken_arm()


def _sample(name: str, pins: Pins, *codes: str) -> Sample:
    name = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in pins.items() if value)
    return Sample(f"made-{name}", text, codes)


def _cpu(base: Distribution, torch: Torch) -> Pins:
    return {
        "base": base.name,
        "python": base.python,
        "gcc": base.gcc,
        "libxcrypt": base.short_libxcrypt,
        "pytorch": torch.version,
    }


def _sound_gpus() -> Iterator[Sample]:
    for seed, pins in SEEDS.items():
        first, last = SPANS[seed]
        for gpu in TABLES.gpus.rows:
            major, minor = map(int, gpu.capability.split("."))
            # The other seeds' torch has wheels for the CPU alone beside Arm.
            is_there = seed == "h100" or not gpu.arm_host
            if is_there and first <= (major, minor) <= last and (seed, gpu.capability) != ("t4", "8.9"):
                yield _sample(f"sound-{seed}-{gpu.name}", pins | {"gpus": [gpu.name]})


def _sound_cpus() -> Iterator[Sample]:
    for base in TABLES.distributions.rows:
        for torch in TABLES.torches.rows:
            # C++20 headers of 2.12 and newer, and no wheel of the suite's Python.
            if base.python in torch.pythons and not (torch.std > 17 and int(base.gcc) < 10):
                yield _sample(f"sound-cpu-{base.suite}-torch-{torch.version}", _cpu(base, torch))


def _sound_pythons() -> Iterator[Sample]:
    for base in TABLES.distributions.rows:
        for python in TABLES.standalones.by_name:
            torch = next(
                (one for one in reversed(TABLES.torches.rows) if python in one.pythons and one.std < 20), None
            )
            if torch:
                cpu = _cpu(base, torch) | {"python": python}
                yield _sample(f"sound-python-{python}-on-{base.suite}", cpu)


def _broken_names() -> Iterator[Sample]:
    for gpu in TABLES.gpus.rows[::3]:
        yield _sample(f"gpu-{gpu.name}-misspelt", H100 | {"gpus": [gpu.name + "x"]}, "EB302")
    for torch in TABLES.torches.rows[::4]:
        if not TABLES.torches.by_name.get(f"{torch.version}7"):
            yield _sample(f"torch-{torch.version}7", A100 | {"pytorch": f"{torch.version}7"}, "EB306")
    for cuda in TABLES.cudas.rows:
        known = cuda.cuda in TABLES.toolkits
        if not known:
            yield _sample(f"cuda-{cuda.cuda}-not-laid-out", A100 | {"cuda": cuda.cuda}, "EB311")
    for version in ("8.0", "10.9", "11.9", "12.7", "20.0"):
        yield _sample(f"cuda-{version}-never-released", A100 | {"cuda": version}, "EB313")
    for base in TABLES.distributions.rows:
        yield _sample(f"suite-{base.suite}-misspelt", A100 | {"base": base.name[:-1]}, "EB301")
        yield _sample(f"libxcrypt-not-of-{base.suite}", A100 | _of(base) | {"libxcrypt": "3.1"}, "EB305")
        for python in ("2.7", "3.6", "3.7"):
            yield _sample(f"python-{python}-on-{base.suite}", A100 | _of(base) | {"python": python}, "EB303")


def _of(base: Distribution) -> Pins:
    return {"base": base.name, "python": base.python}


def _broken_compilers() -> Iterator[Sample]:
    for base in TABLES.distributions.rows:
        for gcc in range(7, 20):
            if str(gcc) not in base.gccs:
                cpu = {"base": base.name, "python": base.python, "gcc": str(gcc)}
                cpu |= {"libxcrypt": base.short_libxcrypt}
                torch = "2.6.0"
                yield _sample(f"gcc-{gcc}-on-{base.suite}", cpu | {"pytorch": torch}, "EB304")
    # What the headers say, by hand: 11.2 takes gcc up to 10, 12.4 up to 13.
    for base, gcc, cuda in (("bookworm", "11", "11.2"), ("bookworm", "12", "11.2"), ("trixie", "14", "12.4")):
        pins = T4 | {
            "base": f"debian/{base}",
            "python": TABLES.distributions.by_name[f"debian/{base}"].python,
        }
        yield _sample(f"gcc-{gcc}-nvcc-{cuda}", pins | {"gcc": gcc, "cuda": cuda}, "EB315")
    for gcc in ("12", "13"):
        trixie = A100 | {"base": "debian/trixie", "python": "3.13", "gcc": gcc}
        yield _sample(f"glibc-2.41-nvcc-12.4-gcc-{gcc}", trixie, "EB318")


def _broken_torches() -> Iterator[Sample]:
    for torch in TABLES.torches.rows:
        for base in TABLES.distributions.rows:
            if base.python not in torch.pythons:
                yield _sample(
                    f"torch-{torch.version}-python-{base.python}-{base.suite}", _cpu(base, torch), "EB308"
                )
        major = {build.cuda.partition(".")[0] for build in (torch.build, *torch.other_builds)}
        for seed, pins in SEEDS.items():
            if str(pins["cuda"]).partition(".")[0] not in major and pins["python"] in torch.pythons:
                yield _sample(f"torch-{torch.version}-on-{seed}", pins | {"pytorch": torch.version}, "EB309")
        older = tuple(map(int, torch.version.split("."))) < (2, 3, 0)
        base = next((base for base in TABLES.distributions.rows if base.python in torch.pythons), None)
        if older and base:
            yield _sample(
                f"numpy-2-torch-{torch.version}", _cpu(base, torch) | {"packages": ["numpy>=2"]}, "EB329"
            )
        if base and (1, 8, 0) <= tuple(map(int, torch.version.split("."))) < (2, 2, 0):
            pins = _cpu(base, torch) | {"packages": ["setuptools>=82"]}
            yield _sample(f"setuptools-82-torch-{torch.version}", pins, "EB330")


def _broken_gpus() -> Iterator[Sample]:
    for seed, pins in SEEDS.items():
        first, last = SPANS[seed]
        for gpu in TABLES.gpus.rows:
            major, minor = map(int, gpu.capability.split("."))
            if (major, minor) < first or (major, minor) > last:
                yield _sample(f"{seed}-on-{gpu.name}", pins | {"gpus": [gpu.name]}, "EB319")


def _broken_arm() -> Iterator[Sample]:
    for gpu in TABLES.gpus.rows:
        if gpu.arm_host:
            yield _sample(f"a100-on-{gpu.name}-arm", A100 | {"gpus": [gpu.name]}, "EB353")


def main(folder: Path) -> None:
    """Write every recipe with what it needs; `expect.json` says what is due of each."""
    shutil.copytree(HERE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    due: dict[str, list[str]] = {}
    for sample in (*written(), *generated()):
        (folder / f"{sample.name}.yaml").write_text(sample.text)
        due[sample.name] = list(sample.codes)
    (folder / "expect.json").write_text(json.dumps(due, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
