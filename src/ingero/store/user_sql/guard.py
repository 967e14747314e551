"""Guards a user's statement: limits what it may do, how long, and how much memory it may take."""

from __future__ import annotations

import itertools
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from ingero.store.sql_text import Value
from ingero.store.user_sql.errors import EXAMPLE, SizeLimitError, SqlError, SqlRefusedError, TimeLimitError

_MiB = 1 << 20
MAX_SQL_BYTES = 64 << 10

# Numbers, texts, choices, time, JSON, sums, windows: none reads a file, none makes a large value from nothing.
_FUNCTION_NAMES = """
abs acos acosh asin asinh atan atan2 atanh ceil ceiling cos cosh degrees exp floor ln log log10 log2 mod pi pow power
radians random round sign sin sinh sqrt tan tanh trunc
char concat concat_ws format glob hex instr length like lower ltrim octet_length printf quote replace rtrim substr
substring trim typeof unicode upper
coalesce if ifnull iif likelihood likely max min nullif unlikely
current_date current_time current_timestamp date datetime julianday strftime time timediff unixepoch
-> ->> json json_array json_array_length json_each json_error_position json_extract json_group_array json_group_object
json_object json_quote json_tree json_type json_valid
avg count group_concat median percentile percentile_cont percentile_disc string_agg sum total
cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number
"""
FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_TABLE_FUNCTIONS = frozenset({"json_each", "json_tree"})
_MADE_UP = ("sqlite_", "pragma_", "carray")  # tables that SQLite makes up when they are named

# These compare every place of a text with every place of another and cannot be stopped while they do: shorter texts and
# patterns, and a look at the clock more often. (unhex, json_patch, json_pretty and json_remove are not allowed: they do
# so as well, or make a gigabyte of a kilobyte, and say nothing about a recording.)
_SLOW_FUNCTIONS = frozenset({"glob", "instr", "like", "replace"})
_SLOW_LENGTH, _SLOW_PATTERN, _SLOW_STEPS = 64 << 10, 100, 100  # 30 ms for the worst pair of texts
# These make large values, or keep all they are given: a megabyte with a few steps.
_GROWING_FUNCTIONS = frozenset(
    {"format", "group_concat", "hex", "json_group_array", "json_group_object", "printf", "string_agg"}
)
_GROWING_STEPS = 500
_STEPS = 10_000  # of SQLite's machine between two looks at the clock: some 200 us, and looking costs 1 us
_TRIM_CHARACTERS = 100  # trimming looks at each of them for each character trimmed

_LIMITS = {
    apsw.SQLITE_LIMIT_LENGTH: 1 * _MiB,  # a value, or a row that is sorted
    apsw.SQLITE_LIMIT_SQL_LENGTH: MAX_SQL_BYTES,
    apsw.SQLITE_LIMIT_COLUMN: 200,  # with the first: 200 MiB at most before the next look
    apsw.SQLITE_LIMIT_EXPR_DEPTH: 100,
    apsw.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    apsw.SQLITE_LIMIT_VDBE_OP: 250_000,
    apsw.SQLITE_LIMIT_FUNCTION_ARG: 100,
    apsw.SQLITE_LIMIT_ATTACHED: 1,  # what an older database hangs on
    apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    apsw.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_MAX_MEMORY_BYTES = 256 * _MiB
_MAX_TEMPORARY_BYTES = 2048 * _MiB  # sorting 5 million rows of events, all columns, took 0.5 GiB
_FILES_EVERY_NS = 100_000_000  # looking at the process's files takes 0.1 to 0.5 ms

_NO_ROOM: dict[type[apsw.Error], str] = {
    apsw.TooBigError: "a text or blob of the statement is larger than 1 MiB (64 KiB beside LIKE, GLOB, instr, replace)",
    apsw.NoMemError: "the statement needs more memory than there is",
    apsw.FullError: "there is no room for temporary files: set SQLITE_TMPDIR to a folder with more",
}


class Guard:
    """Watches one statement, first where its names are checked, then where it runs.

    read, functions: what it named, view by view. has_selected: it is a question at all.
    """

    def __init__(self, *, timeout_s: float, clock: Callable[[], int], way_out: str = "") -> None:
        self.read: defaultdict[str, set[str]] = defaultdict(set)
        self.functions: set[str] = set()
        self.has_selected = False
        self._clock = clock
        self._timeout_s = timeout_s
        self._way_out = way_out
        self._end_ns = clock() + int(timeout_s * 1e9) if timeout_s else None
        self._next_files_ns = 0
        self._files_bytes = 0
        self._stopped: SqlError | None = None
        self._refused: SqlError | None = None

    @contextmanager
    def on(self, db: apsw.Connection, *, published: Collection[str] | None = None) -> Iterator[None]:
        """While inside, the connection obeys; `published`: only these tables exist to the statement."""
        before = {limit: db.limit(limit) for limit in _LIMITS}
        for limit, value in _LIMITS.items():
            db.limit(limit, min(value, before[limit]))
        if self.functions & _SLOW_FUNCTIONS:
            db.limit(apsw.SQLITE_LIMIT_LENGTH, _SLOW_LENGTH)
            db.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _SLOW_PATTERN)
        for name, trim in (("trim", str.strip), ("ltrim", str.lstrip), ("rtrim", str.rstrip)):
            db.create_scalar_function(name, _trimming(trim), 2, deterministic=True)
        begin_bytes, steps = _memory_bytes(), self._steps()
        judge = db.authorizer
        db.authorizer = lambda *action: self._judge(published, *action)
        looks = itertools.cycle([*[False] * (_GROWING_STEPS // steps - 1), True])
        db.set_progress_handler(lambda: self._must_stop(begin_bytes, looks_at_room=next(looks)), steps)
        try:
            yield
        finally:
            db.authorizer = judge
            db.set_progress_handler(None)
            for limit, value in before.items():
                db.limit(limit, value)

    def _steps(self) -> int:
        if self.functions & _SLOW_FUNCTIONS:
            return _SLOW_STEPS
        return _GROWING_STEPS if self.functions & _GROWING_FUNCTIONS else _STEPS

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend the time limit inside, for a pager that waits for its reader."""
        begin_ns = self._clock()
        try:
            yield
        finally:
            if self._end_ns is not None:
                self._end_ns += self._clock() - begin_ns

    def error_of(self, error: apsw.Error) -> SqlError | None:
        """The error that the user should see if a limit or a refusal caused SQLite's error."""
        if isinstance(error, apsw.InterruptError) and self._stopped:
            return self._stopped
        if self._refused and (isinstance(error, apsw.AuthError) or str(error).startswith("not authorized")):
            return self._refused
        if isinstance(error, apsw.BindingsError):
            return SqlRefusedError("a statement has no parameters here", hint="write the values into it")
        if "pattern too complex" in str(error):
            return SizeLimitError(f"a pattern of LIKE or GLOB is longer than {_SLOW_PATTERN} bytes")
        text = next((text for kind, text in _NO_ROOM.items() if isinstance(error, kind)), None)
        return SizeLimitError(text) if text else None

    def _judge(
        self,
        published: Collection[str] | None,
        action: int,
        one: str | None,
        two: str | None,
        database: str | None,
        _: str | None,
    ) -> int:
        if action == apsw.SQLITE_SELECT:
            self.has_selected = True
            return apsw.SQLITE_OK
        if action == apsw.SQLITE_RECURSIVE:
            return apsw.SQLITE_OK
        if action == apsw.SQLITE_READ:
            return self._judge_read(published, str(one), str(two), database)
        if action == apsw.SQLITE_FUNCTION:
            return self._judge_function(str(two).lower(), is_own=published is not None)
        return self._refuse(
            f"only SELECT is allowed here, and this wants {_name_of(action)}: a recording is never changed",
            EXAMPLE,
        )

    def _judge_read(self, published: Collection[str] | None, table: str, column: str, database: str | None) -> int:
        if table.lower().startswith(_MADE_UP):
            return self._refuse(f"{table} cannot be read here", f"ask one of {', '.join(published or ())}")
        if published is None or table in _TABLE_FUNCTIONS:
            return apsw.SQLITE_OK
        if table in published:
            self.read[table].add(column)
            return apsw.SQLITE_OK
        if database is None and not column:  # count(*) of a table that WITH makes
            return apsw.SQLITE_OK
        return self._refuse(f"{table} cannot be read here", f"ask one of {', '.join(published)}")

    def _judge_function(self, name: str, *, is_own: bool) -> int:
        if name not in FUNCTIONS:
            return self._refuse(f"the function {name}() is not allowed here", "docs/schema.md lists those that are")
        if is_own:
            self.functions.add(name)
        return apsw.SQLITE_OK

    def _refuse(self, message: str, hint: str = "") -> int:
        self._refused = self._refused or SqlRefusedError(message, hint=hint)
        return apsw.SQLITE_DENY

    def _must_stop(self, begin_bytes: int, *, looks_at_room: bool) -> bool:
        """looks_at_room: a look at the clock takes a tenth of one at memory and files."""
        now_ns = self._clock()
        if self._end_ns is not None and now_ns > self._end_ns:
            self._stopped = TimeLimitError(self._timeout_s, self._way_out)
        elif not looks_at_room:
            return False
        elif _memory_bytes() - begin_bytes > _MAX_MEMORY_BYTES:
            self._stopped = SizeLimitError(f"the statement needs more than {_MAX_MEMORY_BYTES // _MiB} MiB of memory")
        elif self._temporary_bytes(now_ns) > _MAX_TEMPORARY_BYTES:
            self._stopped = SizeLimitError(
                "what the statement sorts or groups needs more than 2 GiB of temporary files"
            )
        return self._stopped is not None

    def _temporary_bytes(self, now_ns: int) -> int:
        if now_ns >= self._next_files_ns:
            self._next_files_ns = now_ns + _FILES_EVERY_NS
            self._files_bytes = _unlinked_bytes()
        return self._files_bytes


def _unlinked_bytes() -> int:
    """Size of the files that this process has open and that have no name, as SQLite's temporary ones.

    SQLite itself tells how much it has spilt only when a statement has ended.
    """
    size_bytes = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            file = os.fstat(int(descriptor.name))
            size_bytes += file.st_size if stat.S_ISREG(file.st_mode) and not file.st_nlink else 0
    return size_bytes


def _memory_bytes() -> int:
    return apsw.status(apsw.SQLITE_STATUS_MEMORY_USED)[0]


def _name_of(action: int) -> str:
    name = str(apsw.mapping_authorizer_function.get(action, action))
    return name.removeprefix("SQLITE_").replace("_", " ")


def _trimming(trim: Callable[[str, str], str]) -> Callable[..., str | None]:
    def trimmed(value: Value, characters: Value) -> str | None:
        if value is None or characters is None:
            return None
        if len(str(characters)) > _TRIM_CHARACTERS:
            raise apsw.TooBigError(f"more than {_TRIM_CHARACTERS} characters to trim")
        return trim(str(value), str(characters))

    return trimmed
