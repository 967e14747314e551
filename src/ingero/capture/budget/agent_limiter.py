"""How many records are taken and how often the rings are drained, when the agent itself needs too much CPU time.

Pure: no clock, no kernel. Sums and histograms are exact at every level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ingero import given_up
from ingero.units import format_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLevel:
    """The recording at one level. records_ratio: of the usual number of recorded calls. drain_ns: between two drains.

    takes_stacks: of recorded calls; resolving new ones is work for the agent. code: of `given_up`; "": all is recorded.
    """

    records_ratio: float
    drain_ns: int
    takes_stacks: bool = True
    code: str = ""


AGENT_LEVELS: tuple[AgentLevel, ...] = (
    AgentLevel(records_ratio=1.0, drain_ns=250_000_000),
    AgentLevel(records_ratio=0.5, drain_ns=500_000_000, code=given_up.HALF_OF_RECORDS.code),
    AgentLevel(records_ratio=0.2, drain_ns=1_000_000_000, takes_stacks=False, code=given_up.FIFTH_OF_RECORDS.code),
    AgentLevel(records_ratio=0.05, drain_ns=1_000_000_000, takes_stacks=False, code=given_up.TWENTIETH_OF_RECORDS.code),
)

OVER_SECONDS, RECENT_SECONDS = 3, 5  # of the last seconds, that many were over the budget with nothing saved
# The budget of so many seconds may be spent at once. A program that is seen for the first time costs the agent one to
# three seconds of CPU once, for its unwinding tables, symbols and places of calls (a PyTorch loop on an H100); what is
# given up for that is missing in the minute in which somebody looks.
SAVED_SECONDS = 60.0
RETURN_BELOW = 0.5  # of the budget: one level less may take twice as much
CALM_S, MAX_CALM_S = 10.0, 160.0
RELAPSE_S = 2 * SAVED_SECONDS  # over the budget so soon after a return: the next one waits twice as long


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimiter:
    """The level in force and its history. Times in s of any clock that only goes forward.

    saved_s: seconds of the whole budget that were not used.
    """

    level: int = 0
    saved_s: float = SAVED_SECONDS
    decided_s: float | None = None
    recent: tuple[bool, ...] = ()
    calm_since_s: float | None = None
    returned_s: float | None = None
    calm_s: float = CALM_S
    reason: str = ""


def decide(before: AgentLimiter, cpu_ratio: float, now_s: float, budget_ratio: float) -> AgentLimiter:
    """The state after a second in which the agent used `cpu_ratio` of a core."""
    elapsed_s = 1.0 if before.decided_s is None else now_s - before.decided_s
    saved_s = min(max(before.saved_s + elapsed_s * (1 - cpu_ratio / budget_ratio), 0.0), SAVED_SECONDS)
    is_over = cpu_ratio > budget_ratio and not saved_s
    after = replace(before, saved_s=saved_s, decided_s=now_s, recent=(*before.recent, is_over)[-RECENT_SECONDS:])
    if sum(after.recent) >= OVER_SECONDS:
        return _spend_less(after, cpu_ratio, now_s, budget_ratio)
    if not before.level or cpu_ratio > RETURN_BELOW * budget_ratio:
        return replace(after, calm_since_s=None)
    calm_since_s = now_s if after.calm_since_s is None else after.calm_since_s
    if now_s - calm_since_s < after.calm_s:
        return replace(after, calm_since_s=calm_since_s)
    reason = f"the agent needs only {format_percent(cpu_ratio)} of a core"
    return replace(after, level=before.level - 1, recent=(), calm_since_s=None, returned_s=now_s, reason=reason)


def _spend_less(before: AgentLimiter, cpu_ratio: float, now_s: float, budget_ratio: float) -> AgentLimiter:
    if before.level == len(AGENT_LEVELS) - 1:
        return replace(before, calm_since_s=None)
    has_relapsed = before.returned_s is not None and now_s - before.returned_s < RELAPSE_S
    return replace(
        before,
        level=before.level + 1,
        recent=(),
        calm_since_s=None,
        returned_s=None,
        calm_s=min(MAX_CALM_S, 2 * before.calm_s) if has_relapsed else CALM_S,
        reason=f"the agent needs {format_percent(cpu_ratio)} of a core, allowed are {format_percent(budget_ratio)}",
    )
