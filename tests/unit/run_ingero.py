"""The command line as a shell calls it, in this process."""

from __future__ import annotations

import sys

import pytest

from ingero.cli.main import main

Answer = tuple[int, str, str]


def run_ingero(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> Answer:
    """Runs `ingero ARGUMENTS`; returns exit code, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["ingero", *arguments])
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err
