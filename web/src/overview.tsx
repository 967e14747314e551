// The first screen: a picture of the whole recording at once; then, as soon as it is known, the worst incident and its fix.

import { useRef } from "preact/hooks";
import type { Diagnosis, Facts, State, TimeChart as Chart } from "./api";
import { address } from "./api";
import { bytes, clock, count, duration, moment, ns, percent } from "./format";
import { IncidentCard } from "./incident_card";
import { NotChecked, noIncident, type ViewProps } from "./incidents";
import { Answered, type Asked, useAnswer } from "./live";
import { link, timeOf, type Route } from "./route";
import { BandLinks, TimeChart } from "./time_chart";

const SHOWN = 3; // incidents; the others are one step away

export function Overview(props: ViewProps & { facts: Asked<Facts>; route: Route }) {
  return (
    <Answered asked={props.facts}>
      {(facts) => <Known {...props} facts={facts} />}
    </Answered>
  );
}

function Known(props: ViewProps & { facts: Facts; route: Route }) {
  const { facts, since } = props;
  const asked = useAnswer<State & Diagnosis>(address("incidents", { since }), props.growth);
  const found = asked.answer;
  return (
    <>
      <Headline facts={facts} found={found} error={asked} />
      <Picture {...props} found={found} />
      {found && <Incidents found={found} since={since} />}
      <FactList facts={facts} />
      {found && <Rest found={found} since={since} />}
    </>
  );
}

// One line that says whether there is something to look at.
function Headline(props: { facts: Facts; found?: Diagnosis; error: Asked<unknown> }) {
  const { facts, found } = props;
  if (!found) {
    if (props.error.error) return <Answered asked={props.error}>{() => null}</Answered>;
    return (
      <section class="verdict pending" aria-busy="true" aria-labelledby="verdict">
        <h2 id="verdict">Looking for stalls in {duration(facts.window.duration_ns)} ...</h2>
        <p role="status">The verdict follows; what was recorded is shown below.</p>
      </section>
    );
  }
  const worst = found.incidents[0];
  return (
    <section class={`verdict ${worst ? worst.severity.toLowerCase() : found.verdicts.length ? "none" : "unknown"}`} aria-labelledby="verdict">
      <h2 id="verdict">{worst ? headline(found) : noIncident(found)}</h2>
      {!worst && <p>in {duration(found.window.duration_ns)}</p>}
    </section>
  );
}

function Picture(props: ViewProps & { facts: Facts; found?: Diagnosis; route: Route }) {
  const { facts, found, since, route } = props;
  const process = route.parameters.process ?? "";
  const key = address("time-chart", { since, process });
  const latest = useAnswer<Chart>(address("time-chart", { since, process, lost: found?.incidents.length ? "true" : "" }), props.growth);
  const kept = useRef<{ key: string; chart: Chart }>();
  if (latest.answer) kept.current = { key, chart: latest.answer };
  const asked = { ...latest, answer: latest.answer ?? (kept.current?.key === key ? kept.current.chart : undefined) };
  return (
    <Answered asked={asked} waiting="Drawing the recording ...">
      {(chart) =>
        chart.parts.length ? (
          <section class="picture-of-all" aria-label="The recording over time">
            {chart.processes.length > 1 && (
              <label class="of">
                Process{" "}
                <select value={process} onChange={(event) => { window.location.hash = link("", "", { ...route.parameters, process: event.currentTarget.value }); }}>
                  <option value="">all {chart.processes.length}, on average</option>
                  {chart.processes.map((one) => <option key={one.process} value={String(one.process)}>{one.name} [{one.pid}]{one.rank === null ? "" : `, rank ${one.rank}`}</option>)}
                </select>
              </label>
            )}
            <TimeChart found={chart} incidents={found?.incidents ?? []} route={route} />
            <BandLinks incidents={found?.incidents ?? []} since={since} length={chart.window.duration_ns} />
            {Object.keys(timeOf(route)).length === 0 && <p class="hint">Drag over the chart to select a time: every view then shows that time only.</p>}
          </section>
        ) : (
          <p class="notice">{nothing(facts)}</p>
        )
      }
    </Answered>
  );
}

// Why there is no picture, and what would give one.
function nothing(facts: Facts): string {
  if (facts.older_version) return `Ingero ${facts.older_version} recorded no GPU syncs: there is nothing to draw. Record with this version: sudo ingero trace`;
  if (!facts.processes.length) return "No GPU process was traced in this time. Start one while `sudo ingero trace` runs, or name it with --pid.";
  return "No GPU sync and no repeated step in this time: shares of wall time are not known. Read a result or call torch.cuda.synchronize() once per step, or record longer.";
}

function Incidents(props: { found: Diagnosis; since: string }) {
  const { found, since } = props;
  const { incidents } = found;
  return (
    <>
      {incidents.slice(0, SHOWN).map((one, at) => <IncidentCard key={one.number} incident={one} since={since} isShort={at > 0} />)}
      {incidents.length > SHOWN && <p><a href={link("incidents", "", { since })}>and {incidents.length - SHOWN} more incidents</a></p>}
    </>
  );
}

function Rest(props: { found: Diagnosis; since: string }) {
  const { found, since } = props;
  return (
    <>
      {found.verdicts.length > 0 && (
        <section>
          <h3>Processes</h3>
          <ul class="plain">
            {found.verdicts.map((one) => (
              <li key={one.process}>
                <a href={link("processes", one.process, { since })}>{one.name} [{one.pid}]</a>: {one.text}
              </li>
            ))}
          </ul>
        </section>
      )}
      <NotChecked diagnosis={found} />
    </>
  );
}

// Which host and GPU, when and how long: above every view.
export function RecordingLine(props: { facts?: Facts; route: Route }) {
  const { facts } = props;
  const last = facts?.sessions[facts.sessions.length - 1];
  if (!facts || !last) return null;
  const hosts = [...new Set(facts.sessions.map((one) => one.node))];
  const began = Math.min(...facts.sessions.map((one) => one.started_ns));
  const ended = Math.max(...facts.sessions.map((one) => one.stopped_ns ?? one.last_seen_ns));
  const part = Object.keys(timeOf(props.route)).length > 0;
  const { begin_ns: begin, end_ns: end, duration_ns: length } = facts.window;
  return (
    <p class="recording">
      <span><b>{hosts.length > 3 ? `${hosts.length} hosts` : hosts.join(", ")}</b></span>
      {last.gpu_model && <span>{last.gpu_model}</span>}
      {last.gpu_driver && <span>driver {last.gpu_driver}</span>}
      <span>recorded {moment(began, ended - began)}, {duration(ended - began)}</span>
      {part && <span class="part">selected {clock(begin, length)}–{clock(end, length)}, {duration(length)}</span>}
    </p>
  );
}

function FactList(props: { facts: Facts }) {
  const { facts } = props;
  const session = facts.sessions[facts.sessions.length - 1];
  const host = facts.system;
  const listed: [string, string][] = [
    ["processes", count(facts.processes.length)],
    ["GPU calls", `${count(facts.calls)}${facts.has_exact_totals ? "" : " (sampled calls only)"}`],
    ["highest total", facts.top_op ? `${facts.top_op.name}, ${ns(facts.top_op.sum_ns)}` : ""],
    ["host CPU", host ? `${host.cpu_percent?.toFixed(0)}%, peak ${host.cpu_percent_max?.toFixed(0)}%` : ""],
    ["kernel", session?.kernel ?? ""],
    ["dropped while recording", lostText(facts)],
    ["ingero itself", overheadText(facts)],
    ["recorded by", facts.older_version ? `Ingero ${facts.older_version}: no sync intervals, no thread states` : ""],
  ];
  return (
    <dl class="facts">
      {listed.filter(([, value]) => value).map(([name, value]) => (
        <div key={name}><dt>{name}</dt><dd>{value}</dd></div>
      ))}
    </dl>
  );
}

export function lostText(facts: Facts): string {
  return facts.older_version ? "not counted by this version" : count(facts.lost) || "0";
}

export function overheadText(facts: Facts): string {
  const { agent_cpu_ratio: cpu, agent_rss_bytes: memory } = facts.overhead;
  return cpu === null ? "" : `${percent(cpu)} of one core, ${bytes(memory)}`;
}

function headline(found: Diagnosis): string {
  const severities = ["CRITICAL", "HIGH", "MEDIUM", "LOW"];
  const counts = new Map<string, number>();
  for (const one of found.incidents) counts.set(one.severity, (counts.get(one.severity) ?? 0) + 1);
  const parts = severities.filter((name) => counts.has(name)).map((name) => `${counts.get(name)} ${name}`);
  const total = found.incidents.length;
  return `${total} incident${total > 1 ? "s" : ""}: ${parts.join(", ")}`;
}
