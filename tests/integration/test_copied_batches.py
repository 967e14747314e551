"""A loop whose only wait of a step is the pageable copy of its batch: where waiting ended and copying began."""

from __future__ import annotations

import numpy as np
import pytest

from ingero.events import CLOCKS, EpochFlag
from tests.integration.epoch_cases import Array, Mode, Recording, recorded, recorded_parts, true_parts

pytestmark = pytest.mark.integration

MODES: tuple[Mode, ...] = ("block", "spin", "yield")
LENGTH_S = 3.0
LOOK_EVERY = 20  # steps between two looks at the loss, each of which is a wait of another kind
CUT_NS = 60_000  # from the simulator's end of the wait to its copying, and what a thread ran before it slept
FEW = 0.05  # of the copies: a switch that was missed, or a thread that was descheduled just before it copied, and twice
SLOWER_COPIES = 0.25  # of those of threads that polled: others than the fastest, by what nobody can tell
PART_RATIO = 0.02  # of all time; each of the copies is cut up to CUT_NS late or early


@pytest.fixture(scope="module", params=MODES)
def batches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """One way to wait."""
    folder, loop = tmp_path_factory.mktemp(request.param), ("--pattern", "batch-copy")
    with recorded(folder, request.param, *loop, sync_every=LOOK_EVERY) as (run, recordings):
        run.phase("undisturbed", LENGTH_S)
    return recordings[0]


def both_sides(recording: Recording) -> tuple[Array, Array]:
    """The epochs that copies ended, and the simulator's drains: of each the first that ended after its call began."""
    epochs = recording.main_lane("undisturbed")
    epochs = epochs[(epochs["flags"] & int(EpochFlag.BEFORE_COPY)) != 0]
    drains = recording.drains(1)
    places = np.searchsorted(drains["return_ns"], epochs["s_ns"], side="right")
    assert len(np.unique(places)) == len(places)
    return epochs, drains[places]


def test_an_interval_ends_where_its_copy_began_to_copy(batches: Recording) -> None:
    epochs, drains = both_sides(batches)
    assert len(epochs) > 50
    later_ns = epochs["b_ns"] - drains["return_ns"]
    print(
        f"\n{len(epochs)} copies; us after the wait's end: {np.quantile(later_ns, (0, 0.1, 0.5, 0.9, 1)) / 1e3}", end=""
    )
    held_up_ns = epochs["drain_clock_ns"][
        :, CLOCKS.index("runq")
    ]  # while it copied, too, which counts as a late return
    assert ((later_ns > -CUT_NS) & (later_ns < held_up_ns + CUT_NS)).mean() > 1 - FEW


def test_the_next_interval_begins_with_the_copy(batches: Recording) -> None:
    epochs, _ = both_sides(batches)
    assert (epochs["f_ns"] == epochs["a_ns"]).mean() > 1 - 2 / LOOK_EVERY  # all but those after a look at the loss
    assert (epochs["e_ns"] + epochs["x_ns"] + epochs["p_ns"] == epochs["b_ns"] - epochs["a_ns"]).all()


def test_the_gpu_was_ready_when_the_wait_ended(batches: Recording) -> None:
    """Within the bounds; where the thread was not held up, and copied as fast as it can, at that moment."""
    epochs, drains = both_sides(batches)
    ready_ns = np.maximum(drains["device_end_ns"], epochs["s_ns"])
    is_inside = (epochs["r_low_ns"] - CUT_NS < ready_ns) & (ready_ns < epochs["r_high_ns"] + CUT_NS)
    was_free = (epochs["drain_clock_ns"][:, [CLOCKS.index("runq"), CLOCKS.index("yielded")]] == 0).all(axis=1)
    later_ns = (epochs["r_ns"] - ready_ns)[was_free]
    assert is_inside.mean() > 1 - FEW
    if not len(later_ns):  # a thread that yields is hardly ever free
        return
    print(
        f"\n{was_free.sum()} of {len(epochs)} free; us later: {np.quantile(later_ns, (0.05, 0.5, 0.95)) / 1e3}", end=""
    )
    assert (np.abs(later_ns) < CUT_NS).mean() > 1 - SLOWER_COPIES


@pytest.mark.parametrize("batches", ["block"], indirect=True)
def test_where_threads_sleep_the_parts_are_the_simulators(batches: Recording) -> None:
    epochs, drains = both_sides(batches)
    later_ns = (epochs["b_ns"] - drains["return_ns"], epochs["a_ns"] - drains["begin_ns"])
    kept = np.all(np.abs(later_ns) < CUT_NS, axis=0)  # without those that were held up while they copied
    found, true = recorded_parts(epochs[kept]), true_parts(epochs[kept], drains[kept])
    print(f"\nfound {found}\ntrue  {true}", end="")
    assert found.busy_ns == pytest.approx(true.busy_ns, abs=PART_RATIO * found.wall_ns)
    assert found.late_ns == pytest.approx(true.late_ns, abs=PART_RATIO * found.wall_ns)
