"""Writes the rows about the NUMA nodes of the host, once."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ingero.capture.records.rows import Sink
from ingero.discover.numa import NumaNode
from ingero.store.writing import tables


def write_numa_nodes(sink: Sink, nodes: Sequence[NumaNode]) -> None:
    """Writes `raw_numa_nodes`."""
    rows = tables.NUMA_NODES.rows(
        len(nodes),
        session=sink.session,
        numa_node=[one.node for one in nodes],
        cpus=[one.cpus for one in nodes],
        gpus=[json.dumps(one.gpus) for one in nodes],
    )
    sink.append(tables.NUMA_NODES, rows)
