"""Example command lines of each command: those of docs/commands.md, of which a command's help shows the first."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# By command, what the line is for -> the line.
EXAMPLES: Mapping[str, Mapping[str, str]] = MappingProxyType({
    "check": {
        "Check whether this host can be traced.": "sudo ingero check",
        "Check whether the service is recording, as a health check does.":
            "ingero check --recording --db /var/lib/ingero/ingero.db",
        "List only what is not ok.": "sudo ingero check --json | jq '.rows[] | select(.state != \"ok\")'",
    },
    "trace": {
        "Record every process that uses the GPU, for one minute.": "sudo ingero trace --duration 60s",
        "Record every call of one program, into a file of its own.":
            "sudo ingero trace --pid $(pgrep -f train.py | paste -sd,) --db run.db --record-all",
        "Run as a service: metrics for Prometheus, at most 2 GiB on disk.":
            "sudo ingero trace --prometheus 127.0.0.1:9464 --max-db 2g",
        "Call a webhook when an incident opens and when it closes.":
            "sudo ingero trace --on-incident 'curl -sS --data-binary @- https://alerts.example/hook'",
        "Record, and answer the queries of clients that have a certificate.":
            "sudo ingero trace --serve 0.0.0.0:8080 --tls-cert gpu-01.pem --tls-key gpu-01.key --client-ca ca.pem",
    },
    "explain": {
        "Explain the latest recording.": "ingero explain --since 10m",
        "Get the summary to paste into a chat.": "ingero explain --short",
        "Explain the recordings of many nodes.":
            "ingero explain --nodes 'gpu[001-512]' --ca-cert ca.pem --client-cert me.pem --client-key me.key",
        "Explain ten minutes of one process, with the full time breakdown.":
            "ingero explain --from 14:00 --to 14:10 --pid 4711 --per-process",
        "Write a report to attach to a ticket.": "ingero explain --db run.db --html report.html",
        "Get causes and lost seconds for a script.":
            "ingero explain --json | jq -r '.incidents[] | [.cause, .impact.lost_ns / 1e9] | @tsv'",
    },
    "compare": {
        "Check whether a fix helped.": "ingero compare before.db after.db",
        "Fail in CI if a step takes over 5% longer than in the last release.":
            "ingero compare release.db now.db --max-regression 5%",
    },
    "import": {
        "Import a trace of PyTorch's profiler, and explain it.":
            "ingero import trace.json.gz -o run.db && ingero explain --db run.db",
        "Import every rank of a job as one recording.": "ingero import traces/ -o job.db",
        "Compare two exports of Nsight Systems.":
            "ingero import before.sqlite -o a.db; ingero import after.sqlite -o b.db; ingero compare a.db b.db",
    },
    "copy": {
        "Copy what has been recorded so far, and send it to another host.":
            "ingero copy ~/.ingero/ingero.db /tmp/now.db; scp /tmp/now.db laptop:",
    },
    "merge": {
        "Find the slow node: record on each, collect the files, explain them together.":
            "ingero merge node-01.db node-02.db node-03.db -o cluster.db; ingero explain --db cluster.db",
        "Name the node of an Ingero 0.8 database, which does not say it.":
            "ingero merge old.db new.db -o both.db --force-node trainer-7",
    },
    "query": {
        "Count all calls, exactly.": 'ingero query "SELECT op_name, sum(count) FROM op_stats GROUP BY 1"',
        "Export the newest waits of one process as CSV.":
            "ingero query --pid 4711 --op cudaStreamSynchronize --limit 1000 --csv",
    },
    "export": {
        "Export a timeline for ui.perfetto.dev.": "ingero export --format perfetto -o run.pftrace --since 30s",
        "Export one timeline of many nodes.":
            "ingero export --format perfetto --nodes 'gpu-node-[01-04]' --since 30s",
        "Draw a flame graph of off-CPU time.":
            "ingero export --format flamegraph --weight offcpu -o - | flamegraph.pl > offcpu.svg",
    },
    "mcp": {
        "Serve on standard input and output, as MCP clients start it.": "ingero mcp --db run.db",
        "Serve over HTTPS on this host.": "ingero mcp --http :8443",
    },
    "demo": {
        "Run one demo, with real probes where this host allows it.": "sudo ingero demo incident",
        "Run all from scripts, without root, and keep the recordings.": "ingero demo --no-gpu --keep recordings",
    },
    "dashboard": {
        "Serve on this host, at https://127.0.0.1:8080/.": "ingero dashboard",
        "Serve to other hosts, with a token.":
            "INGERO_DASHBOARD_TOKEN=$(openssl rand -hex 32) ingero dashboard --addr 0.0.0.0:8080",
        "Answer `query --nodes` of clients that have a certificate (`ingero certs`).":
            "ingero dashboard --addr 0.0.0.0:8080 --tls-cert gpu-01.pem --tls-key gpu-01.key --client-ca ca.pem",
        "Show which of many nodes lost how much time, and when.":
            "ingero dashboard --nodes 'gpu[001-512]' --ca-cert ca.pem --client-cert me.pem --client-key me.key",
    },
    "service": {
        "Record from now on, and after each reboot.": "sudo ingero service install",
        "Preview what that would do.": "ingero service install --dashboard --dry-run",
        "Show whether it is running, and its latest verdict.": "ingero service status",
        "Remove it; recordings and edited settings stay.": "sudo ingero service uninstall",
    },
    "certs": {
        "Create an authority in ~/.ingero/certs.": "ingero certs init",
        "Create the certificate of a node that clients call gpu-01 or 10.0.0.1.":
            "ingero certs node gpu-01 10.0.0.1",
        "Create a certificate for each of many nodes.": "ingero certs node 'gpu[001-512]'",
        "Create a certificate for a client.": "ingero certs client alice",
        "Renew a certificate before it expires.": "ingero certs node gpu-01 10.0.0.1 --force",
        "Trust a node's next certificate, after it was replaced.": "ingero certs forget gpu-01",
    },
    "config": {
        "Show every setting and where it comes from.": "ingero config show",
        "Show the settings that a command line would use.": "ingero config show trace --max-db 2g",
        "Start a configuration file, with every option as a comment.":
            "ingero config example > ~/.config/ingero/ingero.yaml",
        "Check the configuration file.": "ingero config check",
        "Print which file is read.": "ingero config path",
        "Write the JSON Schema for an editor.": "ingero config schema > ingero.schema.json",
    },
    "fleet": {
        "Collect what four nodes recorded around the worst incident of the second one.":
            "ingero fleet bundle --nodes 'gpu-node-[01-04]' --around gpu-node-02 -o bundle.db",
        "Collect five minutes around a point in time.":
            "ingero fleet bundle --nodes @nodes.txt --around 14:05 --margin 150s -o bundle.db",
    },
    "completion": {
        "bash, for every user of this host:":
            "ingero completion bash | sudo tee /usr/share/bash-completion/completions/ingero > /dev/null",
        "zsh:":
            "ingero completion zsh | sudo tee /usr/local/share/zsh/site-functions/_ingero > /dev/null",
        "fish:": "ingero completion fish > ~/.config/fish/completions/ingero.fish",
    },
    "version": {
        "Show the version.": "ingero version",
        "Check whether a newer version exists.": "ingero version --check",
    },
})  # fmt: skip


def first_example(*path: str) -> str:
    """The first example of a command, or of a command below it: `first_example("certs", "node")`; "" without one."""
    words = ("ingero", *path)
    lines = EXAMPLES.get(path[0], {}).values()
    return next((line for line in lines if " ".join(words) in line), "")
