"""What docs/commands.md says of each command beyond its help: exit codes, variables and examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ingero.capture.single_agent import RUN_FOLDER_VARIABLE
from ingero.cli.check import EXIT_NOT_READY
from ingero.cli.compare import EXIT_REGRESSION, EXIT_UNDECIDED, EXIT_WORSE
from ingero.cli.config import EXIT_FAULTS
from ingero.cli.config_file import CONFIG_VARIABLE
from ingero.cli.demo import EXIT_WRONG_VERDICT
from ingero.cli.explain import EXIT_FOUND
from ingero.cli.fleet_options import TOKEN_VARIABLE as FLEET_TOKEN
from ingero.cli.fleet_output import EXIT_PARTIAL
from ingero.cli.main import EXIT_ERROR, EXIT_INTERRUPTED
from ingero.cli.output import EXIT_CLOSED_PIPE
from ingero.cli.service import EXIT_NOT_ACTIVE
from ingero.cli.update_notice import SILENCE_VARIABLE
from ingero.cli.version import EXIT_NEWER
from ingero.serve.dashboard.exposure import TOKEN_VARIABLE as DASHBOARD_TOKEN
from ingero.serve.mcp.http import TOKEN_VARIABLE as MCP_TOKEN
from ingero.serve.metrics.push_settings import (
    CERTIFICATE_VARIABLE,
    CLIENT_CERTIFICATE_VARIABLE,
    CLIENT_KEY_VARIABLE,
    COMPRESSION_VARIABLE,
    HEADERS_VARIABLE,
    HISTOGRAM_VARIABLE,
    INTERVAL_VARIABLE,
    PROTOCOL_VARIABLE,
    RESOURCE_VARIABLE,
    SERVICE_VARIABLE,
    TEMPORALITY_VARIABLE,
    TIMEOUT_VARIABLE,
)
from ingero.serve.otlp_endpoint import ENDPOINT_VARIABLE, METRICS_ENDPOINT_VARIABLE
from ingero.store.locations import DATABASE_VARIABLE

# Of every command.
EXIT_CODES: Mapping[int, str] = MappingProxyType({
    0: "Done.",
    EXIT_ERROR: "An error; it is on standard error, with the command that mends it.",
    EXIT_INTERRUPTED: "Interrupted by Ctrl-C, where that is not the way to end it.",
    EXIT_CLOSED_PIPE: "Who read the output has gone: `| head`.",
})  # fmt: skip

# Options that may be given in the environment, by parameter, where a command has them.
VARIABLES: Mapping[str, str] = MappingProxyType({"db": DATABASE_VARIABLE, "config": CONFIG_VARIABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Manual:
    """Of one command. exits: other meanings than those of every command. variables: that are no option.

    examples: what is wanted -> the command line.
    """

    examples: Mapping[str, str]
    exits: Mapping[int, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


MANUALS: Mapping[str, Manual] = MappingProxyType({
    "check": Manual(
        exits={
            0: "Ready to trace; with `--recording`: the last second has been written.",
            EXIT_NOT_READY: "Not ready: something is missing; with `--recording`: nobody records, or gets that far.",
        },
        examples={
            "Can this machine be traced?": "sudo ingero check",
            "Is the service recording? For health checks.": "ingero check --recording --db /var/lib/ingero/ingero.db",
            "Which rows are not in order?": "sudo ingero check --json | jq '.rows[] | select(.state != \"ok\")'",
        },
    ),
    "trace": Manual(
        exits={0: "The recording has ended: Ctrl-C, `--duration`, or the processes of `--pid` have."},
        variables={
            RUN_FOLDER_VARIABLE: "Folder of the lock that keeps a second agent away; default /run/ingero.",
            DASHBOARD_TOKEN: "With `--serve`: who wants to read must know it; instead of `--token-file`.",
            ENDPOINT_VARIABLE: "Without `--otlp`: base URL of an OTLP receiver; `/v1/metrics` is added to its path.",
            METRICS_ENDPOINT_VARIABLE: "Without `--otlp`: URL of an OTLP receiver, taken as it is.",
            PROTOCOL_VARIABLE: "`http/protobuf` (default) or `http/json`; gRPC is not spoken.",
            HEADERS_VARIABLE: "Headers of pushes such as a token, `name=value,name=value`.",
            COMPRESSION_VARIABLE: "`none` (default) or `gzip`.",
            TIMEOUT_VARIABLE: "What a push may take, in milliseconds; default 5000.",
            INTERVAL_VARIABLE: "Time between pushes, in milliseconds; default 10000.",
            CERTIFICATE_VARIABLE: "File with the certificate authority to trust.",
            CLIENT_CERTIFICATE_VARIABLE: "File with the certificate to show.",
            CLIENT_KEY_VARIABLE: "File with its key.",
            TEMPORALITY_VARIABLE: "`cumulative` (default), `delta` or `lowmemory` (here: the same as delta).",
            HISTOGRAM_VARIABLE: "`base2_exponential_bucket_histogram` (default) or `explicit_bucket_histogram`.",
            RESOURCE_VARIABLE: "Attributes of the resource, `name=value,name=value`; they win over ingero's own.",
            SERVICE_VARIABLE: "Its `service.name`; default `ingero`.",
        },
        examples={
            "Record every process that uses the GPU for a minute.": "sudo ingero trace --duration 60s",
            "One program, into a file of its own, every call.":
                "sudo ingero trace --pid $(pgrep -f train.py | paste -sd,) --db run.db --record-all",
            "A service: metrics for Prometheus, at most 2 GiB on disk.":
                "sudo ingero trace --prometheus 127.0.0.1:9464 --max-db 2g",
            "A webhook for each incident, as it opens and as it closes.":
                "sudo ingero trace --on-incident 'curl -sS --data-binary @- https://alerts.example/hook'",
            "A node of many: what is recorded is served to whoever has a certificate.":
                "sudo ingero trace --serve 0.0.0.0:8080 --tls-cert gpu-01.pem --tls-key gpu-01.key --client-ca ca.pem",
        },
    ),
    "explain": Manual(
        exits={
            0: "No incident was found.",
            EXIT_FOUND: "At least one incident was found.",
            EXIT_PARTIAL: "With `--nodes`: nodes are missing, whatever the others said.",
        },
        variables={FLEET_TOKEN: "With `--nodes`: the token that nodes ask for; instead of `--token-file`."},
        examples={
            "What went wrong?": "ingero explain",
            "What went wrong on which node?":
                "ingero explain --nodes 'gpu[001-512]' --ca-cert ca.pem --client-cert me.pem --client-key me.key",
            "Only these ten minutes of one process, with the whole account.":
                "ingero explain --from 14:00 --to 14:10 --pid 4711 --per-process",
            "A report to attach to a ticket.": "ingero explain --db run.db --html report.html",
            "For a script: causes and lost seconds.":
                "ingero explain --json | jq -r '.incidents[] | [.cause, .lost_ns / 1e9] | @tsv'",
        },
    ),
    "compare": Manual(
        exits={
            0: "Better, or no difference beyond noise; with `--max-regression`: within the limit.",
            EXIT_WORSE: "Worse; without `--max-regression`.",
            EXIT_REGRESSION:
                "With `--max-regression`: worse than the limit, and beyond noise. With `--nodes`: nodes are missing.",
            EXIT_UNDECIDED:
                "With `--max-regression`: cannot be decided: the recordings are not comparable, or what is over the "
                "limit is within their noise.",
        },
        examples={
            "Did the fix help?": "ingero compare before.db after.db",
            "In CI: no more than 5% slower than the last release.":
                "ingero compare release.db now.db --max-regression 5%",
        },
    ),
    "import": Manual(
        examples={
            "A trace of PyTorch's profiler: where did the time go?":
                "ingero import trace.json.gz -o run.db && ingero explain --db run.db",
            "Every rank of a job, as one recording.": "ingero import traces/ -o job.db",
            "Two exports of Nsight Systems: did it get better?":
                "ingero import before.sqlite -o a.db; ingero import after.sqlite -o b.db; ingero compare a.db b.db",
        },
    ),
    "copy": Manual(
        examples={
            "Take what has been recorded so far to another machine.":
                "ingero copy ~/.ingero/ingero.db /tmp/now.db; scp /tmp/now.db laptop:",
        },
    ),
    "merge": Manual(
        examples={
            "Which node is slow? Record each, bring the files together, ask once.":
                "ingero merge node-01.db node-02.db node-03.db -o cluster.db; ingero explain --db cluster.db",
            "A database of Ingero 0.8 names no node: say which it was.":
                "ingero merge old.db new.db -o both.db --force-node trainer-7",
        },
    ),
    "query": Manual(
        exits={EXIT_PARTIAL: "With `--nodes`: the answer is partial, because nodes are missing."},
        variables={FLEET_TOKEN: "With `--nodes`: the token that nodes ask for; instead of `--token-file`."},
        examples={
            "Exact counts of all calls.": 'ingero query "SELECT op_name, sum(count) FROM op_stats GROUP BY 1"',
            "The newest waits of one process, as CSV.":
                "ingero query --pid 4711 --op cudaStreamSynchronize --limit 1000 --csv",
        },
    ),
    "export": Manual(
        examples={
            "A timeline for ui.perfetto.dev.": "ingero export --format perfetto -o run.pftrace --since 30s",
            "One of many nodes, a machine each.":
                "ingero export --format perfetto --nodes 'gpu-node-[01-04]' --since 30s",
            "A flame graph of time off the CPU.":
                "ingero export --format flamegraph --weight offcpu -o - | flamegraph.pl > offcpu.svg",
        },
    ),
    "mcp": Manual(
        variables={MCP_TOKEN: "Bearer token for `--http`; needed where other machines reach the address."},
        examples={
            "As a client starts it.": "ingero mcp --db run.db",
            "Over HTTPS, on this machine.": "ingero mcp --http :8443",
        },
    ),
    "demo": Manual(
        exits={0: "Each verdict was the story's.", EXIT_WRONG_VERDICT: "A verdict was not the story's."},
        examples={
            "One story, as well as this machine can play it.": "sudo ingero demo incident",
            "All, without root, probes and compiler; keep the recordings.": "ingero demo --no-gpu --keep recordings",
        },
    ),
    "dashboard": Manual(
        variables={
            DASHBOARD_TOKEN: "Who wants to read must know it; needed where other machines reach the address.",
            FLEET_TOKEN: "With `--nodes`: the token that nodes ask for.",
        },
        examples={
            "On this machine, at https://127.0.0.1:8080/.": "ingero dashboard",
            "For other machines, with a token.":
                "INGERO_DASHBOARD_TOKEN=$(openssl rand -hex 32) ingero dashboard --addr 0.0.0.0:8080",
            "For `query --nodes` of whoever has a certificate (`ingero certs`).":
                "ingero dashboard --addr 0.0.0.0:8080 --tls-cert gpu-01.pem --tls-key gpu-01.key --client-ca ca.pem",
            "Many nodes: which of them lost how much when.":
                "ingero dashboard --nodes 'gpu[001-512]' --ca-cert ca.pem --client-cert me.pem --client-key me.key",
        },
    ),
    "service": Manual(
        exits={EXIT_NOT_ACTIVE: "`status`: the agent does not run."},
        examples={
            "Record from now on, also after a restart of the machine.": "sudo ingero service install",
            "What would that do?": "ingero service install --dashboard --dry-run",
            "Does it run, and what was its last verdict?": "ingero service status",
            "Remove it; recordings and changed settings stay.": "sudo ingero service uninstall",
        },
    ),
    "certs": Manual(
        examples={
            "An authority, in ~/.ingero/certs.": "ingero certs init",
            "A node that clients call gpu-01 or 10.0.0.1.": "ingero certs node gpu-01 10.0.0.1",
            "Many nodes, a certificate each.": "ingero certs node 'gpu[001-512]'",
            "Somebody who asks.": "ingero certs client alice",
            "A new certificate before the old one ends.": "ingero certs node gpu-01 10.0.0.1 --force",
        },
    ),
    "config": Manual(
        exits={EXIT_FAULTS: "`check`: something is wrong in the file. `path`: there is none."},
        examples={
            "Where does each value come from?": "ingero config show",
            "What would this command line record with?": "ingero config show trace --max-db 2g",
            "Begin with every option, each a comment.": "ingero config example > ~/.config/ingero/ingero.yaml",
            "Is everything right in it?": "ingero config check",
        },
    ),
    "fleet": Manual(
        exits={EXIT_PARTIAL: "Nodes are missing in the file."},
        examples={
            "What four nodes recorded around the worst incident of the second.":
                "ingero fleet bundle --nodes 'gpu-node-[01-04]' --around gpu-node-02 -o bundle.db",
            "Five minutes around a moment.":
                "ingero fleet bundle --nodes @nodes.txt --around 14:05 --margin 150s -o bundle.db",
        },
    ),
    "completion": Manual(
        examples={
            "bash, for everybody on this machine:":
                "ingero completion bash | sudo tee /usr/share/bash-completion/completions/ingero > /dev/null",
            "zsh:":
                "ingero completion zsh | sudo tee /usr/local/share/zsh/site-functions/_ingero > /dev/null",
            "fish:": "ingero completion fish > ~/.config/fish/completions/ingero.fish",
        },
    ),
    "version": Manual(
        exits={EXIT_NEWER: "With `--check`: there is a newer version."},
        variables={
            "INGERO_UPDATE_URL": "Where `--check` asks; `update-url` of ingero.yaml.",
            "INGERO_UPDATE_CHECK": "`true`: ask once a day, as `update-check` of ingero.yaml.",
            SILENCE_VARIABLE: "Set to anything: no notice after commands, and nothing is asked for one.",
        },
        examples={"Which one is it?": "ingero version", "Is there a newer one?": "ingero version --check"},
    ),
})  # fmt: skip
