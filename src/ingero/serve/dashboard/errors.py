"""Errors as the dashboard's clients get them: a status, a stable code, a message, and a hint."""

from __future__ import annotations

from starlette.responses import Response

from ingero.errors import IngeroError
from ingero.serve.dashboard.answers import NoIncidentError
from ingero.serve.dashboard.stacks import NoStackError
from ingero.serve.recording_part import BusyError
from ingero.serve.sql import SqlError, TimeLimitError
from ingero.serve.structured.json_text import for_pages
from ingero.store.errors import (
    EmptyPartError,
    EmptyRecordingError,
    LargePartError,
    NoDatabaseError,
    NotRecordedError,
    StoreError,
)
from ingero.store.user_sql.event_filter import UnknownOpError
from ingero.units import QuantityError

# The first class that fits.
_CODES: tuple[tuple[type[IngeroError], int, str], ...] = (
    (EmptyRecordingError, 404, "empty_recording"),
    (NoIncidentError, 404, "no_incident"),
    (NoStackError, 404, "no_stack"),
    (NoDatabaseError, 404, "no_database"),
    (NotRecordedError, 404, "not_recorded"),
    (EmptyPartError, 404, "empty_part"),
    (LargePartError, 413, "large_part"),
    (BusyError, 503, "busy"),
    (StoreError, 503, "unreadable_database"),
    (TimeLimitError, 400, "sql_time_limit"),
    (UnknownOpError, 404, "no_operation"),
    (SqlError, 400, "sql_refused"),
    (QuantityError, 422, "invalid_request"),
)


def error_response(status: int, code: str, message: str, hint: str) -> Response:
    """One error as JSON."""
    body = for_pages({"error": {"code": code, "message": message, "hint": hint}})
    return Response(body, status_code=status, media_type="application/json")


def response_for(error: IngeroError) -> Response:
    """The answer to a request that failed with this error."""
    status, code = next(((status, code) for kind, status, code in _CODES if isinstance(error, kind)), (400, "error"))
    return error_response(status, code, str(error), error.hint)
