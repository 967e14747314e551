"""A file below `causes/` is a rule, or helps one; what is neither by mistake is an error that names it."""

from __future__ import annotations

from types import ModuleType

import pytest

from ingero.diagnose.causes.cpu import cpu_steal, cpu_takers
from ingero.diagnose.causes.measured import measured_host_bound
from ingero.diagnose.causes.rule import all_rules, rule_of


def module(name: str, **content: object) -> ModuleType:
    made = ModuleType(f"ingero.diagnose.causes.cpu.{name}")
    made.__file__ = f"causes/cpu/{name}.py"
    vars(made).update(content)
    return made


def test_each_rule_is_found_once() -> None:
    rules = all_rules()
    assert cpu_steal.RULE in rules
    assert len({id(rule) for rule in rules}) == len(rules)


def test_a_file_beside_the_rules_is_none() -> None:
    assert rule_of(cpu_takers) is None


def test_several_rules_may_be_of_one_cause() -> None:
    assert rule_of(measured_host_bound) is measured_host_bound.RULE


def test_a_misspelled_rule_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"causes/cpu/stolen\.py: CAUSE is 'stolen', and there is no RULE"):
        rule_of(module("stolen", CAUSE="stolen", RUL=cpu_steal.RULE))


def test_a_rule_in_the_file_of_another_cause_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"causes/cpu/stolen\.py: its rule is of the cause 'cpu-steal'"):
        rule_of(module("stolen", RULE=cpu_steal.RULE))
