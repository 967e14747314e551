"""The addresses of the dashboard: the API for machines, the page, the login."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import parse_qs

from fastapi import FastAPI, Query, Request
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles

from ingero import __version__
from ingero.errors import IngeroError
from ingero.serve.dashboard import answers
from ingero.serve.dashboard.changes import changes
from ingero.serve.dashboard.chart_api import add_chart
from ingero.serve.dashboard.details import Since, Time, add_details
from ingero.serve.dashboard.errors import error_response, response_for
from ingero.serve.dashboard.login import login_page
from ingero.serve.dashboard.node_api import add_node_api
from ingero.serve.dashboard.security import LOGIN_PATH, Sessions
from ingero.serve.dashboard.selection import TimeRange
from ingero.serve.dashboard.spreadsheets import download, sheet_of_objects
from ingero.serve.recording_source import RecordingSource
from ingero.serve.structured.findings_json import diagnosis_json
from ingero.serve.structured.json_text import for_pages
from ingero.serve.structured.row_formats import csv_texts
from ingero.store.reader import Reader
from ingero.store.records import Window

PAGE = Path(__file__).with_name("page")  # made by tools/build_page.py

_MAX_NUMBER = 2**31 - 1
_SQL_SECONDS = 10.0
_NO_PAGE = (
    "The page was not built with this installation; `make build` builds it where Node.js 18 or newer and npm are. "
    "The API works without it: /api/v1/overview, and /openapi.json describes the rest.\n"
)

AddMore: TypeAlias = Callable[[FastAPI], None]
"""Adds addresses of another package to the application."""

Process = Annotated[int | None, Query(ge=0, le=_MAX_NUMBER, description="number of a process (/api/v1/processes)")]
Points = Annotated[int, Query(ge=1, le=5000, description="the maximum number of points in time")]
Format = Annotated[Literal["json", "csv"], Query(description="csv: a file to download")]


class Question(BaseModel):
    """A question in SQL: one SELECT over the published views (docs/schema.md)."""

    model_config = ConfigDict(extra="forbid")
    sql: str = Field(min_length=1, max_length=1 << 16)
    limit: int = Field(default=1000, ge=1, le=10_000, description="the maximum number of rows")
    format: Literal["json", "csv"] = "json"


def create_app(
    source: RecordingSource,
    sessions: Sessions,
    is_ending: Callable[[], bool] = lambda: False,
    add_more: AddMore = lambda _: None,
) -> FastAPI:
    """The application, without the gate before it (`security.Gate`). is_ending: then streams of events end, too."""
    app = FastAPI(
        title="ingero",
        version=__version__,
        description="What a recording says: where GPU jobs lost time, and why.",
        docs_url=None,  # loads its code from elsewhere
        redoc_url=None,
    )
    add_errors(app)
    _verdicts(app, source)
    _measures(app, source)
    add_details(app, source)
    add_chart(app, source)
    _questions(app, source)
    add_node_api(app, source)
    _live(app, source, is_ending)
    add_more(app)
    add_pages(app, sessions)
    return app


def _verdicts(app: FastAPI, source: RecordingSource) -> None:
    def answer(name: str, time: TimeRange, make: Callable[[Reader, Window], answers.Object]) -> Response:
        return _kept(source, name, time, (), make)

    @app.get("/api/v1/overview")
    def overview(time: Time) -> Response:
        """The verdict first, then what was recorded where, and how complete it is."""
        found = time.of(source.diagnosis(time.since))
        return answer("overview", time, lambda reader, window: answers.overview(reader, window, found))

    @app.get("/api/v1/incidents")
    def incidents(time: Time) -> Response:
        """Everything that was found, worst first, and what could not be looked at."""
        found = time.of(source.diagnosis(time.since))
        return answer("incidents", time, lambda *_: diagnosis_json(found))

    @app.get("/api/v1/incidents/{number}")
    def incident(number: Annotated[int, PathParameter(ge=0, le=_MAX_NUMBER)], since: Since = "") -> Response:
        """One incident with its account, its chain of proof, its culprits and its remedies."""
        return _json(answers.incident(source.diagnosis(since), number))

    @app.get("/api/v1/chains")
    def chains(time: Time) -> Response:
        """Causal chains, worst first, and those that an older version stored."""
        found = time.of(source.diagnosis(time.since))
        return answer("chains", time, lambda reader, window: answers.chains(reader, window, found))

    @app.get("/api/v1/capabilities")
    def capabilities(time: Time) -> Response:
        """What this recording can show and what not, each with the reason."""
        found = time.of(source.diagnosis(time.since))
        return answer("capabilities", time, lambda reader, _: answers.capabilities(reader, found))


def _measures(app: FastAPI, source: RecordingSource) -> None:
    @app.get("/api/v1/ops")
    def ops(time: Time, process: Process = None, format: Format = "json") -> Response:  # noqa: A002  # its public name
        """Exact totals, quantiles and clocks per process and operation."""
        return _kept(
            source, "ops", time, (process,), lambda r, w: answers.ops(r, w, process), table="ops" * (format == "csv")
        )

    @app.get("/api/v1/snapshots")
    def snapshots(time: Time, points: Points = 600, format: Format = "json") -> Response:  # noqa: A002  # as above
        """CPU, memory, load and pressure of the machine over time, and what the agent itself used."""
        table = "snapshots" * (format == "csv")
        return _kept(source, "snapshots", time, (points,), lambda r, w: answers.snapshots(r, w, points), table=table)

    @app.get("/api/v1/processes")
    def processes(time: Time) -> Response:
        """Each traced process: its threads' clocks, its streams on the GPU, who took its CPU."""
        return _kept(source, "processes", time, (), answers.processes)

    @app.get("/api/v1/clocks")
    def clocks(process: Annotated[int, Query(ge=0, le=_MAX_NUMBER)], time: Time, points: Points = 300) -> Response:
        """What the threads of one process did over time."""
        return _kept(source, "clocks", time, (process, points), lambda r, w: answers.clocks(r, w, process, points))

    @app.get("/api/v1/drops")
    def drops(time: Time) -> Response:
        """What was lost or not traced, by reason, and what tracing cost."""
        return _kept(source, "drops", time, (), answers.drops)

    @app.get("/api/v1/graph-metrics")
    def graph_metrics(time: Time) -> Response:
        """Operations on CUDA graphs per process: exact counts and rates."""
        return _kept(source, "graph-metrics", time, (), answers.graph_metrics)

    @app.get("/api/v1/graph-events")
    def graph_events(time: Time) -> Response:
        """Recorded operations on CUDA graphs in order of time."""
        return _kept(source, "graph-events", time, (), answers.graph_events)


def _questions(app: FastAPI, source: RecordingSource) -> None:
    @app.get("/api/v1/time")
    def time() -> Response:
        """The server's clock."""
        now_ns = source.clock()
        return _json({"now_ns": now_ns, "timestamp_ns": now_ns})

    @app.get("/api/v1/health")
    def health() -> Response:
        """Whether there is a recording that can be read; an error says why not."""
        with source.open() as (reader, _):
            return _json({"status": "ok", "version": __version__, "is_live": reader.is_live(source.clock())})

    @app.post("/api/v1/query")
    def query(question: Question) -> Response:
        """The answer to one SELECT; rows as lists, blobs as base64."""
        answer = source.run_sql(question.sql, max_rows=question.limit, timeout_s=_SQL_SECONDS)
        if question.format == "csv":
            return download("query", csv_texts(answer.columns, answer.rows))
        return _json(
            {
                "columns": answer.columns,
                "rows": answer.rows,
                "is_truncated": answer.is_truncated,
                "elapsed_ns": answer.elapsed_ns,
                "notes": answer.notes,
            }
        )


def _live(app: FastAPI, source: RecordingSource, is_ending: Callable[[], bool]) -> None:
    @app.get("/api/v1/events", include_in_schema=False)  # never ends, which no description of an API can say
    async def events() -> StreamingResponse:
        """Server-sent events: `changed` when the recording has grown."""
        return StreamingResponse(changes(source, is_ending), media_type="text/event-stream")


def add_pages(app: FastAPI, sessions: Sessions) -> None:
    """Add the page, or a hint if it is missing, and the form for the token."""

    @app.get(LOGIN_PATH, include_in_schema=False)
    def login() -> HTMLResponse:
        """A form for the token."""
        return HTMLResponse(login_page(is_wrong=False))

    @app.post(LOGIN_PATH, include_in_schema=False)
    async def logged_in(request: Request) -> Response:
        """The cookie, for who knows the token."""
        fields = parse_qs((await request.body()).decode("ascii", "replace"), max_num_fields=4)
        if not sessions.is_token(fields.get("token", [""])[0].strip()):
            return HTMLResponse(login_page(is_wrong=True), status_code=401)
        response = RedirectResponse("/", status_code=303)
        sessions.remember(response)
        return response

    if (PAGE / "index.html").exists():
        app.mount("/", StaticFiles(directory=PAGE, html=True))
    else:

        @app.get("/", include_in_schema=False)
        def no_page() -> Response:
            return Response(_NO_PAGE, status_code=404, media_type="text/plain")


def add_errors(app: FastAPI) -> None:
    """Make errors objects with a hint."""

    @app.exception_handler(IngeroError)
    def known(_: Request, error: Exception) -> Response:
        assert isinstance(error, IngeroError)
        return response_for(error)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        wrong = "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors())
        return error_response(422, "invalid_request", wrong, "/openapi.json says what is allowed")

    @app.exception_handler(Exception)
    def unexpected(_: Request, error: Exception) -> Response:  # the server logs it with its traceback
        return error_response(500, "internal", f"{type(error).__name__}: {error}", "the server's output says where")

    @app.exception_handler(HTTPException)
    def no_such_address(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        found = error_response(error.status_code, "http", str(error.detail), "/openapi.json lists the addresses")
        found.headers.update(error.headers or {})
        return found


def _kept(
    source: RecordingSource,
    name: str,
    time: TimeRange,
    parameters: tuple[object, ...],
    make: Callable[[Reader, Window], answers.Object],
    *,
    table: str = "",
) -> Response:
    """An answer from its own reader, cached as text while the file stays the same. table: key to send as CSV."""

    def text() -> bytes:
        with source.open(time.since) as (reader, whole):
            window = time.within(whole)
            body = answers.state(reader, window, source.clock()) | make(reader, window)
        return sheet_of_objects(body[table]).encode() if table else for_pages(body)

    found = source.kept((name, time, table, *parameters), text)
    if table:
        return download(name, [found.decode()])
    return Response(found, media_type="application/json")


def _json(body: object) -> Response:
    return Response(for_pages(body), media_type="application/json")
