"""The results file: one JSON line a run, appended when it is done, so that a long bench can be cut and continued."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.incidents.findings import Answer, Found
from bench.incidents.step_score import StepScore


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one run; its label is beside its recording."""

    key: str
    is_disturbed: bool
    others: float
    answer: Answer
    steps: StepScore | None = None


class Results:
    """The file; of several lines about one run the last that was not disturbed counts, else the last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_key: dict[str, Result] = {}
        for one in _read(path):
            self._note(one)

    def add(self, result: Result) -> None:
        """Append it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        self._note(result)

    def _note(self, result: Result) -> None:
        known = self.by_key.get(result.key)
        if known is None or known.is_disturbed or not result.is_disturbed:
            self.by_key[result.key] = result


def _read(path: Path) -> Iterator[Result]:
    """The whole lines; one that was cut off is left out."""
    if not path.exists():
        return
    for line in path.read_text().rpartition("\n")[0].splitlines():
        content = json.loads(line)
        answer, steps = content.pop("answer"), content.pop("steps", None)
        found = [
            Found(**{**one, "culprits": [(pid, name) for pid, name in one["culprits"]]}) for one in answer.pop("found")
        ]
        scored = StepScore(**steps) if steps else None
        yield Result(**content, answer=Answer(found=found, **answer), steps=scored)
