"""What a rule is: one cause, what it needs to see, and the function that finds it. One file in `causes/` each."""

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
    """Every rule of the subjects' folders, in the order in which they claim.

    Raises:
        TypeError: a file names a cause and has no rule for it, or its rule is of a cause that it is not named after.
    """
    subjects = [name for name, is_subject in _inside(causes) if is_subject]
    names = [name for subject in subjects for name, _ in _inside(importlib.import_module(subject))]
    rules = [rule for name in names if (rule := rule_of(importlib.import_module(name)))]
    return tuple(sorted(rules, key=lambda rule: (rule.order, rule.cause)))


def _inside(package: ModuleType) -> list[tuple[str, bool]]:
    """The modules of a package, and whether each is one itself."""
    return [(f"{package.__name__}.{module.name}", module.ispkg) for module in pkgutil.iter_modules(package.__path__)]


def rule_of(module: ModuleType) -> Rule | None:
    """The rule of a file; None: it only helps the rules beside it. Raises TypeError as `all_rules`."""
    rule = getattr(module, "RULE", None)
    if rule is None and hasattr(module, "CAUSE"):
        raise TypeError(f"{module.__file__}: CAUSE is {module.CAUSE!r}, and there is no RULE")
    name = module.__name__.rpartition(".")[2]
    if rule is not None and not f"_{name}".endswith(f"_{rule.cause.replace('-', '_')}"):
        raise TypeError(f"{module.__file__}: its rule is of the cause {rule.cause!r}; the file is not named after it")
    return rule
