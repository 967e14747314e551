"""The metrics that a recording is to give out: what its settings ask for, opened before anything is attached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import rich_click as click

from ingero.capture.losses import MEANINGS
from ingero.capture.second import Second
from ingero.cli.settings import TraceSettings
from ingero.diagnose.tracking import Change

if TYPE_CHECKING:
    from ingero.serve.metrics.pump import Pump


@dataclass(frozen=True, slots=True)
class Consumers:
    """Who takes what is recorded; nobody where no metrics are asked for."""

    on_second: Sequence[Callable[[Second], None]] = ()
    on_finding: Sequence[Callable[[Change], None]] = ()


@contextmanager
def open_outputs(settings: TraceSettings) -> Iterator[Consumers]:
    """Serves metrics within a `with` block.

    Raises:
        IngeroError: it cannot listen there.
    """
    if settings.prometheus is None:
        yield Consumers()
        return
    from ingero.serve.metrics.intake import Intake  # noqa: PLC0415  # most recordings need none of it
    from ingero.serve.metrics.pump import Pump  # noqa: PLC0415
    from ingero.serve.metrics.registry import Registry  # noqa: PLC0415
    from ingero.serve.metrics.scrapes import Scrapes  # noqa: PLC0415

    registry = Registry()
    with ExitStack() as outputs:
        pump = Pump(Intake(registry, MEANINGS))
        outputs.callback(_say_what_was_dropped, pump)
        outputs.enter_context(pump)
        scrapes = Scrapes(settings.prometheus, registry, with_old_names=settings.metrics_compat)
        outputs.enter_context(scrapes)
        click.echo(f"metrics: {scrapes.url}", err=True)
        if not settings.prometheus.is_loopback:
            click.echo("  readable by everyone who can reach this address", err=True)
        yield Consumers([pump.second], [pump.finding])


def _say_what_was_dropped(pump: Pump) -> None:
    if pump.dropped:
        click.echo(f"metrics: {pump.dropped} seconds or findings were left out; the recording has them", err=True)
