"""Acceptance figures of many nodes: `python -m bench.fleet_rows [ROW ...]`, each beside its bar.

Real servers and certificates on the loopback. F1 needs root and probes. F4 compares with ClusterShell's NodeSet where
that is installed (pip install ClusterShell), and asks a Slurm of its own where one is (apt-get install slurm-wlm).
Elsewhere: F12 in bench.fleet_statements, F15 in bench.fleet and bench.fleet_relays, F17's speed in bench.merge, F21 in
bench.fleet_clocks, F24 in tests/integration/test_time_namespace.py, F50 in tests/unit/fleet/test_page.py. Times of the
wall say something on an idle host only.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench.fleet_rows import access, answers, clocks, files, names
from bench.fleet_rows.figures import Figure, Measure

ROWS: dict[str, Measure] = {
    "F1": names.two_hosts_of_one_name,
    "F4": names.lists,
    "F6": access.who_is_let_in,
    "F7": access.certificates_change,
    "F8": access.tokens,
    "F9": access.statements_that_write,
    "F10": answers.hostile_nodes,
    "F11": answers.dead_nodes,
    "F13": answers.values,
    "F14": answers.what_is_cut,
    "F17": files.merged,
    "F18": files.older_and_ours,
    "F19": files.timeline,
    "F22": clocks.order,
    "F23": clocks.drift_and_steps,
    "F49": answers.assistants,
    "F53": files.bundle,
}


def main(wanted: Sequence[str]) -> int:
    """Prints the figures; the exit code is 1 where a bar is not kept."""
    unknown = sorted(set(wanted) - set(ROWS))
    if unknown:
        print(f"no such row: {', '.join(unknown)}; there are {' '.join(ROWS)}", file=sys.stderr)
        return 2
    is_kept = True
    with tempfile.TemporaryDirectory(prefix="ingero-rows-") as name:
        (Path(name) / "ingero.yaml").write_text("")
        os.environ |= {"INGERO_CONFIG": f"{name}/ingero.yaml"}  # nobody's own nodes have a part in this
        os.environ.pop("INGERO_DB", None)
        for row, measure in ROWS.items():
            if row in wanted or not wanted:
                folder = Path(name) / row
                folder.mkdir()
                is_kept &= _printed(row, measure, folder)
    return 0 if is_kept else 1


def _printed(row: str, measure: Measure, folder: Path) -> bool:
    is_kept = True
    try:
        for figure in measure(folder):
            is_kept &= figure.is_kept
            _print(row, figure)
    except Exception:  # of this row; the others are still wanted
        traceback.print_exc()
        _print(row, Figure("it could not be measured", is_kept=False))
        return False
    return is_kept


def _print(row: str, figure: Figure) -> None:
    print(f"{row:4} {figure.text}  ({'kept' if figure.is_kept else 'NOT KEPT'})", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
