"""What a terminal shows of running steps: one line each, with bytes where there are any."""

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text


def make_view(out: Console) -> Progress:
    """The view, not yet shown; its tasks have a field `note`."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        _Amount(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
        TimeElapsedColumn(),
        console=out,
        transient=True,
    )


class _Amount(ProgressColumn):
    """Bytes done of bytes expected, for transfers only."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        return Text(
            f"{task.completed / 1e6:.0f}/{task.total / 1e6:.0f} MB {(task.speed or 0) / 1e6:.0f} MB/s"
        )
