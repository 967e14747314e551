"""Tells browsers that the recording has grown, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from ingero.serve.recording_source import RecordingSource

_LOOK_EVERY_S = 0.5  # two calls of stat; a recorder commits as often
_ALIVE_EVERY = 30  # looks; proxies close what is silent for longer than half a minute or so


async def changes(source: RecordingSource, is_ending: Callable[[], bool]) -> AsyncIterator[str]:
    """One event at once, so that the page knows that it is connected, then one per commit, until the server ends."""
    known: tuple[int, ...] | None = None
    looks = 0
    while not is_ending():
        stamp = source.stamp()
        looks += 1
        if stamp != known:
            kind = "connected" if known is None else "changed"
            yield f"event: {kind}\ndata: {msgspec.json.encode({'now_ns': source.clock()}).decode()}\n\n"
            known = stamp
        elif looks % _ALIVE_EVERY == 0:
            yield ": alive\n\n"
        await asyncio.sleep(_LOOK_EVERY_S)
