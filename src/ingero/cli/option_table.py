"""The options that ingero.yaml may hold: one row each, from which flags, variables, keys, schema and help are made.

Those of `ingero trace` stand at the file's top level, those of other commands below the command's name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ingero.cli.update_source import DEFAULT_URL, refuse_url
from ingero.discover.python_walkers import PyWalker
from ingero.errors import IngeroError
from ingero.program import command
from ingero.serve.addresses import Address, parse_address
from ingero.serve.otlp_endpoint import parse_endpoint
from ingero.units import parse_duration_s, parse_size_bytes

TRUE_WORDS, _FALSE_WORDS = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%?")
_NODE = re.compile(r"[A-Za-z0-9._-]{1,253}")  # what a host name may hold; a colon would end it in event ids
_MAX_SAMPLING_RATE = (1 << 32) - 1  # the BPF program's constant is 32 bits wide
_MIN_DB_BYTES = 1 << 20  # an empty database with its indexes takes a quarter of it
_MIN_RING_BYTES, _MAX_RING_BYTES = 64 << 10, 1 << 30  # 280 records; beyond 1 GiB no sync is that late


class OptionError(IngeroError):
    """The value of an option cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    name: the flag without its dashes; it is also the key in ingero.yaml, and INGERO_NAME in the environment.
    section: of ingero.yaml; "" is the top level. field: of `TraceSettings`, or the command's parameter.
    parse: from text; raises IngeroError. default: as text; empty: see help.
    metavar: what stands for the value in the help, and its kind: "" is a switch, D a duration, SIZE, P a percentage,
    F a file, N a number, words with | between them. separator: between several values.
    """

    name: str
    field: str
    parse: Callable[[str], object]
    default: str
    metavar: str
    help: str
    separator: str = ","
    section: str = ""

    @property
    def key(self) -> str:
        """Its place in ingero.yaml: `max-db`, `dashboard.addr`."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off: `--name`, `--name=false`, `--no-name`."""
        return not self.metavar

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "INGERO_" + self.key.upper().replace("-", "_").replace(".", "_")


def parse_switch(text: str) -> bool:
    """True of `true`, `yes`, `on`, `1`; False of their opposites."""
    if text.lower() not in (*TRUE_WORDS, *_FALSE_WORDS):
        raise OptionError(f"{text!r} is neither true nor false", hint="write true or false")
    return text.lower() in TRUE_WORDS


def _pids(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(\s*,\s*\d+)*", text):
        raise OptionError(f"{text!r} is no list of process ids like 1234,5678", hint="pgrep -f 'the program'")
    pids = tuple(int(part) for part in text.split(","))
    for pid in pids:
        if not Path(f"/proc/{pid}").exists():
            raise OptionError(f"no process {pid} is running", hint=f"`{command('check')}` lists the CUDA processes")
    return pids


def _duration_s(text: str) -> float:
    seconds = parse_duration_s(text)
    if not seconds:
        raise OptionError(f"{text!r} is no time at all", hint="write it like 90s, 5m, 1h30m or 2d")
    return seconds


def _db_bytes(text: str) -> int:
    size = parse_size_bytes(text)
    if 0 < size < _MIN_DB_BYTES:
        raise OptionError(f"{text!r} is less than a database needs", hint="give it 1m or more; 0 means no limit")
    return size


def _ring_bytes(text: str) -> int:
    size = parse_size_bytes(text)
    if not _MIN_RING_BYTES <= size <= _MAX_RING_BYTES:
        raise OptionError(f"{text!r} is no size for a ring buffer", hint="between 64k and 1g; 8m is the default")
    return size


def _ratio(text: str) -> float:
    return parse_percent(text) / 100


def parse_percent(text: str) -> float:
    """0 to 100, of text like `2%` or `0.5`.

    Raises:
        OptionError: it is none.
    """
    found = _PERCENT.fullmatch(text.strip())
    if found is None or float(found[1]) > 100:
        raise OptionError(f"{text!r} is no percentage from 0 to 100", hint="write it like 2% or 0.5%")
    return float(found[1])


def _sampling_rate(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_SAMPLING_RATE:
        raise OptionError(f"{text!r} is no sampling rate", hint="100 records one call in 100; 0 adapts to the load")
    return int(text)


def is_node_name(text: str) -> bool:
    """Whether a node may have that name."""
    return _NODE.fullmatch(text) is not None


def _node(text: str) -> str:
    if not is_node_name(text):
        raise OptionError(f"{text!r} is no name for a node", hint="use letters, digits, dots, dashes and underscores")
    return text


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(Path(part).absolute() for part in text.split(":") if part)


def _driver_only(text: str) -> bool:
    if text not in ("driver", "both"):
        raise OptionError(f"{text!r} is neither driver nor both", hint="write driver or both")
    return text == "driver"


def _py_walker(text: str) -> PyWalker:
    try:
        return PyWalker(text)
    except ValueError:
        raise OptionError(f"{text!r} reads no Python frames", hint="write auto, ebpf or userspace") from None


def _scraped_at(text: str) -> Address:
    return parse_address(text)


def _text(text: str) -> str:
    if not text:
        raise OptionError("it is empty", hint="leave the option out instead")
    return text


def _command(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise OptionError(
            f"{text!r} is no command: {error}", hint="quote it as for a shell: 'notify --to ops'"
        ) from None
    if not words or not words[0] or "\0" in text:
        raise OptionError(f"{text!r} names no program", hint="write it like '/usr/local/bin/notify --to ops'")
    return words


def _option(
    name: str, parse: Callable[[str], object], default: str, metavar: str, help_text: str, separator: str = ","
) -> Option:
    return Option(
        name=name,
        field=name.replace("-", "_"),
        parse=parse,
        default=default,
        metavar=metavar,
        help=help_text,
        separator=separator,
    )


def _switch(name: str, default: str, help_text: str) -> Option:
    return _option(name, parse_switch, default, "", help_text)


# In the order of the help.
OPTIONS: tuple[Option, ...] = (
    _option("pid", _pids, "", "A,B", "Trace these processes and their children only."),
    _option("user", _text, "", "U", "Trace the processes of this user (name or uid), or of all. Default: of whoever "
            "called sudo; for root and for services, of all."),
    _option("duration", _duration_s, "", "D", "Stop after this time: 90s, 5m, 1h30m."),
    _option("db", _text, "", "F", "Database. Default: ~/.ingero/ingero.db of whoever called sudo."),
    _option("max-db", _db_bytes, "10g", "SIZE", "Keep the database below this size, oldest detail goes first; "
            "0: no limit."),
    _switch("record", "true", "Write the database, or only watch."),
    _switch("record-all", "false", "Store every call instead of rare, slow and sampled ones."),
    _option("sampling-rate", _sampling_rate, "0", "N", "Store one ordinary call in N; 0: about 10 a second."),
    _option("launches-at", _driver_only, "both", "driver|both", "Probe launches in the driver only: cheaper, and the "
            "caller of a launch is then the CUDA runtime."),
    _option("cuda-lib", _paths, "", "PATH", "Probe this file as well, whatever its name: a renamed library, or a "
            "program with the CUDA runtime linked in. Several: A:B.", ":"),
    _switch("stack", "true", "Take the Python and native stack of each recorded call."),
    _option("py-walker", _py_walker, "auto", "W", "Who reads Python frames. ebpf: the kernel side, of each recorded "
            "call; userspace: the agent, of threads that sleep and of calls open for over 2 s; auto: the kernel side "
            "where that can be."),
    _switch("nccl", "true", "Probe NCCL."),
    _switch("io", "true", "Watch block I/O."),
    _switch("tcp", "true", "Watch TCP retransmits."),
    _switch("net", "true", "Count the bytes that targets send and receive on sockets."),
    _option("deadband", parse_percent, "0", "P", "Store a system snapshot only when a figure has moved by more than P "
            "percent; 0: each second."),
    _option("heartbeat", _duration_s, "60s", "D", "With --deadband: store one at least this often."),
    _option("max-overhead", _ratio, "2%", "P", "What tracing may cost the busiest traced thread; 0: no limit."),
    _option("max-cpu", _ratio, "5%", "P", "What ingero may use of one core, averaged over a minute; 0: no limit."),
    _option("ringbuf-size", _ring_bytes, "8m", "SIZE", "Kernel buffer of recorded calls, a power of two."),
    _option("node", _node, "", "NAME", "Name of this machine in the recording. Default: in a pod that says "
            "it (NODE_NAME by the downward API), the Kubernetes node's, else the host name."),
    _option("serve", _scraped_at, "", "ADDR", "Answer at ADDR, such as 0.0.0.0:8080, as `ingero dashboard` would: in "
            "the browser and to `--nodes` of other machines, by a process without rights."),
    _option("on-incident", _command, "", "CMD", "Run this command as an incident opens and as it closes, with the "
            "incident as JSON on standard input: without root's rights, without a shell, one at a time, 10 s at most."),
    _option("prometheus", _scraped_at, "", "ADDR", "Serve metrics to Prometheus at http://ADDR/metrics, such as "
            "127.0.0.1:9464; with a port alone on this machine only."),
    _option("otlp", parse_endpoint, "", "URL", "Push metrics to this OTLP receiver, every 10 s: collector:4318 by TLS, "
            "or a URL, whose path is kept. Default: as OTEL_EXPORTER_OTLP_ENDPOINT says."),
    _switch("otlp-insecure", "false", "Push without TLS; to another machine only where --otlp says http://, too."),
    _switch("metrics-compat", "false", "With --prometheus: the names of Ingero 0.x, too."),
    _switch("json", "false", "One JSON object per second on standard output."),
    _switch("verbose", "false", "Show recorded calls, too, and why calls are not probed."),
    _switch("debug", "false", "Log what ingero does, to standard error."),
    _option("log", _text, "", "F", "Log to this file."),
)  # fmt: skip
BY_NAME = {option.name: option for option in OPTIONS}

FLEET = "fleet"


def _file(text: str) -> Path:
    return Path(_text(text))


def _given_duration(text: str) -> str:
    parse_duration_s(text)
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _https(text: str) -> str:
    refuse_url(text)
    return text


# Of no single command; at the top level of the file, too.
GENERAL: tuple[Option, ...] = (
    _switch("update-check", "false", "Ask once a day, in the background, whether a newer version exists, and say so "
            "after a command that somebody types. Otherwise nothing leaves this host."),
    _option("update-url", _https, DEFAULT_URL, "URL", "Where to ask: it answers as GitHub's releases do."),
)  # fmt: skip

_SECTIONS: dict[str, tuple[Option, ...]] = {
    "dashboard": (
        _option("addr", parse_address, "127.0.0.1:8080", "HOST:PORT", "Where to listen; port 0: any."),
        _option("tls-cert", _file, "", "F", "Certificate, PEM. Default: one made on the fly."),
        _option("tls-key", _file, "", "F", "Its key, PEM."),
        _option("client-ca", _file, "", "F", "Let in only clients with a certificate of this authority."),
        _option("token-file", _file, "", "F", "File with the token that readers must show; nobody else may read it."),
        _switch("no-tls", "false", "Plain HTTP; on addresses of this machine."),
        _switch("trusted-network", "false", "With a token, allow --no-tls on other addresses, too."),
        _option("host", _names, "", "NAME", "Answer to this name, too, e.g. a proxy's."),
    ),
    "mcp": (
        _option("tls-cert", _file, "", "F", "PEM certificate for --http."),
        _option("tls-key", _file, "", "F", "PEM key of that certificate."),
        _option("test-report", _file, "", "F", "JUnit file for get_test_report."),
    ),
    "query": (
        _option("timeout", _given_duration, "", "D", "Give up after this time. Default: 60s, on a node 5s; 0: never, "
                "on a node 1h."),
    ),
    "explain": (
        _option("timeout", _given_duration, "", "D", "With --nodes: give a node up after this time. Default: 30s."),
    ),
    FLEET: (
        _option("nodes", _text, "", "N,N", "Ask these nodes, each a dashboard, instead of a recording: "
                "gpu-01,gpu-02:8081, gpu[001-512], @FILE, slurm:JOB, k8s:NAMESPACE/SELECTOR, "
                "srv:_ingero._tcp.DOMAIN.", "\n"),
        _option("ca-cert", _file, "", "F", "Who signs the certificates of nodes, PEM."),
        _option("client-cert", _file, "", "F", "This client's certificate for nodes, PEM."),
        _option("client-key", _file, "", "F", "Its key, PEM."),
        _option("token-file", _file, "", "F", "File with the token that nodes ask for."),
        _switch("pin", "false", "Believe nodes by the certificate that each showed first (~/.ingero/known_nodes), "
                "whoever signed it."),
    ),
}  # fmt: skip
SECTIONS: dict[str, tuple[Option, ...]] = {
    name: tuple(replace(option, section=name) for option in options) for name, options in _SECTIONS.items()
}
ALL_OPTIONS = (*OPTIONS, *GENERAL, *(option for options in SECTIONS.values() for option in options))
