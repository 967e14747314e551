"""Notifies systemd of the state of a service, by datagrams to $NOTIFY_SOCKET (sd_notify(3)), if that is set."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from ingero.cli.change_line import change_line
from ingero.diagnose.incidents.incident_changes import Change
from ingero.discover import kernel_clock
from ingero.foreign_text import visible
from ingero.units import format_counted

SOCKET_VARIABLE = "NOTIFY_SOCKET"
_WATCHDOG_VARIABLE, _PID_VARIABLE = "WATCHDOG_USEC", "WATCHDOG_PID"
_MAX_STATUS_CHARACTERS = 300  # `systemctl status` shows it as one line
_LONGEST_END_US = 600 * 1_000_000  # time to build the indexes of a large recording before a restart


class ServiceManager:
    """Sends notifications to the service manager; never waits, and ignores that it does not listen.

    is_there: whether a service manager has started this process and listens.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        named = environ.get(SOCKET_VARIABLE, "")
        self._address = f"\0{named[1:]}" if named.startswith("@") else named
        self.is_there = named.startswith(("/", "@")) and len(named) > 1
        is_ours = environ.get(_PID_VARIABLE, str(os.getpid())) == str(os.getpid())
        interval = environ.get(_WATCHDOG_VARIABLE, "")
        self._watchdog_us = int(interval) if interval.isdecimal() and is_ours else 0
        self._sent_status = ""

    def ready(self, status: str) -> None:
        """The service is ready, at its start or after `reloading`."""
        watchdog = [f"WATCHDOG_USEC={self._watchdog_us}"] if self._watchdog_us else []
        self._sent_status = status
        self._send("READY=1", *watchdog, _status(status))

    def status(self, text: str) -> None:
        """The text that `systemctl status` shows; sent only when it has changed."""
        if text != self._sent_status:
            self._sent_status = text
            self._send(_status(text))

    def alive(self) -> None:
        """Feeds the watchdog."""
        if self._watchdog_us:
            self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """The service rereads its configuration; `ready` ends that. A long end of the recording may come in between."""
        watchdog = [f"WATCHDOG_USEC={_LONGEST_END_US}"] if self._watchdog_us else []
        self._send("RELOADING=1", f"MONOTONIC_USEC={kernel_clock.monotonic_ns() // 1000}", *watchdog)

    def stopping(self) -> None:
        """The service is stopping."""
        self._send("STOPPING=1")

    def _send(self, *lines: str) -> None:
        if not self.is_there:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(errors="replace"), self._address)


class Store(Protocol):
    """Writes the seconds of a recording."""

    def position(self) -> int:
        """The position after the rows that were handed over so far."""

    def is_stored(self, position: int) -> bool:
        """Whether everything up to a position has been written."""

    @property
    def error(self) -> Exception | None:
        """The reason why nothing is being written at present; None if there is none."""


class RecordingState:
    """Reports a recording to the service manager, second by second.

    store: None where nothing is kept. name: of the recording. The watchdog is fed while seconds are written, or while
    the reason why not is known: a full disk is no reason to kill a recorder that waits for space.
    """

    def __init__(self, manager: ServiceManager, store: Store | None, name: str) -> None:
        self._manager, self._store, self._name = manager, store, name
        self._position: int | None = None
        self._is_ready = False
        self._verdict = "no incident so far"

    def second(self, traced_processes: int) -> None:
        """A second has been handed over. traced_processes: their number."""
        if not self._manager.is_there:
            return
        is_written = self._position is not None and (self._store is None or self._store.is_stored(self._position))
        error = self._store.error if self._store else None
        if is_written or error:
            self._manager.alive()
        if is_written or self._position is None:
            self._position = self._store.position() if self._store else 0
        status = f"not written: {error}" if error else f"{self._activity(traced_processes)}; {self._verdict}"
        if is_written and not self._is_ready:
            self._is_ready = True
            self._manager.ready(status)
        else:
            self._manager.status(status)

    def finding(self, change: Change) -> None:
        """An incident was opened, updated or closed; reported with the next second."""
        self._verdict = change_line(change, time.time_ns())

    def _activity(self, traced_processes: int) -> str:
        return (
            f"recording {format_counted(traced_processes, 'process')} into {self._name}" if self._store else "watching"
        )


def _status(text: str) -> str:
    return f"STATUS={visible(text)[:_MAX_STATUS_CHARACTERS]}"
