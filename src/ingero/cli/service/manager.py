"""What systemd is told of a service, by datagrams to $NOTIFY_SOCKET (sd_notify(3)); without one, nobody is told."""

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
_MOST_STATUS_CHARACTERS = 300  # `systemctl status` shows it as one line
_LONGEST_END_US = 600 * 1_000_000  # for the indexes of a large recording, after which it begins anew


class ServiceManager:
    """Tells it. Nothing waits for it, and that it does not listen is no error.

    is_there: whether it started this process and listens.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        named = environ.get(SOCKET_VARIABLE, "")
        self._address = f"\0{named[1:]}" if named.startswith("@") else named
        self.is_there = named.startswith(("/", "@")) and len(named) > 1
        is_ours = environ.get(_PID_VARIABLE, str(os.getpid())) == str(os.getpid())
        interval = environ.get(_WATCHDOG_VARIABLE, "")
        self._watchdog_us = int(interval) if interval.isdecimal() and is_ours else 0
        self._told = ""

    def ready(self, status: str) -> None:
        """The service does what it is for, also after `reloading`."""
        watchdog = [f"WATCHDOG_USEC={self._watchdog_us}"] if self._watchdog_us else []
        self._told = status
        self._send("READY=1", *watchdog, _status(status))

    def status(self, text: str) -> None:
        """What `systemctl status` shows; sent where it is another text than before."""
        if text != self._told:
            self._told = text
            self._send(_status(text))

    def alive(self) -> None:
        """The watchdog need not end it."""
        if self._watchdog_us:
            self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """It rereads its configuration; `ready` says when that is done. Until then it may be busy with its end."""
        watchdog = [f"WATCHDOG_USEC={_LONGEST_END_US}"] if self._watchdog_us else []
        self._send("RELOADING=1", f"MONOTONIC_USEC={kernel_clock.monotonic_ns() // 1000}", *watchdog)

    def stopping(self) -> None:
        """It ends."""
        self._send("STOPPING=1")

    def _send(self, *lines: str) -> None:
        if not self.is_there:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
            link.setblocking(False)
            link.sendto("\n".join(lines).encode(errors="replace"), self._address)


class Store(Protocol):
    """Where seconds are written."""

    def position(self) -> int:
        """How much has been handed over."""

    def is_stored(self, position: int) -> bool:
        """Whether all of that has been written."""

    @property
    def error(self) -> Exception | None:
        """Why nothing is being written right now."""


class RecordingState:
    """What a recording tells the service manager, second by second.

    store: None where nothing is kept. name: of the recording. The watchdog is fed while seconds are written, or it is
    known why not: a disk that is full is no reason to end what waits for room.
    """

    def __init__(self, manager: ServiceManager, store: Store | None, name: str) -> None:
        self._manager, self._store, self._name = manager, store, name
        self._position: int | None = None
        self._is_ready = False
        self._verdict = "no incident so far"

    def second(self, targets: int) -> None:
        """A second has been handed over. targets: how many processes are traced."""
        if not self._manager.is_there:
            return
        is_written = self._position is not None and (self._store is None or self._store.is_stored(self._position))
        error = self._store.error if self._store else None
        if is_written or error:
            self._manager.alive()
        if is_written or self._position is None:
            self._position = self._store.position() if self._store else 0
        status = f"not written: {error}" if error else f"{self._doing(targets)}; {self._verdict}"
        if is_written and not self._is_ready:
            self._is_ready = True
            self._manager.ready(status)
        else:
            self._manager.status(status)

    def finding(self, change: Change) -> None:
        """An incident was opened, updated or closed; told with the next second."""
        self._verdict = change_line(change, time.time_ns())

    def _doing(self, targets: int) -> str:
        return f"recording {format_counted(targets, 'process')} into {self._name}" if self._store else "watching"


def _status(text: str) -> str:
    return f"STATUS={visible(text)[:_MOST_STATUS_CHARACTERS]}"
