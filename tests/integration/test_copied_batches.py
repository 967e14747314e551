"""A loop whose only wait of a step is the pageable copy of its batch: where waiting ended and copying began."""

from __future__ import annotations

import numpy as np
import pytest

from ingero.events import STATES, SyncIntervalFlag
from tests.integration.sync_interval_cases import Array, Mode, Recording, recorded, recorded_parts, true_parts

pytestmark = pytest.mark.integration

MODES: tuple[Mode, ...] = ("block", "spin", "yield")
LENGTH_S = 3.0
LOOK_EVERY = 20  # steps between two looks at the loss, each of which is a wait of another kind
CUT_NS = 120_000  # from the simulator's end of the wait to its copying, 60 us on fast machines, and what ran before
FEW = 0.05  # of the copies: a switch that was missed, or a thread that was descheduled just before it copied, and twice
SLOWER_COPIES = 0.25  # of those of threads that polled: others than the fastest, by what nobody can tell
PART_RATIO = 0.02  # of all time; each of the copies is cut up to CUT_NS late or early


@pytest.fixture(scope="module", params=MODES)
def batches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """One way to wait."""
    folder, loop = tmp_path_factory.mktemp(request.param), ("--pattern", "batch-copy")
    with recorded(folder, request.param, *loop, sync_every=LOOK_EVERY) as (run, recordings):
        if request.param == "block":  # those that poll would keep a CPU to themselves
            run.goes_first()
        run.phase("undisturbed", LENGTH_S)
    return recordings[0]


def both_sides(recording: Recording) -> tuple[Array, Array]:
    """The intervals that copies ended, and the simulator's syncs: of each the first to end after the call began."""
    sync_intervals = recording.main_stream("undisturbed")
    sync_intervals = sync_intervals[(sync_intervals["flags"] & int(SyncIntervalFlag.BEFORE_COPY)) != 0]
    syncs = recording.syncs(1)
    places = np.searchsorted(syncs["return_ns"], sync_intervals["sync_start_ns"], side="right")
    assert len(np.unique(places)) == len(places)
    return sync_intervals, syncs[places]


def test_an_interval_ends_where_its_copy_began_to_copy(batches: Recording) -> None:
    sync_intervals, syncs = both_sides(batches)
    assert len(sync_intervals) > 50
    later_ns = sync_intervals["sync_end_ns"] - syncs["return_ns"]
    print(
        f"\n{len(sync_intervals)} copies; us after the wait's end: "
        f"{np.quantile(later_ns, (0, 0.1, 0.5, 0.9, 1)) / 1e3}",
        end="",
    )
    held_up_ns = sync_intervals["sync_state_ns"][
        :, STATES.index("runq")
    ]  # while it copied, too, which counts as a late return
    assert ((later_ns > -CUT_NS) & (later_ns < held_up_ns + CUT_NS)).mean() > 1 - FEW


def test_the_next_interval_begins_with_the_copy(batches: Recording) -> None:
    sync_intervals, _ = both_sides(batches)
    assert (
        sync_intervals["first_launch_ns"] == sync_intervals["prev_sync_end_ns"]
    ).mean() > 1 - 2 / LOOK_EVERY  # all but those after a look at the loss
    assert (
        sync_intervals["idle_ns"] + sync_intervals["busy_ns"] + sync_intervals["return_delay_ns"]
        == sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    ).all()


def test_the_gpu_was_ready_when_the_wait_ended(batches: Recording) -> None:
    """Within the bounds; where the thread was not held up, and copied as fast as it can, at that moment."""
    sync_intervals, syncs = both_sides(batches)
    ready_ns = np.maximum(syncs["device_end_ns"], sync_intervals["sync_start_ns"])
    is_inside = (sync_intervals["gpu_done_low_ns"] - CUT_NS < ready_ns) & (
        ready_ns < sync_intervals["gpu_done_high_ns"] + CUT_NS
    )
    was_free = (sync_intervals["sync_state_ns"][:, [STATES.index("runq"), STATES.index("yielded")]] == 0).all(axis=1)
    later_ns = (sync_intervals["gpu_done_ns"] - ready_ns)[was_free]
    assert is_inside.mean() > 1 - FEW
    if not len(later_ns):  # a thread that yields is hardly ever free
        return
    print(
        f"\n{was_free.sum()} of {len(sync_intervals)} free; us later: {np.quantile(later_ns, (0.05, 0.5, 0.95)) / 1e3}",
        end="",
    )
    assert (np.abs(later_ns) < CUT_NS).mean() > 1 - SLOWER_COPIES


@pytest.mark.parametrize("batches", ["block"], indirect=True)
def test_where_threads_sleep_the_parts_are_the_simulators(batches: Recording) -> None:
    sync_intervals, syncs = both_sides(batches)
    later_ns = (
        sync_intervals["sync_end_ns"] - syncs["return_ns"],
        sync_intervals["prev_sync_end_ns"] - syncs["begin_ns"],
    )
    kept = np.all(np.abs(later_ns) < CUT_NS, axis=0)  # without those that were held up while they copied
    found, true = recorded_parts(sync_intervals[kept]), true_parts(sync_intervals[kept], syncs[kept])
    print(f"\nfound {found}\ntrue  {true}", end="")
    assert found.busy_ns == pytest.approx(true.busy_ns, abs=PART_RATIO * found.wall_ns)
    assert found.return_delay_ns == pytest.approx(true.return_delay_ns, abs=PART_RATIO * found.wall_ns)
