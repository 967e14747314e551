"""Are programs that hang outside GPU calls named while they hang, with state, object and line, and are pauses none?

Eleven programs that hang in ways of their own, and seven that pause (a long evaluation, a checkpoint, a slow worker, an
idle server, one that a debugger holds, one between phases, one that ends), run side by side under one recording. Each
round says of every hang how long it took to be named and what was lacking, and of every pause whether it was taken for
a hang.

Run as root: python -m bench.hangs [--rounds N] [--unlimited]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench.agent import require_quiet_kernel
from ingero.demo.workloads import lifecycle
from tests.integration.test_hangs import HANGS, NAMED_WITHIN_S, PAUSES, Hung, hang_side_by_side

DEFAULT_LIMITS = ("--max-overhead=2%", "--max-cpu=5%")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the rounds and prints what came of them; 1 if a hang was not named rightly, or a pause was named."""
    parser = argparse.ArgumentParser(prog="hangs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unlimited", action="store_true", help="nothing limits the agent (default: its own limits)")
    options = parser.parse_args(arguments)
    require_quiet_kernel()
    right: Counter[str] = Counter()
    took_s: list[float] = []
    false = 0
    with lifecycle.until_stopped():
        for number in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="hangs-") as folder:
                found = hang_side_by_side(Path(folder), () if options.unlimited else DEFAULT_LIMITS)
                right += Counter(_right(found))
                took_s += [found.took_s(name) for name in found.named if name in HANGS]
                paused = sorted(set(found.reported("host-hang")) & set(PAUSES))
            false += len(paused)
            print(
                f"round {number + 1}: {found.others:.0%} of the CPUs used by others; pauses taken for hangs: {paused}"
            )
    for name in HANGS:
        print(f"  {name:16} {right[name]} of {options.rounds}")
    of = options.rounds * len(HANGS)
    print(f"named with state, object and line within {NAMED_WITHIN_S:g} s: {right.total()} of {of}")
    if took_s:
        print(f"seconds until it was named: median {statistics.median(took_s):.1f}, longest {max(took_s):.1f}")
    print(f"pauses taken for hangs: {false} of {options.rounds * len(PAUSES)}")
    return 0 if right.total() == of and not false else 1


def _right(found: Hung) -> list[str]:
    """The hangs that were named as they should be; of the others, says what lacks."""
    names = []
    for name in HANGS:
        if name not in found.named:
            print(f"  {name}: not named")
            continue
        lacks = found.lacks(name)
        late = [f"it took {found.took_s(name):.1f} s"] if found.took_s(name) > NAMED_WITHIN_S else []
        if lacks or late:
            print(f"  {name}: {'; '.join(lacks + late)}")
        else:
            names.append(name)
    return names


if __name__ == "__main__":
    sys.exit(main())
