// One incident: its account, where its affected process was in the code, who did it, and how that is known.

import type { Culprit, Impact, Incident, Affected } from "./api";
import { address } from "./api";
import { bytes, clock, count, moment, ns, percent } from "./format";
import { waitingText } from "./frames";
import { IncidentStacks } from "./incident_stacks";
import { type ViewProps, cost, when } from "./incidents";
import { Answered, useAnswer } from "./live";
import { Severity, StackedBar, breakdownShares, stateShares } from "./parts";
import { link } from "./route";
import { Table, columnsOf } from "./table";

const culprit = columnsOf<Culprit>();
const affected = columnsOf<Affected>();

export function OneIncident(props: ViewProps & { number: string }) {
  const path = `incidents/${encodeURIComponent(props.number)}`;
  const asked = useAnswer<{ incident: Incident }>(address(path, { since: props.since }), props.growth);
  return (
    <>
      <p><a href={link("incidents", "", { since: props.since })}>All incidents</a></p>
      <Answered asked={asked}>{({ incident }) => <Breakdown {...props} incident={incident} />}</Answered>
    </>
  );
}

function Breakdown(props: ViewProps & { incident: Incident }) {
  const one = props.incident;
  const evidence = Object.entries(one.evidence);
  return (
    <article>
      <h2><Severity name={one.severity} /> {one.summary}</h2>
      <p class="quiet">{one.cause} ({one.kind}), {when(one)}; {cost(one)}</p>
      <section aria-labelledby="breakdown">
        <h3 id="breakdown">Where the lost time went</h3>
        {Object.keys(one.breakdown).length ? (
          <>
            <h4>By what the thread was doing</h4>
            <StackedBar shares={stateShares(one.breakdown)} label="The lost time by the clocks of the thread" />
            <h4>By part of the {one.impact?.interval ?? "sync interval"}</h4>
            <StackedBar shares={breakdownShares(one.breakdown)} label="The lost time by part of what was repeated" />
          </>
        ) : (
          <p>It has no breakdown: it is {one.kind === "event" ? "an event" : "not charged"}.</p>
        )}
      </section>
      <Course incident={one} />
      {one.impact && <Impacts impact={one.impact} />}
      {one.line && (
        <section>
          <h3>Line of code</h3>
          <p><code>{one.line.line ? `${one.line.file}:${one.line.line}` : one.line.file}</code> in <code>{one.line.function}()</code>{one.line.waiting_thread && ` [${waitingText(one.line.waiting_thread)}]`}</p>
        </section>
      )}
      {one.culprits.length > 0 && (
        <Table
          caption="Who took the time"
          name="culprits"
          rows={one.culprits}
          columns={[
            culprit.text("name", "culprit"),
            culprit.number("pid", "pid"),
            culprit.duration("lost_ns", "time"),
            culprit.count("switches", "switches"),
            culprit.text("container", "container"),
          ]}
        />
      )}
      {one.affected.length > 0 && (
        <Table
          caption="Who lost time"
          name="affected"
          rows={one.affected}
          columns={[
            { ...affected.text("name", "process"), show: (row) => <a href={link("processes", row.process, { since: props.since })}>{row.name}</a> },
            affected.number("pid", "pid"),
            affected.number("rank", "rank"),
            affected.duration("lost_ns", "lost"),
            affected.text("container", "container"),
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
      <IncidentStacks growth={props.growth} since={props.since} incident={one} />
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
            { key: "fact", head: "fact", value: ([name]) => name, show: ([name]) => name.replace(/ ?\b(ns|bytes|ratio)\b(?=[^(]*\)) ?/, "").replace(" ()", "") },
            { key: "value", head: "value", value: ([, value]) => value, show: ([name, value]) => factText(name, value), isNumber: true },
          ]}
        />
      )}
    </article>
  );
}

// A fact's name says what its number counts: "open (ns)", "held (bytes)", "in the queue (ns per request)".
function factText(name: string, value: string | number | boolean | null): string {
  if (typeof value !== "number") return String(value ?? "");
  const unit = /\((ns|bytes|ratio)\b/.exec(name)?.[1] ?? /^(bytes)\b|\b(ratio)$/.exec(name)?.[0];
  return unit === "ns" ? ns(value) : unit === "bytes" ? bytes(value) : unit === "ratio" ? percent(value) : String(value);
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
  const length = last.end_ns - first.begin_ns;
  const at = (unixNs: number) => clock(unixNs, length);
  const text = `from ${moment(first.begin_ns, length)} to ${at(last.end_ns)}, at most ${percent(worst.lost_ratio)} at ${at(worst.begin_ns)}`;
  return (
    <section aria-labelledby="course">
      <h3 id="course">How it came and went</h3>
      <figure class="course">
        <svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label={`Lost share of the time ${text}`}>
          <rect class="time_range" x={begin} y="0" width={Math.max(stop - begin, 1)} height="100" />
          {timeline.map((one) => (
            <rect
              key={one.begin_ns}
              class={`bar ${props.incident.severity.toLowerCase()}`}
              x={place(one.begin_ns)}
              y={100 - 100 * one.lost_ratio}
              width={Math.max(place(one.end_ns) - place(one.begin_ns) - 1, 0.5)}
              height={100 * one.lost_ratio}
            >
              <title>{`${at(one.begin_ns)}: ${percent(one.lost_ratio)} lost`}</title>
            </rect>
          ))}
        </svg>
        <figcaption><span>{at(first.begin_ns)}</span><span>lost share of the time, at most {percent(worst.lost_ratio)}; grey: the incident</span><span>{at(last.end_ns)}</span></figcaption>
      </figure>
    </section>
  );
}

function Impacts(props: { impact: Impact }) {
  const one = props.impact;
  const rate = (value: number | null) => (value === null ? "" : value.toFixed(value < 10 ? 2 : 1));
  const rows: { fact: string; now: number | null; usual: number | null; show: (value: number | null) => string }[] = [
    { fact: `${one.interval}s per second`, now: one.intervals_per_s, usual: one.usual_intervals_per_s, show: rate },
    { fact: `time per ${one.interval}, p50 (ns)`, now: one.p50_ns, usual: one.usual_p50_ns, show: ns },
    { fact: `time per ${one.interval}, p99 (ns)`, now: one.p99_ns, usual: one.usual_p99_ns, show: ns },
    { fact: "kept off its CPU against its will (ratio)", now: one.involuntary_ratio, usual: one.usual_involuntary_ratio, show: percent },
    { fact: "preemptions of its threads", now: one.preemptions, usual: null, show: count },
  ];
  return (
    <Table
      caption="What its worst affected noticed"
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
