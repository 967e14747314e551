"""The dashboard of many nodes: a heat map of their lost time, and the views of each node, fetched from it."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from ingero import __version__
from ingero.errors import IngeroError
from ingero.fleet.client import NodeClient
from ingero.fleet.fan_out import FleetAnswer, Reach, ask_nodes
from ingero.fleet.heat_map import Diagnosed, ask_diagnosed, heat_map
from ingero.fleet.node_lists import Node
from ingero.serve.dashboard.app import PAGE, add_errors, add_pages
from ingero.serve.dashboard.details import Since
from ingero.serve.dashboard.exposure import Exposure
from ingero.serve.dashboard.security import Sessions
from ingero.serve.dashboard.server import run_server, server_of
from ingero.serve.recording_source import parse_since_ns
from ingero.serve.structured.json_text import for_pages

AskNodes = Callable[[str], FleetAnswer[Diagnosed]]

_FRESH_S = 10.0  # while a client looks, nodes are asked this often, but for at most a tenth of the time
_COST_FACTOR = 10
_KEPT = 8  # cached time ranges: those that the page offers, and some more
_LOOK_EVERY_S = 0.5
_ALIVE_EVERY = 30  # looks; as of a recording's page
_PLACE = re.compile(r"[a-z][a-z0-9-]{0,40}(/[A-Za-z0-9_.-]{1,80}){0,2}")
_MAX_QUESTION = 2048
_RECORDING, _FLEET = '<div id="page">', '<div id="page" data-of="fleet">'
_FACTS, _HEAT = 'href="/api/v1/facts"', 'href="/api/v1/fleet"'


class NoNodeError(IngeroError):
    """There is no such node, or it did not answer."""


@dataclass(slots=True)
class _Kept:
    """A cached heat map. Times are CLOCK_MONOTONIC. generation: counts the answers."""

    body: bytes
    made_s: float
    cost_s: float
    generation: int
    is_renewed: bool = False


class FleetWatch:
    """The heat map, refreshed while clients look at it. Threads may share it.

    clock: unix ns. monotonic: s.
    """

    def __init__(
        self,
        nodes: tuple[Node, ...],
        ask: AskNodes,
        *,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.nodes = nodes
        self._ask, self._clock, self._monotonic = ask, clock, monotonic
        self._kept: dict[str, _Kept] = {}
        self._lock, self._turn = threading.Lock(), threading.Lock()  # nodes are asked for one map at a time
        self.generation = 0

    def body(self, since: str) -> bytes:
        """The map as JSON: who comes first waits for the nodes, others get the last while they are asked anew.

        Raises:
            QuantityError: since is not a duration.
        """
        parse_since_ns(since)
        known = self._known(since)
        if known is None:
            with self._turn:
                return (self._known(since) or self._make(since)).body
        self.renew(since)
        return known.body

    def renew(self, since: str) -> None:
        """Start asking again if the last answer is old."""
        with self._lock:
            known = self._kept.get(since)
            if known is None or known.is_renewed:
                return
            if self._monotonic() - known.made_s < max(_FRESH_S, _COST_FACTOR * known.cost_s):
                return
            known.is_renewed = True
        threading.Thread(target=self._replace, args=(since, known), name="fleet-map", daemon=True).start()

    def _known(self, since: str) -> _Kept | None:
        with self._lock:
            return self._kept.get(since)

    def _replace(self, since: str, known: _Kept) -> None:
        try:
            with self._turn:
                self._make(since)
        finally:
            known.is_renewed = False  # where it could not be made, the next who asks tries again

    def _make(self, since: str) -> _Kept:
        begin_s = self._monotonic()
        body = for_pages(heat_map(self.nodes, self._ask(since), self._clock()))
        end_s = self._monotonic()
        with self._lock:
            self.generation += 1
            self._kept.pop(since, None)
            made = self._kept[since] = _Kept(body, end_s, end_s - begin_s, self.generation)
            while len(self._kept) > _KEPT:
                self._kept.pop(next(iter(self._kept)))
        return made

    async def changes(self, is_ending: Callable[[], bool]) -> AsyncIterator[str]:
        """Server-sent events as of a recording: one at once, then one per new answer; refreshes what is viewed."""
        known, looks = -1, 0
        while not is_ending():
            looks += 1
            with self._lock:
                generation, kept = self.generation, list(self._kept)
            if generation != known:
                yield f"event: {'connected' if known < 0 else 'changed'}\ndata: {{}}\n\n"
                known = generation
            elif looks % _ALIVE_EVERY == 0:
                yield ": alive\n\n"
            for since in kept[-1:]:
                self.renew(since)
            await asyncio.sleep(_LOOK_EVERY_S)


def watch_of(reach: Reach, on_asked: Callable[[], None] = lambda: None) -> FleetWatch:
    """A watch of real nodes. on_asked: called each time they have been asked."""

    def ask(since: str) -> FleetAnswer[Diagnosed]:
        def one(client: NodeClient) -> Awaitable[Diagnosed]:
            return ask_diagnosed(client, since)

        found = ask_nodes(reach, one)
        on_asked()
        return found

    return FleetWatch(reach.nodes, ask)


def create_fleet_app(
    watch: FleetWatch, reach: Reach, sessions: Sessions, is_ending: Callable[[], bool] = lambda: False
) -> FastAPI:
    """The application, without the gate before it. reach: how a single node is asked for its views."""
    app = FastAPI(
        title="ingero", version=__version__, description="Lost time of many nodes.", docs_url=None, redoc_url=None
    )
    add_errors(app)

    @app.get("/api/v1/fleet")
    def fleet(since: Since = "") -> Response:
        """What each node lost when, worst first; nodes that did not answer, with the reason."""
        return Response(watch.body(since), media_type="application/json")

    @app.get("/api/v1/fleet/nodes/{number}/{place:path}")
    def of_node(number: int, place: str, request: Request) -> Response:
        """What one node answers at /api/v1/PLACE."""
        if not 0 <= number < len(reach.nodes) or not _PLACE.fullmatch(place):
            raise NoNodeError("there is no such node or view", hint="/api/v1/fleet lists the nodes")
        question = request.url.query
        if len(question) > _MAX_QUESTION or not question.isascii() or not question.isprintable():
            raise NoNodeError("the question is too long", hint="ask for less")
        return Response(_ask_node(reach, reach.nodes[number], place, question), media_type="application/json")

    @app.get("/api/v1/health")
    def health() -> Response:
        """That it runs; nodes are not asked."""
        return Response(for_pages({"status": "ok", "version": __version__}), media_type="application/json")

    @app.get("/api/v1/events", include_in_schema=False)  # never ends, which no description of an API can say
    async def events() -> StreamingResponse:
        """Server-sent events: `changed` when nodes have been asked anew."""
        return StreamingResponse(watch.changes(is_ending), media_type="text/event-stream")

    if (PAGE / "index.html").exists():

        @app.get("/", include_in_schema=False)
        def index() -> HTMLResponse:
            """The page, which is told that it is of many nodes."""
            text = (PAGE / "index.html").read_text(encoding="utf-8")
            return HTMLResponse(text.replace(_RECORDING, _FLEET).replace(_FACTS, _HEAT))

    add_pages(app, sessions)
    return app


def _ask_node(reach: Reach, node: Node, place: str, question: str) -> bytes:
    """A node's answer, checked to be JSON and within the size limit.

    Raises:
        NoNodeError: it does not answer.
    """
    path = f"/api/v1/{place}" + (f"?{question}" if question else "")

    def ask(client: NodeClient) -> Awaitable[msgspec.Raw]:
        return client.json(path, msgspec.Raw)

    found = ask_nodes(replace(reach, nodes=(node,)), ask)
    if found.missing:
        raise NoNodeError(f"{node}: {found.missing[0].reason}", hint=found.missing[0].hint)
    return bytes(found.answered[0].answer)


def serve_fleet(
    reach: Reach,
    exposure: Exposure,
    listening: socket.socket,
    context: ssl.SSLContext | None,
    on_asked: Callable[[], None] = lambda: None,
) -> None:
    """Serve until interrupted. on_asked: called each time all nodes have been asked."""
    watch = watch_of(reach, on_asked)

    def make_app(sessions: Sessions, is_ending: Callable[[], bool]) -> FastAPI:
        return create_fleet_app(watch, reach, sessions, is_ending)

    run_server(server_of(make_app, exposure, context), listening)
