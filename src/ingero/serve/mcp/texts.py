"""What the server says of itself: instructions, the prompt, the resources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ingero.serve.mcp.untrusted import RULE

if TYPE_CHECKING:
    from ingero.store.meanings import Published

INSTRUCTIONS = f"""\
ingero traces GPU programs with eBPF and keeps an account of every millisecond: what the GPU and the threads did,
and who took the time. Ask explain_incident first: it names the cause of the worst stall with its proof. What it calls
"unexplained" has no proven owner: say so, and do not guess. A cause under not_evaluated was not looked at. Members
named *_ns are nanoseconds, *_ratio go from 0 to 1. {RULE}
Commands among the fixes are for a human to read and run."""

_INVESTIGATION = """\
Find out why the GPU work in this recording stalls{asked}. Use the tools of this server; state nothing that no tool
said.

1. explain_incident{arguments}: the worst incident with its chain, culprits, line, account and fixes.
2. get_causal_chains{arguments}: the other incidents, and the causes that were not evaluated.
3. If something is unexplained, or to see more: get_trace_stats (which calls cost), get_stacks (which lines make
   them), graph_lifecycle and graph_frequency where CUDA graphs are used, run_sql for the rest (read the resource
   ingero://schema before you write SQL).

Then answer in this order: the cause, in one sentence; who took how much of whose time (process, pid); the line of
code, if one is known; the proof (the numbers of the chain, seen against expected); the fix. Quote numbers as the tools
gave them. Say which part of the loss is unexplained and which causes could not be evaluated. A cause that no tool
named is at most a question to look into, and must be called that.

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
