"""cuda-graph-unused: graphs that nobody launches, and graphs that are launched no more."""

from __future__ import annotations

from pathlib import Path

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import Diagnosis
from tests.unit.diagnose.causes.golden import LENGTH_S, causes, diagnosed, diagnosed_file

EAGER = {"cudaLaunchKernel": (80.0, 0.005), "cudaStreamSynchronize": (1.0, 5.0)}
GRAPHS = {"cudaGraphLaunch": (1.0, 0.02), "cudaLaunchKernel": (4.0, 0.005), "cudaStreamSynchronize": (1.0, 5.0)}


def trained(
    folder: Path, *parts: tuple[float, float, dict[str, tuple[float, float]]], not_traced: dict[str, str] | None = None
) -> Diagnosis:
    """A graph made at the begin, then steps with these calls from and until so many seconds."""
    with ScriptedRun(folder / "graphs.db", seconds=LENGTH_S, not_traced=not_traced) as run:
        trainer = run.process(100, "python")
        run.call(trainer, "cudaGraphInstantiate", 0.1, 2.0, stack_hash=run.stack([("/srv/train.py", 9, "warm_up")]))
        for begin, end, calls in parts:
            run.train(trainer, begin, end, Step(), calls=calls)
    return diagnosed_file(folder / "graphs.db")


def test_a_graph_that_is_never_launched_is_told_with_its_line(tmp_path: Path) -> None:
    diagnosis = trained(tmp_path, (0, LENGTH_S, EAGER))
    assert causes(diagnosis) == ["cuda-graph-unused"]
    assert "made 1 CUDA graphs in warm_up() at /srv/train.py:9" in diagnosis.incidents[0].summary


def test_a_graph_that_is_launched_is_silent(tmp_path: Path) -> None:
    assert causes(trained(tmp_path, (0, LENGTH_S, GRAPHS))) == []


def test_graphs_that_give_way_to_single_launches_are_told(tmp_path: Path) -> None:
    diagnosis = trained(tmp_path, (0, 6, GRAPHS), (6, LENGTH_S, EAGER))
    assert causes(diagnosis) == ["cuda-graph-unused"]
    assert "has launched none for" in diagnosis.incidents[0].summary


def test_a_rate_of_graphs_that_drops_for_single_launches_is_told(tmp_path: Path) -> None:
    some = {"cudaGraphLaunch": (0.3, 0.02), "cudaLaunchKernel": (56.0, 0.005), "cudaStreamSynchronize": (1.0, 5.0)}
    diagnosis = trained(tmp_path, (0, 6, GRAPHS), (6, LENGTH_S, some))
    assert causes(diagnosis) == ["cuda-graph-unused"]
    incident = diagnosis.incidents[0]
    before, now = incident.evidence["graphs per second before"], incident.evidence["graphs per second"]
    assert isinstance(before, float)
    assert isinstance(now, float)
    assert 0.2 < now / before < 0.4
    assert " per second for " in incident.summary


def test_graphs_that_come_slower_without_more_single_launches_are_silent(tmp_path: Path) -> None:
    slow = {"cudaGraphLaunch": (0.3, 0.02), "cudaLaunchKernel": (1.2, 0.005), "cudaStreamSynchronize": (1.0, 5.0)}
    assert causes(trained(tmp_path, (0, 6, GRAPHS), (6, LENGTH_S, slow))) == []


def test_a_process_that_goes_idle_does_not_leave_its_graphs(tmp_path: Path) -> None:
    quiet = {"cudaLaunchKernel": (1.0, 0.005), "cudaStreamSynchronize": (1.0, 5.0)}
    assert causes(trained(tmp_path, (0, 6, GRAPHS), (6, LENGTH_S, quiet))) == []


def test_without_exact_sums_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = trained(tmp_path, (0, LENGTH_S, EAGER), not_traced={"op_stats": "launches only counted"})
    assert "cuda-graph-unused" in {one.cause for one in diagnosis.not_evaluated}


def test_launches_of_graphs_that_a_hog_delays_are_in_the_chain(tmp_path: Path) -> None:
    def hogged(run: ScriptedRun, trainer: Actor) -> None:
        step = Step(idle_ms=2.5, idle={"runq": 2.0})
        for _, _, end in run.train(trainer, 6, LENGTH_S, step, calls=GRAPHS):
            run.culprit(trainer, 900, "hog", int(end), 2.0)

    diagnosis = diagnosed(tmp_path, hogged)
    assert causes(diagnosis) == ["cpu-contention"]
    assert "the launches of CUDA graphs, 1 per sync interval, were delayed" in diagnosis.incidents[0].chain[-1].text
