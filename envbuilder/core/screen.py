"""The lines and the live view on a terminal, drawn by rich. `console.py` is what others use."""

import threading

from rich.console import Console as RichConsole
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from envbuilder.core.text.redact import plain

Part = str | tuple[str, str]  # of a line: a text, or a text and its style
View = tuple[Progress, TaskID]  # of a step: the live view, and its line in it


class Screen:
    """The state of stderr, shared by all consoles."""

    def __init__(self, *, color: bool, quiet: bool) -> None:
        self.live: Progress | None = None
        self._guard = threading.RLock()
        self._out = RichConsole(stderr=True, no_color=not color, highlight=False, quiet=quiet, soft_wrap=True)

    def show(self, *parts: Part) -> None:
        # rich interprets markup and emoji in a str, but not in a Text.
        plain_parts = (plain(part) if isinstance(part, str) else (plain(part[0]), part[1]) for part in parts)
        self._out.print(Text.assemble(*plain_parts))

    def mark(self, line: str) -> None:
        """Print the line unchanged, because a fold needs its carriage return."""
        with self._guard:
            if not self._out.quiet:
                print(line, file=self._out.file, flush=True)

    def enter(self, title: str, total: int | None) -> View:
        """Add a step to the live view, which begins with the first step."""
        with self._guard:
            if self.live is None:
                self.live = _make_view(self._out)
                self.live.start()
            return self.live, self.live.add_task(plain(title), total=total, note="", items=False)

    def leave(self, view: View | None, *last: Part) -> None:
        """Remove a step and print its last line. The last step closes the view."""
        assert view is not None, "every step is in the view"
        progress, task = view
        with self._guard:
            progress.remove_task(task)
            if progress is self.live and not progress.tasks:
                self.close()
            self.show(*last)

    def close(self) -> None:
        with self._guard:
            if self.live is not None:
                self.live.stop()
                self.live = None


def _make_view(out: RichConsole) -> Progress:
    """Make the live view. Its tasks have the fields `note` and `items`."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        _Amount(table_column=Column(no_wrap=True)),
        _Note(),
        TimeElapsedColumn(),
        console=out,
        transient=True,
    )


class _Note(ProgressColumn):
    """What a step does now. On a narrow terminal, this column alone is cut off."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["note"], style="dim", no_wrap=True, overflow="ellipsis")


class _Amount(ProgressColumn):
    """The bytes or items of a step: done and expected; of bytes also the speed, and the seconds that are left at it."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        # Items are as unlike as the packages of g++ and of a licence, so their speed says nothing.
        if task.fields["items"]:
            return Text(f"{task.completed:.0f}/{task.total:.0f}")
        left = f" {task.time_remaining:.0f} s left" if task.time_remaining else ""
        return Text(
            f"{task.completed / 1e6:.0f}/{task.total / 1e6:.0f} MB {(task.speed or 0) / 1e6:.0f} MB/s{left}"
        )
