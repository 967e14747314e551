// One incident, in the parts and in the order of its JSON (explain.schema.json).

import { useState } from "preact/hooks";
import type { Affected, Culprit, Incident } from "./api";
import { address } from "./api";
import { bytes, clock, count, moment, ns, percent } from "./format";
import { IncidentStacks } from "./incident_stacks";
import { type ViewProps, cost, when } from "./incidents";
import { Answered, useAnswer } from "./live";
import { Severity, StackedBar, lostShares, stateShares } from "./parts";
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
      <Answered asked={asked}>{({ incident }) => <Report {...props} incident={incident} />}</Answered>
    </>
  );
}

function Report(props: ViewProps & { incident: Incident }) {
  const one = props.incident;
  return (
    <article>
      <h2><Severity name={one.severity} /> {one.headline}</h2>
      <p class="quiet">{one.cause} ({one.kind === "bottleneck" ? "steady-state bottleneck, no baseline" : one.kind}), {when(one)}</p>
      <Impact incident={one} />
      <section aria-labelledby="where">
        <h3 id="where">Where</h3>
        <p>{one.where.file ? <code title={one.where.file}>{one.where.text}</code> : one.where.text}</p>
      </section>
      <Fixes incident={one} />
      <section aria-labelledby="breakdown">
        <h3 id="breakdown">Breakdown</h3>
        {one.breakdown.length ? (
          <>
            <h4>By thread state</h4>
            <StackedBar shares={stateShares(one.breakdown)} label="Lost time by state of the critical-path thread" />
            <h4>By part of the {one.impact.judged_by ?? "step"}</h4>
            <StackedBar shares={lostShares(one.breakdown)} label="Lost time by part and state" />
          </>
        ) : (
          <p class="quiet">No lost time is attributed to {one.kind === "event" ? "an event" : "it"}.</p>
        )}
      </section>
      {one.affected.length > 0 && (
        <Table
          caption="Affected processes"
          name="affected"
          rows={one.affected}
          columns={[
            { ...affected.text("name", "process"), show: (row) => <a href={link("processes", row.process, { since: props.since })}>{row.name}</a> },
            affected.number("pid", "pid"),
            affected.number("rank", "rank"),
            affected.duration("lost_ns", "time lost"),
            affected.text("container", "container"),
          ]}
        />
      )}
      {one.culprits.length > 0 && (
        <Table
          caption="Culprits"
          name="culprits"
          rows={one.culprits}
          columns={[
            culprit.text("name", "culprit"),
            culprit.number("pid", "pid"),
            culprit.duration("lost_ns", "time"),
            culprit.count("context_switches", "context switches"),
            culprit.text("container", "container"),
          ]}
        />
      )}
      {one.contributing.length > 0 && (
        <section aria-labelledby="contributing">
          <h3 id="contributing">Contributing</h3>
          <ul>
            {one.contributing.map((other) => (
              <li key={other.cause}><b>{other.cause}</b> {ns(other.lost_ns)}, {percent(other.share_ratio)} of the lost time: {other.headline}</li>
            ))}
          </ul>
        </section>
      )}
      {one.evidence.length > 0 && (
        <section aria-labelledby="evidence">
          <h3 id="evidence">Evidence</h3>
          <ol class="chain">
            {one.evidence.map((step) => (
              <li key={step.text}>
                {step.text}
                {step.seen_ns > 0 && <b> {ns(step.seen_ns)}</b>}
                {step.expected_ns !== null && ` (expected ${ns(step.expected_ns)})`}
                <small>{[step.source, step.order].filter(Boolean).join("; ")}</small>
              </li>
            ))}
          </ol>
        </section>
      )}
      <Timeline incident={one} />
      <IncidentStacks growth={props.growth} since={props.since} incident={one} />
      <Details incident={one} />
    </article>
  );
}

function Impact(props: { incident: Incident }) {
  const one = props.incident.impact;
  const rate = (value: number | null) => (value === null ? "" : value.toFixed(value < 10 ? 2 : 1));
  const noun = one.judged_by ?? "step";
  const rows: { fact: string; now: number | null; baseline: number | null; show: (value: number | null) => string }[] = [
    { fact: noun === "sync interval" ? "syncs/s" : `${noun}s/s`, now: one.per_s, baseline: one.baseline_per_s, show: rate },
    { fact: `${noun} p50 (ns)`, now: one.p50_ns, baseline: one.baseline_p50_ns, show: ns },
    { fact: `${noun} p99 (ns)`, now: one.p99_ns, baseline: one.baseline_p99_ns, show: ns },
    { fact: "involuntary off-CPU time (ratio)", now: one.involuntary_off_cpu_ratio, baseline: one.baseline_involuntary_off_cpu_ratio, show: percent },
    { fact: "context switches", now: one.context_switches, baseline: null, show: count },
    { fact: "involuntary context switches", now: one.involuntary_context_switches, baseline: null, show: count },
  ];
  const known = rows.filter((row) => row.now !== null);
  return (
    <section aria-labelledby="impact">
      <h3 id="impact">Impact</h3>
      <p>{cost(props.incident)}</p>
      {known.length > 0 && (
        <Table
          caption="Against the baseline"
          name="impact"
          rows={known}
          columns={[
            { key: "fact", head: "of the worst affected process", value: (row) => row.fact, show: (row) => row.fact.replace(/ \((ns|ratio)\)$/, "") },
            { key: "now", head: "in the incident", value: (row) => row.now, show: (row) => row.show(row.now), isNumber: true },
            { key: "baseline", head: "baseline", value: (row) => row.baseline, show: (row) => row.show(row.baseline), isNumber: true },
          ]}
        />
      )}
    </section>
  );
}

function Fixes(props: { incident: Incident }) {
  if (!props.incident.fix.length) return null;
  return (
    <section aria-labelledby="fix">
      <h3 id="fix">Fix</h3>
      <ul>
        {props.incident.fix.map((one) => (
          <li key={one.text}>{one.text}{one.command && <Command text={one.command} />}</li>
        ))}
      </ul>
    </section>
  );
}

// A command with a button that copies it; without one where the page may not use the clipboard (plain HTTP).
function Command(props: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = () => navigator.clipboard.writeText(props.text).then(() => setCopied(true), () => setCopied(false));
  return (
    <>
      <pre tabIndex={0}><code>{props.text}</code></pre>
      {window.isSecureContext && <button type="button" onClick={copy}>{isCopied ? "Copied" : "Copy"}</button>}
    </>
  );
}

function Details(props: { incident: Incident }) {
  const facts = Object.entries(props.incident.details);
  if (!facts.length) return null;
  return (
    <Table
      caption="Details"
      name="details"
      rows={facts}
      columns={[
        { key: "fact", head: "fact", value: ([name]) => name, show: ([name]) => name.replace(/ ?\b(ns|bytes|ratio)\b(?=[^(]*\)) ?/, "").replace(" ()", "") },
        { key: "value", head: "value", value: ([, value]) => value, show: ([name, value]) => factText(name, value), isNumber: true },
      ]}
    />
  );
}

// A fact's name says what its number counts: "open (ns)", "held (bytes)", "in the queue (ns per request)".
function factText(name: string, value: string | number | boolean | null): string {
  if (typeof value !== "number") return String(value ?? "");
  const unit = /\((ns|bytes|ratio)\b/.exec(name)?.[1] ?? /^(bytes)\b|\b(ratio)$/.exec(name)?.[0];
  return unit === "ns" ? ns(value) : unit === "bytes" ? bytes(value) : unit === "ratio" ? percent(value) : String(value);
}

// Time lost around the incident, as shares of wall time.
function Timeline(props: { incident: Incident }) {
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
  const text = `from ${moment(first.begin_ns, length)} to ${at(last.end_ns)}, peak ${percent(worst.lost_ratio)} at ${at(worst.begin_ns)}`;
  return (
    <section aria-labelledby="course">
      <h3 id="course">Timeline</h3>
      <figure class="course">
        <svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label={`Time lost, ${text}`}>
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
        <figcaption><span>{at(first.begin_ns)}</span><span>time lost, peak {percent(worst.lost_ratio)}; gray: the incident</span><span>{at(last.end_ns)}</span></figcaption>
      </figure>
    </section>
  );
}
