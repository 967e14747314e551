"""`ingero service`: has systemd run the agent and the dashboard; prints each action."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import rich_click as click

from ingero.cli.command_group import CommandGroup
from ingero.cli.config.file import FILE_NAME, read_config
from ingero.cli.output import echo
from ingero.cli.service.units import DASHBOARD, STATE_FOLDER, SYSUSERS, TRACE, USER, first_settings, sysusers, units
from ingero.errors import IngeroError
from ingero.foreign_text import shell_word
from ingero.program import command as own_command

EXIT_NOT_ACTIVE = 1
_MARK = "# Written by `ingero service install`, and removed by `ingero service uninstall`."
_UNIT_FOLDER, _SYSUSERS_FOLDER, _SETTINGS_FOLDER = "etc/systemd/system", "etc/sysusers.d", "etc/ingero"
_UNITS_OF_PACKAGES = ("usr/lib/systemd/system", "lib/systemd/system", "usr/local/lib/systemd/system")
_SYSUSERS_OF_PACKAGES = ("usr/lib/sysusers.d",)
_SYSTEMD_RUNS = Path("/run/systemd/system")  # sd_booted(3)
_SHOWN = ("ActiveState", "SubState", "MainPID", "NRestarts", "StatusText")
_TIMEOUT_S = 120


class ServiceError(IngeroError):
    """systemd cannot be had to run it."""


_root = click.option(
    "--root", type=click.Path(path_type=Path, file_okay=False), default=Path("/"), metavar="D",
    help="Work in this folder instead of /, as for an image; nothing is started.",
)  # fmt: skip
_dry_run = click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")


@click.group("service", cls=CommandGroup)
def command() -> None:
    """Run the agent and the dashboard as systemd services.

    The agent runs as a user of its own with five capabilities, and records into /var/lib/ingero. Its settings are in
    /etc/ingero/ingero.yaml, its log is in `journalctl -u ingero`.
    """


@command.command("install")
@click.option("--dashboard", is_flag=True, help="Also start the dashboard.")
@click.option("--no-start", is_flag=True, help="Write the files, but start nothing.")
@_root
@_dry_run
def install(dashboard: bool, no_start: bool, root: Path, dry_run: bool) -> None:
    """Write the units, their user and settings, and start the agent. A second run changes nothing."""
    actions = _Actions(root, is_dry=dry_run)
    program = _program()
    wanted = {f"{_UNIT_FOLDER}/{name}": _marked(text) for name, text in units(program).items()}
    wanted[f"{_SYSUSERS_FOLDER}/{SYSUSERS}"] = _marked(sysusers())
    packaged = {name: path for name in wanted if (path := _packaged_file(name, root))}
    files = {name: text for name, text in wanted.items() if name not in packaged}
    for name in files:
        _refuse_others(root / name)
    actions.need_rights()
    for path in packaged.values():
        echo(f"as its package has it: {path}")
    changed = [name for name, text in files.items() if actions.write(name, text)]
    _write_settings(actions)
    for warning in _unreachable(program) if actions.is_here and not packaged else ():
        echo(f"note: {warning}", err=True)
    if not actions.is_here:
        return
    users = f"{_SYSUSERS_FOLDER}/{SYSUSERS}"
    actions.run("systemd-sysusers", str(packaged.get(users, root / users)))
    if not _SYSTEMD_RUNS.exists():
        echo("systemd does not run here: when it does, `systemctl enable --now ingero`")
        return
    actions.run("systemctl", "daemon-reload")
    started = [TRACE, *([DASHBOARD] if dashboard else [])]
    if no_start:
        echo(f"to start: systemctl enable --now {' '.join(started)}")
        return
    running = [name for name in started if _systemd_properties(name).get("ActiveState") == "active"]
    actions.run("systemctl", "enable", "--now", *started)
    for name in running:
        if f"{_UNIT_FOLDER}/{name}" in changed:
            actions.run("systemctl", "restart", name)
        else:
            echo(f"{name} runs already; `systemctl restart {name}` has it be this version")


@command.command("uninstall")
@_root
@_dry_run
def uninstall(root: Path, dry_run: bool) -> None:
    """Stop both services and remove what install wrote. Recordings, the user and edited settings stay."""
    actions = _Actions(root, is_dry=dry_run)
    names = [f"{_UNIT_FOLDER}/{TRACE}", f"{_UNIT_FOLDER}/{DASHBOARD}", f"{_SYSUSERS_FOLDER}/{SYSUSERS}"]
    ours = [name for name in names if _is_ours(root / name)]
    settings = f"{_SETTINGS_FOLDER}/{FILE_NAME}"
    if _read(root / settings) == _marked(first_settings()):
        ours.append(settings)
    packaged = [path for name in names if not _is_ours(root / name) and (path := _packaged_file(name, root))]
    if not ours and not packaged:
        echo("nothing of `ingero service install` is here")
        return
    actions.need_rights()
    stopped = [path.name for path in (*map(Path, ours), *packaged) if path.suffix == ".service"]
    if stopped and actions.is_here and _SYSTEMD_RUNS.exists():
        actions.run("systemctl", "disable", "--now", *stopped)
    for name in ours:
        actions.remove(name)
    if settings in ours and not dry_run:
        with suppress(OSError):  # certificates and tokens may lie in it
            (root / _SETTINGS_FOLDER).rmdir()
    if actions.is_here and _SYSTEMD_RUNS.exists():
        actions.run("systemctl", "daemon-reload")
    for path in packaged:
        echo(f"kept: {path} (of a package)")
    for kept, what in ((root / settings, "settings"), (root / STATE_FOLDER.lstrip("/"), "recordings")):
        if kept.exists() and str(kept.relative_to(root)) not in ours:
            echo(f"kept: {kept} ({what}); rm -r {shell_word(kept)} removes it")
    if actions.is_here:
        echo(f"kept: the user {USER}")


@command.command("status")
@_root
def status(root: Path) -> None:
    """Show whether the services are running, and the latest verdict.

    Exit code 0: the agent is running, 1: it is not.
    """
    is_active = False
    for name in (TRACE, DASHBOARD):
        echo(f"{name}: {_origin_of(name, root)}")
        shown = _systemd_properties(name) if root == Path("/") and _SYSTEMD_RUNS.exists() else {}
        for key, value in shown.items():
            echo(f"  {key}: {value}")
        is_active |= name == TRACE and shown.get("ActiveState") == "active"
    if not _SYSTEMD_RUNS.exists():
        echo("systemd does not run here")
    if not is_active:
        sys.exit(EXIT_NOT_ACTIVE)


class _Actions:
    """Prints and performs actions below `root`; with is_dry it only prints them."""

    def __init__(self, root: Path, *, is_dry: bool) -> None:
        self.root, self._is_dry = root, is_dry
        self.is_here = root == Path("/")

    def need_rights(self) -> None:
        """Checks for root before the first action.

        Raises:
            ServiceError: the user is not root.
        """
        if self.is_here and not self._is_dry and os.geteuid() != 0:
            raise ServiceError("systemd's files belong to root", hint=f"sudo {' '.join(map(shell_word, _typed()))}")

    def write(self, name: str, text: str) -> bool:
        """Writes a file; returns whether it has changed.

        Raises:
            ServiceError: it cannot be written.
        """
        path = self.root / name
        if _read(path) == text:
            echo(f"as it should be: {path}")
            return False
        echo(f"write {path}")
        if not self._is_dry:
            try:
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                beside = path.with_name(f".{path.name}.{os.getpid()}")
                descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
                with os.fdopen(descriptor, "w") as file:
                    file.write(text)
                beside.replace(path)
            except OSError as error:
                raise ServiceError(
                    f"cannot write {path}: {error.strerror}", hint=own_command("service", "install", "--root", "D")
                ) from error
        return True

    def remove(self, name: str) -> None:
        """Removes a file.

        Raises:
            ServiceError: it cannot be removed.
        """
        path = self.root / name
        echo(f"remove {path}")
        if not self._is_dry:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise ServiceError(f"cannot remove {path}: {error.strerror}", hint=f"rm {shell_word(path)}") from error

    def run(self, *words: str) -> None:
        """Runs a command.

        Raises:
            ServiceError: it is not there, or failed.
        """
        line = " ".join(map(shell_word, words))
        echo(f"run {line}")
        if self._is_dry:
            return
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServiceError(
                f"{line}: {error}", hint=f"`{own_command('service', 'status')}` shows its state"
            ) from error
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
            raise ServiceError(f"{line}: {said[0]}", hint=f"journalctl -u {TRACE.partition('.')[0]} -n 20")


def _write_settings(actions: _Actions) -> None:
    """Writes the settings file, unless there is one."""
    name = f"{_SETTINGS_FOLDER}/{FILE_NAME}"
    path = actions.root / name
    if not os.path.lexists(path):
        actions.write(name, _marked(first_settings()))
        return
    echo(f"kept as it is: {path}")
    with suppress(IngeroError):
        if all(entry.option.key != "db" for entry in read_config(path)):
            echo(f"note: it names no `db`; the service then records into {STATE_FOLDER}/.ingero/ingero.db", err=True)


def _marked(text: str) -> str:
    return f"{_MARK}\n{text}"


def _is_ours(path: Path) -> bool:
    return (_read(path) or "").startswith(_MARK)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _refuse_others(path: Path) -> None:
    """Refuses to overwrite a file that `ingero service install` did not write.

    Raises:
        ServiceError: there is such a file.
    """
    if os.path.lexists(path) and not _is_ours(path):
        raise ServiceError(
            f"{path} was not written by `ingero service install`", hint=f"inspect it: cat {shell_word(path)}"
        )


def _packaged_file(name: str, root: Path) -> Path | None:
    """The path at which a package has installed a file of that name; None if there is none."""
    folders = _UNITS_OF_PACKAGES if name.endswith(".service") else _SYSUSERS_OF_PACKAGES
    paths = (root / folder / Path(name).name for folder in folders)
    return next((path for path in paths if path.exists()), None)


def _origin_of(name: str, root: Path) -> str:
    path = root / _UNIT_FOLDER / name
    if os.path.lexists(path):
        return f"{path}, {'of ingero service install' if _is_ours(path) else 'written by somebody else'}"
    found = _packaged_file(name, root)
    return f"{found}, of a package" if found else "not installed"


def _systemd_properties(name: str) -> Mapping[str, str]:
    words = ["systemctl", "show", name, f"--property={','.join(_SHOWN)}"]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False)
        pairs = (line.partition("=")[::2] for line in done.stdout.splitlines())
        return {key: value for key, value in pairs if key in _SHOWN and value}
    return {}


def _program() -> tuple[str, ...]:
    """The words of a command that starts this ingero from any folder.

    The name on the PATH goes first: unlike the release's own folder, it stays valid when a release is exchanged.
    """
    typed = Path(sys.argv[0])
    if typed.name == "ingero":
        found = shutil.which(sys.argv[0] if len(typed.parts) == 1 else typed.name)
        own = typed if len(typed.parts) > 1 else Path(found or typed)
        if found and Path(found).resolve() == own.resolve():
            own = Path(found)
        if os.access(own, os.X_OK):
            return (str(own.absolute()),)
    return (sys.executable, "-m", "ingero.cli.main")


def _typed() -> Sequence[str]:
    return (*_program(), *sys.argv[1:])


def _unreachable(program: Sequence[str]) -> Iterator[str]:
    """Warnings about the program and its Python where the service's user cannot read them."""
    for path in dict.fromkeys((Path(program[0]).resolve(), Path(sys.executable).resolve())):
        closed = next((folder for folder in path.parents if not folder.stat().st_mode & 0o001), None)
        if closed is not None:
            why = f"{closed} is closed to others; install ingero below /opt or /usr/local"
            yield f"the user {USER} cannot reach {path}: {why}"
