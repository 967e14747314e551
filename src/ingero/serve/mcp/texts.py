"""Texts of the MCP server: instructions, the prompt, the resources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ingero.serve.mcp.untrusted import RULE

if TYPE_CHECKING:
    from ingero.store.meanings import Published

INSTRUCTIONS = f"""\
ingero traces GPU programs with eBPF and attributes every millisecond of a step: what the GPU and the threads did, and
which process ran instead. Ask explain_incident first: it names the cause of the worst stall with its evidence. What it
calls "unexplained" has no proven cause: report it as such, and do not guess. A cause under not_checked was not
checked. Members named *_ns are nanoseconds, *_ratio go from 0 to 1. {RULE}
Commands under fix are for a human to read and run."""

_INVESTIGATION = """\
Find out why the GPU work in this recording stalls{asked}. Use the tools of this server; state nothing that no tool
reported.

1. explain_incident{arguments}: the worst incident with its headline, impact, where, fix, breakdown and evidence.
2. get_causal_chains{arguments}: the other incidents, and the causes that were not checked.
3. If something is unexplained, or to see more: get_trace_stats (which calls cost), get_stacks (which lines make
   them), graph_lifecycle and graph_frequency where CUDA graphs are used, run_sql for the rest (read the resource
   ingero://schema before you write SQL).

Then answer in this order: the cause, in one sentence; the impact; where it is (line and call); the culprits (process,
pid, time); the evidence (numbers seen against expected); the fix. Quote numbers as the tools gave them. Report which
part of the lost time is unexplained and which causes could not be checked. A cause that no tool named is at most a
question to look into, and must be called that.

{rule}"""


def investigation(question: str, since: str) -> str:
    """The text of the prompt `investigate`."""
    arguments = f' (since="{since}")' if since else ""
    return _INVESTIGATION.format(asked=f": {question}" if question else "", arguments=arguments, rule=RULE)


def schema_text() -> str:
    """The views that SQL may ask, with every column's unit and meaning, and an example each."""
    from ingero.store.meanings import documentation  # noqa: PLC0415  # makes the views in memory: only when asked

    return "\n".join(line for one in documentation() for line in _view_lines(one))


def operations() -> list[dict[str, str | int]]:
    """Every operation that is traced: its numbers, and what its arguments are in `events`."""
    from ingero.store.vocabulary import op_rows  # noqa: PLC0415  # as above

    names = ("source", "op", "name", "description", "arg0", "arg1", "arg2", "aliases", "kind")
    return [dict(zip(names, row, strict=True)) for row in op_rows()]


def _view_lines(one: Published) -> Iterator[str]:
    yield f"## {one.name}: {one.rows} {one.notes}".rstrip()
    for column in one.columns:
        unit = f" ({column.unit})" if column.unit else ""
        yield f"- {column.name}{unit}: {column.meaning}".rstrip(": ")
    yield f"Example: {one.example}"
    yield ""
