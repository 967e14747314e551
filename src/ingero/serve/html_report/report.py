"""The HTML report on a recording, in the order in which the reader of a ticket needs it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from ingero.build_info import build_info
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Diagnosis, Incident
from ingero.diagnose.node_by_node import reader_of
from ingero.errors import IngeroError
from ingero.serve.dashboard import stacks
from ingero.serve.html_report import tables, time_chart
from ingero.serve.html_report.flame_graph import flame_graph
from ingero.serve.html_report.markup import Markup, element, joined
from ingero.serve.structured.stored_findings import stored, stored_lines
from ingero.serve.text import incident_form
from ingero.serve.text.breakdown import MANY_CALLS
from ingero.serve.text.coverage import coverage_lines, unseen_ratio
from ingero.serve.text.findings_text import headline, not_looked_at_lines
from ingero.serve.text.gap_lines import drop_lines, not_traced_lines, pruned_lines
from ingero.serve.text.profile_lines import profile_lines
from ingero.serve.text.system_context import system_lines
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.reader import Reader
from ingero.store.records import Process, Session, Window
from ingero.units import format_count, format_counted, format_moment, format_ns

BEGINNING = b"<!DOCTYPE html>\n<!-- ingero report"
MAX_BYTES = 8 << 20
_MAX_INCIDENTS = 40
_MAX_BANDS = 40
_MAX_NODES = 8
_MAX_CHARTS = 6
_MAX_CHAINS = 10
_MAX_FLAMES = 3  # processes
_MAX_LINES = 80
_KINDS_OF_STACKS = (("calls", "time in recorded GPU and NCCL calls"), ("samples", "time outside of calls, by samples"))


class ReportTooLargeError(IngeroError):
    """The report is too large although its parts are limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The data of one node for the report. chosen: the only process shown, if any."""

    reader: Reader
    window: Window
    diagnosis: Diagnosis
    evidence: Evidence
    chosen: int | None

    @property
    def processes(self) -> list[Process]:
        return [process for process in self.reader.processes() if self.chosen in (None, process.pid)]


def report(
    reader: Reader, window: Window, diagnosis: Diagnosis, *, pid: int | None = None, evidence: Evidence | None = None
) -> bytes:
    """One HTML file. pid: the only process that it is about. evidence: of the window, if it has been read already.

    Raises:
        ReportTooLargeError: it would have more than MAX_BYTES.
    """
    whole = b"".join(_encoded(reader, window, diagnosis, pid, evidence))
    if len(whole) > MAX_BYTES:
        raise ReportTooLargeError(
            f"the report would have {len(whole) >> 20} MiB", hint="shorten it with --since, --from and --to, or --pid"
        )
    return whole


def _encoded(
    reader: Reader, window: Window, diagnosis: Diagnosis, pid: int | None, evidence: Evidence | None
) -> Iterator[bytes]:
    nodes = reader.nodes()
    title = f"GPU stall report: {', '.join(nodes[:4]) or reader.path.stem}{', ...' if len(nodes) > 4 else ''}"
    yield BEGINNING + b" 1 -->\n"
    yield b'<html lang="en">' + _head(title).encode("utf-8", "replace") + b"<body><main>"
    for part in _body(reader, window, diagnosis, pid, evidence, title):
        yield part.encode("utf-8", "replace")
    yield b"</main></body></html>\n"


def _head(title: str) -> Markup:
    style = files("ingero.serve.html_report").joinpath("report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return Markup(
        '<head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">'
        f"{element('title', title)}<style>{style}</style></head>"
    )


def _body(
    reader: Reader, window: Window, diagnosis: Diagnosis, pid: int | None, evidence: Evidence | None, title: str
) -> Iterator[Markup]:
    yield element("header", element("h1", title), element("p", headline(diagnosis), class_="headline"),
                  _facts(reader, window))  # fmt: skip
    yield _incidents(diagnosis)
    nodes = reader.nodes()
    if len(nodes) < 2:
        one = evidence or Evidence(reader, window)
        yield from _node(_Part(reader=reader, window=window, diagnosis=diagnosis, evidence=one, chosen=pid))
    for node in nodes[:_MAX_NODES] if len(nodes) > 1 else ():
        yield element("h2", f"Node {node}")
        with reader_of(reader, node, window) as alone:
            if alone is None:
                yield element("p", "Nothing was recorded here in this time.")
                continue
            own = [incident for incident in diagnosis.incidents if incident.node == node]
            found = Diagnosis(
                window=alone[1], incidents=tuple(own), verdicts=(), not_evaluated=(), not_traced={}, profiles=None
            )
            yield from _node(
                _Part(reader=alone[0], window=alone[1], diagnosis=found, evidence=Evidence(*alone), chosen=pid)
            )
    if len(nodes) > _MAX_NODES:
        yield element("p", f"{len(nodes) - _MAX_NODES} more nodes are left out; --node N shows one.", class_="quiet")
    yield _section("Verdicts", tables.verdicts_table(diagnosis.verdicts))
    if diagnosis.profiles:
        yield _section("Profile", element("pre", "\n".join(profile_lines(diagnosis.profiles, pid=pid))))
    yield _not_checked(diagnosis)
    yield element(
        "footer", element("p", f"Written by ingero {build_info().version}. This file loads nothing and runs nothing.")
    )


def _facts(reader: Reader, window: Window) -> Markup:
    sessions = _sessions(reader, window)

    def all_of(values: Sequence[str]) -> str:
        known = list(dict.fromkeys(value for value in values if value))
        return ", ".join(known[:4]) + (f" and {len(known) - 4} more" if len(known) > 4 else "")

    facts = {
        "Host": all_of([session.node for session in sessions]),
        "GPU": all_of([session.gpu_model for session in sessions]),
        "Driver": all_of([session.gpu_driver for session in sessions]),
        "CUDA": all_of([session.cuda_ver for session in sessions]),
        "CPU": all_of(
            [f"{session.cpu_model} ({session.cpu_count})" if session.cpu_model else "" for session in sessions]
        ),
        "Kernel": all_of([session.kernel for session in sessions]),
        "Recorded": f"{format_moment(window.begin_ns, of_ns=window.duration_ns)}, {format_ns(window.duration_ns)}",
        "ingero": all_of([session.ingero_ver for session in sessions]) or reader.older_version,
        "File": reader.path.name,
    }
    always = ("GPU", "Driver")
    rows = (
        element("div", element("dt", name), element("dd", value or "not recorded"))
        for name, value in facts.items()
        if value or name in always
    )
    return element("dl", rows, class_="facts")


def _sessions(reader: Reader, window: Window) -> list[Session]:
    return [
        session
        for session in reader.sessions()
        if session.started_ns < window.end_ns and (session.stopped_ns or session.last_seen_ns) >= window.begin_ns
    ]


def _incidents(diagnosis: Diagnosis) -> Markup:
    if not diagnosis.incidents:
        return Markup("")
    shown = [_incident(incident) for incident in diagnosis.incidents[:_MAX_INCIDENTS]]
    rest = diagnosis.incidents[_MAX_INCIDENTS:]
    if rest:
        causes = ", ".join(dict.fromkeys(one.cause for one in rest))
        more = f"{format_count(len(rest))} more incidents are left out, less severe than these: {causes}"
        shown.append(element("p", more, class_="quiet"))
    return _section("Incidents", *shown)


def _incident(incident: Incident) -> Markup:
    parts = [
        _titled(part.title, _lines(part.lines, is_commands=part.key == "fix"))
        for part in incident_form.sections(incident)
        if part.key != "timeline"  # which is a picture
    ]
    if incident.timeline:
        parts.append(_titled("Timeline", time_chart.timeline(incident.timeline)))
    return element(
        "article", element("h3", incident_form.title_line(incident)),
        element("p", incident.summary, class_="headline"),
        *parts,
        id=f"incident-{incident.number}", class_=incident.severity.name,
    )  # fmt: skip


def _titled(title: str, content: Markup) -> Markup:
    return element("div", element("h4", title), element("div", content), class_="part")


def _lines(lines: Sequence[str], *, is_commands: bool = False) -> Markup:
    """Lines as HTML; deeper ones are indented, or commands in fixes."""
    found = []
    for line in lines[:_MAX_LINES]:
        if not line.startswith("  "):
            found.append(element("p", line))
        elif is_commands:
            found.append(element("pre", element("code", line.strip())))
        else:
            found.append(element("p", line.strip(), class_="deeper"))
    if len(lines) > _MAX_LINES:
        found.append(element("p", f"and {format_counted(len(lines) - _MAX_LINES, 'more line')}", class_="quiet"))
    return joined(found)


def _node(part: _Part) -> Iterator[Markup]:
    """The time breakdown of one node's processes, its host, and its missing data."""
    reader, window = part.reader, part.window
    shown = part.processes
    if reader.older_version:
        why = f"Ingero {reader.older_version} recorded neither sync intervals nor thread states. What it found itself:"
        own = list(stored_lines(stored(reader, window), most=_MAX_CHAINS))
        yield _section("Findings of the recorder", element("p", why), _lines(own))
        yield _section("Processes", tables.calls_table(part.evidence, shown))
        return
    is_idle_known = unseen_ratio(reader, window) <= 0.5  # as the text has it
    gpu_streams = {
        one.process: (gpu_stream, time_chart.layers(gpu_stream, window, is_idle_known=is_idle_known))
        for one in shown
        if (gpu_stream := _gpu_stream_of(part.evidence, one.process)) is not None and len(gpu_stream.sync_intervals)
    }
    busiest = sorted(gpu_streams, key=lambda number: -int(gpu_streams[number][0].sync_intervals["busy_ns"].sum()))
    charts = [_chart(part, number, *gpu_streams[number]) for number in busiest[:_MAX_CHARTS]]
    if len(busiest) > _MAX_CHARTS:
        left = format_counted(len(busiest) - _MAX_CHARTS, "more process")
        charts.append(element("p", f"No chart of {left} with less GPU work.", class_="quiet"))
    if not charts:
        charts = [element("p", "No GPU sync or step was recorded: there is no wall time to divide.")]
    yield _section("Time breakdown", *charts)
    yield _section(
        "Processes",
        *tables.parts_tables({number: gpu_streams[number] for number in busiest}, part.evidence),
        tables.states_table(part.evidence, shown) if reader.is_recorded("raw_thread_state_seconds") else Markup(""),
        tables.calls_table(part.evidence, shown),
    )
    yield _flames(part, [one for number in busiest for one in shown if one.process == number] or shown)
    host = list(system_lines(reader, window, has_incident=bool(part.diagnosis.incidents)))
    if host:
        yield _section("Host", _lines(host))
    missing = [*pruned_lines(reader, window), *not_traced_lines(reader, window), *coverage_lines(reader, window)]
    yield _section("Dropped data", _lines([line for line in (*drop_lines(reader, window), *missing) if line]))


def _gpu_stream_of(evidence: Evidence, number: int) -> GpuStream | None:
    """The stream or steps that a process is judged by; steps as measured, not joined to those that they catch up on."""
    paced = evidence.main_streams.get(number)
    if paced is None or not paced.is_steps:
        return paced
    return next((one for one in evidence.repeated_steps if one.process == number), paced)


def _chart(part: _Part, number: int, gpu_stream: GpuStream, layers: Sequence[time_chart.Layer]) -> Markup:
    process = part.evidence.processes[number]
    wall_ns = tables.wall_ns(gpu_stream)
    incidents = [
        incident
        for incident in part.diagnosis.incidents
        if any(affected.process == number for affected in incident.affected)
    ][:_MAX_BANDS]
    lost = time_chart.lost_ratios(incidents, number, part.window)
    label = f"Share of wall time by part, over time, of {tables.name_of(process)}"
    return joined((
        element("h3", tables.name_of(process)),
        time_chart.chart(layers, lost, incidents, part.window, label),
        time_chart.legend(layers, wall_ns),
    ))  # fmt: skip


def _flames(part: _Part, processes: Sequence[Process]) -> Markup:
    if part.reader.stored_calls() > MANY_CALLS:
        why = f"Left out, of more than {format_count(MANY_CALLS)} recorded calls; shorten it with --since."
        return _section("Flame graphs", element("p", why))
    graphs = [
        graph
        for process in processes[:_MAX_FLAMES]
        for of, words in _KINDS_OF_STACKS
        for graph in _flame(part, process, of, words)
    ]
    if not graphs:
        has_stacks = not any(
            json.loads(session.options).get("stack") is False for session in _sessions(part.reader, part.window)
        )
        why = "No stack was recorded in this time." if has_stacks else "Stacks were not recorded: --no-stack."
        graphs = [element("p", why)]
    elif len(processes) > _MAX_FLAMES:
        left = format_counted(len(processes) - _MAX_FLAMES, "more process")
        graphs.append(element("p", f"None of {left}; --pid N shows one.", class_="quiet"))
    return _section("Flame graphs", *graphs)


def _flame(part: _Part, process: Process, of: str, words: str) -> Iterator[Markup]:
    if of == "samples" and not part.reader.is_recorded("raw_stack_samples"):
        return
    state = {"now_ns": 0, "is_live": False, "older_version": "", "window": part.window}
    found = stacks.tree(part.reader, part.window, state, process.process, of)
    if not found.root.ns or not found.root.children:
        return
    label = f"Flame graph of {tables.name_of(process)}: {words}"
    picture, left_out = flame_graph(found.root, label)
    notes = [f"{format_ns(found.root.ns)} in all; hover a frame for its time."]
    notes += [found.note] if found.note else []
    notes += [f"{format_counted(left_out, 'narrow frame')} left out."] if left_out else []
    yield joined((element("h3", f"{tables.name_of(process)}: {words}"), picture,
                  element("p", " ".join(notes), class_="quiet")))  # fmt: skip


def _not_checked(diagnosis: Diagnosis) -> Markup:
    lines = list(not_looked_at_lines(diagnosis))
    return _section("Not checked", _lines(lines or ["Every cause could be checked for the whole time."]))


def _section(title: str, *content: Markup) -> Markup:
    return element("section", element("h2", title), *content)
