"""Interns repeated texts: each is stored once and referred to by number."""

from __future__ import annotations

import threading

from ingero.store.writing.tables import Row

# One text is about 100 bytes of memory here; a recording names thousands: past this, something unbounded is interned.
MAX_STRINGS = 1_000_000


class Interner:
    """Hands out numbers for texts; `take_new` gives the rows that are not stored yet. Safe from several threads."""

    def __init__(self, stored: dict[str, int]) -> None:
        self._ids = stored
        self._next = max(stored.values(), default=0) + 1
        self._new: list[Row] = []
        self._texts: dict[int, str] = {0: ""}  # those that were asked for
        self._lock = threading.Lock()
        self.refused = 0  # texts without a number, because there were too many

    def intern(self, text: str) -> int:
        """The number of a text; 0 for the empty one and, counted in `refused`, for those past `MAX_STRINGS`."""
        known = self._ids.get(text)
        if known is not None:
            return known
        if not text:
            return 0
        with self._lock:
            known = self._ids.get(text)
            if known is not None:
                return known
            if self._next > MAX_STRINGS:
                self.refused += 1
                return 0
            number = self._next
            self._next += 1
            self._new.append((number, text.encode("utf-8", "backslashreplace").decode()))
            self._ids[text] = number
            return number

    def text_of(self, number: int) -> str:
        """The text behind a number; "" where there is none. Looks through all of them the first time."""
        if number not in self._texts:
            with self._lock:
                self._texts[number] = next((text for text, known in self._ids.items() if known == number), "")
        return self._texts[number]

    def take_new(self) -> list[Row]:
        """Rows of raw_strings made since the last call."""
        with self._lock:
            new, self._new = self._new, []
        return new
