"""Opens the metrics outputs that the settings of a recording ask for, before anything is attached."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingero.capture.loop.drops import MEANINGS
from ingero.capture.loop.second import SecondOfCounts
from ingero.cli.config.settings import TraceSettings
from ingero.cli.output import echo
from ingero.diagnose.incidents.incident_changes import Change
from ingero.errors import IngeroError
from ingero.serve.http.addresses import Address
from ingero.serve.otlp_endpoint import METRICS_ENDPOINT_VARIABLE, Endpoint, endpoint_of, secured

if TYPE_CHECKING:
    from ingero.serve.metrics.pump import Pump
    from ingero.serve.metrics.registry import Registry


class MetricsError(IngeroError):
    """The metrics cannot be exported as the options ask."""


@dataclass(frozen=True, slots=True)
class Consumers:
    """The consumers of seconds and findings; none without metrics."""

    on_second: Sequence[Callable[[SecondOfCounts], None]] = ()
    on_finding: Sequence[Callable[[Change], None]] = ()


@contextmanager
def open_outputs(settings: TraceSettings, environ: Mapping[str, str] = os.environ) -> Iterator[Consumers]:
    """Exports metrics within the block. environ: may hold OpenTelemetry's variables.

    Raises:
        IngeroError: the address cannot be listened on, or the push settings cannot be used.
    """
    receiver = _receiver(settings, environ)
    if settings.prometheus is None and receiver is None:
        yield Consumers()
        return
    from ingero.diagnose.causes.rule import all_rules  # noqa: PLC0415
    from ingero.diagnose.findings import UNEXPLAINED  # noqa: PLC0415  # most recordings need none of it
    from ingero.serve.metrics.intake import Intake  # noqa: PLC0415
    from ingero.serve.metrics.pump import Pump  # noqa: PLC0415
    from ingero.serve.metrics.registry import Registry  # noqa: PLC0415

    registry = Registry()
    with ExitStack() as outputs:
        if settings.prometheus:
            _open_scrapes(outputs, settings.prometheus, registry, with_old_names=settings.metrics_compat)
        if receiver:
            _open_pushes(outputs, receiver, registry, node=settings.node, environ=environ)
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


def _receiver(settings: TraceSettings, environ: Mapping[str, str]) -> Endpoint | None:
    """The receiver of pushes, None if there is none. Wrong variables of OpenTelemetry do not stop a recording."""
    try:
        endpoint = endpoint_of(settings.otlp, environ)
        if endpoint is None:
            return None
        secure = secured(endpoint, is_insecure=settings.otlp_insecure)
        _require_library()
        _check_environment(environ)
    except IngeroError as error:
        if settings.otlp is not None:
            raise
        echo(f"metrics are not pushed: {error}; hint: {error.hint}", err=True)
        return None
    if settings.otlp is not None and environ.get(METRICS_ENDPOINT_VARIABLE):
        echo(f"metrics: {METRICS_ENDPOINT_VARIABLE} is not used, for --otlp names a receiver", err=True)
    echo(f"metrics: pushed to {secure}" + (f" ({secure.origin})" if settings.otlp is None else ""), err=True)
    return secure


def _require_library() -> None:
    try:
        import ingero.serve.metrics.pushes  # noqa: F401, PLC0415  # most recordings need none of it
    except ModuleNotFoundError as error:
        raise MetricsError(f"--otlp needs {error.name}", hint="pip install 'ingero[metrics]'") from error


def _check_environment(environ: Mapping[str, str]) -> None:
    from ingero.serve.metrics.push_settings import push_settings  # noqa: PLC0415  # as above

    push_settings(environ)


def _open_pushes(
    outputs: ExitStack, receiver: Endpoint, registry: Registry, *, node: str, environ: Mapping[str, str]
) -> None:
    from ingero.serve.metrics.pushes import Pushes  # noqa: PLC0415  # as above

    pushes = Pushes(receiver, registry, node=node, environ=environ)

    def say_what_failed() -> None:
        if pushes.failed:
            last = f"; the last one: {pushes.last_error}" if pushes.last_error else "; the last one was taken"
            echo(f"metrics: {receiver} did not take {pushes.failed} pushes{last}", err=True)

    outputs.callback(say_what_failed)
    outputs.enter_context(pushes)


def _say_what_was_dropped(pump: Pump) -> None:
    if pump.dropped:
        echo(f"metrics: {pump.dropped} seconds or findings were left out; the recording has them", err=True)
