"""`ingero explain`: what went wrong in a recording, its culprits, and where its time went."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import rich_click as click

from ingero.cli.config.switches import configured
from ingero.cli.fleet.options import FleetFlags, FleetOptionError, fleet_of, fleet_options
from ingero.cli.html_report import write_report
from ingero.cli.output import echo, echo_folded, echo_json
from ingero.cli.recorded_pid import check_pid
from ingero.cli.recording_path import recording_path
from ingero.cli.window_options import parse_since_ns, window_of
from ingero.diagnose.causes.rule import all_rules
from ingero.diagnose.diagnosis import diagnose, diagnose_evidence
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import UNEXPLAINED, Diagnosis
from ingero.diagnose.incidents.concerns import filter_diagnosis
from ingero.diagnose.incidents.incident_json import Object
from ingero.diagnose.node_by_node import reader_of
from ingero.errors import IngeroError
from ingero.program import command as own_command
from ingero.serve.structured.findings_json import diagnosis_json
from ingero.serve.structured.stored_findings import Stored, stored, stored_json, stored_lines
from ingero.serve.text.breakdown import Extent, breakdown_text, header_lines
from ingero.serve.text.findings_text import not_looked_at_lines, verdict_lines
from ingero.serve.text.per_process import cpu_users_json, per_process_json, per_process_lines
from ingero.serve.text.profile_lines import profile_lines
from ingero.serve.text.short_report import short_lines
from ingero.serve.text.styled_lines import report_lines
from ingero.serve.text.system_context import system_lines
from ingero.store.reader import Reader, open_reader
from ingero.store.records import Window

EXIT_FOUND = 1
_NODE_TIMEOUT = "30s"  # a diagnosis takes a node some seconds, unlike a query for rows
_MAX_CHAINS = 4  # that an older version found, below a verdict that is not its own


class UnknownRuleError(IngeroError):
    """There is no such cause."""


class ExplainOptionError(IngeroError):
    """Options that exclude each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReportOptions:
    pid: int | None
    rule: str | None
    per_process: bool
    stacks: bool


@click.command("explain")
@click.option(
    "--db",
    "-d",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="F",
    help="Database file (default ~/.ingero/ingero.db).",
)
@click.option("--since", "--last", metavar="D", help="Only the last 90s, 5m or 1h30m of the recording.")
@click.option(
    "--from", "begin", metavar="T", help='Start of the time range: 14:05, "2026-11-21 14:05:30" or unix seconds.'
)
@click.option("--to", "end", metavar="T", help="End of the time range.")
@click.option("--pid", "-p", type=int, metavar="PID", help="Only this process.")
@click.option("--node", metavar="N", help="Only this node of a merged recording.")
@click.option(
    "--rule",
    metavar="CAUSE",
    help="Only incidents with this cause.",
    shell_complete=lambda _context, _parameter, incomplete: [
        cause for cause in _causes() if cause.startswith(incomplete)
    ],
)
@click.option("--chains", is_flag=True, help="Show the incidents found while recording, instead of a new diagnosis.")
@click.option(
    "--per-process",
    is_flag=True,
    help="Show every process with its calls, stalls and culprits: the full time breakdown.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (explain.schema.json).")
@click.option(
    "--stacks",
    is_flag=True,
    help="Show full stacks: of the longest calls, and of all threads of a process with a hung call.",
)
@click.option(
    "--short", is_flag=True, help="Print at most twelve lines of plain text, to paste into a chat or a ticket."
)
@click.option(
    "--html",
    "html",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the report to FILE instead: one HTML file with charts and flame graphs, to attach to a ticket.",
)
@click.option("--force", is_flag=True, help="With --html: replace FILE even if it is not such a report.")
@configured("explain")
@fleet_options
def command(
    db: Path | None,
    since: str | None,
    begin: str | None,
    end: str | None,
    pid: int | None,
    node: str | None,
    rule: str | None,
    chains: bool,
    per_process: bool,
    as_json: bool,
    stacks: bool,
    html: Path | None,
    force: bool,
    short: bool,
    timeout: str | None,
    fleet: FleetFlags,
) -> None:
    """Explain what went wrong in a recording, and what caused it.

    With --nodes, each node explains its own recording; a node that does not answer is listed with the reason.

    Exit code 0: no incidents found, 1: incidents found, 2: error, 3: nodes are missing, whatever the others answered.
    """
    _check_rule(rule)
    _check_html(html, {"--force": force}, {"--json": as_json, "--chains": chains})
    if short:
        _refuse_beside_short({"--json": as_json, "--chains": chains, "--per-process": per_process, "--stacks": stacks})
    nodes = fleet_of(fleet, db=db, timeout=timeout or _NODE_TIMEOUT, environ=os.environ, uid=os.getuid())
    if nodes is not None:
        from ingero.cli.fleet.explain import explain_fleet  # noqa: PLC0415  # needless for a recording

        given = {"--from": begin, "--to": end, "--node": node, "--chains": chains, "--per-process": per_process}
        _refuse_of_one_recording(given | {"--stacks": stacks, "--html": html, "--short": short})
        sys.exit(explain_fleet(nodes, since=since or "", pid=pid, rule=rule, as_json=as_json))
    since_ns = parse_since_ns(since)
    wanted = _ReportOptions(pid=pid, rule=rule, per_process=per_process, stacks=stacks)
    with open_reader(recording_path(db, os.environ, uid=os.getuid()), node=node) as reader:
        window = window_of(reader, since_ns=since_ns, begin=begin, end=end)
        check_pid(reader, pid)
        if chains:
            if not (since or begin):  # findings outlive everything else
                window = replace(window, begin_ns=reader.kept_since_ns(window))
            has_found = _show_stored(_stored(reader, window, pid, rule), window, as_json=as_json)
            sys.exit(EXIT_FOUND if has_found else 0)
        evidence = Evidence(reader, window) if len(reader.nodes()) < 2 else None
        found_all = diagnose_evidence(evidence, all_rules()) if evidence else diagnose(reader, window)
        diagnosis = filter_diagnosis(found_all, pid=pid, rule=rule)
        if html:
            write_report(html, reader, window, diagnosis, pid=pid, evidence=evidence, is_forced=force)
        elif as_json:
            echo_json(_json(reader, window, diagnosis, wanted))
        elif short:
            for text in short_lines(
                diagnosis, whole=own_command("explain", *_range_options(db, since, begin, end, pid))
            ):
                echo(text)
        else:
            for line in report_lines(_text(reader, window, diagnosis, wanted, evidence)):
                echo_folded(line)
    if diagnosis.incidents:
        sys.exit(EXIT_FOUND)


def _check_html(html: Path | None, html_only: Mapping[str, object], others: Mapping[str, object]) -> None:
    for name, value in (others if html else html_only).items():
        if value:
            raise click.UsageError(f"{name} and --html exclude each other" if html else f"{name} is for --html")


def _refuse_beside_short(given: Mapping[str, bool]) -> None:
    for name, is_given in given.items():
        if is_given:
            raise ExplainOptionError(f"--short and {name} exclude each other", hint="give one of them")


def _range_options(
    db: Path | None, since: str | None, begin: str | None, end: str | None, pid: int | None
) -> Iterator[str]:
    """The options that select the recording, time range and process of a report."""
    given = {"--db": db, "--since": since, "--from": begin, "--to": end, "--pid": pid}
    for name, value in given.items():
        if value is not None:
            yield from (name, str(value))


def _refuse_of_one_recording(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value:
            raise FleetOptionError(f"{name} is for one recording", hint=f"leave out {name} or --nodes")


def _stored(reader: Reader, window: Window, pid: int | None, rule: str | None) -> dict[str, Stored]:
    """The findings stored while recording, by node; under "" where the recording holds one node."""
    nodes = reader.nodes()
    if len(nodes) < 2:
        return {"": stored(reader, window, pid=pid, rule=rule)}
    found = {}
    for node in nodes:
        with reader.of_node(node) as single:
            found[node] = stored(single, window, pid=pid, rule=rule)
    return found


def _show_stored(found: dict[str, Stored], window: Window, *, as_json: bool) -> bool:
    """Prints the stored findings; returns whether there are any."""
    if as_json:
        echo_json(stored_json(found, window))
    for node, stored_findings in {} if as_json else found.items():
        if node:
            echo(f"=== {node} ===")
        for line in report_lines(stored_lines(stored_findings)):
            echo_folded(line)
    return any(found.values())


def _text(
    reader: Reader, window: Window, diagnosis: Diagnosis, wanted: _ReportOptions, evidence: Evidence | None
) -> Iterator[str]:
    """The lines of a report: verdict, host, then time breakdown; several nodes one after the other."""
    yield from header_lines(reader, window)
    nodes = reader.nodes()
    if len(nodes) < 2:
        yield from _verdict(diagnosis, wanted, system_lines(reader, window, has_incident=bool(diagnosis.incidents)))
        yield from _breakdown(reader, window, wanted, evidence, has_incident=bool(diagnosis.incidents))
        return
    from ingero.cli.merge.order import incident_order_lines  # noqa: PLC0415  # only of several nodes

    yield f"{len(nodes)} nodes: {', '.join(nodes)}"
    yield from _verdict(diagnosis, wanted, ())
    yield from incident_order_lines(reader, diagnosis.incidents)
    for node in nodes:
        yield f"=== {node} ==="
        has_incident = any(incident.node == node for incident in diagnosis.incidents)
        with reader_of(reader, node, window) as single:
            if single is None:
                yield "Nothing was recorded here in this time."
            else:
                yield from header_lines(*single)
                yield from system_lines(*single, has_incident=has_incident)
                yield ""
                yield from _breakdown(*single, wanted, None, has_incident=has_incident)
        yield ""


def _json(reader: Reader, window: Window, diagnosis: Diagnosis, wanted: _ReportOptions) -> Object:
    from ingero.cli.merge.order import incident_order_json  # noqa: PLC0415  # as above

    found = diagnosis_json(diagnosis)
    if len(reader.nodes()) > 1:
        found["order"] = incident_order_json(reader, diagnosis.incidents)
    return found | (_per_process(reader, window, wanted.pid) if wanted.per_process else {})


def _verdict(diagnosis: Diagnosis, wanted: _ReportOptions, machine: Iterable[str]) -> Iterator[str]:
    yield from verdict_lines(diagnosis)
    if diagnosis.profiles:
        yield from profile_lines(diagnosis.profiles, pid=wanted.pid)
    context = [*machine, *not_looked_at_lines(diagnosis)]
    yield from context
    if context:
        yield ""


def _breakdown(
    reader: Reader, window: Window, wanted: _ReportOptions, evidence: Evidence | None, *, has_incident: bool
) -> Iterator[str]:
    """The time breakdown of one node. evidence: of that node, where it has been read already."""
    if reader.older_version:
        yield (
            f"Recorded by Ingero {reader.older_version}, which kept no sync intervals and no clocks. "
            "What it found itself:"
        )
        yield from stored_lines(stored(reader, window), most=_MAX_CHAINS)
        return
    if wanted.per_process:
        yield from per_process_lines(reader, window, pid=wanted.pid)
    is_whole = wanted.per_process or wanted.stacks
    extent = Extent.WHOLE if is_whole else Extent.SHORT if has_incident else Extent.MOST
    yield from breakdown_text(
        reader, window, pid=wanted.pid, whole_stacks=wanted.stacks, extent=extent, evidence=evidence
    )


def _per_process(reader: Reader, window: Window, pid: int | None) -> Object:
    """The JSON fields of --per-process; with several nodes, each row has its node."""
    nodes = reader.nodes()
    if len(nodes) < 2:
        return {
            "per_process": per_process_json(reader, window, pid=pid),
            "cpu_users": cpu_users_json(reader, window, pid=pid),
        }
    found: dict[str, list[Object]] = {"per_process": [], "cpu_users": []}
    for node in nodes:
        with reader_of(reader, node, window) as single:
            if single:
                found["per_process"] += [{**row, "node": node} for row in per_process_json(*single, pid=pid)]
                found["cpu_users"] += [{**row, "node": node} for row in cpu_users_json(*single, pid=pid)]
    return {**found}


def _check_rule(cause: str | None) -> None:
    if cause is not None and cause not in _causes():
        near = difflib.get_close_matches(cause, _causes(), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UnknownRuleError(f"there is no cause {cause!r}", hint=f"{meant}--rule takes {', '.join(_causes())}")


def _causes() -> list[str]:
    return sorted({rule.cause for rule in all_rules()} | {UNEXPLAINED})
