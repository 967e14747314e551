"""Is what people met around a GPU job explained as it is, and is a healthy program left alone?

Each situation is made on the simulated GPU and recorded at default limits: some seconds without it, then some with it.
Of a fault one incident must name cause, process and line, and none may say what would send people the wrong way; of a
healthy program nothing must be said but what is true and harmless. A run proves nothing (NOT THERE) if a fault did not
make its programs slower, or something else a healthy one. Each module says what was met where, and what is right.

Run as root: python -m bench.situations [NAME ...] [--runs N] [--keep FOLDER] [--short] [--list]
"""

from __future__ import annotations

import argparse
import enum
import importlib
import pkgutil
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import ModuleType

from bench.agent import require_quiet_kernel
from bench.incidents.ambient import favored
from bench.situations.expected import Expected, Healthy, in_words
from bench.situations.situation import SHORT, Situation, Times
from ingero import open_recording
from ingero.demo.faults import cgroups
from ingero.demo.workloads import lifecycle
from ingero.errors import IngeroError
from ingero.serve.text.incident_form import sections

_KEEP = Path(__file__).parents[2] / "build/situations"
_SHARED = frozenset({"__main__", "bucket", "engine", "expected", "message_queue", "program", "situation"})
_JUDGED = ("where", "fix", "culprits")  # what people act on, beside the summary
_RECORDING = "recording"
_SHOWN = 240  # characters of what was said


class Verdict(enum.Enum):
    """What came of a run: explained as it is, or left alone if healthy; or not so; or it proves nothing."""

    RIGHT = "PASS"
    WRONG = "FAIL"
    NOT_THERE = "NOT THERE"


def names() -> list[str]:
    """The situations: each is a module of this package."""
    return [one.name for one in pkgutil.iter_modules([str(Path(__file__).parent)]) if one.name not in _SHARED]


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes them one after the other and prints what came of each run; 1 if one was wrong."""
    options = _parse(arguments)
    if options.list:
        for name in options.names:
            module = _module(name)
            kind = "healthy" if isinstance(module.EXPECTED, Healthy) else "fault"
            print(f"{name:22} {kind:8} {(module.__doc__ or '').splitlines()[0]}")
        return 0
    require_quiet_kernel()
    options.keep.mkdir(parents=True, exist_ok=True)
    verdicts: Counter[Verdict] = Counter()
    with lifecycle.until_stopped(), nullcontext() if cgroups.missing("cpu") else favored():
        for name in options.names:
            verdicts.update(_once(name, number, options) for number in range(options.runs))
    print(f"\nright: {verdicts[Verdict.RIGHT]} of {verdicts[Verdict.RIGHT] + verdicts[Verdict.WRONG]}", end="")
    print(f"; not there: {verdicts[Verdict.NOT_THERE]}; recordings: {options.keep}")
    return 1 if verdicts[Verdict.WRONG] else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="situations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a situation (default: all)")
    parser.add_argument("--runs", type=int, default=1, help="of each")
    parser.add_argument("--keep", type=Path, default=_KEEP, help="folder for the recordings")
    parser.add_argument(
        "--short", action="store_true", help=f"{SHORT.without_s:g} s without it, {SHORT.with_s:g} s with it"
    )
    parser.add_argument("--list", action="store_true", help="say what there is")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(names())):
        parser.error(f"there is no situation {', '.join(unknown)}; there are {', '.join(names())}")
    options.names = options.names or names()
    return options


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{name}")


def _once(name: str, number: int, options: argparse.Namespace) -> Verdict:
    module = _module(name)
    with tempfile.TemporaryDirectory(prefix="situation-") as folder:
        try:
            with ExitStack() as stack:
                times = SHORT if options.short else Times()
                made = Situation(name=name, folder=Path(folder), stack=stack, times=times)
                module.make(made)
            said = _said(Path(folder) / f"{_RECORDING}.db")
        except IngeroError as error:
            print(f"{Verdict.WRONG.value}  {name}: it could not be made: {error}", flush=True)
            return Verdict.WRONG
        finally:
            _keep(Path(folder), options.keep / f"{name}.{number}")
    return _judged(made, module.EXPECTED, said)


def _said(database: Path) -> list[str]:
    """Of each incident its cause, its summary and what people act on, as `explain` prints them."""
    with open_recording(database) as recording:
        incidents = recording.diagnose().incidents
    return [
        " | ".join(
            (
                f"{one.cause}: {one.summary}",
                *(f"{part.title} {' '.join(part.lines)}" for part in sections(one) if part.key in _JUDGED),
            )
        )
        for one in incidents
    ]


def _judged(made: Situation, expected: Expected, said: Sequence[str]) -> Verdict:
    """Prints the verdict, with the reasons where it is not right."""
    before, after = made.rates
    problems = expected.problems(said, made.pids)
    is_there = expected.is_there(before, after)
    verdict = Verdict.NOT_THERE if not is_there else Verdict.WRONG if problems else Verdict.RIGHT
    causes = ", ".join(text.partition(":")[0] for text in said) or "no incident"
    print(f"{verdict.value}  {made.name}: {before:.1f} steps/s, {after:.1f} with it; {causes}")
    if verdict is Verdict.WRONG:
        shown = [f"said: {text[:_SHOWN]}" for text in said]
        for line in (*problems, *shown, f"expected: {in_words(expected.answer, made.pids)}"):
            print(f"      {line}")
    sys.stdout.flush()
    return verdict


def _keep(folder: Path, kept: Path) -> None:
    """Copies the recording, and what is not yet in its file."""
    for file in folder.glob(f"{_RECORDING}.db*"):
        shutil.copy(file, kept.with_name(kept.name + file.name.removeprefix(_RECORDING)))


if __name__ == "__main__":
    sys.exit(main())
