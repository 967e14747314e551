// An incident at a glance: what was lost, what it cost, what to do about it.

import type { Incident } from "./api";
import { CauseName } from "./detections";
import { count, ns, percent } from "./format";
import { when } from "./incidents";
import { Severity, StackedBar, lostShares } from "./parts";
import { Command } from "./copy";
import { link } from "./route";

const FIXES = 2; // the others are on the incident's own page
const CULPRITS = 4;

export function IncidentCard(props: { incident: Incident; since: string; isShort?: boolean }) {
  const { incident: one, since } = props;
  const place = link("incidents", one.number, { since });
  const fixes = props.isShort ? [] : one.fix.slice(0, FIXES);
  return (
    <article class={`card incident ${one.severity.toLowerCase()}`}>
      <p class="kicker"><Severity name={one.severity} /> <CauseName cause={one.cause} since={since} /> <span class="quiet">{when(one)}</span></p>
      <h3><a href={place}>{one.headline}</a></h3>
      <dl class="impact">{impacts(one).map(([name, value, more]) => <div key={name}><dt>{name}</dt><dd>{value}{more && <small>{more}</small>}</dd></div>)}</dl>
      <StackedBar shares={lostShares(one.breakdown)} label="Lost-time breakdown" />
      {one.culprits.length > 0 && (
        <p>Culprits: {one.culprits.slice(0, CULPRITS).map((by) => `${by.name} [${by.pid}]${by.lost_ns ? ` ${ns(by.lost_ns)}` : ""}`).join(", ")}{one.culprits.length > CULPRITS && `, and ${one.culprits.length - CULPRITS} more`}</p>
      )}
      <p>Where: {one.where.line === null ? one.where.text : <code>{one.where.text}</code>}</p>
      {fixes.length > 0 && (
        <section class="fix">
          <h4>Fix</h4>
          {fixes.map((fix) => (
            <div key={fix.text}>
              <p>{fix.text}</p>
              {fix.command && <Command text={fix.command} />}
            </div>
          ))}
        </section>
      )}
      <p><a href={place}>Evidence{one.fix.length > fixes.length && ", more fixes"} and timeline</a></p>
    </article>
  );
}

type Fact = [name: string, value: string, more: string];

function impacts(one: Incident): Fact[] {
  const found: Fact[] = [];
  const impact = one.impact;
  if (impact.lost_ns) found.push(["time lost", ns(impact.lost_ns), `${percent(impact.explained_ratio)} of it explained`]);
  if (impact.lost_ratio) found.push(["of wall time", percent(impact.lost_ratio), `peak ${percent(impact.peak_ratio)} (1 s)`]);
  if (impact.judged_by === null || impact.per_s === null || impact.p99_ns === null) return found;
  const noun = impact.judged_by === "step" ? "steps" : "syncs";
  const rate = (value: number) => value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);
  found.push([`${noun}/s`, rate(impact.per_s), baseline(impact.baseline_per_s, rate)]);
  found.push([`${impact.judged_by} p99`, ns(impact.p99_ns), baseline(impact.baseline_p99_ns, ns)]);
  found.push(["involuntary off-CPU time", percent(impact.involuntary_off_cpu_ratio), baseline(impact.baseline_involuntary_off_cpu_ratio, percent)]);
  if (impact.involuntary_context_switches !== null) found.push(["involuntary context switches", count(impact.involuntary_context_switches), ""]);
  return found;
}

function baseline(value: number | null, text: (value: number) => string): string {
  return value === null ? "" : `baseline ${text(value)}`;
}
