"""A row of sums stands for the time that it was counted in, however soon or late the agent looked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingero.capture.loop.period import Period, period_until
from ingero.demo.scene import BEGIN_NS, ScriptedRun
from ingero.diagnose.causes.cpu.cpu_usage import _mean_threads
from ingero.diagnose.evidence.evidence import Evidence
from ingero.events import STATES
from ingero.store.reader import open_reader
from ingero.store.records import Window
from ingero.store.writing import tables
from ingero.units import SECOND_NS

HALF_NS = SECOND_NS // 2
ALL = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 2 * SECOND_NS)
PERIODS = (
    Period(BEGIN_NS, SECOND_NS),
    Period(BEGIN_NS + SECOND_NS, HALF_NS),
    Period(BEGIN_NS + SECOND_NS + HALF_NS, HALF_NS),
)


@pytest.mark.parametrize(
    ("elapsed_ns", "period_s"),
    [(SECOND_NS, 1), (SECOND_NS + 2_000_000, 1), (SECOND_NS - 1, 0.999999999), (HALF_NS, 0.5), (3 * SECOND_NS, 3)],
)
def test_a_row_ends_no_later_than_it_was_read(elapsed_ns: int, period_s: float) -> None:
    period = period_until(BEGIN_NS, elapsed_ns)
    columns = cast(dict[str, Any], period.columns())
    assert columns == {"start_ns": BEGIN_NS - elapsed_ns, "period_s": period_s}
    assert period.end_ns == BEGIN_NS
    assert columns["start_ns"] + round(columns["period_s"] * SECOND_NS) <= BEGIN_NS


def test_sums_of_seconds_that_were_ended_early_lie_where_they_were_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with ScriptedRun(path, seconds=2) as run:
        trainer = run.process(100, "python")
        for number, period in enumerate(PERIODS):
            clocks = {f"{name}_ns": 0 for name in STATES} | {"run_ns": int(0.4 * period.elapsed_ns)}
            run.append(tables.THREAD_STATE_SECONDS, **period.columns(), process=trainer.number, **clocks)
            sums = {"count": 10**number, "sum_ns": 10**number}
            run.append(tables.OP_STATS, **period.columns(), process=trainer.number, source=1, op=3, **sums)
        run.flush()
        with open_reader(path) as reader:
            for period, count in zip(PERIODS, (1, 10, 100), strict=True):
                within = Window(begin_ns=period.start_ns, end_ns=period.end_ns)
                (share,) = reader.op_shares([within], process=trainer.number)
                assert share.count == count
            assert reader.counted_until_ns() == ALL.end_ns
            assert reader.time_range() == ALL
            case = SimpleNamespace(evidence=Evidence(reader, ALL), job={100})
            for windows in ((ALL,), (Window(begin_ns=PERIODS[1].start_ns, end_ns=ALL.end_ns),)):
                assert _mean_threads(cast(Any, case), windows, (STATES.index("run"),)) == pytest.approx(0.4)
