"""Reads once a second which processes ran while traced processes were runnable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingero.attach.libbpf import Map
from ingero.capture.foreign.own_processes import OwnProcesses
from ingero.decode.btf import Btf
from ingero.foreign_text import decoded

# Pairs known before those are looked for whose culprit has ended. The kernel's table has room for 16384.
_FEW_PAIRS = 2048
_QUIET_READINGS = 2  # without growth: a process that has just ended may still be charged at the next switch


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritTime:
    """How long a culprit ran while a process was runnable, since the last reading; culprit_pid 0 is an idle CPU."""

    slot: int
    is_yielded: bool
    culprit_pid: int
    culprit_name: str
    culprit_cgroup_id: int
    ns: int
    switches: int


class CulpritReader:
    """Reads the kernel's table of (affected process, culprit process)."""

    def __init__(self, culprits: Map, layouts: Btf, own: OwnProcesses) -> None:
        self._map, self._own = culprits, own
        self._key, self._value = layouts.dtype("culprit_key"), layouts.dtype("culprit_value")
        self._before: dict[bytes, tuple[int, int]] = {}
        self._of_affected: dict[int, set[bytes]] = defaultdict(set)  # keys by process slot
        self.names: dict[int, str] = {}
        self._readings = 0
        self._grew: dict[bytes, int] = {}
        self._most_pairs = _FEW_PAIRS

    def read(self) -> list[CulpritTime]:
        """Growth of every pair that grew."""
        found = []
        self._readings += 1
        for keys, raw in self._map.batches():
            values = np.frombuffer(raw, self._value)
            for index, (ns, switches) in enumerate(
                zip(values["ns"].tolist(), values["switches"].tolist(), strict=True)
            ):
                key = keys[index * self._key.itemsize : (index + 1) * self._key.itemsize]
                ns_before, switches_before = self._before.get(key, (0, 0))
                if ns == ns_before:
                    continue
                if key not in self._before:
                    self._of_affected[self._slot(key)].add(key)
                self._before[key], self._grew[key] = (ns, switches), self._readings
                found.append(self._culprit_time(key, values[index], ns - ns_before, switches - switches_before))
        if len(self._before) > self._most_pairs:
            self._forget_ended_culprits()
            self._most_pairs = max(_FEW_PAIRS, 2 * len(self._before))
        if len(self.names) > max(_FEW_PAIRS, 2 * len(self._before)):  # of affected processes that have ended
            self._forget_names()
        return found

    def _forget_ended_culprits(self) -> None:
        """Removes pairs whose culprit is gone: short-lived culprits would fill the table."""
        quiet = [key for key, at in self._grew.items() if self._readings - at >= _QUIET_READINGS]
        pids = {key: self._pid(key) for key in quiet}
        gone = {pid for pid in set(pids.values()) if pid and not Path(f"/proc/{pid}").exists()}
        ended = [key for key, pid in pids.items() if pid in gone]
        self._drop(ended)
        for key in ended:
            self._of_affected[self._slot(key)].discard(key)
        self._forget_names()

    def _forget_names(self) -> None:
        """Forgets names of culprits that are in no pair."""
        kept = {self._pid(key) for key in self._before}
        self.names = {pid: name for pid, name in self.names.items() if pid in kept}

    def _pid(self, key: bytes) -> int:
        return int(np.frombuffer(key, self._key)[0]["culprit_pid"])

    def _slot(self, key: bytes) -> int:
        return int(np.frombuffer(key, self._key)[0]["process_slot"])

    def _drop(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._map.delete(key)
            del self._before[key], self._grew[key]

    def _culprit_time(self, key: bytes, value: Any, ns: int, switches: int) -> CulpritTime:
        pair = np.frombuffer(key, self._key)[0]
        pid, name = int(pair["culprit_pid"]), decoded(value["comm"])
        self.names[pid] = name
        return CulpritTime(
            slot=int(pair["process_slot"]),
            is_yielded=bool(pair["yielded"]),
            culprit_pid=self._own.owner(pid, name),
            culprit_name=name if pid else "idle",
            culprit_cgroup_id=int(value["cgroup_id"]),
            ns=ns,
            switches=switches,
        )

    def forget(self, slot: int) -> None:
        """Removes the pairs of an affected process that has ended: nothing adds to them any more."""
        self._drop(self._of_affected.pop(slot, ()))
