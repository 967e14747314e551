"""Packed files and collections of them: read as streams, within bounds, whatever is wrong with them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from ingero.profiles import unpacking
from ingero.profiles.model import ProfileError
from ingero.profiles.reading import BY_NAME, read_profiles
from tests.unit.profiles import files
from tests.unit.profiles.files import database, new_trace, nsight_tables

CALLS = 5 * files.STEPS


def written(path: Path, data: bytes) -> Path:
    """A file with these bytes."""
    path.write_bytes(data)
    return path


def tar_of(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    """A tar of these files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as tar:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def zip_of(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of these files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return packed.getvalue()


def ranks(count: int) -> dict[str, bytes]:
    """The traces of some ranks."""
    return {
        f"job/rank{rank}.json": new_trace(distributedInfo={"rank": rank, "world_size": count}) for rank in range(count)
    }


PACKED = {
    "json": lambda data: data,
    "gz": gzip.compress,
    "two gz": lambda data: gzip.compress(data[:500]) + gzip.compress(data[500:]),
    "xz": lzma.compress,
    "xz of gz": lambda data: lzma.compress(gzip.compress(data)),
    "tar": lambda data: tar_of({"a.json": data}, "w"),
    "tar.gz": lambda data: tar_of({"a.json": data}),
    "bz2": bz2.compress,
    "two bz2": lambda data: bz2.compress(data[:500]) + bz2.compress(data[500:]),
    "zip": lambda data: zip_of({"a.json": data}),
    "zip of gz, in a folder": lambda data: zip_of({"job/": b"", "job/a.json.gz": gzip.compress(data)}),
    "tar.gz of gz": lambda data: tar_of({"a.json.gz": gzip.compress(data)}),
    "with a mark of its encoding": lambda data: b"\xef\xbb\xbf" + data,
}


@pytest.mark.parametrize("packing", PACKED)
def test_a_trace_is_known_by_its_content_however_it_is_packed(tmp_path: Path, packing: str) -> None:
    read = read_profiles([written(tmp_path / "some.file", PACKED[packing](new_trace()))])
    assert [(len(one.calls), one.origin.has_unix_times) for one in read.profiles] == [(CALLS, True)]


def test_a_packed_database_is_read(tmp_path: Path) -> None:
    plain = database(tmp_path / "plain.sqlite", nsight_tables())
    packed = written(tmp_path / "packed", lzma.compress(plain.read_bytes()))
    assert len(read_profiles([packed]).profiles) == 2


def test_a_tar_of_ranks_is_one_job(tmp_path: Path) -> None:
    read = read_profiles([written(tmp_path / "job.tar.gz", tar_of(ranks(3)))])
    assert sorted((one.rank, one.origin.file) for one in read.profiles) == [
        *((0, "rank0.json"), (1, "rank1.json"), (2, "rank2.json"))
    ]


def test_a_folder_of_ranks_is_one_job_and_other_files_in_it_are_named(tmp_path: Path) -> None:
    for name, data in ranks(2).items():
        written(tmp_path / Path(name).name, data)
    written(tmp_path / "notes.txt", b"learning rate 3e-4")
    read = read_profiles([tmp_path])
    assert [one.rank for one in read.profiles] == [0, 1]
    assert read.notes.lacks == ["notes.txt was skipped: notes.txt is not a profile that can be imported"]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_packed_file_that_is_cut_gives_what_lies_before_the_cut(tmp_path: Path, pack: object) -> None:
    data = pack(new_trace(files.training(100)))  # type: ignore[operator]
    read = read_profiles([written(tmp_path / "cut", data[: len(data) // 2])])
    assert 50 < len(read.profiles[0].calls) < 5 * 100
    assert "is cut after" in read.notes.lacks[0]


def test_a_damaged_checksum_costs_no_more_than_the_end(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(new_trace(files.training(100))))
    data[-8] ^= 0xFF
    read = read_profiles([written(tmp_path / "damaged.gz", bytes(data))])
    assert 5 * 100 * 0.8 < len(read.profiles[0].calls) < 5 * 100


def test_a_file_that_unpacks_to_more_than_allowed_is_refused(tmp_path: Path) -> None:
    bomb = written(tmp_path / "bomb.json.gz", gzip.compress(b"[" + b" " * (8 << 20)))
    with pytest.raises(ProfileError, match=r"more than 4\.00 MiB") as caught:
        read_profiles([bomb], max_bytes=4 << 20)
    assert "--max-size" in caught.value.hint


def test_one_endless_string_is_refused(tmp_path: Path) -> None:
    bomb = written(tmp_path / "bomb.json.gz", gzip.compress(b'[{"name": "' + b"a" * (20 << 20)))
    with pytest.raises(ProfileError, match="a piece of more than"):
        read_profiles([bomb])


def test_an_xz_file_may_not_ask_for_much_memory(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    data = bytearray(lzma.compress(new_trace(), filters=filters))
    with pytest.raises(ProfileError, match="damaged from its beginning"):
        read_profiles([written(tmp_path / "greedy.xz", bytes(data))])


def test_more_files_than_allowed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MAX_FILES", 2)
    with pytest.raises(ProfileError, match="more than 2 files"):
        read_profiles([written(tmp_path / "job.tar.gz", tar_of(ranks(3)))])


def test_a_link_in_a_tar_is_not_followed(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        link = tarfile.TarInfo("rank0.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(ProfileError, match="nothing to import"):
        read_profiles([written(tmp_path / "links.tar", packed.getvalue())])


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", b"hello", b"{}", b"[]", b"[1, 2]", b'{"traceEvents": {}}', b"\x1f\x8b"]
)
def test_what_is_no_profile_is_refused_with_a_way_out(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ProfileError) as caught:
        read_profiles([written(tmp_path / "file", data)])
    assert str(caught.value)


def test_a_name_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    packed = tar_of({"a.json": new_trace(), "evil\x1b[2J\n.txt": b"x" * 600})
    read = read_profiles([written(tmp_path / "job.tar.gz", packed)])
    assert all(text.isprintable() for text in read.notes.lacks)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("report.nsys-rep", "nsys export --type sqlite report.nsys-rep"),
        ("host.xplane.pb", "import the .trace.json.gz beside it"),
        ("trace.json.zst", "unzstd trace.json.zst"),
        ("memory.pickle", "export one with torch.profiler: prof.export_chrome_trace('trace.json')"),
    ],
)
def test_a_file_of_a_tool_that_is_not_read_says_what_to_import_instead(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(ProfileError) as raised:
        read_profiles([written(tmp_path / name, b"\x00\x01 something")])
    assert raised.value.hint == hint


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (zip_of({"a.json": new_trace()})[:-200], "is cut, or a zip of more than"),
        (zip_of({f"{number}.json": b"{}" for number in range(4097)}), "is cut, or a zip of more than"),
        (zip_of({"a.json": new_trace()}, zipfile.ZIP_LZMA), "cannot be unpacked: it is packed in another way"),
    ],
)
def test_a_zip_that_cannot_be_read_within_bounds_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        read_profiles([written(tmp_path / "traces.zip", data)])


def test_what_a_zip_unpacks_to_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "a.zip", zip_of({"a.json": new_trace() + b" " * (1 << 22)}))
    with pytest.raises(ProfileError, match="more than 1"):
        read_profiles([path], max_bytes=1 << 20)


def test_a_damaged_file_of_a_zip_is_read_up_to_there(tmp_path: Path) -> None:
    long = zip_of({"a.json": new_trace(files.training(100))})
    data = bytearray(zip_of({"a.json": new_trace(files.training(100)), "b.json": new_trace()}))
    data[len(long) // 2] ^= 0xFF
    read = read_profiles([written(tmp_path / "a.zip", bytes(data))])
    first, second = (len(profile.calls) for profile in read.profiles)
    assert 0 < first < 500
    assert second == CALLS
    assert read.notes.lacks[0].startswith("a.json is cut after")


def test_a_pipe_is_read_as_a_file_is(tmp_path: Path) -> None:
    pipe = tmp_path / "trace"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(new_trace(),))
    writer.start()
    (profile,) = read_profiles([pipe]).profiles
    writer.join()
    assert len(profile.calls) == CALLS


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("rank-0.Apr_03.json", "rank-12.Apr_03.json"), [0, 12]),
        (("worker1_step_5.json", "worker0_step_5.json"), [0, 1]),
        (("rank0.json", "other.json"), [None, None]),
        (("rank0_step1.json", "rank0_step2.json"), [None, None]),
        (("rank1.json",), [None]),
    ],
)
def test_files_that_say_no_rank_have_that_of_their_name_if_all_do(
    tmp_path: Path, names: tuple[str, ...], expected: list[int | None]
) -> None:
    without_rank = new_trace(distributedInfo=None)
    read = read_profiles([written(tmp_path / "job.tar.gz", tar_of(dict.fromkeys(names, without_rank)))])
    assert sorted((profile.rank for profile in read.profiles), key=str) == sorted(expected, key=str)
    assert (BY_NAME in read.notes.lacks) is (expected[0] is not None)


def test_the_rank_that_a_file_says_is_never_that_of_a_name(tmp_path: Path) -> None:
    named = {
        "rank7.json": new_trace(distributedInfo={"rank": 3, "world_size": 8}),
        "rank8.json": new_trace(distributedInfo=None),
    }
    read = read_profiles([written(tmp_path / "job.tar.gz", tar_of(named))])
    assert [profile.rank for profile in read.profiles] == [3, None]
