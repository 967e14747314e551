"""What other machines ask of a node: /api/v2, rows that lose nothing, the whole diagnosis, stamps of its clock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import FastAPI, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from ingero import __version__
from ingero.diagnose.comparison.side import side_of
from ingero.diagnose.incidents.concerns import filter_diagnosis
from ingero.serve import boot_clock
from ingero.serve.dashboard import published
from ingero.serve.dashboard.details import Since
from ingero.serve.recording_part import MAX_BYTES, Parts
from ingero.serve.recording_part import MEDIA_TYPE as PART_TYPE
from ingero.serve.recording_source import RecordingSource
from ingero.serve.structured.findings_json import diagnosis_json
from ingero.serve.structured.json_text import for_pages
from ingero.serve.structured.row_lines import MAX_ROWS, MAX_SECONDS, MEDIA_TYPE, Identity, row_lines
from ingero.serve.text.findings_text import headline
from ingero.store.reader import open_reader

_MAX_PID = 2**31 - 1
Pid = Annotated[int | None, Query(ge=1, le=_MAX_PID, description="only what is about this process")]
Moment = Annotated[int | None, Query(ge=0, le=2**63 - 1, description="unix ns, by the node's clock")]
Size = Annotated[int, Query(ge=1, le=MAX_BYTES, description="the maximum size of the answer, in bytes")]
Cause = Annotated[str, Query(max_length=64, pattern="^[a-z-]*$", description="only incidents of this cause")]


class Statement(BaseModel):
    """One SELECT over the published views (docs/schema.md)."""

    model_config = ConfigDict(extra="forbid")
    sql: str = Field(min_length=1, max_length=1 << 16)
    limit: int = Field(default=1000, ge=1, le=MAX_ROWS, description="the maximum number of rows")
    timeout_s: Annotated[float, Field(gt=0, le=MAX_SECONDS, description="seconds that it may take on the node")] = 10.0


def add_node_api(app: FastAPI, source: RecordingSource) -> None:
    """The addresses of /api/v2."""

    @app.get("/api/v2/time")
    async def time() -> Response:
        """One exchange of clocks, unix ns: when the question came in, and when the answer left."""
        received_ns = source.clock()
        return _json({"received_ns": received_ns, "sent_ns": source.clock()})

    @app.get("/api/v2/node")
    def node() -> Response:
        """Whose recording it is, and what this server speaks."""
        found = identity(source)
        return _json({
            "nodes": found.nodes, "machine_id": found.machine_id, "recording": found.recording,
            "ingero_version": __version__, "api": ["v1", "v2"],
        })  # fmt: skip

    @app.post("/api/v2/query")
    def query(statement: Statement) -> StreamingResponse:
        """The answer to one SELECT as lines of JSON: a header, then a row each; 64-bit integers, blobs as {"b64"}."""
        answer = source.run_sql(statement.sql, max_rows=statement.limit, timeout_s=statement.timeout_s)
        return StreamingResponse(_pieces(row_lines(answer, identity(source))), media_type=MEDIA_TYPE)

    parts = Parts(source)

    @app.get("/api/v2/recording")
    def recording(
        since: Since = "", begin_ns: Moment = None, end_ns: Moment = None, most_bytes: Size = MAX_BYTES
    ) -> StreamingResponse:
        """A part of the recording as a database to be merged: the last `since`, or from begin_ns to end_ns."""
        size_bytes, pieces = parts.take(since, begin_ns, end_ns, most_bytes)
        headers = {"content-length": str(size_bytes)}
        return StreamingResponse(_pieces(pieces), media_type=PART_TYPE, headers=headers)

    @app.get("/api/v2/explain")
    def explain(since: Since = "", pid: Pid = None, cause: Cause = "") -> Response:
        """What `ingero explain --json` says here, its headline, and its chains as older versions publish them."""
        diagnosis = filter_diagnosis(source.diagnosis(since), pid=pid, rule=cause or None)

        def text() -> bytes:
            with source.open(since) as (reader, window):
                found = published.chains(reader, window, diagnosis)
                _add_moments(found, boot_clock.BootClock(reader))
            body: dict[str, Any] = {"diagnosis": diagnosis_json(diagnosis), "chains": found}
            about = {"node": identity(source), "headline": headline(diagnosis), "ingero_version": __version__}
            return for_pages(body | about)

        kept = source.kept(("explain", since, pid, cause), text)
        return Response(
            b'{"clock":%b,%b' % (for_pages(boot_clock.now(source.clock)), kept[1:]), media_type="application/json"
        )

    _add_side(app, source)


def identity(source: RecordingSource) -> Identity:
    """The identity of the recording."""

    def read() -> Identity:
        with open_reader(source.path) as reader:  # also of one that has no rows yet
            nodes, sessions = reader.nodes(), reader.sessions()
            machines = {machine for (machine,) in reader.connection.execute("SELECT machine_id FROM sessions")}
        of = "\n".join(sorted(f"{session.uuid} {session.node} {session.started_ns}" for session in sessions))
        return Identity(
            nodes=nodes,
            machine_id=(machines.pop() or "") if len(machines) == 1 else "",
            recording=hashlib.sha256(of.encode()).hexdigest()[:32],
        )

    return source.kept(("identity",), read)


def _add_side(app: FastAPI, source: RecordingSource) -> None:
    @app.get("/api/v2/side")
    def side(since: Since = "") -> Response:
        """What `ingero compare` needs of this recording to compare another one with it."""

        def text() -> bytes:
            with source.open(since) as (reader, window):
                found = side_of(reader, window)
            return for_pages({"node": identity(source), "side": found})

        return Response(source.kept(("side", since), text), media_type="application/json")


def _add_moments(chains: list[dict[str, Any]], clock: boot_clock.BootClock) -> None:
    """Add to each chain when it began by the clock of this boot, for comparison with other hosts' clocks."""
    for chain in chains:
        moment = clock.moment(chain["node"], chain["start_ns"])
        chain |= {"mono_ns": moment[0] if moment else None, "mono_bound_ns": moment[1] if moment else 0}


async def _pieces(pieces: Iterator[bytes]) -> Any:  # an asynchronous iterator, which needs no thread for each piece
    for piece in pieces:
        yield piece


def _json(body: object) -> Response:
    return Response(for_pages(body), media_type="application/json")
