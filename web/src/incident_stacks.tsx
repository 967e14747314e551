// Where the most affected process of an incident was in the code meanwhile: its longest stacks, and the way to all of them.

import type { Incident, IncidentStacks as Answer, StackShare } from "./api";
import { address } from "./api";
import { count, ns } from "./format";
import { FrameList } from "./frames";
import type { ViewProps } from "./incidents";
import { Answered, useAnswer } from "./live";
import { STATE_TEXTS } from "./parts";
import { link } from "./route";

export function IncidentStacks(props: ViewProps & { incident: Incident }) {
  const { growth, since, incident } = props;
  const asked = useAnswer<Answer>(address(`incidents/${incident.number}/stacks`, { since }), growth);
  return (
    <section aria-labelledby="stacks">
      <h3 id="stacks">Where its threads were</h3>
      <Answered asked={asked}>{(found) => <Stacks found={found} incident={incident} />}</Answered>
    </section>
  );
}

function Stacks(props: { found: Answer; incident: Incident }) {
  const { found, incident } = props;
  const affected = incident.affected.find((one) => one.process === found.process);
  if (!affected) return <p class="quiet">No affected process is known.</p>;
  const name = `${affected.name} [${affected.pid}]`;
  if (!found.count) return <p class="quiet">{none(found, name)}</p>;
  const groups = [
    { title: "Inside recorded calls", shares: found.calls, of: "" },
    { title: "Outside calls, by samples", shares: found.samples, of: "samples" },
  ]
    .filter((one) => one.shares.length)
    .sort((one, other) => Number(isOnLine(other.shares)) - Number(isOnLine(one.shares)));
  return (
    <>
      <p class="quiet">
        Stacks of {name} during the incident{found.where.line && ", those through the line first"}: the longest of {count(found.count)}.
        {found.without_stack > 0 && ` Of ${count(found.without_stack)} recorded calls no stack is known.`}
      </p>
      {groups.map(({ title, shares, of }, at) => {
        const { line = "", ...time } = found.where;
        return <Shares key={title} title={title} shares={shares} isOpen={at === 0} all={link("stacks", affected.process, { ...time, of, line: isOnLine(shares) ? line : "" })} />;
      })}
    </>
  );
}

function none(found: Answer, name: string): string {
  return found.without_stack
    ? `No stack of ${name} is stored: ${count(found.without_stack)} calls were recorded without one.`
    : `No single call of ${name} was recorded in this time, and it was not sampled. Stacks require --stack (on by default); --record-all stores every call.`;
}

function isOnLine(shares: StackShare[]): boolean {
  return shares.some((one) => one.is_on_line);
}

function Shares(props: { title: string; shares: StackShare[]; all: string; isOpen: boolean }) {
  const { title, shares, all, isOpen } = props;
  return (
    <>
      <h4>{title}</h4>
      {shares.map((one, at) => (
        <details key={`${one.what} ${one.stack}`} open={isOpen && at === 0}>
          <summary>{STATE_TEXTS[one.what] ?? one.what}: {ns(one.ns)}, {count(one.count)} times{place(one)}</summary>
          <FrameList frames={one.frames} note={one.note} waitingThread={one.waiting_thread} />
        </details>
      ))}
      <p><a href={all}>{isOnLine(shares) ? "All through the line" : "All of this time"}, as a flame graph</a></p>
    </>
  );
}

function place(one: StackShare): string {
  const own = one.frames.find((frame) => frame.is_own);
  return own ? `, from ${own.file.split("/").pop()}${own.line ? `:${own.line}` : ""} in ${own.function}` : "";
}
