"""Lost time in which the victim could have run: who ran instead, and what kind of neighbour that was."""

from __future__ import annotations

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Bucket, Culprit, Part
from ingero.store.vocabulary import IDLE_PID

HOST_PARTS = (Part.EMPTY, Part.ENQUEUE, Part.LATE)
RUNNABLE = ("runq", "yielded")
MIN_SHARE = 0.05  # of the time taken; smaller takers are noise around the one that matters


def takers(case: Case) -> list[Culprit]:
    """Who ran while the process waited to run; nobody who could not be named, and no idle CPU."""
    return [one for one in case.culprits() if one.pid > IDLE_PID and one.name]


def own(case: Case, culprit: Culprit) -> bool:
    """Whether the taker belongs to the victim: its own threads or its workers."""
    return culprit.pid in case.family


def neighbours(case: Case) -> list[Culprit]:
    """Takers in another container than the victim, where the victim is in one or they are."""
    home = case.evidence.container_of(case.process.cgroup_id)
    return [one for one in takers(case) if not own(case, one) and one.container != home]


def claim(case: Case, chosen: list[Culprit]) -> dict[Bucket, int]:
    """The share of the runnable time that these took, of what is left of it."""
    everyone = sum(one.lost_ns for one in case.culprits())
    mine = sum(one.lost_ns for one in chosen)
    left = case.take(HOST_PARTS, RUNNABLE)
    total = sum(left.values())
    return case.take(HOST_PARTS, RUNNABLE, total * mine / everyone) if everyone else {}


def named(culprits: list[Culprit], limit: int = 4) -> str:
    """The takers in a sentence, processes of one name together."""
    names: dict[str, list[Culprit]] = {}
    for one in culprits:
        names.setdefault(one.name, []).append(one)
    parts = []
    for name, group in list(names.items())[:limit]:
        pids = ", ".join(str(one.pid) for one in group[:limit])
        parts.append(f"{name} ({pids})")
    return " and ".join(parts)


def weighty(culprits: list[Culprit]) -> list[Culprit]:
    """Those that took a share worth naming."""
    total = sum(one.lost_ns for one in culprits)
    return [one for one in culprits if one.lost_ns >= MIN_SHARE * total]
