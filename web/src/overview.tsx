// What was recorded, at once; and above it the verdict, as soon as it is known.

import type { Diagnosis, Facts, State } from "./api";
import { address } from "./api";
import { bytes, count, moment, ns, percent } from "./format";
import { Card, NotEvaluated, Timeline, noIncident, type ViewProps } from "./incidents";
import { Answered, type Asked, useAnswer } from "./live";
import { link } from "./route";

const SHOWN = 3; // incidents; the others are one step away

export function Overview(props: ViewProps & { facts: Asked<Facts> }) {
  return (
    <Answered asked={props.facts}>
      {(facts) => <Known {...props} facts={facts} />}
    </Answered>
  );
}

function Known(props: ViewProps & { facts: Facts }) {
  const { facts, since } = props;
  const asked = useAnswer<State & Diagnosis>(address("incidents", { since }), props.growth);
  const found = asked.answer;
  return (
    <>
      {found ? <Verdict found={found} /> : asked.error ? <Answered asked={asked}>{() => null}</Answered> : <Pending facts={facts} />}
      <FactList facts={facts} />
      {found && <Rest found={found} since={since} />}
    </>
  );
}

function Pending(props: { facts: Facts }) {
  return (
    <section class="verdict pending" aria-busy="true" aria-labelledby="verdict">
      <h2 id="verdict">Looking for stalls in {ns(props.facts.window.duration_ns)} ...</h2>
      <p role="status">The verdict follows; what was recorded stands below.</p>
    </section>
  );
}

function Verdict(props: { found: Diagnosis }) {
  const { found } = props;
  const worst = found.incidents[0];
  return (
    <section class={`verdict ${worst ? worst.severity.toLowerCase() : found.verdicts.length ? "none" : "unknown"}`} aria-labelledby="verdict">
      <h2 id="verdict">{worst ? worst.headline : noIncident(found)}</h2>
      <p>{headline(found)}</p>
    </section>
  );
}

function Rest(props: { found: Diagnosis; since: string }) {
  const { found, since } = props;
  const { incidents, verdicts } = found;
  return (
    <>
      <Timeline incidents={incidents} window={found.window} since={since} />
      {incidents.slice(0, SHOWN).map((one) => <Card key={one.number} incident={one} since={since} />)}
      {incidents.length > SHOWN && (
        <p><a href={link("incidents", "", { since })}>and {incidents.length - SHOWN} more incidents</a></p>
      )}
      {verdicts.length > 0 && (
        <section>
          <h3>Processes</h3>
          <ul class="plain">
            {verdicts.map((one) => (
              <li key={one.process}>
                <a href={link("processes", one.process, { since })}>{one.name} [{one.pid}]</a>: {one.text}
              </li>
            ))}
          </ul>
        </section>
      )}
      <NotEvaluated diagnosis={found} />
    </>
  );
}

function FactList(props: { facts: Facts }) {
  const { facts } = props;
  const session = facts.sessions[facts.sessions.length - 1];
  const machine = facts.system;
  const listed: [string, string][] = [
    ["recorded", `${moment(facts.window.begin_ns, facts.window.duration_ns)}, ${ns(facts.window.duration_ns)}`],
    ["on", [session?.node, session?.gpu_model, session?.kernel].filter(Boolean).join(", ")],
    ["processes", count(facts.processes.length)],
    ["GPU calls", `${count(facts.calls)}${facts.has_exact_totals ? "" : " (stored calls only)"}`],
    ["longest in sum", facts.top_op ? `${facts.top_op.name}, ${ns(facts.top_op.sum_ns)}` : ""],
    ["CPU", machine ? `${machine.cpu_percent?.toFixed(0)} %, at most ${machine.cpu_percent_max?.toFixed(0)} %` : ""],
    ["lost while recording", lostText(facts)],
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
  return total ? `${total} incident${total > 1 ? "s" : ""}: ${parts.join(", ")}` : `in ${ns(found.window.duration_ns)}`;
}
