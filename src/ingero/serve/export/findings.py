"""Incidents, dropped data and reduced tracing as slices of the host they are about."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ingero.diagnose.evidence.coverage_gaps import overhead_levels_in_force
from ingero.given_up import sentences
from ingero.serve.export.model import Args, Slice, Value
from ingero.serve.export.tracks import Tracks
from ingero.serve.text.stack_lines import stack_lines
from ingero.store.call_stacks import call_stack
from ingero.store.records import StoredIncident
from ingero.store.streaming.names import Names
from ingero.store.streaming.streams import Streams
from ingero.units import format_ns

INCIDENT, CHAIN, DROP, COVERAGE, OPEN_CALL = "incident", "causal_chain", "drop", "coverage", "in_flight_call"

_LISTS = ("affected", "culprits", "evidence", "fixes")


def incident_slices(streams: Streams, tracks: Tracks) -> Iterator[Slice]:
    """A slice per incident, with its details; an ongoing one ends with the window."""
    for row in streams.incidents():
        end_ns = max(row.start_ns, streams.window.end_ns if row.end_ns is None else row.end_ns)
        track = tracks.gpu_stream(tracks.node(row.session), "incidents", start_ns=row.start_ns, end_ns=end_ns)
        name = f"{row.severity.upper()} {row.cause}: {format_ns(row.lost_ns)} lost"
        args = tuple(_breakdown(row))
        yield Slice(track, row.start_ns, end_ns - row.start_ns, name, INCIDENT, args, row.severity.upper())


def _breakdown(row: StoredIncident) -> Iterator[tuple[str, Value]]:
    yield "summary", row.summary
    yield "cause", row.cause
    yield "severity", row.severity
    for name in ("resource", "root"):
        if getattr(row, name):
            yield name, getattr(row, name)
    yield "lost_ns", row.lost_ns
    for name in ("lost_ratio", "explained_ratio", "peak"):
        if getattr(row, name) is not None:
            yield name, getattr(row, name)
    if row.end_ns is None:
        yield "state", "still open"
    for name in _LISTS:
        yield from _flat(name, json.loads(getattr(row, name) or "null"))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Value]]:
    """A JSON value as arguments, its names joined: Perfetto knows no dots in names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}_{key}", inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _flat(f"{name}_{index}", inner)
    elif value is not None:
        yield name, int(value) if isinstance(value, bool) else value


def chain_slices(streams: Streams, tracks: Tracks) -> Iterator[Slice]:
    """The chains that older versions stored, at the times when they were detected."""
    sessions = {session.node: session.session for session in streams.reader.sessions()}
    for chain in streams.reader.causal_chains(streams.window):
        time_ns = chain.detected_ns
        node = tracks.node(sessions.get(chain.node, 0))
        track = tracks.gpu_stream(node, "causal chains", start_ns=time_ns, end_ns=time_ns)
        args: Args = (
            ("root_cause", chain.root_cause),
            ("explanation", chain.explanation),
            ("severity", chain.severity),
        )
        name = f"{chain.severity}: {chain.summary}"
        yield Slice(track, time_ns, 0, name, CHAIN, args, chain.severity.upper())


def in_flight_slices(streams: Streams, tracks: Tracks, names: Names) -> Iterator[Slice]:
    """Calls seen in flight for over a second, until they were last seen: a hung call has no other row."""
    reader = streams.reader
    if not reader.is_recorded("raw_in_flight"):
        return
    processes = {process.process: process for process in reader.processes(only_traced=False)}
    found = [call for call in reader.in_flight(streams.window) if streams.pid is None or call.pid == streams.pid]
    for call in sorted(found, key=lambda one: one.since_ns):
        session = processes[call.process].session if call.process in processes else 0
        thread = tracks.thread_of(session, call.process, call.pid, call.tid, "")
        name = f"{thread.name}: calls in flight"
        track = tracks.gpu_stream(thread, name, start_ns=call.since_ns, end_ns=call.time_ns)
        stored = names.stack(call.stack_hash)
        stack: Args = (("stack", "\n".join(stack_lines(call_stack(stored)))),) if stored else ()
        yield Slice(track, call.since_ns, call.time_ns - call.since_ns, f"{call.name} (in flight)", OPEN_CALL, stack)


def drop_slices(streams: Streams, tracks: Tracks) -> Iterator[Slice]:
    """When data was dropped, and how much."""
    for row in streams.drops():
        track = tracks.gpu_stream(
            tracks.node(row.session), "ingero: dropped or corrected", start_ns=row.start_ns, end_ns=row.start_ns
        )
        reason: Args = (("reason", row.reason),) if row.reason else ()
        yield Slice(track, row.start_ns, 0, row.counter, DROP, (("count", row.lost), *reason))


def coverage_slices(streams: Streams, tracks: Tracks) -> Iterator[Slice]:
    """Time ranges with reduced tracing."""
    if not streams.reader.is_recorded("raw_overhead_levels"):
        return
    reader, window = streams.reader, streams.window
    for step, held in overhead_levels_in_force(reader.overhead_levels(window), reader.sessions(), window):
        if step.not_traced:
            node, begin_ns = tracks.node(step.session), held.begin_ns
            track = tracks.gpu_stream(node, "ingero: tracing reduced", start_ns=begin_ns, end_ns=held.end_ns)
            args = (("not_traced", "\n".join(sentences(step.not_traced))), ("reason", step.reason))
            yield Slice(track, begin_ns, held.duration_ns, "tracing reduced", COVERAGE, args)
