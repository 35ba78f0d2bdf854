"""Turn measured jobs into a Markdown table, a list of met and missed targets, and SVG plots. No I/O."""

import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from xml.sax.saxutils import escape

from jobs import OURS, Done, Job, Target, amounts, exponent

HEAD: Final = (
    "job", "by", "n", "wall s", "CPU s", "daemons' part", "CPU, to ours", "memory MB", "temporary MB", "result MB", "load",
)  # fmt: skip
BLUE: Final = "#1b5e9e"  # envbuilder's
COLORS: Final = ("#d1762b", "#7a8a2f", "#8e5aa3", "#777777")
WIDTH: Final = 960
LEFT: Final = 330  # where the axis begins
STEP: Final = 15  # from one way to the next
GAP: Final = 12  # between jobs
GREY: Final = "#9db4c8"
_LOGGED: Final = re.compile(
    r"^(?P<time>\S+ \S+) envbuilder\.core\.console (?P<what>start|end): (?P<title>.*?)(?: \([\d.]+ s\))?$",
    re.MULTILINE,
)


def table(jobs: Sequence[Job]) -> str:
    """Make a row for each way: the median, with minimum and maximum in brackets."""
    lines = [f"| {' | '.join(HEAD)} |", "|:--|:--" + "|--:" * (len(HEAD) - 2) + "|"]
    for job in jobs:
        ours = job.way(OURS)
        for place, way in enumerate(job.ways):
            title = job.title if place == 0 else ""
            lines.append(f"| {' | '.join([title, way.tool, *_cells(way, ours)])} |")
    fits = [f"- {job.title}: CPU ~ n^{exponent(found):.2f}" for job in jobs if len(found := amounts(job)) > 1]
    return "\n".join([*lines, *(["", *fits] if fits else [])])


def _cells(way: Done, ours: Done | None) -> list[str]:
    if not way.samples:
        return ["0", f"not run: {' '.join(way.missing.replace('|', '/').split())}", *[""] * (len(HEAD) - 4)]
    daemons = way.middle("cpu_daemons")
    return [
        str(len(way.samples)),
        spread(way.values("wall")),
        spread(way.values("cpu")),
        seconds(daemons) if daemons >= 0.01 else "",
        f"{way.middle('cpu') / ours.middle('cpu'):.2f}" if ours and way is not ours else "",
        *(_megabytes(way.middle(what)) for what in ("memory", "temporary", "result")),
        f"{way.middle('load'):.1f}",
    ]


def spread(values: Sequence[float]) -> str:
    middle = seconds(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({seconds(min(values))} to {seconds(max(values))})"


def seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.0f}" if abs(value) >= 1e6 else ""


def verdicts(targets: Sequence[Target], jobs: Sequence[Job]) -> list[tuple[Target, float | None, str]]:
    """Return each target with its figure and `met`, `NOT MET` or `not measured`."""
    found = []
    for target in targets:
        figure = target.figure(jobs)
        word = "not measured" if figure is None else "met" if figure <= target.most else "NOT MET"
        found.append((target, figure, word))
    return found


def targets_table(targets: Sequence[Target], jobs: Sequence[Job]) -> str:
    lines = ["| target | at most | measured | |", "|:--|--:|--:|:--|"]
    for target, figure, word in verdicts(targets, jobs):
        shown = "" if figure is None else f"{figure:.2f}"
        lines.append(f"| {target.words} | {target.most:.2f} | {shown} | {word} |")
    return "\n".join(lines)


def plot(jobs: Sequence[Job], facts: Mapping[str, str]) -> str:
    """Plot the CPU seconds of every way on a logarithmic axis: a dot for the median, a line from minimum to maximum."""
    done = [job for job in jobs if any(way.samples for way in job.ways)]
    values = [value for job in done for way in job.ways for value in way.values("cpu") if value > 0]
    if not values:
        return ""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)

    def at(value: float) -> float:
        return LEFT + (math.log10(max(value, 10**low)) - low) / (high - low) * (WIDTH - LEFT - 170)

    parts, y = [], 60
    for job in done:
        parts.append(_text(12, y + 4, job.title.replace("`", ""), weight="bold"))
        colors = itertools.chain(COLORS, itertools.repeat(COLORS[-1]))
        for way in (way for way in job.ways if way.samples):
            color = BLUE if way.tool.startswith(OURS) else next(colors)
            cpu = way.values("cpu")
            middle = at(way.middle("cpu"))
            parts.append(
                f'<line x1="{at(min(cpu)):.1f}" x2="{at(max(cpu)):.1f}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="2"/>'
                f'<circle cx="{middle:.1f}" cy="{y}" r="4.5" fill="{color}"/>'
            )
            parts.append(_text(middle + 9, y + 4, f"{way.tool}  {seconds(way.middle('cpu'))} s", color=color))
            y += STEP
        y += GAP
    grid = []
    for power in range(low, high + 1):
        x = at(10**power)
        grid.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="44" y2="{y}" stroke="#ddd"/>')
        grid.append(_text(x, 38, f"{10**power:g} s", anchor="middle", color="#555"))
    about = f"{facts.get('date', '')}, {facts.get('machine', '')}, revision {facts.get('revision', '')}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 30}" font-family="sans-serif" font-size="11">'
        f'<rect width="{WIDTH}" height="{y + 30}" fill="white"/>'
    )
    title = _text(12, 18, "CPU seconds for the same job (median; line: least to most)", weight="bold")
    return "\n".join([head, title, *grid, *parts, _text(12, y + 18, about, color="#555"), "</svg>\n"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a build; its times are in seconds since the first step began."""

    title: str
    start: float
    end: float


def read_steps(log: str) -> tuple[Step, ...]:
    """Return the steps that ended, in the order in which they began, from the log of a build."""
    began, steps = dict[str, int](), list[Step]()
    for found in _LOGGED.finditer(log):
        # Only differences count, so the zone does not matter.
        time = datetime.strptime(found["time"], "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC).timestamp()
        title = found["title"]
        if found["what"] == "start":
            began[title] = len(steps)
            steps.append(Step(title=title, start=time, end=math.inf))
        elif title in began:
            at = began.pop(title)
            steps[at] = replace(steps[at], end=time)
    first = min((step.start for step in steps), default=0.0)
    ended = (step for step in steps if step.end < math.inf)
    return tuple(replace(step, start=step.start - first, end=step.end - first) for step in ended)


def waited_for(step: Step, steps: Sequence[Step]) -> Step | None:
    """Return the step that ended last before this one began."""
    return max((one for one in steps if one.end <= step.start), key=lambda one: one.end, default=None)


def timeline(steps: Sequence[Step], title: str) -> str:
    """Draw a bar for each step, and a line from the step that it waited for.

    The bars that decide the whole time are dark: the last one, and what each of them waited for.
    """
    end = max(step.end for step in steps)
    deciding, last = list[Step](), max(steps, key=lambda step: step.end, default=None)
    while last:
        deciding.append(last)
        last = waited_for(last, steps)
    scale = (WIDTH - 2 * GAP - LEFT) / end
    height = 60 + STEP * len(steps)
    parts = [_text(GAP, 18, title, weight="bold")]
    every = next(
        one for one in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000) if end / one <= 12 or one == 2000
    )
    for second in range(0, int(end) + 1, every):
        x = GAP + second * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="40" y2="{height - 12}" stroke="#ddd"/>')
        parts.append(_text(x, 36, f"{second} s", anchor="middle" if second else "start", color="#555"))
    row = {step: 52 + STEP * number for number, step in enumerate(steps)}
    for step, y in row.items():
        x, color = GAP + step.start * scale, BLUE if step in deciding else GREY
        if before := waited_for(step, steps):
            parts.append(
                f'<path d="M{GAP + before.end * scale:.1f},{row[before]} V{y} H{x:.1f}" fill="none" stroke="{color}"/>'
            )
        width = max((step.end - step.start) * scale, 1)
        parts.append(f'<rect x="{x:.1f}" y="{y - 4}" width="{width:.1f}" height="9" fill="{color}"/>')
        parts.append(_text(x + width + 5, y + 4, f"{step.title}  {step.end - step.start:.1f} s"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>\n"])


def _text(x: float, y: float, text: str, *, color: str = "#222", weight: str = "normal", anchor: str = "start") -> str:  # fmt: skip
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" font-weight="{weight}" text-anchor="{anchor}">{escape(text)}</text>'
