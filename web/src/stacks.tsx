// Where the time went in code: the longest recorded calls with their stacks, and a process's stacks as one flame.

import { useEffect, useRef } from "preact/hooks";
import type { Facts, Node, RecordedCall, Stack, State, Tree } from "./api";
import { address } from "./api";
import { clockColumns } from "./state_columns";
import { clock, count, moment, ns, percent } from "./format";
import { FrameList, waitingText } from "./frames";
import type { ViewProps } from "./incidents";
import { Answered, type Asked, useAnswer } from "./live";
import { ClockLegend } from "./parts";
import { link } from "./route";
import { Table, columnsOf } from "./table";

const BETWEEN = "\n"; // of the names on the way to a frame, in the address
const DEEPEST_SHOWN = 40;
const LEAST_WIDTH = 0.002;
const SELECTING = ["begin_ns", "end_ns", "op", "line"]; // as the server calls them, in the page's address, too

const call = columnsOf<RecordedCall>();

export interface StacksProps extends ViewProps {
  item: string;
  parameters: Record<string, string>;
  facts: Asked<Facts>;
}

export function Stacks(props: StacksProps) {
  return (
    <>
      <h2>Stacks</h2>
      <Answered asked={props.facts}>{(facts) => <OfProcess {...props} known={facts} />}</Answered>
    </>
  );
}

function OfProcess(props: StacksProps & { known: Facts }) {
  const { known, parameters } = props;
  const process = props.item || String(known.processes[0]?.process ?? "");
  if (!process) return <p class="notice">No process was traced in this time: start one while `sudo ingero trace` runs, or name it with --pid.</p>;
  const of = parameters.of === "samples" ? "samples" : "calls";
  const only = Object.fromEntries(Object.entries(parameters).filter(([name]) => SELECTING.includes(name)));
  const go = (item: string, changes: Record<string, string>) =>
    link("stacks", item, { since: props.since, of: parameters.of ?? "", ...only, ...changes });
  const common = { growth: props.growth, since: props.since, process, only, go: (changes: Record<string, string>) => go(process, changes) };
  return (
    <>
      <p class="choices">
        <label>
          Process{" "}
          <select value={process} onChange={(event) => { window.location.hash = go(event.currentTarget.value, {}); }}>
            {known.processes.map((one) => (
              <option key={one.process} value={String(one.process)}>{one.name} [{one.pid}]{one.rank === null ? "" : `, rank ${one.rank}`}</option>
            ))}
          </select>
        </label>
        <a href={go(process, { of: "" })} aria-current={of === "samples" ? undefined : "page"}>inside recorded calls</a>
        <a href={go(process, { of: "samples" })} aria-current={of === "samples" ? "page" : undefined}>outside calls</a>
      </p>
      <Only only={only} of={of} go={common.go} />
      {parameters.stack && <OneStack hash={parameters.stack} waiting={parameters.waiting ?? ""} waitingThread={parameters.waiting_thread ?? ""} />}
      <Flame {...common} of={of} at={parameters.at ?? ""} />
      {of === "calls" && <Longest {...common} />}
    </>
  );
}

type Go = (changes: Record<string, string>) => string;

interface OneProcessProps extends ViewProps {
  process: string;
  only: Record<string, string>; // of the stacks of that process, as the address says
  go: Go;
}

// What is left out, and the way back to it.
function Only(props: { only: Record<string, string>; of: string; go: Go }) {
  const { begin_ns: begin, end_ns: end, op, line } = props.only;
  const parts: [string, Record<string, string>, string][] = [];
  if (begin || end) parts.push([time_range(begin, end), { begin_ns: "", end_ns: "" }, "any time"]);
  if (op && props.of === "calls") parts.push([`of ${op}`, { op: "" }, "any call"]);
  if (line) parts.push([`through ${line}`, { line: "" }, "any line"]);
  if (!parts.length) return null;
  return (
    <p class="notice only">
      Only those {parts.map(([text]) => text).join(", ")}. Show{" "}
      {parts.map(([, changes, text], at) => <span key={text}>{at > 0 && ", "}<a href={props.go(changes)}>{text}</a></span>)}.
    </p>
  );
}

function time_range(begin: string | undefined, end: string | undefined): string {
  const from = begin ? `from ${moment(Number(begin))} on` : "";
  if (!end) return from;
  return begin ? `of ${ns(Number(end) - Number(begin))} ${from}` : `before ${moment(Number(end))}`;
}

function Longest(props: OneProcessProps) {
  const parameters = { since: props.since, process: props.process, ...props.only };
  const asked = useAnswer<State & { calls: RecordedCall[] }>(address("calls", parameters), props.growth);
  return (
    <Answered asked={asked}>
      {(found) =>
        found.calls.length > 0 && (
          <>
            <Table
              caption="The longest recorded calls"
              name="calls"
              rows={found.calls}
              columns={[
                { ...call.text("op", "call"), show: (one) => (one.op === props.only.op ? one.op : <a href={props.go({ op: one.op })}>{one.op}</a>) },
                call.duration("duration_ns", "took"),
                { key: "start_ns", head: "at", value: (one) => one.start_ns, show: (one) => clock(one.start_ns) },
                { key: "thread", head: "thread", value: (one) => one.thread, show: (one) => `${one.thread} [${one.tid}]` },
                call.text("kernel", "kernel"),
                call.text("culprit", "ran instead"),
                ...clockColumns((one: RecordedCall) => one.op),
                call.number("ret_code", "returned"),
                { key: "stack", head: "stack", value: (one) => one.stack, show: (one) => one.stack && <a href={props.go({ stack: one.stack, waiting: one.waiting, waiting_thread: one.waiting_thread })}>{one.place || "show"}</a> },
              ]}
            />
            <ClockLegend />
          </>
        )
      }
    </Answered>
  );
}

function OneStack(props: { hash: string; waiting: string; waitingThread: string }) {
  const asked = useAnswer<Stack>(address(`stacks/${encodeURIComponent(props.hash)}`, {}), 0);
  const place = useRef<HTMLElement>(null);
  useEffect(() => place.current?.scrollIntoView({ block: "nearest" }), [props.hash]); // its link lies far below
  return (
    <section ref={place} class="card" aria-labelledby="stack">
      <h3 id="stack">One stack, innermost first</h3>
      <Answered asked={asked}>
        {(found) => <FrameList frames={found.frames} note={found.note} />}
      </Answered>
      {props.waiting && <Waiting hash={props.waiting} thread={props.waitingThread} />}
    </section>
  );
}

// The thread of the call has no Python frames; these are of the one that waits for it.
function Waiting(props: { hash: string; thread: string }) {
  const asked = useAnswer<Stack>(address(`stacks/${encodeURIComponent(props.hash)}`, {}), 0);
  return (
    <>
      <h4>{waitingText(props.thread)}</h4>
      <Answered asked={asked}>
        {(found) => <FrameList frames={found.frames.filter((one) => one.kind === "python")} note="" />}
      </Answered>
    </>
  );
}

function Flame(props: OneProcessProps & { of: string; at: string }) {
  const { since, process, of, only } = props;
  const asked = useAnswer<Tree>(address("tree", { since, process, of, ...only }), props.growth);
  return (
    <Answered asked={asked}>
      {(found) => (found.root.ns === 0 ? <p class="notice">{nothing(of, only)}</p> : <Frames found={found} at={props.at} op={only.op ?? ""} go={props.go} />)}
    </Answered>
  );
}

function nothing(of: string, only: Record<string, string>): string {
  if (only.line) return of === "samples" ? "No sample outside calls goes through this line." : "No recorded call goes through this line.";
  return of === "samples"
    ? "No thread was sampled outside calls in this time. Samples require --stack (on by default)."
    : `No single call${only.op ? ` of ${only.op}` : ""} of this process was recorded in this time. --record-all stores every call; totals of all calls are under Latency.`;
}

interface Placed {
  node: Node;
  path: string[];
  depth: number;
  left: number; // of the width, 0 to 1
  width: number;
}

function Frames(props: { found: Tree; at: string; op: string; go: Go }) {
  const { found, go } = props;
  const path = props.at ? props.at.split(BETWEEN) : [];
  const [from, way] = reached(found.root, path);
  const placed: Placed[] = [];
  place(placed, from, way, 0, 0, 1);
  const rows = Math.max(...placed.map((one) => one.depth)) + 1;
  const of = found.of === "samples" || found.total_ns < found.root.ns ? "" : `, of ${ns(found.total_ns)} in ${props.op ? `all ${props.op}` : "all its calls"}`;
  return (
    <section aria-labelledby="flame">
      <h3 id="flame">{found.of === "samples" ? "Time outside calls" : "Time inside recorded calls"}: {ns(found.root.ns)}{of}</h3>
      {found.note && <p class="quiet">{found.note}</p>}
      {way.length > 0 && <p><a href={go({ at: "" })}>Show all frames</a></p>}
      <ul class="flame" style={{ height: `${rows * 22}px` }}>
        {placed.map((one) => (
          <li key={one.path.join(BETWEEN)} style={{ left: `${100 * one.left}%`, width: `${100 * one.width}%`, top: `${22 * one.depth}px` }}>
            <a
              class={one.node.is_own && one.node.kind === "python" ? "python own" : one.node.kind}
              href={go({ at: one.path.join(BETWEEN) })}
              title={`${label(one.node)}: ${ns(one.node.ns)}, ${percent(one.node.ns / found.root.ns)}, ${count(one.node.count)} times`}
            >
              {one.node.name}
            </a>
          </li>
        ))}
      </ul>
      <p class="legend">
        <span class="entry"><span class="dot flame-own" aria-hidden="true" /> own code</span>
        <span class="entry"><span class="dot flame-python" aria-hidden="true" /> other Python</span>
        {found.of !== "samples" && <span class="entry"><span class="dot flame-waiting" aria-hidden="true" /> Python of the waiting thread</span>}
        <span class="entry"><span class="dot flame-native" aria-hidden="true" /> native</span>
        <span class="entry"><span class="dot flame-op" aria-hidden="true" /> {found.of === "samples" ? "state" : "call"}</span>
      </p>
      <Table
        caption="Time per line"
        name="lines"
        rows={lines(from)}
        columns={[
          { key: "name", head: "line or function", value: (one) => one.name, show: (one) => (one.is_own ? <b>{one.name}</b> : one.name) },
          { key: "ns", head: "time", value: (one) => one.ns, show: (one) => ns(one.ns), isNumber: true },
          { key: "ratio", head: "share", value: (one) => one.ns / found.root.ns, show: (one) => percent(one.ns / found.root.ns), isNumber: true },
          { key: "count", head: "times", value: (one) => one.count, show: (one) => count(one.count), isNumber: true },
        ]}
      />
    </section>
  );
}

// The frame at the end of the path, or the last one on it that there is.
function reached(root: Node, path: string[]): [Node, string[]] {
  let node = root;
  const way: string[] = [];
  for (const name of path) {
    const next = node.children.find((one) => label(one) === name);
    if (!next) break;
    node = next;
    way.push(name);
  }
  return [node, way];
}

function place(placed: Placed[], node: Node, path: string[], depth: number, left: number, width: number): void {
  if (width < LEAST_WIDTH || depth > DEEPEST_SHOWN) return;
  placed.push({ node, path, depth, left, width });
  let begin = left;
  for (const child of node.children) {
    const share = (width * child.ns) / node.ns;
    place(placed, child, [...path, label(child)], depth + 1, begin, share);
    begin += share;
  }
}

function label(node: Node): string {
  return node.kind === "waiting" ? `${node.name} [${waitingText("")}]` : node.name;
}

// Per name with all that it called; a recursive function counts once.
function lines(root: Node): { name: string; is_own: boolean; ns: number; count: number }[] {
  const sums = new Map<string, { name: string; is_own: boolean; ns: number; count: number }>();
  const walk = (node: Node, above: Set<string>) => {
    const name = label(node);
    if (node.kind !== "all" && !above.has(name)) {
      const sum = sums.get(name) ?? { name, is_own: node.is_own, ns: 0, count: 0 };
      sums.set(name, { ...sum, ns: sum.ns + node.ns, count: sum.count + node.count });
    }
    const inside = new Set(above).add(name);
    for (const child of node.children) walk(child, inside);
  };
  walk(root, new Set());
  return [...sums.values()].sort((one, other) => other.ns - one.ns);
}
