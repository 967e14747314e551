"""Judgements that outlive their recordings: one JSON line a run, of the revision that made it.

The whole bench takes hours of a machine that nobody else uses. The log lets it go on where another machine stopped, so
what it scores may be several revisions; each line says which it was.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.agent import BenchError
from bench.incidents.judge import Judgement, Part, Verdict
from bench.incidents.price import Price
from bench.incidents.scenario import Planned, Scenario
from bench.incidents.score import Scored
from bench.incidents.step_score import StepScore


class Log:
    """The judgements of undisturbed runs at one price in a file, by the runs' keys."""

    def __init__(self, path: Path, price: Price = Price.MEASURED) -> None:
        self._path = path
        self._revision = _revision()
        self._judged: dict[str, Judgement] = {}
        self._steps: dict[str, StepScore] = {}
        self._made_by: dict[str, str] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                one = json.loads(line)
                if one.get("price", "") != price.value:
                    continue
                self._judged[one["key"]] = _judgement(one["judgement"])
                self._made_by[one["key"]] = one["revision"]
                if one.get("steps"):
                    self._steps[one["key"]] = StepScore(**one["steps"])

    def __contains__(self, planned: Planned) -> bool:
        return planned.key in self._judged

    def add(self, planned: Planned, judgement: Judgement, said: str, steps: StepScore | None = None) -> None:
        """Appends one. said: the causes that were named, for people."""
        self._judged[planned.key], self._made_by[planned.key] = judgement, self._revision
        content = {
            "key": planned.key,
            "price": planned.price.value,
            "revision": self._revision,
            "said": said,
            "judgement": asdict(judgement),
        }
        if steps is not None:
            self._steps[planned.key] = steps
            content["steps"] = asdict(steps)
        with self._path.open("a") as file:
            file.write(json.dumps(content, default=_plain) + "\n")

    def scored(self, scenarios: Mapping[str, Scenario], *, since: str = "") -> Iterator[Scored]:
        """What is to be scored, of scenarios by name; one that is planned no more is left out.

        since: only what this commit and later ones have made.

        Raises:
            BenchError: there is no such commit.
        """
        revisions = _later(since) if since else None
        for key, judgement in self._judged.items():
            scenario = scenarios.get(key.rpartition(".s")[0])
            is_meant = revisions is None or self._made_by[key].removesuffix("-dirty").startswith(revisions)
            if scenario is not None and is_meant:
                steps = self._steps.get(key)
                yield Scored(scenario=scenario, judgement=judgement, is_disturbed=False, steps=steps)


def _plain(value: object) -> object:
    if isinstance(value, Verdict):
        return value.value
    raise TypeError(f"{value!r} has no plain form")


def _judgement(content: dict[str, Any]) -> Judgement:
    parts = tuple(Part(**{**one, "verdict": Verdict(one["verdict"])}) for one in content["parts"])
    noted = {name: content.get(name) for name in ("live_false", "live_wrong", "located")}
    lists = {name: None if values is None else tuple(values) for name, values in noted.items()}
    return Judgement(**{**content, "parts": parts, "wrong": tuple(content["wrong"]), **lists})


def _later(commit: str) -> tuple[str, ...]:
    """A commit and all after it, in short, as `_revision` writes them."""
    command = ["git", "log", "--format=%h", "--abbrev=7", f"{commit}^..HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    if found.returncode:
        raise BenchError(f"no commit {commit} here", hint="git log --oneline")
    return tuple(found.stdout.split())


def _revision() -> str:
    """The revision of the checkout, with a mark where it has uncommitted changes."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return found.stdout.strip() or "unknown"
