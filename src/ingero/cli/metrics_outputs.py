"""The metrics that a recording is to give out: what its settings ask for, opened before anything is attached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingero.capture.losses import MEANINGS
from ingero.capture.second import Second
from ingero.cli.output import echo
from ingero.cli.settings import TraceSettings
from ingero.diagnose.changes import Change
from ingero.errors import IngeroError
from ingero.serve.addresses import Address

if TYPE_CHECKING:
    from ingero.serve.metrics.pump import Pump
    from ingero.serve.metrics.registry import Registry


class MetricsError(IngeroError):
    """The metrics cannot be given out as they were asked for."""


@dataclass(frozen=True, slots=True)
class Consumers:
    """Who takes what is recorded; nobody where no metrics are asked for."""

    on_second: Sequence[Callable[[Second], None]] = ()
    on_finding: Sequence[Callable[[Change], None]] = ()


@contextmanager
def open_outputs(settings: TraceSettings) -> Iterator[Consumers]:
    """Gives metrics out within a `with` block.

    Raises:
        IngeroError: it cannot listen there, or not push like that.
    """
    if settings.prometheus is None and settings.otlp is None:
        yield Consumers()
        return
    from ingero.diagnose.model import UNEXPLAINED  # noqa: PLC0415  # most recordings need none of it
    from ingero.diagnose.rule import all_rules  # noqa: PLC0415
    from ingero.serve.metrics.intake import Intake  # noqa: PLC0415
    from ingero.serve.metrics.pump import Pump  # noqa: PLC0415
    from ingero.serve.metrics.registry import Registry  # noqa: PLC0415

    registry = Registry()
    with ExitStack() as outputs:
        if settings.prometheus:
            _open_scrapes(outputs, settings.prometheus, registry, with_old_names=settings.metrics_compat)
        if settings.otlp:
            _open_pushes(outputs, settings.otlp, registry, node=settings.node, is_plain=settings.otlp_insecure)
        causes = sorted({rule.cause for rule in all_rules()} | {UNEXPLAINED})
        pump = Pump(Intake(registry, MEANINGS, causes, settings.db))
        outputs.callback(_say_what_was_dropped, pump)
        outputs.enter_context(pump)  # last, so that it ends first: the last push holds all that was recorded
        yield Consumers([pump.second], [pump.finding])


def _open_scrapes(outputs: ExitStack, address: Address, registry: Registry, *, with_old_names: bool) -> None:
    from ingero.serve.metrics.scrapes import Scrapes  # noqa: PLC0415

    scrapes = outputs.enter_context(Scrapes(address, registry, with_old_names=with_old_names))
    echo(f"metrics: {scrapes.url}", err=True)
    if not address.is_loopback:
        echo("  readable by everyone who can reach this address", err=True)


def _open_pushes(outputs: ExitStack, receiver: Address, registry: Registry, *, node: str, is_plain: bool) -> None:
    if is_plain and not receiver.is_loopback:
        raise MetricsError(
            f"--otlp-insecure: {receiver.host} is another machine, and everyone between could read and change metrics",
            hint="leave --otlp-insecure out, or push to a collector on 127.0.0.1",
        )
    try:
        from ingero.serve.metrics.pushes import Pushes  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MetricsError(f"--otlp needs {error.name}", hint="pip install 'ingero[metrics]'") from error
    pushes = Pushes(receiver, registry, node=node, is_plain=is_plain)

    def say_what_failed() -> None:
        if pushes.failed:
            last = f"; the last one: {pushes.last_error}" if pushes.last_error else "; the last one was taken"
            echo(f"metrics: {receiver} did not take {pushes.failed} pushes{last}", err=True)

    outputs.callback(say_what_failed)
    outputs.enter_context(pushes)


def _say_what_was_dropped(pump: Pump) -> None:
    if pump.dropped:
        echo(f"metrics: {pump.dropped} seconds or findings were left out; the recording has them", err=True)
