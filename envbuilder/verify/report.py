"""The page of a report: its sections with what each says of an environment, in one template that escapes all values.

It counts the bytes by layer and package, with the file lists of dpkg and pip inside the environment.
"""

import csv
import io
import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from envbuilder import __version__
from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.outputs import Outputs, Record
from envbuilder.compat.check import load_tables
from envbuilder.compat.explain import brief, driver_floor, facts
from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import UsageError
from envbuilder.core.findings import Finding
from envbuilder.core.system import utc_time
from envbuilder.core.text.redact import plain
from envbuilder.lock.file import lock_path
from envbuilder.plan.model import Plan
from envbuilder.recipe.model import Recipe
from envbuilder.verify.audit import AuditedTree
from envbuilder.verify.pair import VerifiedPair

NOT_STATED: Final = "NOASSERTION"
_LARGEST: Final = 25  # packages in the table of sizes
Package = dict[str, Any]  # of an SBOM in SPDX
_FOLDER: Final = Path(__file__).parent
_NUMBER: Final = re.compile(r"-|[<>]?\d[\d.]*( (B|[kMGT]B|s|%))?")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d\W?")  # which a browser would break
_CODE: Final = 32  # characters of the longest code that is never broken; what is longer may be a path
_STACKED: Final = 4  # columns from which a row stands as a block on a narrow screen


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    empty: str = "Nothing."  # shown when there are no rows

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the style of each column: numbers stand right; columns of single words are codes, and never broken."""
        return tuple(map(_kind, zip(*self.rows, strict=True)))

    @property
    def is_stacked(self) -> bool:
        return len(self.head) >= _STACKED


def _kind(cells: tuple[str, ...]) -> str:
    if all(_NUMBER.fullmatch(cell) for cell in cells) and set(cells) != {"-"}:
        return "number"
    return "text" if any(" " in cell or len(cell) > _CODE for cell in cells) else "code"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    tables: tuple[ReportTable, ...] = ()
    text: str = ""
    lines: tuple[tuple[str, str], ...] = ()  # to copy: label, and a command or a digest
    is_folded: bool = False  # its tables open with a click

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    title: str
    summary: str
    figures: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    version: str


# ---- sizes

# The folders of each layer; all others belong to the os layer.
LAYERS: Final = (
    ("opt/python/", "interpreter"),
    ("opt/env/", "python"),
    ("usr/local/cuda", "cuda"),
    ("opt/envbuilder/extensions/", "extensions"),
    ("opt/envbuilder/", "envbuilder"),
    (".singularity.d/", "envbuilder"),
)
OS: Final = "os"
_DPKG: Final = re.compile(r"var/lib/dpkg/info/([^/:]+)(?::[^/]*)?\.list")
_RECORD: Final = re.compile(r"(.*/)([^/]+?)-[^/-]+\.dist-info/RECORD")
# Links into /usr, which dpkg's lists do not know.
_MERGED: Final = re.compile(r"(bin|sbin|lib|lib32|lib64|libx32)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageBytes:
    """The bytes of one package in one layer. Files of no package count under the layer's name."""

    layer: str
    name: str
    size: int  # bytes


def measure(tree: AuditedTree) -> tuple[PackageBytes, ...]:
    """Count every byte of the tree once. The largest part of each layer comes first."""
    owners = _owners(tree)
    sizes = Counter[tuple[str, str]]()
    for entry in tree.entries:
        if entry.size:
            layer = _layer(entry.path)
            sizes[layer, owners.get(entry.path) or _other(layer, entry.path, owners)] += entry.size
    parts = (PackageBytes(layer=layer, name=name, size=size) for (layer, name), size in sizes.items())
    return tuple(sorted(parts, key=lambda part: (part.layer, -part.size, part.name)))


def layer_sizes(parts: tuple[PackageBytes, ...]) -> dict[str, int]:
    """Return the bytes of each layer, the largest first."""
    sizes = Counter[str]()
    for part in parts:
        sizes[part.layer] += part.size
    return dict(sizes.most_common())


def _layer(path: str) -> str:
    return next((layer for prefix, layer in LAYERS if path.startswith(prefix)), OS)


def _owners(tree: AuditedTree) -> dict[str, str]:
    """Return the package of each file, and of each folder in site-packages: RECORD may not list its byte code."""
    owners: dict[str, str] = {}
    for entry in tree.entries:
        if listing := _DPKG.fullmatch(entry.path):
            owners |= dict.fromkeys(_listed(tree, entry.path), listing[1])
        elif listing := _RECORD.fullmatch(entry.path):
            site, package = listing.groups()
            for path in _recorded(tree, entry.path, site):
                owners[path] = package
                below = path.removeprefix(site)
                if path.startswith(site) and "/" in below:
                    owners.setdefault(site + below.partition("/")[0], package)
    return owners


def _listed(tree: AuditedTree, path: str) -> Iterator[str]:
    for line in _text(tree, path).splitlines():
        name = line.removeprefix("/")
        yield f"usr/{name}" if _MERGED.match(name) else name


def _recorded(tree: AuditedTree, path: str, folder: str) -> Iterator[str]:
    for row in csv.reader(io.StringIO(_text(tree, path))):
        if row:
            yield posixpath.normpath(folder + row[0])


def _text(tree: AuditedTree, path: str) -> str:
    with tree.open(path) as stream:
        return stream.read().decode("utf-8", "replace")


def _other(layer: str, path: str, owners: dict[str, str]) -> str:
    """Name the owner of an unlisted file by its folder: a Python package or a part of the toolkit."""
    parts = path.split("/")
    if layer == "python":
        folders = ("/".join(parts[:depth]) for depth in range(len(parts) - 1, 3, -1))
        return next((owners[folder] for folder in folders if folder in owners), "byte code and start-up")
    if layer == "cuda":
        return f"{parts[3]} of the toolkit" if len(parts) > 4 else "toolkit"
    if layer == "extensions":
        return parts[3] if len(parts) > 4 else "index"
    return "made while installing" if layer == OS else "lock, plan, start-up"


# ---- sections


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSubject:
    """An environment that was built, and what is known of it."""

    recipe: Recipe
    plan: Plan
    outputs: Outputs
    record: Record | None
    packages: tuple[Package, ...]
    parts: tuple[PackageBytes, ...]
    verdict: VerifiedPair | str  # the answer of `verify`, or its error
    findings: tuple[Finding, ...]
    extensions: ReportTable


def make_page(subject: ReportSubject) -> Page:
    sections = (_identity, _usage, _proof, _pins, _sizes, _extensions, _times, _licenses, _sbom)
    return Page(
        title=subject.recipe.name,
        summary=subject.recipe.summary,
        figures=_figures(subject),
        sections=tuple(section(subject) for section in sections),
        version=__version__,
    )


def read_packages(sbom: str) -> tuple[Package, ...]:
    """Return the packages of the SBOM, without the environment itself; raises UsageError."""
    try:
        packages = json.loads(sbom)["packages"]
        return tuple(package for package in packages if "primaryPackagePurpose" not in package)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError("the SBOM in the SIF cannot be read", hint="build it again") from error


def _figures(subject: ReportSubject) -> tuple[tuple[str, str], ...]:
    recipe, sif = subject.recipe, subject.outputs.sif.stat()
    floor = driver_floor(recipe, load_tables())
    return (
        ("built", f"{utc_time(sif.st_mtime):%Y-%m-%d}"),
        ("SIF", _size(sif.st_size)),
        ("files", _size(sum(part.size for part in subject.parts))),
        ("packages", str(len(subject.packages))),
        ("Python", recipe.python),
        ("PyTorch", recipe.pytorch or ("that of the base image" if recipe.keeps_torch else "none")),
        ("CUDA", recipe.cuda or "none"),
        ("GPUs", ", ".join(recipe.gpus) or "none"),
        *([("driver floor", floor)] if floor else []),
    )


def _identity(subject: ReportSubject) -> Section:
    """Return what names the artifacts, whichever copy of them a reader has."""
    outputs, record, lock = subject.outputs, subject.record, lock_path(subject.recipe)
    lines = {
        f"{outputs.sif.name}, sha256": record.sif if record else sha256_file(outputs.sif),
        "image": outputs.image_name,
        "its manifest, sha256": record.manifest if record else read_layout(outputs.image).manifest.digest,
        "lock": f"{lock}, as of {datetime.fromtimestamp(subject.plan.epoch, UTC):%Y-%m-%d}",
        "its sha256": sha256_file(lock),
        "build key": subject.plan.key,
    }
    return Section(title="Identity", lines=tuple(lines.items()))


def _usage(subject: ReportSubject) -> Section:
    recipe, outputs = subject.recipe, subject.outputs
    name, sif, image = recipe.name, outputs.sif.name, outputs.image_name
    nv, gpus, nodes = ("--nv ", "--gpus all ", " --gpus-per-node 4") if recipe.gpus else ("", "", "")
    docker = f'docker run --rm {gpus}--ipc=host --user "$(id -u):$(id -g)" --env HOME=/tmp'
    mount = '--volume "$PWD:/work" --workdir /work'
    has_kernel = any(package["name"] == "ipykernel" for package in subject.packages)
    lines = {
        "envbuilder": f"envbuilder exec {name} -- python train.py",
        "Apptainer": f"apptainer exec {nv}{sif} python train.py",
        "Docker": f"{docker} \\\n  {mount} {image} python train.py",
        "Slurm": f"envbuilder launch slurm {name} --nodes 2{nodes} -- train.py",
        "VS Code": f"envbuilder devcontainer {name} --write PROJECT",
        **({"Jupyter": f"envbuilder kernel {name}"} if has_kernel else {}),
        "build it again": f"envbuilder build {name}",
    }
    return Section(title="Run it", lines=tuple(lines.items()))


def _proof(subject: ReportSubject) -> Section:
    """Return what was checked now, and what the build tested."""
    ended = {title for title, _ in subject.record.steps} if subject.record else set()
    tests = tuple(
        (test, ", ".join(kind for kind in ("SIF", "image") if f"test in the {kind}: {test}" in ended) or "not known")
        for test in subject.recipe.tests
    )  # fmt: skip
    verdict = subject.verdict
    if isinstance(verdict, VerifiedPair):
        plan = ", those of the plan" if verdict.plan else ""
        again = f"`envbuilder verify {subject.recipe.name}` checks it again."
        verdict = f"Image and SIF hold the same {verdict.paths} paths{plan}. {again}"
    if subject.outputs.bundle.is_file():
        verdict += " A signed statement lies beside them: `envbuilder verify --key FILE.pub` checks it."
    audits = tuple(
        (finding.code, str(finding.severity), "\nhint: ".join(filter(None, (str(finding), finding.hint))))
        for finding in subject.findings
    )
    nothing = "The audits of `verify` found nothing. `check` asks for security updates."
    return Section(
        title="Proof",
        text=verdict,
        tables=(
            ReportTable(title="Tests of the recipe", head=("test", "passed in"), rows=tests, empty="The recipe has none."),
            ReportTable(title="Audits", head=("code", "severity", "finding"), rows=audits, empty=nothing),
        ),
    )  # fmt: skip


def _pins(subject: ReportSubject) -> Section:
    recipe = subject.recipe
    unset: tuple[object, ...] = ("", [], {})
    pins = tuple(
        (key, brief(value), recipe.place(f"$.{key}"))
        for key, value in json.loads(recipe.canonical()).items()
        if value not in unset and key != "format"
    )
    follow = tuple((fact.name, fact.value, fact.source) for fact in facts(recipe, load_tables()))
    return Section(
        title="Pins",
        tables=(
            ReportTable(title="In the recipe", head=("key", "value", "written in"), rows=pins),
            ReportTable(title="What follows from them", head=("fact", "value", "source"), rows=follow),
        ),
    )


def _sizes(subject: ReportSubject) -> Section:
    layers = layer_sizes(subject.parts)
    total = sum(layers.values()) or 1
    largest = sorted(subject.parts, key=lambda part: -part.size)[:_LARGEST]
    by_layer = tuple((name, _size(size), f"{100 * size / total:.1f} %") for name, size in layers.items())
    by_part = tuple((part.name, part.layer, _size(part.size)) for part in largest)
    return Section(
        title="Sizes",
        text="Bytes of the files, before compression; a file with two names counts under each.",
        tables=(
            ReportTable(title="Layers", head=("layer", "size", "share"), rows=by_layer),
            ReportTable(title=f"The {len(largest)} largest", head=("package", "layer", "size"), rows=by_part),
        ),
    )


def _extensions(subject: ReportSubject) -> Section:
    return Section(title="Extensions", tables=(subject.extensions,))


def _times(subject: ReportSubject) -> Section:
    """Return the steps of the build. They run at the same time, so their sum exceeds the time of the build."""
    steps = subject.record.steps if subject.record else ()
    table = ReportTable(
        head=("step", "time"),
        rows=tuple((title, f"{seconds:.1f} s") for title, seconds in steps),
        empty="Not known: these files were built elsewhere, or changed since.",
    )
    text = "Of the build that made these files. Steps run beside each other; what the cache had has none."
    return Section(title="Build times", text=text, tables=(table,))


def _licenses(subject: ReportSubject) -> Section:
    counted = Counter(sorted(map(_license, subject.packages))).most_common()
    rows = tuple((name, str(count)) for name, count in counted)
    return Section(
        title="Licenses",
        is_folded=True,
        tables=(ReportTable(head=("license, in SPDX", "packages"), rows=rows),),
    )


def _sbom(subject: ReportSubject) -> Section:
    rows = tuple(
        (
            str(package["name"]), str(package.get("versionInfo", "")), _license(package),
            str(package.get("sourceInfo", "")), _sha256(package.get("checksums", ())),
        )
        for package in subject.packages
    )  # fmt: skip
    return Section(
        title="SBOM",
        text="The same as `envbuilder show --sbom` prints in SPDX, with whole digests there.",
        is_folded=True,
        tables=(ReportTable(head=("package", "version", "license", "from", "sha256"), rows=rows),),
    )


def _license(package: Package) -> str:
    stated = str(package.get("licenseDeclared", NOT_STATED))
    return "not stated" if stated == NOT_STATED else stated


def _sha256(checksums: Sequence[Package]) -> str:
    return next((str(checksum["checksumValue"])[:12] for checksum in checksums), "")


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def render(page: Page) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - `report --help` does without

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(_FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,  # not what is escaped already
    )
    environment.tests["date"] = _DATE.fullmatch
    return environment.get_template("report.html.jinja").render(page=page)
