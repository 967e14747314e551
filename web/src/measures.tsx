// The details behind the verdict: operations, processes, the host, what was dropped.

import { useMemo } from "preact/hooks";
import type { ClockPoints, Drops as DropsAnswer, Op, Process, Snapshots, State, Steps } from "./api";
import { address } from "./api";
import { clockColumns } from "./state_columns";
import { bytes, count, moment, ns, percent } from "./format";
import type { ViewProps } from "./incidents";
import { Answered, useAnswer } from "./live";
import { Chart, ClockLegend, STATE_TEXTS, StackedBar, clockShares } from "./parts";
import { link } from "./route";
import { Table, columnsOf } from "./table";

const op = columnsOf<Op>();
const culprit = columnsOf<Process["culprits"][number]>();
const overhead_limiter = columnsOf<DropsAnswer["overhead_limiter"][number]>();
const pruned = columnsOf<DropsAnswer["pruned"][number]>();
const missing = columnsOf<DropsAnswer["missing_probes"][number]>();

const WITH_STACKS = ["cuda", "driver", "cuda_graph", "nccl"]; // sources of calls

export function Operations(props: ViewProps & { process: string }) {
  const parameters = { since: props.since, process: props.process };
  const asked = useAnswer<State & { ops: Op[]; has_exact_totals: boolean }>(address("ops", parameters), props.growth);
  return (
    <>
      <h2>Latency per operation</h2>
      <Answered asked={asked}>
        {(found) =>
          found.ops.length === 0 ? (
            <p class="notice">No traced call in this time. Start a GPU program while `sudo ingero trace` runs; --verbose says why calls are not probed.</p>
          ) : (
            <>
              {!found.has_exact_totals && <p class="notice">Sampled: all slow and rare calls, plus a random sample. --record-all stores every call.</p>}
              <Table
                caption="Sorted by total time"
                name="ops"
                rows={found.ops}
                columns={[
                  { ...op.text("name", "operation"), show: (row) => <OpName op={row} since={props.since} /> },
                  op.number("pid", "pid"),
                  op.count("count", "calls"),
                  ...(found.ops.some((one) => one.nested) ? [op.count("nested", "nested")] : []),
                  op.duration("sum_ns", "total"),
                  op.duration("p50_ns", "p50"),
                  op.duration("p95_ns", "p95"),
                  op.duration("p99_ns", "p99"),
                  op.duration("max_ns", "max"),
                  op.count("errors", "errors"),
                  ...clockColumns((row: Op) => row.name),
                ]}
              />
              <ClockLegend />
              {found.ops.some((one) => one.nested) && (
                <p class="quiet">Nested: made by another traced call, in whose time they are counted.</p>
              )}
            </>
          )
        }
      </Answered>
    </>
  );
}

// A call leads to the stacks of its recorded calls.
function OpName(props: { op: Op; since: string }) {
  const { op: one, since } = props;
  if (!one.recorded || !WITH_STACKS.includes(one.source)) return <>{one.name}</>;
  return <a href={link("stacks", one.process, { since, op: one.name })}>{one.name}</a>;
}

export function Processes(props: ViewProps & { item: string }) {
  const asked = useAnswer<State & { processes: Process[] }>(address("processes", { since: props.since }), props.growth);
  return (
    <>
      <h2>Processes</h2>
      <Answered asked={asked}>
        {(found) => {
          const shown = found.processes.filter((one) => !props.item || String(one.process) === props.item);
          if (!shown.length) return <p class="notice">No such process was traced in this time.</p>;
          return (
            <>
              {props.item && <p><a href={link("processes", "", { since: props.since })}>All processes</a></p>}
              {shown.map((one) => (
                <OneProcess key={one.process} {...props} process={one} isWhole={props.item !== ""} />
              ))}
            </>
          );
        }}
      </Answered>
    </>
  );
}

// By kind: what is said of it, and the thread state whose color it has.
const BLOCKED_IN: Record<string, [string, string]> = {
  sync: ["blocked in GPU syncs", "sleep"],
  copy: ["blocked in cudaMemcpyAsync (pageable)", "io"],
  launch: ["blocked on a full launch queue", "yielded"],
  alloc: ["blocked in allocations and frees", "uninterruptible"],
};

function RepeatedSteps(props: { steps: Steps }) {
  const { steps } = props;
  const blocked = Object.entries(steps.blocked_ns ?? {}).map(([kind, spent]) => {
    const [text, state] = BLOCKED_IN[kind] ?? [kind, "sleep"];
    return { name: `${kind}.${state}`, text, ns: spent };
  });
  return (
    <section>
      <h4>{steps.text}, {ns(steps.wall_ns)}</h4>
      <StackedBar label="The time of its steps" shares={[{ name: "host.run", text: "host time of the step", ns: steps.host_ns ?? 0 }, ...blocked]} />
    </section>
  );
}

function OneProcess(props: ViewProps & { process: Process; isWhole: boolean }) {
  const one = props.process;
  const place = one.pod || one.container;
  return (
    <article class="card">
      <h3>
        <a href={link("processes", one.process, { since: props.since })}>{one.name} [{one.pid}]</a>
        {one.rank !== null && `, rank ${one.rank}`}{place && `, ${place}`}
      </h3>
      {one.cmdline && <p><code>{one.cmdline}</code></p>}
      {one.steps && one.steps.wall_ns !== null && <RepeatedSteps steps={one.steps} />}
      {one.gpu_idle?.text && <p>{one.gpu_idle.text}</p>}
      {one.steps?.judged_by !== "step" && one.gpu_streams.map((gpu_stream) => (
        <section key={`${gpu_stream.device} ${gpu_stream.stream}`}>
          <h4>{gpu_stream.device === null ? "A GPU chosen before tracing" : `GPU ${gpu_stream.device}`}, stream {gpu_stream.stream}: {count(gpu_stream.sync_intervals)} sync intervals, {ns(gpu_stream.wall_ns)}</h4>
          <StackedBar
            label="The GPU's time from sync to sync"
            shares={[
              { name: "idle", text: "GPU idle (nothing queued)", ns: gpu_stream.idle_ns },
              { name: "busy", text: "GPU busy (work queued or running)", ns: gpu_stream.busy_ns },
              { name: "return_delay", text: "sync return delay (GPU done, call not returned)", ns: gpu_stream.return_delay_ns },
            ]}
          />
        </section>
      ))}
      {one.clocks && (
        <section>
          <h4>Thread-state time (up to {count(one.threads)} threads), {count(one.involuntary_switches)} involuntary context switches</h4>
          <StackedBar label="Thread-state time" shares={clockShares(one.clocks)} />
        </section>
      )}
      {!one.gpu_streams.length && !one.steps && <p class="quiet">No GPU sync in this time and no step is known: GPU idle time is unknown.</p>}
      {props.isWhole && <ClocksOverTime {...props} />}
      {one.culprits.length > 0 && (
        <Table
          caption="Culprits: what ran while it waited for a CPU"
          name="culprits"
          rows={one.culprits}
          columns={[
            { key: "culprit_name", head: "name", value: (row) => (row.culprit_pid === 0 ? "idle CPU" : row.culprit_name || "unknown") },
            { key: "culprit_pid", head: "pid", value: (row) => (row.culprit_pid > 0 ? row.culprit_pid : null), isNumber: true },
            culprit.duration("ns", "time"),
            culprit.count("switches", "context switches"),
          ]}
        />
      )}
      <p><a href={link("ops", "", { since: props.since, process: String(one.process) })}>Its operations</a>, <a href={link("stacks", one.process, { since: props.since })}>its stacks</a></p>
    </article>
  );
}

function ClocksOverTime(props: ViewProps & { process: Process }) {
  const parameters = { process: String(props.process.process), since: props.since };
  const asked = useAnswer<ClockPoints>(address("clocks", parameters), props.growth);
  return <Answered asked={asked}>{(found) => <ClockChart found={found} />}</Answered>;
}

function ClockChart(props: { found: ClockPoints }) {
  const { found } = props;
  const times = useMemo(() => found.points.map((point) => point.start_ns / 1e9), [found]);
  const lines = useMemo(
    () =>
      found.clocks
        .map((name, index) => ({
          label: STATE_TEXTS[name] ?? name,
          color: `--state-${name}`,
          values: found.points.map((point) => ((point.ns[index] ?? 0) * 100) / point.elapsed_ns),
        }))
        .filter((line) => line.values.some((value) => value >= 1)),
    [found],
  );
  return <Chart title="Thread-state time (100%: one thread)" unit="%" times={times} lines={lines} />;
}

export function Host(props: ViewProps) {
  const parameters = { since: props.since };
  const asked = useAnswer<Snapshots>(address("snapshots", parameters), props.growth);
  return (
    <>
      <h2>Host</h2>
      <Answered asked={asked}>{(found) => <HostCharts found={found} />}</Answered>
      <p>
        Download: <a href={address("snapshots", { ...parameters, points: "5000", format: "csv" })} download>CSV</a>,{" "}
        <a href={address("snapshots", { ...parameters, points: "5000" })} download="ingero-snapshots.json">JSON</a>
      </p>
    </>
  );
}

function HostCharts(props: { found: Snapshots }) {
  const { found } = props;
  const charts = useMemo(() => hostCharts(found), [found]);
  if (!found.snapshots.length) return <p class="notice">The host was not sampled in this time. A shorter --heartbeat, or --deadband 0, samples it each second.</p>;
  return (
    <>
      {charts.map((chart) => <Chart key={chart.title} {...chart} />)}
      {charts.length < 3 && <p class="quiet">What has no chart was not recorded: pressure requires a kernel with PSI (psi=1).</p>}
    </>
  );
}

function hostCharts(found: Snapshots) {
  const times = found.snapshots.map((one) => (one.time_ns ?? 0) / 1e9);
  const values = (name: string) => found.snapshots.map((one) => one[name] ?? null);
  const shares = (name: string) => found.snapshots.map((one) => (one[name] == null ? null : 100 * Number(one[name])));
  const wanted = [
    { title: "CPU and memory in use", unit: "%", most: 100, lines: [line("CPU", "--state-run", values("cpu_percent")), line("memory", "--state-io", values("mem_percent"))] },
    {
      title: "Pressure: some task was stalled (PSI some)",
      unit: "%",
      most: 100,
      lines: [
        line("CPU", "--state-runq", shares("psi_cpu_some_ratio")),
        line("memory", "--state-io", shares("psi_memory_some_ratio")),
        line("I/O", "--state-uninterruptible", shares("psi_io_some_ratio")),
      ],
    },
    { title: "Load average", unit: "", lines: [line("load", "--state-sleep", values("load_avg"))] },
    { title: "ingero itself, of one core", unit: "%", lines: [line("ingero", "--state-yielded", shares("agent_cpu_ratio"))] },
  ];
  return wanted
    .map((chart) => ({ ...chart, times, lines: chart.lines.filter((one) => one.values.some((value) => value !== null)) }))
    .filter((chart) => chart.lines.length);
}

function line(label: string, color: string, values: (number | null)[]) {
  return { label, color, values };
}

export function Drops(props: ViewProps) {
  const asked = useAnswer<DropsAnswer>(address("drops", { since: props.since }), props.growth);
  return (
    <>
      <h2>Dropped data and overhead</h2>
      <Answered asked={asked}>{(found) => <DropTables found={found} />}</Answered>
    </>
  );
}

function DropTables(props: { found: DropsAnswer }) {
  const { drops, overhead, older_version: older } = props.found;
  return (
    <>
      {overhead.agent_cpu_ratio !== null && (
        <p>ingero itself used {percent(overhead.agent_cpu_ratio)} of one core and up to {bytes(overhead.agent_rss_bytes)} of memory.</p>
      )}
      {older ? (
        <p class="notice">Ingero {older} did not count what it dropped.</p>
      ) : drops.length ? (
        <Table
          caption="Dropped or corrected while recording"
          name="drops"
          rows={drops}
          columns={[
            { key: "what", head: "what", value: (one) => one.reason || one.counter },
            { key: "count", head: "count", value: (one) => one.count, show: (one) => (one.counter.endsWith("_ns") ? ns(one.count) : count(one.count)), isNumber: true },
            { key: "counter", head: "counter", value: (one) => one.counter },
          ]}
        />
      ) : (
        <p>No data was dropped while recording.</p>
      )}
      {props.found.overhead_limiter.some((one) => one.not_traced) && (
        <Table
          caption="Tracing was reduced to stay within the overhead limit (--max-overhead, --max-cpu)"
          name="overhead-levels"
          rows={props.found.overhead_limiter}
          columns={[
            { key: "time_ns", head: "since", value: (one) => one.time_ns, show: (one) => moment(one.time_ns) },
            { ...overhead_limiter.text("not_traced", "what"), show: (one) => one.not_traced || "full tracing resumed" },
            { ...overhead_limiter.text("reason", "why"), isLong: true },
          ]}
        />
      )}
      {props.found.pruned.length > 0 && (
        <Table
          caption="Pruned to keep the database below its size limit (--max-db)"
          name="pruned"
          rows={props.found.pruned}
          columns={[
            { key: "name", head: "what", value: (one) => `${one.name}, ${one.kind}` },
            { key: "until_ns", head: "before", value: (one) => one.until_ns, show: (one) => moment(one.until_ns) },
            pruned.count("rows", "rows"),
          ]}
        />
      )}
      {props.found.missing_probes.length > 0 && (
        <Table
          caption="Calls that were not traced"
          name="missing-probes"
          rows={props.found.missing_probes}
          columns={[
            missing.text("symbol", "call"),
            { ...missing.text("library", "library"), isLong: true },
            { ...missing.text("reason", "why"), isLong: true },
          ]}
        />
      )}
    </>
  );
}
