// What was found: on a line of time, and one by one with its account and its proof.

import type { Diagnosis, Impact, Incident, State, Window } from "./api";
import { address } from "./api";
import { clock, count, moment, ns, percent } from "./format";
import { Answered, useAnswer } from "./live";
import { StackedBar, Severity, accountShares, stateShares } from "./parts";
import { link } from "./route";
import { Table } from "./table";

export interface ViewProps {
  growth: number;
  since: string;
}

export function Incidents(props: ViewProps) {
  const asked = useAnswer<State & Diagnosis>(address("incidents", { since: props.since }), props.growth);
  return (
    <Answered asked={asked}>
      {(found) => (
        <>
          <h2>Incidents</h2>
          {found.incidents.length === 0 && <p class="notice">{noIncident(found)}</p>}
          <Timeline incidents={found.incidents} window={found.window} since={props.since} />
          {found.incidents.map((one) => <Card key={one.number} incident={one} since={props.since} />)}
          <NotEvaluated diagnosis={found} />
        </>
      )}
    </Answered>
  );
}

export function OneIncident(props: ViewProps & { number: string }) {
  const path = `incidents/${encodeURIComponent(props.number)}`;
  const asked = useAnswer<{ incident: Incident }>(address(path, { since: props.since }), props.growth);
  return (
    <>
      <p><a href={link("incidents", "", { since: props.since })}>All incidents</a></p>
      <Answered asked={asked}>{({ incident }) => <Account incident={incident} since={props.since} />}</Answered>
    </>
  );
}

export function noIncident(found: Diagnosis): string {
  return found.verdicts.length
    ? "No incident was found."
    : "No verdict: the recording holds no epochs of a device, so that no lost time can be proven.";
}

// One row per incident, worst first; each bar leads to its incident.
export function Timeline(props: { incidents: Incident[]; window: Window; since: string }) {
  const { begin_ns, end_ns, duration_ns } = props.window;
  if (!props.incidents.length) return null;
  const place = (unixNs: number) => (100 * (Math.min(Math.max(unixNs, begin_ns), end_ns) - begin_ns)) / duration_ns;
  return (
    <div class="timeline">
      <ol aria-label="Incidents over time">
        {props.incidents.map((one) => {
          const left = place(one.start_ns || begin_ns);
          const width = Math.max(place((one.start_ns && one.end_ns) || end_ns) - left, 0.4);
          return (
            <li key={one.number}>
              <a href={link("incidents", one.number, { since: props.since })} title={one.summary}>
                <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
                  <rect class="track" x="0" y="0" width="100" height="10" />
                  <rect class={`bar ${one.severity.toLowerCase()}`} x={left} y="1" width={width} height="8" />
                </svg>
                <span>
                  {one.severity} {one.cause}{one.start_ns > 0 && `, ${clock(one.start_ns)}`}{one.lost_ns > 0 && `, lost ${ns(one.lost_ns)}`}
                </span>
              </a>
            </li>
          );
        })}
      </ol>
      <p class="ends"><span>{moment(begin_ns)}</span><span>{clock(end_ns)}</span></p>
    </div>
  );
}

export function Card(props: { incident: Incident; since: string }) {
  const one = props.incident;
  return (
    <article class={`card ${one.severity.toLowerCase()}`}>
      <h3>
        <Severity name={one.severity} />{" "}
        <a href={link("incidents", one.number, { since: props.since })}>{one.summary}</a>
      </h3>
      <p class="quiet">{when(one)}; {cost(one)}</p>
      <StackedBar shares={accountShares(one.account)} label="The lost time" />
    </article>
  );
}

function Account(props: { incident: Incident; since: string }) {
  const one = props.incident;
  const evidence = Object.entries(one.evidence);
  return (
    <article>
      <h2><Severity name={one.severity} /> {one.summary}</h2>
      <p class="quiet">{one.cause} ({one.kind}), {when(one)}; {cost(one)}</p>
      <section aria-labelledby="account">
        <h3 id="account">Where the lost time went</h3>
        {Object.keys(one.account).length ? (
          <>
            <h4>By what the thread was doing</h4>
            <StackedBar shares={stateShares(one.account)} label="The lost time by the clocks of the thread" />
            <h4>By where in the device's epochs</h4>
            <StackedBar shares={accountShares(one.account)} label="The lost time by part of the epoch" />
          </>
        ) : (
          <p>It has no account: it is {one.kind === "event" ? "an event" : "not charged"}.</p>
        )}
      </section>
      <Course incident={one} />
      {one.impact && <Impacts impact={one.impact} />}
      {one.line && (
        <section>
          <h3>Line of code</h3>
          <p><code>{one.line.line ? `${one.line.file}:${one.line.line}` : one.line.file}</code> in <code>{one.line.function}()</code></p>
        </section>
      )}
      {one.culprits.length > 0 && (
        <Table
          caption="Who took the time"
          name="culprits"
          rows={one.culprits}
          columns={[
            { key: "name", head: "culprit", value: (row) => row.name },
            { key: "pid", head: "pid", value: (row) => row.pid, isNumber: true },
            { key: "lost_ns", head: "time", value: (row) => row.lost_ns, show: (row) => ns(row.lost_ns), isNumber: true },
            { key: "switches", head: "switches", value: (row) => row.switches, show: (row) => count(row.switches), isNumber: true },
            { key: "container", head: "container", value: (row) => row.container },
          ]}
        />
      )}
      {one.victims.length > 0 && (
        <Table
          caption="Who lost time"
          name="victims"
          rows={one.victims}
          columns={[
            { key: "name", head: "process", value: (row) => row.name, show: (row) => <a href={link("processes", row.process, { since: props.since })}>{row.name}</a> },
            { key: "pid", head: "pid", value: (row) => row.pid, isNumber: true },
            { key: "rank", head: "rank", value: (row) => row.rank, isNumber: true },
            { key: "lost_ns", head: "lost", value: (row) => row.lost_ns, show: (row) => ns(row.lost_ns), isNumber: true },
            { key: "container", head: "container", value: (row) => row.container },
          ]}
        />
      )}
      {one.chain.length > 0 && (
        <section>
          <h3>How that is known</h3>
          <ol class="chain">
            {one.chain.map((step) => (
              <li key={step.text}>
                {step.text}
                {step.seen_ns > 0 && <b> {ns(step.seen_ns)}</b>}
                {step.expected_ns !== null && ` (expected ${ns(step.expected_ns)})`}
                <small>{[step.structure, step.order].filter(Boolean).join("; ")}</small>
              </li>
            ))}
          </ol>
        </section>
      )}
      {one.fixes.length > 0 && (
        <section>
          <h3>What to do</h3>
          <ul>
            {one.fixes.map((fix) => (
              <li key={fix.text}>{fix.text}{fix.command && <pre tabIndex={0}><code>{fix.command}</code></pre>}</li>
            ))}
          </ul>
        </section>
      )}
      {evidence.length > 0 && (
        <Table
          caption="The numbers behind it"
          name="evidence"
          rows={evidence}
          columns={[
            { key: "fact", head: "fact", value: ([name]) => name },
            { key: "value", head: "value", value: ([, value]) => value, isNumber: true },
          ]}
        />
      )}
    </article>
  );
}

// How the loss came and went around the incident, as shares of wall time.
function Course(props: { incident: Incident }) {
  const { timeline, start_ns: start, end_ns: end } = props.incident;
  const first = timeline[0];
  const last = timeline[timeline.length - 1];
  if (!first || !last) return null;
  const place = (unixNs: number) => (1000 * (unixNs - first.begin_ns)) / (last.end_ns - first.begin_ns);
  const begin = place(Math.max(start, first.begin_ns));
  const stop = place(Math.min(end ?? last.end_ns, last.end_ns));
  const worst = timeline.reduce((most, one) => (one.lost_ratio > most.lost_ratio ? one : most), first);
  const text = `from ${moment(first.begin_ns)} to ${clock(last.end_ns)}, at most ${percent(worst.lost_ratio)} at ${clock(worst.begin_ns)}`;
  return (
    <section aria-labelledby="course">
      <h3 id="course">How it came and went</h3>
      <figure class="course">
        <svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label={`Lost share of the time ${text}`}>
          <rect class="stretch" x={begin} y="0" width={Math.max(stop - begin, 1)} height="100" />
          {timeline.map((one) => (
            <rect
              key={one.begin_ns}
              class={`bar ${props.incident.severity.toLowerCase()}`}
              x={place(one.begin_ns)}
              y={100 - 100 * one.lost_ratio}
              width={Math.max(place(one.end_ns) - place(one.begin_ns) - 1, 0.5)}
              height={100 * one.lost_ratio}
            >
              <title>{`${clock(one.begin_ns)}: ${percent(one.lost_ratio)} lost`}</title>
            </rect>
          ))}
        </svg>
        <figcaption><span>{clock(first.begin_ns)}</span><span>lost share of the time, at most {percent(worst.lost_ratio)}; grey: the incident</span><span>{clock(last.end_ns)}</span></figcaption>
      </figure>
    </section>
  );
}

function Impacts(props: { impact: Impact }) {
  const one = props.impact;
  const rate = (value: number | null) => (value === null ? "" : value.toFixed(value < 10 ? 2 : 1));
  const rows: { fact: string; now: number | null; usual: number | null; show: (value: number | null) => string }[] = [
    { fact: "drains per second (steps, batches, tokens)", now: one.drains_per_s, usual: one.usual_drains_per_s, show: rate },
    { fact: "time per drain, p50 (ns)", now: one.p50_ns, usual: one.usual_p50_ns, show: ns },
    { fact: "time per drain, p99 (ns)", now: one.p99_ns, usual: one.usual_p99_ns, show: ns },
    { fact: "kept off its CPU against its will (ratio)", now: one.involuntary_ratio, usual: one.usual_involuntary_ratio, show: percent },
    { fact: "preemptions of its threads", now: one.preemptions, usual: null, show: count },
  ];
  return (
    <Table
      caption="What its worst victim noticed"
      name="impact"
      rows={rows.filter((row) => row.now !== null)}
      columns={[
        { key: "fact", head: "fact", value: (row) => row.fact, show: (row) => row.fact.replace(/ \((ns|ratio)\)$/, "") },
        { key: "now", head: "in the incident", value: (row) => row.now, show: (row) => row.show(row.now), isNumber: true },
        { key: "usual", head: "usual", value: (row) => row.usual, show: (row) => row.show(row.usual), isNumber: true },
      ]}
    />
  );
}

export function NotEvaluated(props: { diagnosis: Diagnosis }) {
  const byReason = new Map<string, string[]>();
  for (const one of props.diagnosis.not_evaluated) {
    byReason.set(one.reason, [...(byReason.get(one.reason) ?? []), one.cause]);
  }
  const sources = Object.entries(props.diagnosis.not_traced);
  if (!byReason.size && !sources.length) return null;
  return (
    <details>
      <summary>Not evaluated, so that silence about it is no all-clear</summary>
      <ul>
        {[...byReason].map(([reason, causes]) => <li key={reason}>{causes.join(", ")}: {reason}</li>)}
        {sources.map(([source, reason]) => <li key={source}>not traced: {source} ({reason})</li>)}
      </ul>
    </details>
  );
}

function when(one: Incident): string {
  if (!one.start_ns) return "over the whole time"; // older recordings do not tell when
  if (one.end_ns === null) return `since ${moment(one.start_ns)}, and it goes on`;
  if (one.end_ns <= one.start_ns) return `at ${moment(one.start_ns)}`;
  return `${moment(one.start_ns)} to ${clock(one.end_ns)}`;
}

function cost(one: Incident): string {
  if (!one.lost_ns) return "no lost time is charged to it";
  return (
    `lost ${ns(one.lost_ns)}, ${percent(one.lost_ratio)} of its time, ${percent(one.peak_ratio)} in its worst second; ` +
    `${percent(one.explained_ratio)} of the loss is explained`
  );
}
