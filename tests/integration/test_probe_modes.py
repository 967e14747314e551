"""Every kind of probe counts every call, whichever of them the kernel offers, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingero.attach.probes import ProbeMode
from ingero.demo.workloads import native
from ingero.discover.kernel import read_kernel
from tests.integration.emulation import IS_EMULATED
from tests.integration.targets import Simulation, breakpoints, probed_sites, rows, simulation, wait_for_end, waiting
from tests.integration.test_counts import recorded_counts, true_counts
from tests.integration.tracing import Tracer

pytestmark = pytest.mark.integration

SECONDS, CALLS_PER_SECOND = 2, 30_000

# Detaching these takes a few seconds.
PERF_EVENT_OPERATIONS = 4

NEEDS = {
    ProbeMode.SESSION: "uprobe_session",
    ProbeMode.MULTI: "uprobe_multi",
    ProbeMode.PERF_EVENT: "attach_cookie",
    ProbeMode.ENTRY_ONLY: "uprobe_multi",
}

# The first call after a fork opens the simulator's files, before the simulator looks at its clock.
SET_UP_CALLS = ("cudaSetDevice", "cuCtxSetCurrent")

# `ingero trace` in a mode chosen by the test. $OPERATIONS: the only ones to probe, because perf-event uprobes are
# detached one by one, at 0.1 s each; empty: all.
FORCED_TRACE = """
import os, sys
from dataclasses import replace
from functools import partial
import ingero.cli.trace.command as trace
import ingero.cli.trace.recording as recording
from ingero.attach.kernel_side import KernelSide
from ingero.attach.probes import ProbeMode
from ingero.capture.libraries.libraries import LibraryProbes

recording.KernelSide = partial(KernelSide, mode=ProbeMode[sys.argv.pop(1)])
all_sites, chosen = LibraryProbes._wanted_sites, os.environ["OPERATIONS"].split()
if chosen:
    def chosen_sites(probes, copy, found):
        report = all_sites(probes, copy, found)
        return replace(report, sites=tuple(site for site in report.sites if site.op.name in chosen))
    LibraryProbes._wanted_sites = chosen_sites
trace.command()
"""


@dataclass(frozen=True, kw_only=True)
class Untraced:
    """A short run of the torture on its own."""

    calls: Counter[str]
    cpu_ns_per_call: float


def torture(seconds: float) -> list[str]:
    options = ["--threads", 4, "--processes", 2, "--seconds", seconds, "--rate", CALLS_PER_SECOND]
    return [str(native.build("calls")), *map(str, options)]


def traced_calls(simulated: Simulation) -> Counter[str]:
    outer, nested, _ = true_counts(simulated.truth())
    return outer + nested


@pytest.fixture(scope="module")
def untraced(tmp_path_factory: pytest.TempPathFactory) -> Untraced:
    simulated = simulation(tmp_path_factory.mktemp("untraced"))
    process = subprocess.Popen(
        torture(0.5), env=simulated.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    calls = traced_calls(simulated)
    return Untraced(calls=calls, cpu_ns_per_call=(usage.ru_utime + usage.ru_stime) * 1e9 / calls.total())


@contextmanager
def tracing(mode: ProbeMode, folder: Path, pid: int, operations: Collection[str]) -> Iterator[Tracer]:
    """A tracer forced into a mode; it ends with its target."""
    database = folder / "recording.db"
    command = [
        sys.executable,
        "-c",
        FORCED_TRACE,
        mode.name,
        "--json",
        "--max-overhead=0",
        "--db",
        str(database),
        "--pid",
        str(pid),
    ]
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "OPERATIONS": " ".join(operations)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)
    tracer = Tracer(process, database)
    try:
        assert tracer.wait_for("started")["mode"] == mode.value
        yield tracer
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("mode", ProbeMode)
def test_a_probe_mode_counts_every_call_and_leaves_no_breakpoint(
    mode: ProbeMode, tmp_path: Path, untraced: Untraced
) -> None:
    if NEEDS[mode] not in read_kernel().features:
        pytest.skip(f"this kernel has no {mode.value}")
    simulated = simulation(tmp_path)
    chosen = [
        name for name, _ in untraced.calls.most_common(PERF_EVENT_OPERATIONS if mode is ProbeMode.PERF_EVENT else 0)
    ]
    with (
        waiting(simulated, torture(SECONDS)) as process,
        waiting(simulated, ["/bin/true"], gate_name="never") as witness,
        tracing(mode, tmp_path, process.pid, chosen) as tracer,
    ):
        sites = probed_sites(tracer)
        assert breakpoints(witness.pid, sites), "the check itself must be able to see a probe"
        process.go().finish()
        wait_for_end(tracer)
        remaining = breakpoints(witness.pid, sites)
        assert not remaining, f"{len(remaining)} of {len(sites)}"
    outer, nested, spent = recorded_counts(tracer.database)
    true_outer, _, true_spent = true_counts(simulated.truth())
    ((run_ns,),) = rows(tracer.database, "SELECT sum(run_ns) FROM raw_thread_state_seconds")
    ((waited_ns,),) = rows(tracer.database, "SELECT sum(runq_ns + throttled_ns) FROM raw_op_stats")
    calls = traced_calls(simulated)
    seen = outer + nested
    print(
        f"\n{mode.value}: {len(sites)} sites, {seen.total()} calls seen; CPU per call {run_ns / calls.total():.0f} ns, "
        f"untraced {untraced.cpu_ns_per_call:.0f} ns with its start"
    )
    assert seen == Counter({name: calls[name] for name in chosen or calls})
    assert bool(+spent) == (mode is not ProbeMode.ENTRY_ONLY)
    if mode in (ProbeMode.SESSION, ProbeMode.MULTI):
        assert outer == true_outer
    if mode in (ProbeMode.SESSION, ProbeMode.MULTI) and not IS_EMULATED:
        for name in SET_UP_CALLS:
            del spent[name], true_spent[name]
        # short calls at a low rate: what the probe costs outside the call is more than the usual 2 percent; whoever
        # takes the CPU there lengthens what is recorded, as the recording says itself, and not what the simulator sees
        recorded_ns, true_ns = sum(spent.values()), sum(true_spent.values())
        assert 0.85 * true_ns <= recorded_ns <= 1.15 * true_ns + waited_ns
