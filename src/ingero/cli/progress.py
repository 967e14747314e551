"""A progress bar for long operations on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# (title of the operation, ratio done)
Progress = Callable[[str, float], None]


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on standard error where that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda _title, _share: None
        return
    from rich.console import Console  # noqa: PLC0415  # takes 40 ms, and without a terminal it is not needed
    from rich.markup import escape  # noqa: PLC0415
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (TextColumn("{task.description:16}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=1.0)

        def show(title: str, share: float) -> None:
            bars.update(task, description=escape(title), completed=share)

        yield show
