"""Calls are counted once each, wherever the library file lies and however it was built."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.callers import build_library, caller
from tests.integration.targets import rows, wait_for_end
from tests.integration.test_discover_wheels import exported_functions
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

ENDBR64 = b"\xf3\x0f\x1e\xfa"


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One recording of processes that reach their library in different ways, by the name of the way."""

    database: Path
    pids: dict[str, int]
    calls: dict[str, int]
    sizes: dict[str, int]
    libraries: dict[str, Path]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("paths")
    plain = build_library(folder / "plain", "-fcf-protection=none")
    libraries = {way: folder / way / plain.name for way in ("plain", "shared", "copy", "deleted", "hidden", "endbr64")}
    libraries["shared"] = plain
    for way in ("copy", "deleted", "hidden"):
        (folder / way).mkdir()
    for way in ("copy", "deleted"):
        shutil.copy(plain, libraries[way])
    build_library(folder / "endbr64", "-fcf-protection=full")
    place = libraries["hidden"].parent
    script = f'mount -t tmpfs none {place} && cp {plain} {place}/ && exec "$@"'
    prefixes = {"hidden": ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh"]}
    calls = {way: 101 + number for number, way in enumerate(libraries)}
    sizes = {way: 1000 + number for number, way in enumerate(libraries)}
    with ExitStack() as stack:
        callers = {way: stack.enter_context(caller(prefixes.get(way, ()))) for way in libraries}
        for way, one in callers.items():
            one.do("load", libraries[way])
        libraries["deleted"].unlink()
        with tracing(folder, pids=[one.pid for one in callers.values()]) as tracer:
            for way, one in callers.items():
                one.do("call", calls[way], sizes[way])
                one.end()
            wait_for_end(tracer)
    pids = {way: one.pid for way, one in callers.items()}
    return Recording(database=tracer.database, pids=pids, calls=calls, sizes=sizes, libraries=libraries)


def probes_in(recording: Recording, way: str) -> list[tuple[str, str, int]]:
    """(path, symbol, offset) of the probes in the file of a way."""
    probes = rows(
        recording.database, "SELECT library, symbol, offset FROM raw_probes WHERE is_attached ORDER BY symbol"
    )
    if way == "hidden":
        prefix = f"/proc/{recording.pids[way]}/root"
    elif way == "deleted":
        prefix = f"/proc/{recording.pids[way]}/map_files"
    else:
        prefix = str(recording.libraries[way].parent)
    return [probe for probe in probes if probe[0].startswith(prefix)]


@pytest.mark.parametrize("way", ["plain", "shared", "copy", "deleted", "hidden", "endbr64"])
def test_calls_are_counted_once_each(recording: Recording, way: str) -> None:
    counted = rows(
        recording.database,
        "SELECT o.name, sum(s.count), sum(s.bytes) FROM raw_op_stats s JOIN raw_processes p USING (process) "
        "JOIN ops o ON o.source_id = s.source AND o.op_id = s.op WHERE p.pid = ? GROUP BY 1",
        recording.pids[way],
    )
    assert counted == [("cudaMalloc", recording.calls[way], recording.calls[way] * recording.sizes[way])]


@pytest.mark.parametrize("way", ["plain", "copy", "deleted", "hidden", "endbr64"])
def test_a_file_is_probed_once(recording: Recording, way: str) -> None:
    assert [symbol for _, symbol, _ in probes_in(recording, way)] == ["cudaFree", "cudaMalloc"]


def test_no_other_file_is_probed(recording: Recording) -> None:
    ((attached,),) = rows(recording.database, "SELECT count(*) FROM raw_probes WHERE is_attached")
    assert attached == 2 * 5


def test_a_probe_goes_behind_endbr64(recording: Recording) -> None:
    path = recording.libraries["endbr64"]
    code = path.read_bytes()
    exported = exported_functions(path)
    for _, symbol, offset in probes_in(recording, "endbr64"):
        assert code[offset - len(ENDBR64) : offset] == ENDBR64
        assert offset - len(ENDBR64) == exported[symbol], "the first segment's addresses are its file offsets"


def test_a_probe_goes_to_the_first_instruction_without_endbr64(recording: Recording) -> None:
    exported = exported_functions(recording.libraries["plain"])
    assert {symbol: offset for _, symbol, offset in probes_in(recording, "plain")} == {
        symbol: exported[symbol] for symbol in ("cudaMalloc", "cudaFree")
    }
