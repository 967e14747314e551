"""Writes deploy/systemd from the units that `ingero service install` writes; with --check, compares them."""

from __future__ import annotations

from pathlib import Path

from generated import write_or_check

from ingero.cli.service.units import first_settings, sysusers, units

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "systemd"


def main() -> None:
    """Writes or checks."""
    files = {**units(), "ingero.sysusers": sysusers(), "ingero.yaml": first_settings()}
    FOLDER.parent.mkdir(exist_ok=True)
    for name, text in files.items():
        write_or_check(FOLDER / name, text)


if __name__ == "__main__":
    main()
