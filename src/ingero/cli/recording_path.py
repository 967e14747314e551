"""The path of the database that commands read: where `trace` writes it, by the same option, variable and file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ingero.cli.config.file import CONFIG_VARIABLE, find_config
from ingero.cli.config.given import given_values
from ingero.cli.config.option_table import BY_NAME
from ingero.store.opening.locations import DATABASE_VARIABLE, database_path, invoking_user


def recording_path(named: Path | None, environ: Mapping[str, str], *, uid: int) -> Path:
    """The database named, else `INGERO_DB`, else `db` of ingero.yaml, else ~/.ingero/ingero.db of the invoking user.

    Raises:
        IngeroError: ingero.yaml cannot be used.
    """
    if named is None and not environ.get(DATABASE_VARIABLE):
        home = invoking_user(environ, uid=uid).home
        path = find_config(environ.get(CONFIG_VARIABLE), home)
        given = given_values([BY_NAME["db"]], {}, environ, path).get("db") if path else None
        if given is not None:
            text = given.text
            return home / text[2:] if text.startswith("~/") else Path(text).absolute()
    return database_path(named, environ, uid=uid)
