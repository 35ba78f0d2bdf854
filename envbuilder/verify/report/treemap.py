"""Draw sizes as a treemap by layer and package, after Bruls, Huizing and van Wijk ("Squarified treemaps", 2000)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from envbuilder.verify.report.sizes import Part, layer_sizes

WIDTH: Final = 1000
HEIGHT: Final = 560
NARROW: Final = (440, 660)  # for a narrow screen
HEAD: Final = 18  # above each layer, for its name
GAP: Final = 2
SMALLEST: Final = 0.002  # share of all bytes; smaller parts are shown as one
_LETTER: Final = 7.0  # about the width of a letter
# Dark enough for white letters. Layers are also named, so color carries no meaning alone.
COLORS: Final = ("#2f5d8a", "#8a4b2f", "#3f7a4b", "#6b4a8a", "#7a6a1f", "#8a2f55")


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    title: str
    text: str  # "" where there is no room
    x: float
    y: float
    width: float
    height: float
    fill: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    text: str
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    width: int
    height: int
    boxes: tuple[Box, ...]
    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rect:
    x: float
    y: float
    width: float
    height: float


def draw(parts: Sequence[Part], width: int = WIDTH, height: int = HEIGHT) -> Picture:
    """Draw a picture whose areas are proportional to the sizes."""
    layers = {name: size for name, size in layer_sizes(tuple(parts)).items() if size}
    total = sum(layers.values())
    boxes: list[Box] = []
    labels: list[Label] = []
    frames = squarify(tuple(layers.values()), Rect(x=0, y=0, width=width, height=height))
    for number, (layer, frame) in enumerate(zip(layers, frames, strict=True)):
        has_head = frame.height > 2 * HEAD and frame.width > _LETTER * len(layer)
        if has_head:
            labels.append(Label(text=layer, x=round(frame.x + 2, 1), y=round(frame.y + 13, 1)))
        inner = _inside(frame, HEAD if has_head else 0)
        shown = _together([part for part in parts if part.layer == layer and part.size], SMALLEST * total)
        rects = squarify(tuple(size for _, size in shown), inner)
        fill = COLORS[number % len(COLORS)]
        boxes += [
            _box(layer, name, size, rect, fill) for (name, size), rect in zip(shown, rects, strict=True)
        ]
    return Picture(width=width, height=height, boxes=tuple(boxes), labels=tuple(labels))


def _inside(frame: Rect, head: float) -> Rect:
    """Return the frame without its margin, or whole when it is too narrow."""
    gap = GAP if min(frame.width, frame.height) > 4 * GAP else 0
    return Rect(
        x=frame.x + gap, y=frame.y + head, width=frame.width - 2 * gap, height=frame.height - head - gap
    )


def _together(parts: Sequence[Part], least: float) -> list[tuple[str, int]]:
    """Return the parts, the largest first, with those below `least` summed."""
    large = [(part.name, part.size) for part in parts if part.size >= least]
    small = [part.size for part in parts if part.size < least]
    shown = [*large, *([(f"{len(small)} smaller", sum(small))] if small else [])]
    return sorted(shown, key=lambda pair: -pair[1])


def _box(layer: str, name: str, size: int, rect: Rect, fill: str) -> Box:
    room = int((rect.width - 8) / _LETTER)
    text = name if len(name) <= room else f"{name[: room - 1]}…"
    return Box(
        title=f"{name} ({layer}): {size / 1e6:.1f} MB",
        text=text if room >= 4 and rect.height >= 20 else "",
        x=round(rect.x, 1), y=round(rect.y, 1),
        width=round(max(rect.width - 1, rect.width / 2), 1), height=round(max(rect.height - 1, rect.height / 2), 1), fill=fill,
    )  # fmt: skip


def squarify(sizes: Sequence[float], room: Rect) -> tuple[Rect, ...]:
    """Return a rectangle for each size, the largest first. Their areas are proportional and fill the room."""
    return tuple(_rows(list(sizes), room))


def _rows(sizes: list[float], room: Rect) -> Iterator[Rect]:
    while sizes:
        scale = room.width * room.height / sum(sizes)
        side = min(room.width, room.height)
        count = 1
        while count < len(sizes) and _worst(sizes[: count + 1], side, scale) <= _worst(
            sizes[:count], side, scale
        ):
            count += 1
        row, sizes = sizes[:count], sizes[count:]
        thick = sum(row) * scale / side
        is_wide = room.width >= room.height
        at = 0.0
        for size in row:
            length = size * scale / thick
            if is_wide:
                yield replace(room, y=room.y + at, width=thick, height=length)
            else:
                yield replace(room, x=room.x + at, width=length, height=thick)
            at += length
        if is_wide:
            room = replace(room, x=room.x + thick, width=max(room.width - thick, 1e-9))
        else:
            room = replace(room, y=room.y + thick, height=max(room.height - thick, 1e-9))


def _worst(row: Sequence[float], side: float, scale: float) -> float:
    """Return the worst aspect ratio in a row; 1 is a square."""
    area = sum(row) * scale
    return max(side**2 * max(row) * scale / area**2, area**2 / (side**2 * min(row) * scale))
