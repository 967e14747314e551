"""`ingero explain --html`: writes the report of a recording to a file; overwrites only reports."""

from __future__ import annotations

import stat
from pathlib import Path

from ingero.cli.output import echo
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Diagnosis
from ingero.errors import IngeroError
from ingero.serve.export.output import STANDARD_OUTPUT, output_file, refuse_recording
from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import format_bytes


class NotAReportError(IngeroError):
    """The output exists and is not a report."""


def write_report(
    output: Path,
    reader: Reader,
    window: Window,
    diagnosis: Diagnosis,
    *,
    pid: int | None,
    evidence: Evidence | None,
    is_forced: bool,
) -> None:
    """Writes the report whole or not at all, and prints its path. is_forced: overwrites any file.

    Raises:
        NotAReportError: there is another file.
        OutputError: it cannot be written, or is the recording itself.
    """
    from ingero.serve.html_report.report import report  # noqa: PLC0415  # only for --html

    refuse_recording(output, reader.path)
    if not is_forced:
        refuse_other_files(output)
    whole = report(reader, window, diagnosis, pid=pid, evidence=evidence)
    with output_file(output) as file:
        file.write(whole)
    if output != STANDARD_OUTPUT:
        echo(f"report: {output} ({format_bytes(len(whole))})")


def refuse_other_files(output: Path) -> None:
    """Refuses to overwrite any file but a report.

    Raises:
        NotAReportError: there is another file.
    """
    from ingero.serve.html_report.report import BEGINNING  # noqa: PLC0415  # as above

    try:
        if output == STANDARD_OUTPUT or not stat.S_ISREG(output.stat().st_mode):
            return
        with output.open("rb") as file:
            begins = file.read(len(BEGINNING))
    except FileNotFoundError:
        return
    except OSError:
        begins = b"?"  # a file that cannot be read may still be replaceable
    if begins not in (BEGINNING, b""):
        raise NotAReportError(
            f"{output} exists and is not a report of ingero explain", hint="name another file, or add --force"
        )
