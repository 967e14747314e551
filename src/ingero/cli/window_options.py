"""The time range that --since, --last, --from and --to select in a recording."""

from __future__ import annotations

import time

from ingero.cli.moments import TimeOptionError, parse_time_ns
from ingero.store.errors import EmptyRecordingError
from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import format_moment, parse_duration_s


def window_of(
    reader: Reader, *, since_ns: int | None = None, begin: str | None = None, end: str | None = None
) -> Window:
    """The time range of the options, as far back as anything is kept; without options, all that is kept in full.

    Raises:
        EmptyRecordingError, TimeOptionError: the time range is empty.
    """
    whole = reader.window(None, time.time_ns())
    if whole is None:
        raise EmptyRecordingError(reader.path, reader.missing_end)
    kept = Window(begin_ns=reader.kept_since_ns(whole), end_ns=whole.end_ns)
    end_ns = min(parse_time_ns(end, kept), kept.end_ns) if end else kept.end_ns
    first_ns = whole.begin_ns if since_ns is None and end_ns > whole.begin_ns else kept.begin_ns
    begin_ns = max(parse_time_ns(begin, kept), kept.begin_ns) if begin else first_ns
    if since_ns is not None:
        begin_ns = max(begin_ns, end_ns - since_ns)
    if begin_ns >= end_ns:
        first, last = (format_moment(at, of_ns=kept.duration_ns) for at in (kept.begin_ns, kept.end_ns))
        raise TimeOptionError(
            "nothing was recorded between these times", hint=f"the recording goes from {first} to {last}"
        )
    return Window(begin_ns=begin_ns, end_ns=end_ns)


def parse_since_ns(text: str | None) -> int | None:
    """The duration of --since in ns; parsed before the file is opened, so that a typing error is reported first.

    Raises:
        QuantityError: it is not a duration.
    """
    return int(parse_duration_s(text) * 1e9) if text else None
