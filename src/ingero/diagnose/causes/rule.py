"""The Rule record, one per cause, and the loader that finds the rules in the folders of `causes/`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from ingero.diagnose import causes
from ingero.diagnose.cases.case import Case
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Finding

FindsInCase = Callable[[Case], Iterable[Finding]]
FindsInRecording = Callable[[Evidence], Iterable[Finding]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One cause: how to find it, and its page in docs/detections.md.

    cause: its slug in reports and databases. title: in words. order: rules with stronger proof claim lost time first
    (10 the kernel's word, 30 a named owner, 50 calls, 70 the GPU, 90 what is left over).
    needs: names of `evidence` tables or sources without which the rule is not evaluated. improves_with: without these,
    part of the cause is not seen.
    explain: called for each case; yields findings whose claims come from `case.claimable`.
    covers_agent_start: whether it also explains time lost while ingero started; other rules would report ingero itself.
    find_events: called once per diagnosis; for causes that matter even without lost time on a stream.
    shows: the evidence it gives. limits: what it cannot tell.
    """

    cause: str
    title: str
    order: int
    needs: tuple[str, ...]
    shows: str
    limits: str
    improves_with: tuple[str, ...] = ()
    explain: FindsInCase | None = None
    covers_agent_start: bool = False
    find_events: FindsInRecording | None = None


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule in the subjects' folders, in the order in which they claim lost time.

    Raises:
        TypeError: a module has a CAUSE but no RULE, or is not named after its rule's cause.
    """
    subjects = [name for name, is_subject in _submodules(causes) if is_subject]
    names = [name for subject in subjects for name, _ in _submodules(importlib.import_module(subject))]
    rules = [rule for name in names if (rule := rule_of(importlib.import_module(name)))]
    return tuple(sorted(rules, key=lambda rule: (rule.order, rule.cause)))


def _submodules(package: ModuleType) -> list[tuple[str, bool]]:
    """The modules of a package, and whether each is itself a package."""
    return [(f"{package.__name__}.{module.name}", module.ispkg) for module in pkgutil.iter_modules(package.__path__)]


def rule_of(module: ModuleType) -> Rule | None:
    """A module's rule, or None if it only has helpers. Raises TypeError as `all_rules` does."""
    rule = getattr(module, "RULE", None)
    if rule is None and hasattr(module, "CAUSE"):
        raise TypeError(f"{module.__file__}: CAUSE is {module.CAUSE!r}, and there is no RULE")
    name = module.__name__.rpartition(".")[2]
    if rule is not None and not f"_{name}".endswith(f"_{rule.cause.replace('-', '_')}"):
        raise TypeError(f"{module.__file__}: its rule is of the cause {rule.cause!r}; the file is not named after it")
    return rule
