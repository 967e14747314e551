"""The table of host event programs, against the objects and the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from ingero.attach.host_events import HOST_PROGRAMS, HostEvents, HostProgram, missing_tracepoints
from ingero.attach.objects import object_path

pytestmark = pytest.mark.integration


def programs_of(name: str) -> dict[str, str]:
    """Program -> tracepoint of an object, from its symbols and the names of their sections."""
    with object_path(name).open("rb") as file:
        elf = ELFFile(file)
        symbols = elf.get_section_by_name(".symtab").iter_symbols()
        functions = [symbol for symbol in symbols if symbol["st_info"]["type"] == "STT_FUNC"]
        return {f.name: elf.get_section(f["st_shndx"]).name.removeprefix("tp_btf/") for f in functions}


@pytest.mark.parametrize("name", sorted({entry.object_name for entry in HOST_PROGRAMS}))
def test_the_table_lists_every_program_of_an_object_with_its_tracepoint(name: str) -> None:
    listed = {entry.program: entry.tracepoint for entry in HOST_PROGRAMS if entry.object_name == name}
    assert listed == programs_of(name)


@pytest.mark.parametrize("entry", HOST_PROGRAMS, ids=lambda entry: entry.program)
def test_each_program_loads_and_attaches_alone(entry: HostProgram) -> None:
    if entry.tracepoint in missing_tracepoints():
        pytest.skip(f"this kernel has no tracepoint {entry.tracepoint}")
    with HostEvents({}, programs=[entry]) as events:
        assert events.unavailable == []


def test_objects_use_the_maps_of_an_object_loaded_before() -> None:
    with HostEvents({}) as first:
        targets = first.maps["targets"]
        with HostEvents({"targets": targets}) as second:
            targets.update(b"\1\0\0\0", b"\7\0\0\0")
            assert second.maps["targets"].lookup(b"\1\0\0\0") == b"\7\0\0\0"
            assert second.maps["drops"].fd != first.maps["drops"].fd


def test_a_kernel_without_a_tracepoint_loses_what_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tmp_path / "vmlinux"
    present = [f"btf_trace_{entry.tracepoint}" for entry in HOST_PROGRAMS if not entry.tracepoint.startswith("sock_")]
    kernel.write_bytes("\0".join(["", *present, ""]).encode())
    missing = missing_tracepoints(kernel)
    assert missing == {"sock_send_length", "sock_recv_length"}
    monkeypatch.setattr("ingero.attach.host_events.missing_tracepoints", lambda: missing)
    with HostEvents({}) as events:
        assert [entry.program.program for entry in events.unavailable] == ["socket_send", "socket_receive"]
        assert events.unavailable[0].reason == "this kernel has no tracepoint sock_send_length"
