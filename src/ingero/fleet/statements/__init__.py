"""Plans one statement over many nodes: what each of them runs, and how their answers are combined.

`plan` turns a statement into questions; `Plan.combine` gets the nodes' answers. Nothing here uses a network. Nodes
count and sum their own rows and SQLite does the rest here; rows of statements that cannot be split so are fetched.

    planned = plan(sql)
    while planned.first:
        planned = planned.after([one.combine(ask(one.questions)) for one in planned.first])
    result = planned.combine(ask(planned.questions))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingero.fleet.statements import combining
from ingero.fleet.statements.answers import MAX_ROWS, Answers, NodeRows, Question, Result
from ingero.fleet.statements.clauses import parse_select
from ingero.fleet.statements.errors import NotSplitError, TooManyRowsError
from ingero.fleet.statements.fetch import Fetch, fetch, questions
from ingero.fleet.statements.names import judge
from ingero.fleet.statements.split import Split, split_select
from ingero.fleet.statements.steps import Later, folded, later
from ingero.fleet.statements.tokens import Tokens, tokens_of
from ingero.store.user_sql.errors import TimeLimitError
from ingero.store.user_sql.guard import Guard

__all__ = [
    "MAX_ROWS",
    "Answers",
    "NodeRows",
    "Plan",
    "Question",
    "Result",
    "TimeLimitError",
    "TooManyRowsError",
    "plan",
]

NODE_ROWS = 99_999  # of one node for one question: one less than a node sends at most, to see whether there are more
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a statement over many nodes: `first` until there is none, then `questions`.

    columns: of the answer, without a leading column `node`. reason: why rows are fetched, "" if they are not. first:
    plans to run before; with their results `after` gives the plan to continue with. functions: those that it calls.
    """

    columns: tuple[str, ...]
    questions: tuple[Question, ...]
    reason: str
    limit: int | None
    node_rows: int
    functions: frozenset[str]
    how: Split | Fetch | Later
    first: tuple[Plan, ...] = ()

    @property
    def node_sql(self) -> str:
        """The statement that each node runs, if it is one."""
        (question,) = self.questions
        return question.sql

    @property
    def adds_node(self) -> bool:
        """Whether the answer gets a column `node` that the statement does not name."""
        return isinstance(self.how, Split) and self.how.shows_source

    def after(self, results: Sequence[Result], *, clock: Callable[[], int] = time.monotonic_ns) -> Plan:
        """The plan once the plans of `first` have their results, in that order.

        Raises:
            SqlError: there are too many values in one of them.
        """
        if not isinstance(self.how, Later):
            raise ValueError("this plan waits for nothing")
        guard = Guard(timeout_s=_TIMEOUT_S, clock=clock)
        return _planned(self.how.filled(results), self.columns, self.functions, self.limit, self.node_rows, guard)

    def combine(
        self, answers: Answers, *, timeout_s: float = _TIMEOUT_S, clock: Callable[[], int] = time.monotonic_ns
    ) -> Result:
        """The answer of all nodes. answers: by node, its rows for each of `questions`, in that order.

        A node that sends an invalid answer is left out, with the reason. A node whose rows were cut on the way may only
        take part where `is_list`: a total of a part is no total.

        Raises:
            SqlError: it needs too many rows, too much time or room, or SQLite cannot compute it.
        """
        if isinstance(self.how, Later):
            raise ValueError("this plan waits for others")
        guard = Guard(timeout_s=timeout_s, clock=clock)
        guard.functions |= self.functions  # some cannot be stopped on the large values that a node may send
        come = combining.received(self.questions, answers, self.reason, is_list=self.is_list)
        if isinstance(self.how, Split):
            rows, notes = combining.of_split(self.how, come.rows[0], guard), self.how.notes
        else:
            rows, notes = combining.of_fetch(self.how, come.rows, guard)
        columns = self.columns
        if self.adds_node:
            columns = ("node", *columns)
        is_cut = self.limit is not None and len(rows) > self.limit
        return Result(
            columns=columns,
            rows=rows[: self.limit] if is_cut else rows,
            nodes=come.nodes,
            refused=come.refused,
            truncated=come.truncated,
            is_truncated=is_cut or bool(come.truncated),
            notes=notes,
        )

    @property
    def is_list(self) -> bool:
        """Whether the answer is a list of the nodes' rows, of which some are better than none."""
        return isinstance(self.how, Split) and self.how.is_list


def plan(
    sql: str, *, limit: int | None = None, node_rows: int = NODE_ROWS, clock: Callable[[], int] = time.monotonic_ns
) -> Plan:
    """Plan a statement over many nodes.

    limit: how many rows of the answer are wanted. node_rows: of one node, for one question, at most.

    Raises:
        SqlError: a node would refuse it, or it means nothing over several nodes.
    """
    guard = Guard(timeout_s=_TIMEOUT_S, clock=clock)
    statement = judge().check(sql, guard)
    columns = tuple(name for name, _, _ in judge().columns(statement.sql))
    return _planned(tokens_of(statement.sql), columns, statement.functions, limit, node_rows, guard)


def _planned(
    tokens: Tokens,
    columns: tuple[str, ...],
    functions: frozenset[str],
    limit: int | None,
    node_rows: int,
    guard: Guard,
) -> Plan:
    how: Split | Fetch | Later
    asked: tuple[Question, ...] = ()
    first: tuple[Plan, ...] = ()
    reason = ""
    try:
        how = split_select(parse_select(folded(tokens, guard)), max_rows=node_rows, limit=limit)
        combining.require_sound(how, guard)
        asked = (how.question,)
    except NotSplitError as error:
        waiting = later(folded(tokens, guard), guard)
        if waiting:
            how, first = waiting, tuple(plan(sql, node_rows=node_rows) for sql in waiting.first)
        else:
            how, reason = fetch(tokens, guard, max_rows=node_rows), str(error)
            asked = tuple(questions(how))
        for question in asked:
            judge().check(question.sql, guard)
    return Plan(
        columns=columns,
        questions=asked,
        reason=reason,
        limit=limit,
        node_rows=node_rows,
        functions=functions,
        how=how,
        first=first,
    )
