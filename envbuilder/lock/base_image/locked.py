"""A base image in a lock: what a registry called it, every blob by digest, and what was found inside."""

from dataclasses import dataclass
from dataclasses import fields as dataclass_fields

from envbuilder.compat.image_facts import Base, Fact
from envbuilder.core.cache import Sha256
from envbuilder.core.decode import LINE_OR_EMPTY, Fields, Mistakes, Node, Shape, read_text

_SHA256 = Shape(pattern=r"[0-9a-f]{64}", expected="64 hexadecimal digits")
_MEDIA_TYPE = Shape(pattern=r"[A-Za-z0-9.+/_-]*", expected="a media type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """One file of an image, named by what it holds."""

    digest: Sha256
    size: int  # bytes
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBase:
    """An image that a recipe stands on, as it was when it was locked."""

    reference: str  # as the recipe writes it
    registry: str  # the source: as the recipe names it; "" for the one that engines take by default
    repository: str  # the path there: site/cuda
    manifest: Blob  # of the lock's platform, never an index
    config: Blob
    layers: tuple[Blob, ...]  # the lowest first
    facts: tuple[Fact, ...]
    packages: tuple[str, ...]  # name=version, sorted

    @property
    def pinned(self) -> str:
        """What an engine is given: the repository at exactly this manifest."""
        place = f"{self.registry}/{self.repository}" if self.registry else self.repository
        return f"{place}@sha256:{self.manifest.digest}"

    @property
    def inside(self) -> Base:
        return Base(facts=self.facts, packages=self.packages)


def read_locked_base(node: Node, mistakes: Mistakes, *, is_newer: bool) -> LockedBase:
    """From a lock's node; of a newer revision, keys that are not known are passed over."""

    def fields(inner: Node, kind: type) -> Fields:
        extra = tuple(entry.key for entry in inner.entries) if is_newer else ()
        return Fields(inner, mistakes, required=[one.name for one in dataclass_fields(kind)], optional=extra)

    def blob(inner: Node | None) -> Blob:
        if inner is None:
            return Blob(digest=Sha256(""), size=0, media_type="")
        one = fields(inner, Blob)
        return Blob(
            digest=Sha256(one.text("digest", _SHA256)),
            size=one.integer("size"),
            media_type=one.text("media_type", _MEDIA_TYPE),
        )

    def fact(inner: Node) -> Fact:
        one = fields(inner, Fact)
        return Fact(
            name=one.text("name"),
            value=one.text("value", LINE_OR_EMPTY),
            path=one.text("path", LINE_OR_EMPTY),
            source=one.text("source"),
        )

    whole = fields(node, LockedBase)
    return LockedBase(
        reference=whole.text("reference"),
        registry=whole.text("registry", LINE_OR_EMPTY),
        repository=whole.text("repository"),
        manifest=blob(node.get("manifest")),
        config=blob(node.get("config")),
        layers=tuple(map(blob, whole.items("layers"))),
        facts=tuple(map(fact, whole.items("facts"))),
        packages=tuple(read_text(item, mistakes) for item in whole.items("packages")),
    )


def diff_bases(old: LockedBase | None, new: LockedBase | None) -> tuple[str, ...]:
    """What is different, a line each: another image, and what it has that the other had not."""
    if old == new:
        return ()
    if old is None or new is None:
        return tuple(f"{sign} base {one.reference}" for sign, one in (("-", old), ("+", new)) if one)
    lines = []
    if old.reference != new.reference:
        lines.append(f"~ base {old.reference} → {new.reference}")
    if old.manifest != new.manifest:
        lines.append(
            f"~ base {new.reference}: sha256:{old.manifest.digest[:12]} → sha256:{new.manifest.digest[:12]}"
        )
    before, after = ({_told(fact) for fact in one.facts} for one in (old, new))
    lines += [f"- base has {fact}" for fact in sorted(before - after)]
    lines += [f"+ base has {fact}" for fact in sorted(after - before)]
    return tuple(lines)


def _told(fact: Fact) -> str:
    return " ".join(filter(None, (fact.name, fact.value, fact.path)))
