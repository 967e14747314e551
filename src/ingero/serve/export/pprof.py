"""Writes recorded calls as a gzipped pprof profile: counts and times per stack, labeled with call, process and rank.

Source: proto/profile.proto of google/pprof.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

from ingero.serve.export.samples import Place, Sample
from ingero.serve.export.wire import message, number, packed, text
from ingero.store.call_stacks import PythonPlace
from ingero.store.records import Window

_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRING = 1, 2, 4, 5, 6  # fields of Profile
_TIME, _DURATION, _DEFAULT_TYPE = 9, 10, 14
_TYPES = (("calls", "count"), ("time", "nanoseconds"), ("off_cpu_time", "nanoseconds"))
_GZIP = 16 + zlib.MAX_WBITS  # zlib: with gzip's header


class PprofWriter:
    """Encodes samples; `write` gets compressed bytes. Functions, lines and texts are written when first used."""

    def __init__(self, write: Callable[[bytes], object], window: Window, *, has_breakdown: bool) -> None:
        self._types = _TYPES if has_breakdown else _TYPES[:2]
        self._write = write
        self._gzip = zlib.compressobj(wbits=_GZIP)
        self._strings: dict[str, int] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[tuple[int, int], int] = {}
        self.count = 0
        self._text("")
        for kind, unit in self._types:
            self._message(_SAMPLE_TYPE, number(1, self._text(kind)) + number(2, self._text(unit)))
        self._put(number(_DEFAULT_TYPE, self._text("time")))
        self._put(number(_TIME, window.begin_ns) + number(_DURATION, window.duration_ns))

    def write(self, samples: Iterable[Sample]) -> None:
        """Add samples."""
        for sample in samples:
            self._sample(sample)

    def finish(self) -> None:
        """Write the rest."""
        self._write(self._gzip.flush())

    def _sample(self, sample: Sample) -> None:
        self.count += 1
        stack = [self._location(sample.op, "", 0), *map(self._place, sample.places)]
        values = [sample.calls, sample.time_ns, sample.offcpu_ns or 0][: len(self._types)]
        labels = [self._label("op", sample.op), self._number_label("pid", sample.pid)]
        if sample.process:
            labels.append(self._label("process", sample.process.name))
            if sample.process.rank is not None:
                labels.append(self._number_label("rank", sample.process.rank))
        self._message(_SAMPLE, packed(1, stack) + packed(2, values) + b"".join(labels))

    def _label(self, key: str, value: str) -> bytes:
        return message(3, number(1, self._text(key)) + number(2, self._text(value)))

    def _number_label(self, key: str, value: int) -> bytes:
        return message(3, number(1, self._text(key)) + number(3, value))

    def _place(self, place: Place) -> int:
        if isinstance(place, PythonPlace):
            return self._location(place.function, place.file, place.line)
        return self._location(place.symbol, place.file, 0)

    def _location(self, name: str, file: str, line: int) -> int:
        function = self._functions.get((name, file))
        if function is None:
            function = self._functions[name, file] = len(self._functions) + 1
            # without a system_name: pprof takes equal names for mangled ones and strips <module>
            content = number(1, function) + number(2, self._text(name)) + number(4, self._text(file))
            self._message(_FUNCTION, content)
        location = self._locations.get((function, line))
        if location is None:
            location = self._locations[function, line] = len(self._locations) + 1
            self._message(
                _LOCATION, number(1, location) + message(4, number(1, function) + (number(2, line) if line else b""))
            )
        return location

    def _text(self, value: str) -> int:
        known = self._strings.get(value)
        if known is None:
            known = self._strings[value] = len(self._strings)
            self._put(text(_STRING, value))
        return known

    def _message(self, field: int, content: bytes) -> None:
        self._put(message(field, content))

    def _put(self, field: bytes) -> None:
        compressed = self._gzip.compress(field)
        if compressed:
            self._write(compressed)
