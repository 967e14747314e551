"""The addresses of the first screen: the chart over time, what each detection is, files to download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import FastAPI, Query
from starlette.responses import Response, StreamingResponse

from ingero.diagnose.causes.rule import all_rules
from ingero.serve.dashboard import answers
from ingero.serve.dashboard.details import Time
from ingero.serve.dashboard.downloads import TRACE_TYPE, Downloads
from ingero.serve.dashboard.time_chart import Sums, TimeChart, sums, time_chart
from ingero.serve.recording_source import RecordingSource
from ingero.serve.structured.json_text import for_pages

REPORT_TYPE = "text/html"
MAX_COLUMNS = 600
_MAX_NUMBER = 2**31 - 1

Columns = Annotated[int, Query(ge=2, le=MAX_COLUMNS, description="the maximum number of columns")]
OneProcess = Annotated[int | None, Query(ge=0, le=_MAX_NUMBER, description="number of a process; none: all of them")]
WithLost = Annotated[bool, Query(description="take lost time out of the parts, by incident; waits for the diagnosis")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """A cause that can be detected. needs: what must have been recorded."""

    cause: str
    title: str
    evidence: str
    limits: str
    needs: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detections:
    """Every cause, as docs/detections.md lists them; a cause that can be proven in several ways several times."""

    detections: list[Detection]


def add_chart(app: FastAPI, source: RecordingSource) -> None:
    """Add the addresses of the first screen. Answers are cached; the chart waits for a diagnosis only for lost time."""

    @app.get("/api/v1/time-chart", responses={200: {"model": TimeChart}})
    def chart_of(time: Time, process: OneProcess = None, columns: Columns = 300, lost: WithLost = False) -> Response:
        """Shares of wall time, steps per second and host CPU over time, in columns of equal length."""
        incidents = time.of(source.diagnosis(time.since)).incidents if lost else None

        def read() -> Sums:
            with source.open(time.since) as (reader, whole):
                return sums(reader, whole, time.within(whole), columns)

        def text() -> bytes:
            found = source.kept(("time-chart-sums", time, columns), read)
            with source.open(time.since) as (reader, whole):
                state = answers.state(reader, time.within(whole), source.clock())
            return for_pages(time_chart(found, state, process, incidents))

        return Response(source.kept(("time-chart", time, process, columns, lost), text), media_type="application/json")

    @app.get("/api/v1/detections", responses={200: {"model": Detections}})
    def detections() -> Response:
        """What each cause means, what proves it, and what it cannot say."""
        rules = sorted(all_rules(), key=lambda rule: (rule.cause, rule.order))
        found = [Detection(cause=rule.cause, title=rule.title, evidence=rule.shows, limits=rule.limits,
                           needs=list(rule.needs)) for rule in rules]  # fmt: skip
        return Response(for_pages(Detections(detections=found)), media_type="application/json")

    files = Downloads(source)

    @app.get("/api/v1/perfetto", response_class=Response, responses={200: {"content": {TRACE_TYPE: {}}}})
    def perfetto(time: Time) -> StreamingResponse:
        """The recording as a file to open in Perfetto's viewer."""
        size_bytes, pieces = files.perfetto(time)
        headers = {"content-length": str(size_bytes), "content-disposition": 'attachment; filename="ingero.pftrace"'}
        return StreamingResponse(pieces, media_type=TRACE_TYPE, headers=headers)

    @app.get("/api/v1/report", response_class=Response, responses={200: {"content": {REPORT_TYPE: {}}}})
    def report(time: Time) -> Response:
        """The report as one HTML file, to attach to a ticket."""
        headers = {"content-disposition": 'attachment; filename="ingero-report.html"'}
        return Response(files.report(time), media_type=REPORT_TYPE, headers=headers)
