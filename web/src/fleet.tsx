// Many nodes at one glance: which lost how much time when, worst first; each row leads to what happened there.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { causeTitle } from "./causes";
import { clock, count, moment, ns, percent } from "./format";
import { Answered, useAnswer } from "./live";
import { Severity } from "./parts";
import { nodeLink } from "./route";

// A column of time, per mille of it that was lost, the incident that most of it is of.
type Cell = [number, number, number];

interface Row {
  number: number;
  node: string;
  address: string;
  lost_ns: number;
  first: number;
  last: number;
  is_judged: boolean;
  incidents: number;
  cells: Cell[];
  said?: number;
  worst?: { number: number; cause: string; severity: string; headline: string };
}

// What is as usual is not sent.
type Sent = Pick<Row, "number" | "node"> & Partial<Row>;

interface Heat {
  begin_ns: number;
  column_ns: number;
  columns: number;
  asked: number;
  nodes: Row[];
  said: string[];
  missing: { reason: string; hint: string; count: number; nodes: string[] }[];
  missing_count: number;
  notes: string[];
}

const SHOWN = 25; // with their names; the others are rows of the picture of all
const ROW = 18;
const MOST_HIGH = 2400; // of the picture of all: 2 pixels for each of 1,000 nodes
const STEPS = [0.02, 0.1, 0.3, 0.6, 1];

export function Fleet(props: { growth: number; since: string }) {
  const query = new URLSearchParams(props.since === "" ? {} : { since: props.since });
  const asked = useAnswer<Omit<Heat, "nodes"> & { nodes: Sent[] }>(`/api/v1/fleet${query.size ? `?${query}` : ""}`, props.growth);
  return <Answered asked={asked} waiting="Asking the nodes ...">{(heat) => <Whole heat={heat} since={props.since} />}</Answered>;
}

function Whole(props: { heat: Omit<Heat, "nodes"> & { nodes: Sent[] }; since: string }) {
  const { heat } = props;
  const usual = { lost_ns: 0, first: 0, last: heat.columns - 1, is_judged: true, incidents: 0, cells: [] };
  const whole = useMemo(() => ({ ...heat, nodes: heat.nodes.map((one): Row => ({ ...usual, ...one, address: one.address ?? one.node })) }), [heat]);
  return <HeatMap heat={whole} since={props.since} />;
}

function HeatMap(props: { heat: Heat; since: string }) {
  const { heat, since } = props;
  const hit = heat.nodes.filter((one) => one.worst);
  const shown = heat.nodes.length > SHOWN ? hit.slice(0, SHOWN) : heat.nodes;
  return (
    <>
      <Verdict heat={heat} hit={hit} since={since} />
      <Missing heat={heat} />
      {shown.length > 0 && (
        <section aria-labelledby="worst">
          <h3 id="worst">{shown.length < heat.nodes.length ? `The worst ${count(shown.length)} nodes` : "Nodes, worst first"}</h3>
          <Scale />
          <ol class="heat">
            <li class="ends"><span /><Ends heat={heat} /><span>lost time</span><span>root cause</span></li>
            {shown.map((one) => <NodeRow key={one.number} row={one} heat={heat} since={since} />)}
          </ol>
        </section>
      )}
      <Silent heat={heat} since={since} />
      {shown.length < heat.nodes.length && <Picture heat={heat} since={since} />}
      {heat.notes.length > 0 && <ul class="plain quiet">{heat.notes.map((one) => <li key={one}>{one}</li>)}</ul>}
      <p class="quiet">Times are by the clock of each node.</p>
    </>
  );
}

function Verdict(props: { heat: Heat; hit: Row[]; since: string }) {
  const { heat, hit } = props;
  const first = hit[0];
  const answered = heat.nodes.length;
  return (
    <section class={`verdict ${first?.worst?.severity.toLowerCase() ?? (heat.nodes.some((one) => one.is_judged) ? "none" : "unknown")}`} aria-labelledby="verdict">
      <h2 id="verdict">{first ? <><a href={at(first, props.since)}>{first.node}</a>: {first.worst?.headline}</> : "No incidents found on any node."}</h2>
      <p>Incidents on {count(hit.length)} of {count(answered)} nodes{heat.missing_count > 0 && `; ${count(heat.missing_count)} of ${count(heat.asked)} did not answer`}.</p>
    </section>
  );
}

function Missing(props: { heat: Heat }) {
  if (!props.heat.missing_count) return null;
  return (
    <div class="notice" role="alert">
      <strong>{count(props.heat.missing_count)} of {count(props.heat.asked)} nodes are missing, and may be the worst.</strong>
      <ul>
        {props.heat.missing.map((one) => (
          <li key={one.reason + one.hint}>
            {one.nodes.slice(0, 8).join(", ")}{one.count > 8 && ` and ${count(one.count - 8)} more`}: {one.reason}
            {one.hint && <> (<code>{one.hint}</code>)</>}
          </li>
        ))}
      </ul>
    </div>
  );
}

function NodeRow(props: { row: Row; heat: Heat; since: string }) {
  const { row, heat, since } = props;
  return (
    <li>
      <a href={nodeLink(row.number, "", "", { since })} title={row.address}>{row.node}</a>
      <a href={at(row, since)} tabIndex={-1} aria-hidden="true"><Canvas rows={[row]} heat={heat} height={ROW} /></a>
      <span class="number">{row.lost_ns > 0 && ns(row.lost_ns)}</span>
      {row.worst
        ? <span><Severity name={row.worst.severity} /> <a href={at(row, since)} title={row.worst.headline}>{causeTitle(row.worst.cause)}</a>{row.incidents > 1 && ` and ${row.incidents - 1} more`}</span>
        : <span class="quiet">{row.is_judged ? "no incident" : "cannot be judged"}</span>}
    </li>
  );
}

// All nodes in one picture; the worst, which have names above, at its top.
function Picture(props: { heat: Heat; since: string }) {
  const { heat, since } = props;
  const [seen, setSeen] = useState("");
  const height = Math.max(1, Math.min(10, Math.floor(MOST_HIGH / heat.nodes.length)));
  const under = (event: MouseEvent): [Row | undefined, number] => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const column = Math.floor((heat.columns * (event.clientX - box.left)) / box.width);
    return [heat.nodes[Math.floor((event.clientY - box.top) / height)], column];
  };
  return (
    <section aria-labelledby="all">
      <h3 id="all">All {count(heat.nodes.length)} nodes, worst first</h3>
      <p class="quiet seen" aria-hidden="true">{seen || "A point of the picture leads to the node, and to what happened there then."}</p>
      <div
        class="picture"
        onMouseMove={(event) => setSeen(pointed(heat, ...under(event)))}
        onMouseLeave={() => setSeen("")}
        onClick={(event) => {
          const [row, column] = under(event);
          if (row) window.location.hash = at(row, since, row.cells.find((one) => one[0] === column)?.[2]);
        }}
      >
        <Canvas rows={heat.nodes} heat={heat} height={height} label={`Lost time of ${count(heat.nodes.length)} nodes; those that lost most have rows above`} />
      </div>
      <p class="ends"><Ends heat={heat} /></p>
    </section>
  );
}

function pointed(heat: Heat, row: Row | undefined, column: number): string {
  if (!row) return "";
  const when = clock(heat.begin_ns + column * heat.column_ns, heat.column_ns);
  const cell = row.cells.find((one) => one[0] === column);
  const what = cell ? `lost ${percent(cell[1] / 1000)}` : column < row.first || column > row.last ? "not recorded" : row.is_judged ? "nothing lost" : "cannot be judged";
  return `${row.node}, ${when}: ${what}`;
}

function Canvas(props: { rows: Row[]; heat: Heat; height: number; label?: string }) {
  const place = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const at = place.current;
    if (!at) return undefined;
    const paint = () => draw(at, props.rows, props.heat.columns, props.height);
    const resized = new ResizeObserver(paint); // paints at once, too
    resized.observe(at);
    const colours = window.matchMedia("(prefers-color-scheme: dark)");
    colours.addEventListener("change", paint);
    return () => {
      resized.disconnect();
      colours.removeEventListener("change", paint);
    };
  }, [props.rows, props.heat, props.height]);
  const named = props.label ? { role: "img" as const, "aria-label": props.label } : { "aria-hidden": "true" as const };
  return <canvas ref={place} style={{ height: `${props.rows.length * props.height}px` }} {...named} />;
}

function draw(canvas: HTMLCanvasElement, rows: Row[], columns: number, height: number): void {
  const dots = rows.length * height > 8000 ? 1 : window.devicePixelRatio; // a canvas has 32,767 at most
  const width = canvas.clientWidth;
  canvas.width = Math.round(width * dots);
  canvas.height = Math.round(rows.length * height * dots);
  const pen = canvas.getContext("2d");
  if (!pen) return;
  pen.scale(dots, dots);
  const style = getComputedStyle(canvas);
  const [track, unknown, lost] = ["--heat-none", "--heat-unknown", "--heat-lost"].map((name) => style.getPropertyValue(name).trim());
  const filled = height > 3 ? height - 1 : height;
  const x = (column: number) => Math.round((width * column) / columns);
  rows.forEach((row, place) => {
    const top = place * height;
    pen.globalAlpha = 1;
    pen.fillStyle = (row.is_judged ? track : unknown) ?? "";
    pen.fillRect(x(row.first), top, x(row.last + 1) - x(row.first), filled);
    pen.fillStyle = lost ?? "";
    for (const [column, permille] of row.cells) {
      pen.globalAlpha = shade(permille / 1000);
      pen.fillRect(x(column), top, x(column + 1) - x(column), filled);
    }
  });
  performance.mark("fleet-drawn");
}

// Small dropped data are to be seen, too.
function shade(ratio: number): number {
  return 0.12 + 0.88 * Math.sqrt(ratio);
}

function Scale() {
  return (
    <p class="legend">
      <span class="entry">Wall time lost by the process that lost most:</span>
      {STEPS.map((one) => <span key={one} class="entry"><span class="dot heat-lost" style={{ opacity: shade(one) }} aria-hidden="true" /> {percent(one)}</span>)}
      <span class="entry"><span class="dot heat-none" aria-hidden="true" /> nothing</span>
      <span class="entry"><span class="dot heat-unknown" aria-hidden="true" /> cannot be judged</span>
      <span class="entry">blank: not recorded</span>
    </p>
  );
}

function Ends(props: { heat: Heat }) {
  const { begin_ns, column_ns, columns } = props.heat;
  const length = columns * column_ns;
  return (
    <span class="times">
      <span>{moment(begin_ns, length)}</span><span>{clock(begin_ns + length / 2, length)}</span><span>{clock(begin_ns + length, length)}</span>
    </span>
  );
}

// Nodes without an incident, by what they say instead.
function Silent(props: { heat: Heat; since: string }) {
  const { heat, since } = props;
  return (
    <ul class="plain">
      {heat.said.map((text, place) => {
        const nodes = heat.nodes.filter((one) => one.said === place);
        return (
          <li key={text}>
            {nodes.slice(0, 8).map((one, at) => <>{at > 0 && ", "}<a key={one.number} href={nodeLink(one.number, "", "", { since })}>{one.node}</a></>)}
            {nodes.length > 8 && ` and ${count(nodes.length - 8)} more`}: {text}
          </li>
        );
      })}
    </ul>
  );
}

function at(row: Row, since: string, incident = row.worst?.number): string {
  return incident === undefined ? nodeLink(row.number, "", "", { since }) : nodeLink(row.number, "incidents", incident, { since });
}
