"""Which database is meant."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from ingero.store.opening.locations import database_path, give, invoking_user, make_folders

SOMEBODY = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, os.getuid()))


def test_named_file_wins_over_the_environment() -> None:
    assert database_path("/x/y.db", {"INGERO_DB": "/other.db"}, uid=os.getuid()) == Path("/x/y.db")


def test_environment_wins_over_the_home() -> None:
    assert database_path(None, {"INGERO_DB": "/other.db"}, uid=os.getuid()) == Path("/other.db")


def test_home_of_nobody_is_a_name_like_another() -> None:
    assert (
        database_path("~nobody-has-this-name/a.db", {}, uid=os.getuid())
        == Path("~nobody-has-this-name/a.db").absolute()
    )


def test_under_sudo_the_home_is_that_of_the_person_who_called_it() -> None:
    path = database_path(None, {"SUDO_USER": SOMEBODY.pw_name, "SUDO_UID": str(SOMEBODY.pw_uid)}, uid=0)
    assert path == Path(SOMEBODY.pw_dir) / ".ingero" / "ingero.db"
    owner = invoking_user({"SUDO_UID": str(SOMEBODY.pw_uid)}, uid=0)
    assert (owner.uid, owner.gid) == (SOMEBODY.pw_uid, SOMEBODY.pw_gid)


def test_sudo_variables_mean_nothing_to_other_users() -> None:
    assert invoking_user({"SUDO_UID": "0", "SUDO_USER": "root"}, uid=SOMEBODY.pw_uid).uid == SOMEBODY.pw_uid


def test_unknown_sudo_user_falls_back_to_the_current_one() -> None:
    assert invoking_user({"SUDO_USER": "nobody-has-this-name"}, uid=0).uid == 0


def test_user_without_an_entry_has_the_home_of_the_environment() -> None:
    owner = invoking_user({"HOME": "/work"}, uid=4_000_000_000)
    assert (owner.uid, owner.home) == (4_000_000_000, Path("/work"))


def test_what_is_theirs_already_is_not_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seccomp filter may forbid the very call, as a unit's does that leaves out @chown."""
    (tmp_path / "file").touch()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(os, "chown", refuse)
    status = (tmp_path / "file").stat()
    give(tmp_path / "file", status.st_uid, status.st_gid)
    with (tmp_path / "file").open() as file:
        give(file.fileno(), status.st_uid, status.st_gid)
        with pytest.raises(PermissionError):
            give(file.fileno(), status.st_uid + 1, status.st_gid)
    with pytest.raises(PermissionError):
        give(tmp_path / "file", status.st_uid, status.st_gid + 1)


def test_folders_that_another_process_makes_meanwhile_are_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Path] = []
    make = Path.mkdir

    def loses_the_race(folder: Path, mode: int) -> None:
        make(folder)
        make(folder, mode)

    monkeypatch.setattr(Path, "mkdir", loses_the_race)
    monkeypatch.setattr("ingero.store.opening.locations.give", lambda folder, *_: given.append(folder))
    make_folders(tmp_path / "one" / "two", 0o755, (1, 1))
    assert (tmp_path / "one" / "two").is_dir()
    assert given == []  # whoever made them gives them away


def test_each_new_folder_gets_the_owner_and_the_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, ...]] = []
    monkeypatch.setattr("ingero.store.opening.locations.give", lambda *passed: given.append(passed))
    make_folders(tmp_path / "one" / "two", 0o700, (7, 8))
    assert given == [(tmp_path / "one", 7, 8), (tmp_path / "one" / "two", 7, 8)]
    assert (tmp_path / "one" / "two").stat().st_mode & 0o777 == 0o700
    make_folders(tmp_path / "one" / "two", 0o700, (7, 8))
    assert len(given) == 2


def test_something_else_of_a_folders_name_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        make_folders(tmp_path / "one" / "two", 0o755, None)
