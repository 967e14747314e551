"""Writes configs/ingero.yaml and its JSON Schema from the commands' options; with --check, compares them."""

from __future__ import annotations

import json
from pathlib import Path

from generated import write_or_check

from ingero.cli.config.schema import SCHEMA_NAME, example, schema

FOLDER = Path(__file__).resolve().parent.parent / "configs"


def main() -> None:
    """Writes or checks."""
    write_or_check(FOLDER / "ingero.yaml", example())
    write_or_check(FOLDER / SCHEMA_NAME, json.dumps(schema(), indent=2) + "\n")


if __name__ == "__main__":
    main()
