// What was found: over time, and in short one by one.

import type { Diagnosis, Incident, State, Window } from "./api";
import { address } from "./api";
import { causeTitle } from "./causes";
import { clock, moment, ns, percent } from "./format";
import { IncidentCard } from "./incident_card";
import { Answered, useAnswer } from "./live";
import { link } from "./route";

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
          {found.incidents.map((one) => <IncidentCard key={one.number} incident={one} since={props.since} />)}
          <NotChecked diagnosis={found} />
        </>
      )}
    </Answered>
  );
}

export function noIncident(found: Diagnosis): string {
  if (!found.verdicts.length) return "No verdict: the recording has no GPU syncs or steps, so lost time cannot be measured.";
  const unchecked = found.not_checked.flatMap((one) => one.ranges).reduce((sum, one) => Math.max(sum, one.duration_ns), 0);
  return unchecked ? `No incidents found. For ${ns(unchecked)}, some causes could not be checked.` : "No incidents found.";
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
              <a href={link("incidents", one.number, { since: props.since })} title={one.headline}>
                <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
                  <rect class="track" x="0" y="0" width="100" height="10" />
                  <rect class={`bar ${one.severity.toLowerCase()}`} x={left} y="1" width={width} height="8" />
                </svg>
                <span>
                  {one.severity} {causeTitle(one.cause)}{one.start_ns > 0 && `, ${clock(one.start_ns, end_ns - begin_ns)}`}{one.impact.lost_ns > 0 && `, lost ${ns(one.impact.lost_ns)}`}
                </span>
              </a>
            </li>
          );
        })}
      </ol>
      <p class="ends"><span>{moment(begin_ns, end_ns - begin_ns)}</span><span>{clock(end_ns, end_ns - begin_ns)}</span></p>
    </div>
  );
}

export function NotChecked(props: { diagnosis: Diagnosis }) {
  const byReason = new Map<string, string[]>();
  for (const one of props.diagnosis.not_checked) {
    const reason = one.reason + during(one.ranges);
    byReason.set(reason, [...(byReason.get(reason) ?? []), one.cause]);
  }
  const sources = Object.entries(props.diagnosis.not_traced);
  if (!byReason.size && !sources.length) return null;
  return (
    <details>
      <summary>Not checked (data missing): these cannot be ruled out</summary>
      <ul>
        {[...byReason].map(([reason, causes]) => <li key={reason}>{causes.join(", ")}: {reason}</li>)}
        {sources.map(([source, reason]) => <li key={source}>not traced: {source} ({reason})</li>)}
      </ul>
    </details>
  );
}

/** The parts of the window that are meant; nothing where it is all of it. */
function during(ranges: Window[]): string {
  const first = ranges[0], last = ranges[ranges.length - 1];
  if (!first || !last) return "";
  const times = ranges.length > 1 ? ` in ${ranges.length} time ranges` : "";
  const length = ranges.reduce((sum, one) => sum + one.duration_ns, 0);
  const [begin, end] = [first.begin_ns, last.end_ns].map((at) => clock(at, last.end_ns - first.begin_ns));
  return `, from ${begin} to ${end}, ${ns(length)}${times}`;
}

export function when(one: Incident): string {
  if (!one.start_ns) return "over the entire recording"; // older recordings do not say when
  if (one.end_ns === null) return `since ${moment(one.start_ns)}, ongoing`;
  const length = one.end_ns - one.start_ns;
  if (length <= 0) return `at ${moment(one.start_ns, 0)}`;
  return `${moment(one.start_ns, length)} to ${clock(one.end_ns, length)} (${ns(length)})`;
}

export function cost(one: Incident): string {
  if (!one.impact.lost_ns) return "no lost time is attributed to it";
  return `lost ${ns(one.impact.lost_ns)}, ${percent(one.impact.lost_ratio)} of wall time (peak ${percent(one.impact.peak_ratio)} in 1 s); ${percent(one.impact.explained_ratio)} of it explained`;
}
