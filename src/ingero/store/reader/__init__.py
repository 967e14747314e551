"""Reads a recording: typed queries that return frozen records. One module per subject."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from ingero.store.errors import OF_THE_FILE, NotADatabaseError, StrangeValuesError, reading_error
from ingero.store.narrowing import nodes
from ingero.store.opening.damage import OF_VALUES, damage_of
from ingero.store.opening.opening import open_database
from ingero.store.reader.calls import CallQuestions
from ingero.store.reader.contents import ContentQuestions
from ingero.store.reader.findings import FindingQuestions
from ingero.store.reader.gaps import GapQuestions
from ingero.store.reader.gpu import GpuQuestions
from ingero.store.reader.host import HostQuestions
from ingero.store.reader.operations import OperationQuestions
from ingero.store.reader.profiles import ProfileQuestions
from ingero.store.reader.scheduling import SchedulingQuestions
from ingero.store.reader.stacks import StackQuestions
from ingero.store.reader.sync_intervals import SyncIntervalQuestions


def open_reader(path: Path, *, node: str | None = None) -> Reader:
    """Open a database for reading; nothing is ever written to it. node: show only this node of several.

    Raises:
        StoreError: there is no such file, it is not a recording, is damaged, may not be read, or is too new.
    """
    return Reader(path, open_database(path, node=node))


class Reader(
    ContentQuestions,
    OperationQuestions,
    SchedulingQuestions,
    CallQuestions,
    SyncIntervalQuestions,
    StackQuestions,
    GpuQuestions,
    HostQuestions,
    FindingQuestions,
    GapQuestions,
    ProfileQuestions,
):
    """Queries on one database; a context manager. One thread at a time.

    Methods raise `NotRecordedError` where the file cannot hold the answer (`is_recorded` asks first): an empty answer
    means that there was none.
    """

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, OF_THE_FILE):
                raise reading_error(self.path, error) from error
            if isinstance(error, OF_VALUES):
                if damage := damage_of(self._db):
                    raise NotADatabaseError(self.path, damage) from error
                raise StrangeValuesError(self.path, error) from error
        finally:
            self.close()

    def nodes(self) -> list[str]:
        """The nodes in the file, by name: one, unless the file was merged or its host renamed."""
        return nodes(self._db)

    def of_node(self, node: str) -> Reader:
        """Another reader of the file that sees only one of its nodes."""
        return open_reader(self.path, node=node)

    def close(self) -> None:
        """Close the file."""
        self._db.close()
