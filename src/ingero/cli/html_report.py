"""`ingero explain --html`: writes the report of a recording to a file, over nothing but a report."""

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
    """The file that the report should take the place of is none."""


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
    """Writes it whole or not at all, and says where. is_forced: over any other file, too.

    Raises:
        NotAReportError: there is another file.
        OutputError: it cannot be written, or is the recording itself.
    """
    from ingero.serve.html_report.report import report  # noqa: PLC0415  # what other ways to explain do not need

    refuse_recording(output, reader.path)
    if not is_forced:
        refuse_other_files(output)
    whole = report(reader, window, diagnosis, pid=pid, evidence=evidence)
    with output_file(output) as file:
        file.write(whole)
    if output != STANDARD_OUTPUT:
        echo(f"report: {output} ({format_bytes(len(whole))})")


def refuse_other_files(output: Path) -> None:
    """Only a report is written over without being asked to.

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
        begins = b"?"  # whoever may not read it may be able to replace it
    if begins not in (BEGINNING, b""):
        raise NotAReportError(
            f"{output} exists and is not a report of ingero explain", hint="name another file, or add --force"
        )
