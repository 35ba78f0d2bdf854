"""The CUDA toolkits that can be laid out here, read from `toolkits.yaml`: one typed row each.

A row says what is downloaded beside torch's own wheels, what is taken out of it, and what is linked to those wheels
instead of being copied. `engines/cuda.py` does what a row says.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

import yaml

SITE: Final = "{site}"  # in a link's target: the site-packages folder of the image


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """One rule: which paths of a package (`source`) go where below the toolkit folder (`target`)."""

    source: str
    target: str
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DebPart:
    """A Debian package of one suite; its version is the lock's to say."""

    name: str
    suite: str
    component: str
    take: tuple[Take, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPart:
    """A wheel of exactly one version."""

    name: str
    version: str
    take: tuple[Take, ...]


Part = DebPart | WheelPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitLink:
    """A symbolic link below the toolkit folder; the target is relative or begins with `{site}`."""

    path: PurePosixPath
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitFile:
    """A small text file below the toolkit folder."""

    path: PurePosixPath
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """Everything that makes `usr/local/cuda-X.Y`."""

    cuda: str
    parts: tuple[Part, ...]
    header_wheels: tuple[str, ...]
    links: tuple[ToolkitLink, ...]
    files: tuple[ToolkitFile, ...]
    constraints: tuple[str, ...]

    @property
    def folder(self) -> PurePosixPath:
        """Where it lies, relative to the root of the tree."""
        return PurePosixPath("usr/local") / f"cuda-{self.cuda}"


def load_toolkits() -> Mapping[str, Toolkit]:
    """The rows that envbuilder brings, by CUDA version."""
    text = resources.files("envbuilder").joinpath("tables", "toolkits.yaml").read_text(encoding="utf-8")
    return parse_toolkits(text)


def parse_toolkits(text: str) -> Mapping[str, Toolkit]:
    """Read a table; raises ValueError that names the place of the first mistake."""
    rows = _mapping(yaml.safe_load(text), "$")
    return {cuda: _toolkit(cuda, _Row(value, cuda)) for cuda, value in rows.items()}


class _Row:
    """A mapping whose keys are taken one by one; `end` refuses what nobody took."""

    def __init__(self, value: object, where: str) -> None:
        self.where = where
        self._left = _mapping(value, where)

    def __contains__(self, key: str) -> bool:
        return key in self._left

    def text(self, key: str) -> str:
        return _text(self._value(key), f"{self.where}.{key}")

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(_text(value, where) for value, where in self._items(key))

    def rows(self, key: str) -> Iterator["_Row"]:
        return (_Row(value, where) for value, where in self._items(key))

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        pairs = _mapping(self._left.pop(key, {}), f"{self.where}.{key}")
        return tuple((name, _text(value, f"{self.where}.{key}.{name}")) for name, value in pairs.items())

    def end(self) -> None:
        if self._left:
            raise ValueError(f"{self.where}: unknown key `{min(self._left)}`")

    def _value(self, key: str) -> object:
        if key not in self._left:
            raise ValueError(f"{self.where}: `{key}` is missing")
        return self._left.pop(key)

    def _items(self, key: str) -> list[tuple[object, str]]:
        value = self._left.pop(key, [])
        if not isinstance(value, list):
            raise ValueError(f"{self.where}.{key}: expected a list, found {value!r}")  # noqa: TRY004 - a wrong value, not a bug
        return [(item, f"{self.where}.{key}[{number}]") for number, item in enumerate(value)]


def _toolkit(cuda: str, row: _Row) -> Toolkit:
    toolkit = Toolkit(
        cuda=cuda,
        parts=tuple(_part(part) for part in row.rows("parts")),
        header_wheels=row.texts("header_wheels"),
        links=tuple(_link(path, target, row.where) for path, target in row.pairs("links")),
        files=tuple(
            ToolkitFile(path=_below(path, row.where), text=text) for path, text in row.pairs("files")
        ),
        constraints=row.texts("constraints"),
    )
    row.end()
    if not toolkit.parts:
        raise ValueError(f"{row.where}: `parts` is missing")
    _refuse_double([part.name for part in toolkit.parts], f"{row.where}.parts")
    paths = [link.path for link in toolkit.links] + [file.path for file in toolkit.files]
    _refuse_double([str(path) for path in paths], f"{row.where}.links and files")
    return toolkit


def _part(row: _Row) -> Part:
    take = tuple(_take(rule) for rule in row.rows("take"))
    if not take:
        raise ValueError(f"{row.where}: `take` is missing")
    part: Part
    if "deb" in row:
        part = DebPart(
            name=row.text("deb"), suite=row.text("suite"), component=row.text("component"), take=take
        )
    else:
        name, separator, version = row.text("wheel").partition("==")
        if not (name and separator and version):
            raise ValueError(f"{row.where}.wheel: expected `name==version`")
        part = WheelPart(name=name, version=version, take=take)
    row.end()
    return part


def _take(row: _Row) -> Take:
    take = Take(source=row.text("from"), target=row.text("to"), exclude=row.texts("exclude"))
    row.end()
    _below(take.source, row.where)
    _below(take.target, row.where)
    if any(wild in take.source for wild in "*?") and not take.target.endswith("/"):
        raise ValueError(
            f"{row.where}: `{take.source}` can match several files, so `to` must be a folder: `{take.target}/`"
        )
    if "**" in take.source.removesuffix("/**"):
        raise ValueError(f"{row.where}: `**` is understood at the end only, found `{take.source}`")
    return take


def _link(path: str, target: str, where: str) -> ToolkitLink:
    if PurePosixPath(target).is_absolute():
        raise ValueError(
            f"{where}.links.{path}: the target is relative or begins with `{SITE}`, found `{target}`"
        )
    return ToolkitLink(path=_below(path, where), target=target)


def _below(path: str, where: str) -> PurePosixPath:
    """A relative path that stays below its folder."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"{where}: expected a path below the folder, found `{path}`")
    return pure


def _mapping(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a mapping, found {value!r}")  # noqa: TRY004 - a wrong value, not a bug
    return {_text(key, f"{where}, key"): item for key, item in value.items()}


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: expected a string, found {value!r} (quote it)")  # noqa: TRY004 - a wrong value, not a bug
    return value


def _refuse_double(names: list[str], where: str) -> None:
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise ValueError(f"{where}: `{double[0]}` is there twice")
