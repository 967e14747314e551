"""What a rule is: one cause, what it needs to see, and the function that finds it. One file in `rules/` each."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from ingero.diagnose import rules
from ingero.diagnose.cases import Case
from ingero.diagnose.evidence import Evidence
from ingero.diagnose.model import Finding

OfCase = Callable[[Case], Iterable[Finding]]
OfRecording = Callable[[Evidence], Iterable[Finding]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One cause.

    cause: its name, the one in reports and databases. title: in words. order: rules with stronger proof claim lost time
    first (10 the kernel's word, 30 a named owner, 50 calls, 70 the GPU, 90 what is left over).
    needs: names of `evidence` tables or sources without which it is not evaluated. wants: without these a part of it is
    not seen.
    find: called for each case; it answers findings whose claims come from `case.take`.
    explains_start: whether also for what was lost while the recorder started; by others that would be told of itself.
    watch: called once; for causes that matter without lost time on a stream.
    shows: the evidence it gives; limits: what it cannot tell, both for docs/detections.md.
    """

    cause: str
    title: str
    order: int
    needs: tuple[str, ...]
    shows: str
    limits: str
    wants: tuple[str, ...] = ()
    find: OfCase | None = None
    explains_start: bool = False
    watch: OfRecording | None = None


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of the folder, in the order in which they claim."""
    modules = [importlib.import_module(f"{rules.__name__}.{one.name}") for one in pkgutil.iter_modules(rules.__path__)]
    found = [module.RULE for module in modules if hasattr(module, "RULE")]
    return tuple(sorted(found, key=lambda rule: (rule.order, rule.cause)))
