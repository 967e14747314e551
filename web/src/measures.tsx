// The account behind the verdict: operations, processes, the machine, what was lost.

import { useMemo } from "preact/hooks";
import type { ClockPoints, Losses as LossesAnswer, Op, Process, Snapshots, State } from "./api";
import { address } from "./api";
import { bytes, count, moment, ns, percent } from "./format";
import type { ViewProps } from "./incidents";
import { Answered, useAnswer } from "./live";
import { Chart, STATE_TEXTS, StackedBar, Table, clockShares } from "./parts";
import { link } from "./route";

export function Operations(props: ViewProps & { process: string }) {
  const parameters = { since: props.since, process: props.process };
  const asked = useAnswer<State & { ops: Op[]; has_exact_totals: boolean }>(address("ops", parameters), props.growth);
  return (
    <>
      <h2>Latency per operation</h2>
      <Answered asked={asked}>
        {(found) =>
          found.ops.length === 0 ? (
            <p class="notice">No traced call was recorded in this time.</p>
          ) : (
            <>
              {!found.has_exact_totals && <p class="notice">These count the stored calls, a part of all.</p>}
              <Table caption="Longest sum first" heads={["operation", "pid", "count", "total", "p50", "p95", "p99", "max", "errors", "spent"]}>
                {found.ops.map((op) => (
                  <tr key={`${op.process} ${op.source} ${op.name}`}>
                    <th scope="row">{op.name}</th>
                    <td class="number">{op.pid}</td>
                    <td class="number">{count(op.count)}</td>
                    <td class="number">{ns(op.sum_ns)}</td>
                    <td class="number">{ns(op.p50_ns)}</td>
                    <td class="number">{ns(op.p95_ns)}</td>
                    <td class="number">{ns(op.p99_ns)}</td>
                    <td class="number">{ns(op.max_ns)}</td>
                    <td class="number">{count(op.errors)}</td>
                    <td class="wide">
                      {op.clocks && <StackedBar shares={clockShares(op.clocks)} label={op.name} hasLegend={false} />}
                    </td>
                  </tr>
                ))}
              </Table>
              <ClockLegend />
            </>
          )
        }
      </Answered>
      <p>
        Download: <a href={address("ops", { ...parameters, format: "csv" })} download>CSV</a>,{" "}
        <a href={address("ops", parameters)} download="ingero-ops.json">JSON</a>
      </p>
    </>
  );
}

function ClockLegend() {
  return (
    <p class="legend">
      {Object.entries(STATE_TEXTS).slice(0, 8).map(([name, text]) => (
        <span key={name} class="entry"><span class={`dot state-${name}`} aria-hidden="true" /> {text}</span>
      ))}
    </p>
  );
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
      {one.lanes.map((lane) => (
        <section key={`${lane.device} ${lane.stream}`}>
          <h4>{lane.device === null ? "A device chosen before tracing" : `Device ${lane.device}`}, stream {lane.stream}: {count(lane.drains)} drains, {ns(lane.wall_ns)}</h4>
          <StackedBar
            label="The device's time"
            shares={[
              { name: "empty", text: "nothing enqueued", ns: lane.empty_ns },
              { name: "busy", text: "device busy", ns: lane.busy_ns },
              { name: "late", text: "ready, but not picked up", ns: lane.late_ns },
            ]}
          />
        </section>
      ))}
      {one.clocks && (
        <section>
          <h4>Its threads (up to {count(one.threads)}), {count(one.preemptions)} preemptions</h4>
          <StackedBar label="Time of its threads" shares={clockShares(one.clocks)} />
        </section>
      )}
      {!one.lanes.length && <p class="quiet">The device was never drained in this time: its idleness is not proven.</p>}
      {props.isWhole && <ClocksOverTime {...props} />}
      {one.culprits.length > 0 && (
        <Table caption="Who ran while it waited for a CPU" heads={["name", "pid", "time", "switches"]}>
          {one.culprits.map((culprit) => (
            <tr key={`${culprit.kind} ${culprit.culprit_pid} ${culprit.culprit_name}`}>
              <th scope="row">{culprit.culprit_pid === 0 ? "idle CPU" : culprit.culprit_name || "unknown"}</th>
              <td class="number">{culprit.culprit_pid > 0 ? culprit.culprit_pid : ""}</td>
              <td class="number">{ns(culprit.ns)}</td>
              <td class="number">{count(culprit.switches)}</td>
            </tr>
          ))}
        </Table>
      )}
      <p><a href={link("ops", "", { since: props.since, process: String(one.process) })}>Its operations</a></p>
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
          colour: `--state-${name}`,
          values: found.points.map((point) => ((point.ns[index] ?? 0) * 100) / found.step_ns),
        }))
        .filter((line) => line.values.some((value) => value >= 1)),
    [found],
  );
  return <Chart title="Its threads over time (100 %: one thread)" unit="%" times={times} lines={lines} />;
}

export function Machine(props: ViewProps) {
  const parameters = { since: props.since };
  const asked = useAnswer<Snapshots>(address("snapshots", parameters), props.growth);
  return (
    <>
      <h2>The machine</h2>
      <Answered asked={asked}>{(found) => <MachineCharts found={found} />}</Answered>
      <p>
        Download: <a href={address("snapshots", { ...parameters, points: "5000", format: "csv" })} download>CSV</a>,{" "}
        <a href={address("snapshots", { ...parameters, points: "5000" })} download="ingero-snapshots.json">JSON</a>
      </p>
    </>
  );
}

function MachineCharts(props: { found: Snapshots }) {
  const { found } = props;
  const charts = useMemo(() => machineCharts(found), [found]);
  if (!found.snapshots.length) return <p class="notice">The machine was not sampled in this time.</p>;
  return (
    <>
      {charts.map((chart) => <Chart key={chart.title} {...chart} />)}
      {charts.length < 3 && <p class="quiet">What has no chart was not recorded.</p>}
    </>
  );
}

function machineCharts(found: Snapshots) {
  const times = found.snapshots.map((one) => (one.time_ns ?? 0) / 1e9);
  const values = (name: string) => found.snapshots.map((one) => one[name] ?? null);
  const shares = (name: string) =>
    found.snapshots.map((one) => (one[name] == null || !one.elapsed_ns ? null : (100 * Number(one[name])) / one.elapsed_ns));
  const wanted = [
    { title: "CPU and memory in use", unit: "%", most: 100, lines: [line("CPU", "--state-run", values("cpu_percent")), line("memory", "--state-io", values("mem_percent"))] },
    {
      title: "Pressure: some task was stalled for want of it (PSI)",
      unit: "%",
      lines: [
        line("CPU", "--state-runq", shares("psi_cpu_some_ns")),
        line("memory", "--state-io", shares("psi_memory_some_ns")),
        line("disk", "--state-kernel_lock", shares("psi_io_some_ns")),
      ],
    },
    { title: "Load average", unit: "", lines: [line("load", "--state-sleep", values("load_avg"))] },
    { title: "ingero itself, of one core", unit: "%", lines: [line("ingero", "--state-yielded", shares("agent_cpu_ns"))] },
  ];
  return wanted
    .map((chart) => ({ ...chart, times, lines: chart.lines.filter((one) => one.values.some((value) => value !== null)) }))
    .filter((chart) => chart.lines.length);
}

function line(label: string, colour: string, values: (number | null)[]) {
  return { label, colour, values };
}

export function Losses(props: ViewProps) {
  const asked = useAnswer<LossesAnswer>(address("losses", { since: props.since }), props.growth);
  return (
    <>
      <h2>Losses and overhead</h2>
      <Answered asked={asked}>{(found) => <LossTables found={found} />}</Answered>
    </>
  );
}

function LossTables(props: { found: LossesAnswer }) {
  const { losses, governor, removed, missing_probes: missing, overhead, older_version: older } = props.found;
  return (
    <>
      {overhead.agent_cpu_ratio !== null && (
        <p>ingero itself used {percent(overhead.agent_cpu_ratio)} of one core and up to {bytes(overhead.agent_rss_bytes)} of memory.</p>
      )}
      {older ? (
        <p class="notice">Ingero {older} did not count what it lost.</p>
      ) : losses.length ? (
        <Table caption="Lost or repaired while recording" heads={["count", "what"]}>
          {losses.map((one) => (
            <tr key={`${one.counter} ${one.reason}`}>
              <td class="number">{one.counter.endsWith("_ns") ? ns(one.count) : count(one.count)}</td>
              <td>{one.reason || one.counter}</td>
            </tr>
          ))}
        </Table>
      ) : (
        <p>Nothing was lost while recording.</p>
      )}
      {governor.length > 0 && (
        <Table caption="Less was traced, because tracing had become too expensive" heads={["since", "what", "why"]}>
          {governor.map((step) => (
            <tr key={step.time_ns}><td>{moment(step.time_ns)}</td><td>{step.not_traced || "everything is traced again"}</td><td>{step.reason}</td></tr>
          ))}
        </Table>
      )}
      {removed.length > 0 && (
        <Table caption="Removed to keep the file small (--max-db)" heads={["what", "before", "rows"]}>
          {removed.map((one) => (
            <tr key={`${one.name} ${one.kind}`}><td>{one.name}, {one.kind}</td><td>{moment(one.until_ns)}</td><td class="number">{count(one.rows)}</td></tr>
          ))}
        </Table>
      )}
      {missing.length > 0 && (
        <Table caption="Calls that were not traced" heads={["call", "library", "why"]}>
          {missing.map((one) => (
            <tr key={`${one.library} ${one.symbol}`}><td>{one.symbol}</td><td>{one.library}</td><td>{one.reason}</td></tr>
          ))}
        </Table>
      )}
    </>
  );
}
