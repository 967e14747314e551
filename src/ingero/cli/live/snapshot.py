"""Makes the state of the live view from a running recorder: its processes, its probes, the window, the GPUs."""

from __future__ import annotations

import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ingero.attach.kernel_side import KernelSide
from ingero.capture.loop.recorder import Recorder
from ingero.capture.processes.traced_processes import TracedProcess
from ingero.capture.sums.interval_sums import counts_together, sum_of
from ingero.cli.live.state import GpuState, LiveState, Missing, ProbedLibrary, ProbeState, ProcessLine
from ingero.cli.live.window import ProcessSums, Window
from ingero.discover.processes import real_uid
from ingero.ops import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class _Identity:
    """Facts about a process that do not change until it runs another program."""

    user: str


class Snapshots:
    """States of one recording. database: None if nothing is kept."""

    def __init__(self, recorder: Recorder, kernel: KernelSide, database: Path | None) -> None:
        self._recorder, self._kernel, self._database = recorder, kernel, database
        self._identities: dict[tuple[int, str], _Identity] = {}
        self._probes = ProbeState()
        self._counted: tuple[int, ...] = ()

    def state(self, window: Window, gpu: GpuState, warnings: Sequence[str] = ()) -> LiveState:
        """The present state of the recording."""
        last = window.last
        seconds = list(window.seconds())
        counts = counts_together(second.intervals for second in seconds)
        rows = sum_of(counts.values())
        records = sum(second.records for second in seconds)
        measured = [second for second in reversed(seconds) if second.system]
        ops = window.ops()
        return LiveState(
            recorded_s=window.recorded_s,
            window_s=window.length_s,
            processes=self._processes(window, gpu),
            threads=last.threads if last else 0,
            probes=self._probe_state(),
            system=measured[0].system if measured else None,
            gpu=gpu,
            ops=ops,
            in_flight=last.in_flight if last else 0,
            states_ns=window.states_ns(),
            call_states_ns=window.call_states_ns(),
            switches=sum(second.switches for second in seconds),
            involuntary_switches=sum(second.involuntary_switches for second in seconds),
            culprits=window.culprits(),
            host=window.host(),
            counts=counts,
            drops=window.drop_lines(),
            agent=measured[0].agent if measured else None,
            agent_ratio=window.agent_ratio(),
            calls_per_s=window.per_second(sum(op.count + op.nested for op in ops)),
            rows_per_s=window.per_second(records + rows.steps + rows.sync_intervals),
            database=str(self._database) if self._database else "",
            database_bytes=_size_bytes(self._database) if self._database else None,
            warnings=tuple(warnings),
            left_out=self._recorder.discovery.left_out,
        )

    def _processes(self, window: Window, gpu: GpuState) -> tuple[ProcessLine, ...]:
        slots, ran_instead, wall_ns = window.process_sums(), window.ran_instead_ns(), window.length_s * 1e9
        index_of = {device.uuid: device.index for device in gpu.gpus}
        users_of = [(index_of.get(sample.uuid, -1), sample.processes) for sample in gpu.samples]
        nothing = ProcessSums(calls=0, wait_ns=0)
        lines = []
        for traced_process in self._recorder.traced_processes:
            if traced_process.exit_ns is not None:
                continue
            sums, identity = slots.get(traced_process.slot, nothing), self._identity(traced_process)
            lines.append(
                ProcessLine(
                    pid=traced_process.pid,
                    name=traced_process.name,
                    user=identity.user,
                    rank=traced_process.rank,
                    world_size=traced_process.world_size,
                    gpus=tuple(index for index, users in users_of if traced_process.pid in users),
                    calls=sums.calls,
                    wait_ratio=sums.wait_ns / wall_ns if wall_ns else 0.0,
                    ran_instead_ns=ran_instead[traced_process.slot],
                )
            )
        alive = {line.pid for line in lines}
        self._identities = {key: value for key, value in self._identities.items() if key[0] in alive}
        return tuple(lines)

    def _identity(self, traced_process: TracedProcess) -> _Identity:
        key = (traced_process.pid, traced_process.name)
        if key not in self._identities:
            uid = real_uid(traced_process.pid)
            self._identities[key] = _Identity(user=_user_name(uid) if uid is not None else "")
        return self._identities[key]

    def _probe_state(self) -> ProbeState:
        """The attached probes, counted again only after a change."""
        results, unavailable = self._recorder.probes, self._kernel.unavailable
        is_resting = not self._kernel.is_running
        counted = (len(results), len(unavailable), *(copy.number for copy in self._recorder.libraries.copies))
        if counted == self._counted and is_resting == self._probes.is_resting:
            return self._probes
        attached: dict[str, list[bool]] = {copy.mapped_path: [] for copy in self._recorder.libraries.copies}
        sources: set[Source] = set()
        missing = [Missing(name=program.name, reason=program.reason) for program in unavailable]
        for result in results:
            if result.site:
                attached.setdefault(result.copy.mapped_path, []).append(result.is_attached)
                if result.is_attached:
                    sources.add(result.site.op.source)
                else:
                    missing.append(Missing(name=result.site.symbol, reason=result.reason))
            elif result.missing is None:  # the file could not be read at all
                missing.append(Missing(name=result.copy.mapped_path, reason=result.reason))
        self._counted = counted
        self._probes = ProbeState(
            mode=self._kernel.mode.value,
            libraries=tuple(
                ProbedLibrary(path=path, attached=sum(found), refused=len(found) - sum(found))
                for path, found in attached.items()
            ),
            sources=frozenset(sources),
            missing=tuple(missing),
            is_resting=is_resting,
        )
        return self._probes


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _size_bytes(path: Path) -> int:
    """The database with its write-ahead log."""
    size = 0
    for part in (path, path.with_name(path.name + "-wal")):
        try:
            size += part.stat().st_size
        except FileNotFoundError:  # no log, or not made yet
            continue
    return size
