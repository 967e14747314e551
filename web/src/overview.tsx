// The verdict first, then what was recorded.

import type { Overview as Answer } from "./api";
import { address } from "./api";
import { count, moment, ns } from "./format";
import { Card, NotEvaluated, Timeline, noIncident, type ViewProps } from "./incidents";
import { Answered, useAnswer } from "./live";
import { link } from "./route";

const SHOWN = 3; // incidents; the others are one step away

export function Overview(props: ViewProps) {
  const asked = useAnswer<Answer>(address("overview", { since: props.since }), props.growth);
  return <Answered asked={asked}>{(found) => <Verdict found={found} since={props.since} />}</Answered>;
}

function Verdict(props: { found: Answer; since: string }) {
  const { found, since } = props;
  const { incidents, verdicts } = found.diagnosis;
  const worst = incidents[0];
  return (
    <>
      <section class={`verdict ${worst ? worst.severity.toLowerCase() : "none"}`} aria-labelledby="verdict">
        <h2 id="verdict">{worst ? worst.summary : noIncident(found.diagnosis)}</h2>
        <p>{headline(found)}</p>
      </section>
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
      <Facts found={found} />
      <NotEvaluated diagnosis={found.diagnosis} />
    </>
  );
}

function Facts(props: { found: Answer }) {
  const { found } = props;
  const session = found.sessions[found.sessions.length - 1];
  const machine = found.system;
  const facts: [string, string][] = [
    ["recorded", `${moment(found.window.begin_ns)}, ${ns(found.window.duration_ns)}`],
    ["on", [session?.node, session?.gpu_model, session?.kernel].filter(Boolean).join(", ")],
    ["GPU calls", `${count(found.calls)}${found.has_exact_totals ? "" : " (stored calls only)"}`],
    ["longest in sum", found.top_op ? `${found.top_op.name}, ${ns(found.top_op.sum_ns)}` : ""],
    ["CPU", machine ? `${machine.cpu_percent?.toFixed(0)} %, at most ${machine.cpu_percent_max?.toFixed(0)} %` : ""],
    ["lost while recording", found.older_version ? "not counted by this version" : count(found.lost) || "0"],
    ["recorded by", found.older_version ? `Ingero ${found.older_version}: no epochs, no clocks` : ""],
  ];
  return (
    <dl class="facts">
      {facts.filter(([, value]) => value).map(([name, value]) => (
        <div key={name}><dt>{name}</dt><dd>{value}</dd></div>
      ))}
    </dl>
  );
}

function headline(found: Answer): string {
  const severities = ["CRITICAL", "HIGH", "MEDIUM", "LOW"];
  const counts = new Map<string, number>();
  for (const one of found.diagnosis.incidents) counts.set(one.severity, (counts.get(one.severity) ?? 0) + 1);
  const parts = severities.filter((name) => counts.has(name)).map((name) => `${counts.get(name)} ${name}`);
  const total = found.diagnosis.incidents.length;
  return total ? `${total} incident${total > 1 ? "s" : ""}: ${parts.join(", ")}` : `in ${ns(found.window.duration_ns)}`;
}
