"""`ingero import`: turns profiles of other tools into a recording."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import rich_click as click

from ingero.cli.output import echo
from ingero.errors import IngeroError
from ingero.profiles.reading import MAX_BYTES, ImportedProfiles, read_profiles
from ingero.profiles.recording import NOT_SHOWN, Written, write_recording
from ingero.program import command as own_command
from ingero.store.errors import StoreError
from ingero.store.reader import open_reader
from ingero.units import format_bytes, format_count, format_counted, format_ns, parse_size_bytes

# The words of the summary by table.
_SHOWN = {
    "raw_events": "calls",
    "raw_gpu_activities": "GPU activities",
    "raw_user_ranges": "user ranges",
    "raw_steps": "steps",
    "raw_progress_marks": "progress marks",
    "raw_stacks": "stacks",
    "raw_communicators": "communicators",
}


class OutputExistsError(IngeroError):
    """The file that is to be written is there."""


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="F",
    help="Recording to write.",
)
@click.option("--force", is_flag=True, help="Overwrite an earlier import.")
@click.option(
    "--max-size",
    metavar="SIZE",
    help=f"Read at most this many bytes, uncompressed (default {format_bytes(MAX_BYTES)}).",
)
def command(files: tuple[Path, ...], output: Path, force: bool, max_size: str | None) -> None:
    """Import profiles of PyTorch, JAX, Nsight Systems or RPD as a recording.

    From Nsight Systems it takes SQLite exports. A folder, a .tar.gz or a .zip holds the ranks of one job: each file
    becomes a process. Files may be compressed: .gz, .bz2, .xz.
    """
    _refuse_others(output, force=force)
    read = read_profiles(files, max_bytes=parse_size_bytes(max_size) if max_size else MAX_BYTES)
    if output.exists():
        output.unlink()
    written = write_recording(output, read.profiles, read.notes, files=read.files)
    for line in _summary(read, written, output):
        echo(line)


def _refuse_others(output: Path, *, force: bool) -> None:
    """Refuses to overwrite any file but an import, which needs --force.

    Raises:
        OutputExistsError: there is another file, or --force is missing.
    """
    if not output.exists():
        return
    if not _is_import(output):
        raise OutputExistsError(
            f"{output} exists and was not made by ingero import", hint="choose another file with -o"
        )
    if not force:
        raise OutputExistsError(f"{output} exists", hint=f"{own_command('import', '--force', '-o', output)} ...")


def _is_import(path: Path) -> bool:
    try:
        with open_reader(path) as reader:
            sessions = reader.sessions()
    except StoreError:
        return False
    return bool(sessions) and all("import" in json.loads(session.options) for session in sessions)


def _summary(read: ImportedProfiles, written: Written, output: Path) -> Iterator[str]:
    tools = ", ".join(sorted({profile.origin.tool for profile in read.profiles}))
    processes = format_counted(len(read.profiles), "process")
    span = format_ns(written.end_ns - written.begin_ns)
    yield f"{processes} from {format_counted(len(read.files), 'file')} ({tools}), {span}: {output}"
    parts = [f"{name} {format_count(written.rows[table])}" for table, name in _SHOWN.items() if written.rows[table]]
    yield f"  {', '.join(parts)}"
    for reason, count in read.notes.dropped.items():
        if count:
            yield f"  dropped, records {reason}: {format_count(count)}"
    for reason, count in read.notes.remarks.items():
        if count:
            yield f"  {reason}: {format_count(count)}"
    for text in read.notes.lacks:
        yield f"  {text}"
    if not any(profile.has_python_stacks for profile in read.profiles):
        yield "  no Python stacks: lines of code cannot be named"
    yield f"  {NOT_SHOWN}"
