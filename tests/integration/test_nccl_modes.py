"""Every kind of probe tells who a communicator is, as far as it can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingero.attach.probes import ProbeMode
from tests.integration.nccl_jobs import RANK, rendezvous
from tests.integration.targets import rows, simulation, wait_for_end, waiting
from tests.integration.tracing import Tracer

FORCED_TRACE = """
import sys
from functools import partial
import ingero.cli.trace.command as trace
import ingero.cli.trace.recording as recording
from ingero.attach.kernel_side import KernelSide
from ingero.capture.libraries.libraries import LibraryProbes
from ingero.attach.probes import ProbeMode
from dataclasses import replace

recording.KernelSide = partial(KernelSide, mode=ProbeMode[sys.argv.pop(1)])
all_sites = LibraryProbes._wanted_sites
def nccl_sites(probes, copy, found):
    report = all_sites(probes, copy, found)
    chosen = ("ncclAllReduce", "ncclGroupStart", "ncclGroupEnd")
    return replace(report, sites=tuple(site for site in report.sites if site.op.name in chosen))
LibraryProbes._wanted_sites = nccl_sites  # perf-event uprobes are detached one by one, at 0.1 s each
trace.command()
"""


@pytest.mark.parametrize("mode", ProbeMode)
def test_a_communicator_is_named_in_every_probe_mode(mode: ProbeMode, tmp_path: Path) -> None:
    simulated = simulation(tmp_path, devices=1)
    database = tmp_path / "recording.db"
    with rendezvous() as meeting, waiting(simulated, [sys.executable, RANK, "makings", meeting, 0, 1]) as process:
        command = [sys.executable, "-c", FORCED_TRACE, mode.name, "--json", "--db", database, "--pid", process.pid]
        variables = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables
        ) as child:
            tracer = Tracer(child, database)
            started = tracer.wait_for("started")
            assert (started["mode"], started["unavailable"]) == (mode.value, {}), json.dumps(started)
            process.go().finish()
            wait_for_end(tracer)
    found = "SELECT count(*), count(DISTINCT comm_id_hash), max(rank), max(nranks), count(handle) FROM communicators "
    has_handles = mode is not ProbeMode.ENTRY_ONLY  # which nothing but a return can tell
    assert rows(database, found + "WHERE origin IS NOT NULL") == [(3, 3, 0, 1, 3 if has_handles else 0)]
    named = rows(database, "SELECT count(*) FROM nccl_events WHERE op = 'ncclAllReduce' AND sequence = 1")
    assert named == [(3 if has_handles else 0,)]
