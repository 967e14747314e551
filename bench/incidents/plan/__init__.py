"""The plan: every labeled run with its right answer, written down before any of them is made."""

from bench.incidents.plan.scenarios import all_scenarios, control_of

__all__ = ["all_scenarios", "control_of"]
