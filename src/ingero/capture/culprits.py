"""Reads who ran while target processes waited, once a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.attach.libbpf import Map
from ingero.decode.btf import Btf


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one process took from another since the last reading; culprit_pid 0 is an idle CPU."""

    slot: int
    is_yielded: bool
    culprit_pid: int
    culprit_name: str
    culprit_cgroup_id: int
    ns: int
    switches: int


class CulpritReader:
    """The kernel's table of (victim process, culprit process)."""

    def __init__(self, culprits: Map, layouts: Btf) -> None:
        self._map = culprits
        self._key, self._value = layouts.dtype("culprit_key"), layouts.dtype("culprit_value")
        self._before: dict[bytes, tuple[int, int]] = {}
        self.names: dict[int, str] = {}

    def read(self) -> list[Charge]:
        """Growth of every pair that grew."""
        found = []
        for key, raw in self._map.items():
            value = np.frombuffer(raw, self._value)[0]
            ns, switches = int(value["ns"]), int(value["switches"])
            ns_before, switches_before = self._before.get(key, (0, 0))
            if ns == ns_before:
                continue
            self._before[key] = (ns, switches)
            found.append(self._charge(key, value, ns - ns_before, switches - switches_before))
        return found

    def _charge(self, key: bytes, value: Any, ns: int, switches: int) -> Charge:
        pair = np.frombuffer(key, self._key)[0]
        pid, name = int(pair["culprit_pid"]), value["comm"].decode(errors="replace")
        self.names[pid] = name
        return Charge(
            slot=int(pair["process_slot"]),
            is_yielded=bool(pair["yielded"]),
            culprit_pid=pid,
            culprit_name=name if pid else "idle",
            culprit_cgroup_id=int(value["cgroup_id"]),
            ns=ns,
            switches=switches,
        )

    def forget(self, slot: int) -> None:
        """Removes the pairs of an ended victim: nobody adds to them any more."""
        gone = [key for key in self._before if int(np.frombuffer(key, self._key)[0]["process_slot"]) == slot]
        for key in gone:
            self._map.delete(key)
            del self._before[key]
