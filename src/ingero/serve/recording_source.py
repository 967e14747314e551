"""Access to a server's recording: a reader for each request, answers cached while the file stays the same."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ingero.units import QuantityError, parse_duration_s

if TYPE_CHECKING:
    from ingero.diagnose.findings import Diagnosis
    from ingero.serve.sql import Answer
    from ingero.serve.sql_processes import SqlProcesses
    from ingero.store.reader import Reader
    from ingero.store.records import Window

_KEPT = 128  # answers; some ten kinds of question are asked about few time ranges
_WORKERS = 4  # a diagnosis of each of several time ranges must not keep small questions waiting
_MIN_FRESH_NS = 1_000_000_000  # a recorder commits twice a second, and nobody reads faster
_QUIET_NS = 6_000_000_000  # after it a reader no longer takes a recording that was cut off for a live one
_COST_FACTOR = 10  # an answer that took long is kept ten times as long: at most a tenth of a core goes into it
_MAX_SINCE_S = 10 * 365 * 86_400
_MAX_SINCE_CHARACTERS = 64
_SINCE = re.compile(r"[0-9a-z., ]{1,32}")
_FILLERS = re.compile(
    r"\b(?:the|last|past|previous|recent|since|for|in|within|from|now|ago|of|and|only"
    r"|about|around|approximately|approx|roughly|or so)\b"
)
_ONE = re.compile(r"^(?:an? )?(second|minute|hour|day|week)$")
_HALF = re.compile(r"^half (?:an? )?(minute|hour|day)$")
_HALVES = {"minute": "30s", "hour": "30m", "day": "12h"}
_ISO_NUMBER = r"(?:(\d+(?:\.\d+)?){})?"
_ISO = re.compile("p" + _ISO_NUMBER.format("d") + "(?:t" + "".join(map(_ISO_NUMBER.format, "hms")) + ")?")
_NUMBERS = {
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
} | {"twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "ninety": 90}
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(_NUMBERS)})(?= [a-z])")
_ALL = frozenset({"", "null", "none", "all it", "all time", "everything"}) | {
    f"{whole}{what}" for whole in ("all", "whole", "entire", "beginning", "start") for what in ("", " recording")
}
ACCEPTED_SINCE = 'a duration of up to 10 years such as "90s", "5m", "1h30m", "2 days" or "last 5 minutes"; "all" is all'

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class _Kept:
    """A cached answer. made_ns, cost_ns: monotonic. inode: the file read; another file has other answers."""

    future: Future[Any]
    stamp: tuple[int, ...]
    made_ns: int
    cost_ns: int = 0
    is_renewed: bool = False


class RecordingSource:
    """One database; threads may share it. clock: unix ns, monotonic: ns.

    may_lag: whether answers may be some seconds old while the file is being written, for clients that poll.
    sql: where clients' statements run; None: in this process.
    """

    def __init__(
        self,
        path: Path,
        *,
        may_lag: bool = False,
        sql: SqlProcesses | None = None,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = path
        self.clock = clock
        self._may_lag = may_lag
        self._sql = sql
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], _Kept] = OrderedDict()
        self._workers = ThreadPoolExecutor(max_workers=_WORKERS, thread_name_prefix="answer")

    def close(self) -> None:
        """Stop the threads that compute answers."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    def run_sql(self, sql: str, *, max_rows: int, timeout_s: float) -> Answer:
        """As `run_sql` of `serve/sql.py`, of a statement of a client."""
        if self._sql:
            return self._sql.run(self.path, sql, max_rows=max_rows, timeout_s=timeout_s)
        from ingero.serve.sql import run_sql  # noqa: PLC0415  # as in `open`

        return run_sql(self.path, sql, max_rows=max_rows, timeout_s=timeout_s)

    def fitting_sql(self, sql: str, limit: int) -> dict[str, Any]:
        """As `sql_answer` of `serve/mcp/rows.py`."""
        from ingero.serve.mcp.rows import TIMEOUT_S, sql_answer  # noqa: PLC0415  # as in `open`

        if self._sql:
            return self._sql.fitting(self.path, sql, limit, timeout_s=TIMEOUT_S)
        return sql_answer(self.path, sql, limit)

    @contextmanager
    def open(self, since: str = "") -> Iterator[tuple[Reader, Window]]:
        """A reader of its own, and the last `since` ("90s", "5m"; "": all) of the recording.

        Raises:
            IngeroError: there is no recording, nothing in it, or since is not a duration.
        """
        import apsw  # noqa: PLC0415  # with numpy 80 ms that no handshake of a client waits for

        from ingero.store.errors import EmptyRecordingError, reading_error  # noqa: PLC0415  # as above
        from ingero.store.reader import open_reader  # noqa: PLC0415  # as above

        since_ns = parse_since_ns(since)
        with open_reader(self.path) as reader:
            window = reader.window(since_ns, self.clock())
            if window is None:
                raise EmptyRecordingError(self.path, reader.missing_end)
            try:
                yield reader, window
            except apsw.Error as error:  # damaged in the middle, or begun by a build between two versions
                raise reading_error(self.path, error) from error

    def prepare(self) -> None:
        """Start the diagnosis before a client asks for it."""
        self.begin(("diagnosis", ""), lambda: self._diagnose(""))

    def diagnosis(self, since: str = "") -> Diagnosis:
        """The diagnosis of the last `since`."""
        return self.kept(("diagnosis", since), lambda: self._diagnose(since))

    def begin(self, key: tuple[object, ...], make: Callable[[], object]) -> None:
        """Start computing an answer that is likely to be requested, unless it is cached."""
        with self._lock:
            if key not in self._kept:
                self._start(key, self.stamp(), make)

    def kept(self, key: tuple[object, ...], make: Callable[[], _Answer]) -> _Answer:
        """An answer, recomputed when the file has changed; the same object while it has not. Errors are not cached.

        If it may lag, an answer is kept for a second, or ten times as long as it took, while the file changes all the
        time. Then one thread makes the next and the others get the last; who comes much later waits.
        """
        stamp = self.stamp()
        with self._lock:
            known = self._kept.get(key)
            if known is None or (known.future.done() and self._is_useless(known, stamp)):
                known = self._start(key, stamp, make)
            elif known.future.done() and not known.is_renewed and self._is_due(known, stamp):
                known.is_renewed = True
                self._workers.submit(self._renew, key, stamp, make)
            self._kept.move_to_end(key)
        return cast(_Answer, known.future.result())

    def stamp(self) -> tuple[int, ...]:
        """A stamp that changes with each commit to the database, and once more when commits have stopped."""
        found: list[int] = []
        newest_ns = 0
        for path in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            try:
                about = path.stat()
            except OSError:
                found += [0, 0, 0]
            else:
                found += [about.st_ino, about.st_mtime_ns, about.st_size]
                newest_ns = max(newest_ns, about.st_mtime_ns)
        return (*found, int(self.clock() - newest_ns < _QUIET_NS))

    def _diagnose(self, since: str) -> Diagnosis:
        from ingero.diagnose.diagnosis import diagnose  # noqa: PLC0415  # as in open

        with self.open(since) as (reader, window):
            return diagnose(reader, window)

    def _is_due(self, known: _Kept, stamp: tuple[int, ...]) -> bool:
        return known.stamp != stamp and self._monotonic() - known.made_ns > self._fresh_ns(known)

    def _is_useless(self, known: _Kept, stamp: tuple[int, ...]) -> bool:
        if known.future.exception() is not None or known.stamp[0] != stamp[0]:
            return True
        if not self._may_lag:
            return known.stamp != stamp
        return known.stamp != stamp and self._monotonic() - known.made_ns > 2 * self._fresh_ns(known)

    def _fresh_ns(self, known: _Kept) -> int:
        return max(_MIN_FRESH_NS, _COST_FACTOR * known.cost_ns)

    def _start(self, key: tuple[object, ...], stamp: tuple[int, ...], make: Callable[[], Any]) -> _Kept:
        known = self._kept[key] = _Kept(Future(), stamp, self._monotonic())
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        self._workers.submit(self._fill, known, make)
        return known

    def _fill(self, known: _Kept, make: Callable[[], Any]) -> None:
        begin_ns = self._monotonic()
        try:
            answer = make()
        except Exception as error:  # raised again in the caller
            known.future.set_exception(error)
            return
        known.made_ns = self._monotonic()
        known.cost_ns = known.made_ns - begin_ns
        known.future.set_result(answer)

    def _renew(self, key: tuple[object, ...], stamp: tuple[int, ...], make: Callable[[], Any]) -> None:
        fresh = _Kept(Future(), stamp, self._monotonic())
        self._fill(fresh, make)
        with self._lock:
            self._kept[key] = fresh


def parse_since_ns(since: str) -> int | None:
    """Nanoseconds of a duration as people write it; None for "" and "all": all of the recording.

    Raises:
        QuantityError: it is none.
    """
    plain = _FILLERS.sub(" ", since.lower()) if len(since) <= _MAX_SINCE_CHARACTERS else "?"
    text = " ".join(plain.split()).strip(" -~.")
    if text in _ALL and (text or not since.strip()):  # "now" leaves nothing, and is no duration
        return None
    if match := _ISO.fullmatch(text):
        text = " ".join(f"{number}{unit}" for number, unit in zip(match.groups(), "dhms", strict=True) if number)
    text = _HALF.sub(lambda match: _HALVES[match[1]], _ONE.sub(r"1 \1", text))
    text = _NUMBER_WORD.sub(lambda match: str(_NUMBERS[match[0]]), text)
    try:
        seconds = parse_duration_s(text) if _SINCE.fullmatch(text) else -1.0
    except (QuantityError, ArithmeticError, ValueError, RecursionError):
        seconds = -1.0
    if not 0 < seconds <= _MAX_SINCE_S:
        raise QuantityError(f"{since!r} is not a duration", hint=f"give {ACCEPTED_SINCE}")
    return int(seconds * 1e9)
