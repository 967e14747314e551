"""Two chains of C functions that look alike from outside: one caller, one depth of the stack, one line of Python."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.targets import record, rows, simulation

_CALLS = 4000
_PAUSE_US = 500  # so that answers come while it still calls

# The argument of a call says through which function it was made.
_LIBRARY = f"""
#include <stddef.h>
#include <unistd.h>
int cudaMemset(void *, int, size_t);
__attribute__((noinline)) int shared_wrapper(size_t bytes)
{{
	int status = cudaMemset(0, 0, bytes);
	__asm__ volatile("" ::: "memory");
	usleep({_PAUSE_US});
	return status + 1;
}}
#define CHAIN(name, bytes) \\
	__attribute__((noinline)) int inner_##name(void) {{ return shared_wrapper(bytes) + 1; }} \\
	__attribute__((noinline)) int chain_##name(void) {{ return inner_##name() + 2; }}
CHAIN(first, 64)
CHAIN(second, 128)
CHAIN(third, 192)
int (*const chains[])(void) = {{ chain_first, chain_second, chain_third }};
int call_chain(int which) {{ return chains[which]() + 4; }}
"""
_MAIN = f"int main(void) {{ for (int i = 0; i < {_CALLS}; i++) call_chain(i % 3); return 0; }}"
_PYTHON = f"""
import ctypes, sys
call = ctypes.CDLL(sys.argv[1]).call_chain
for i in range({_CALLS}):
    call(i % 3)
"""
_CHAIN_OF_BYTES = {64: "chain_first", 128: "chain_second", 192: "chain_third"}


@pytest.mark.parametrize("kind", ["C", "Python"])
def test_a_stack_shows_another_calls_chain_only_where_it_says_so(kind: str, tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    source, made = tmp_path / "chains.c", tmp_path / "chains"
    source.write_text(_LIBRARY + (_MAIN if kind == "C" else ""))
    flags = ["-O1", "-fno-optimize-sibling-calls", *([] if kind == "C" else ["-shared", "-fPIC"])]
    library = f"-L{simulated.libraries}", "-l:libcudart.so.12"
    subprocess.run(["gcc", *flags, "-o", made, source, *library], check=True)
    command = [made] if kind == "C" else [sys.executable, "-c", _PYTHON, made]
    recorded = record(simulated, command, ["--record-all", "--stack"])
    found = rows(
        recorded.database,
        "SELECT e.arg0, s.frames, s.note FROM raw_events e JOIN raw_stacks s ON s.hash = e.stack_hash "
        "JOIN ops o ON o.source_id = e.source AND o.op_id = e.op WHERE o.name = 'cudaMemset'",
    )
    seen: Counter[tuple[bool, bool]] = Counter()
    for size, frames, note in found:
        chain = next(one["symbol"] for one in json.loads(frames) if one.get("symbol", "").startswith("chain_"))
        seen[chain == _CHAIN_OF_BYTES[size], "another call" in note] += 1
    assert seen[False, False] == 0, seen
    assert seen[True, False] > _CALLS / 2, seen


_WAYS, _ROUNDS = 12, 500
# Each way takes as much stack as the others, but none has its frames where another has them; what lies there instead is
# never the same twice.
_LAYOUTS = (
    """
#include <stddef.h>
#include <unistd.h>
int cudaMemset(void *, int, size_t);
static volatile unsigned long salt;
__attribute__((noinline)) int shared_wrapper(size_t bytes) { return cudaMemset(0, 0, bytes) + 1; }
#define FRAME(name, words, called) \\
	__attribute__((noinline)) int name(void) \\
	{ \\
		volatile unsigned long local[words]; \\
		for (int i = 0; i < words; i++) local[i] = salt++ << 17; \\
		return called + (int)(local[0] & 1); \\
	}
"""
    + "".join(
        f"FRAME(inner_{way}, {10 + 4 * way}, shared_wrapper({way + 1}))\n"
        f"FRAME(outer_{way}, {10 + 4 * (_WAYS - way)}, inner_{way}())\n"
        for way in range(_WAYS)
    )
    + f"""
int main(void)
{{
	int (*const ways[])(void) = {{ {", ".join(f"outer_{way}" for way in range(_WAYS))} }};
	for (int i = 0; i < {_WAYS * _ROUNDS}; i++) {{
		ways[i % {_WAYS}]();
		usleep({_PAUSE_US});
	}}
	return 0;
}}
"""
)


def test_chains_whose_frames_lie_elsewhere_are_each_told_after_one_copy(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    source, made = tmp_path / "ways.c", tmp_path / "ways"
    source.write_text(_LAYOUTS)
    library = f"-L{simulated.libraries}", "-l:libcudart.so.12"
    subprocess.run(["gcc", "-O1", "-fno-optimize-sibling-calls", "-o", made, source, *library], check=True)
    recorded = record(simulated, [made], ["--record-all", "--stack"])
    found = rows(
        recorded.database,
        "SELECT e.arg0, s.frames, s.note, e.stack_hash FROM raw_events e JOIN raw_stacks s ON s.hash = e.stack_hash "
        "JOIN ops o ON o.source_id = e.source AND o.op_id = e.op WHERE o.name = 'cudaMemset' ORDER BY e.start_ns",
    )
    assert len(found) == _WAYS * _ROUNDS
    seen = Counter(
        (f"outer_{size - 1}" in frames, "another call" in note) for size, frames, note, _ in found[len(found) // 2 :]
    )
    assert seen == {(True, False): len(found) - len(found) // 2}
    assert len({stack for *_, stack in found}) <= 3 * _WAYS
