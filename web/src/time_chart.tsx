// The recording as a picture: shares of wall time, steps per second, host CPU, incidents; dragging over it selects time.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import type { Incident, TimeChart as Found } from "./api";
import { causeTitle } from "./causes";
import { clock, moment, ns, percent } from "./format";
import { useScheme } from "./parts";
import { link, selectTime, timeOf, type Route } from "./route";

type Values = (number | null)[];

interface Area {
  key: string;
  text: string;
  color: string; // a CSS variable
  values: Values;
}

const PARTS: Record<string, [string, string]> = {
  busy: ["GPU busy (work queued or running)", "--part-busy"],
  blocked: ["blocked on the GPU", "--part-busy"],
  host: ["host time of the step", "--part-host"],
  idle: ["GPU idle (nothing queued)", "--part-idle"],
  return_delay: ["sync return delay (GPU done, call not returned)", "--part-return-delay"],
};
const ORDER = Object.keys(PARTS);
const LOST_COLOURS = 5; // causes with a color of their own
const SHARE_HEIGHT = 220;
const LINE_HEIGHT = 96;
const AXIS_WIDTH = 58;
const NARROW = 560; // pixels

export function TimeChart(props: { found: Found; incidents: Incident[]; route: Route }) {
  const { found, incidents, route } = props;
  const place = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState<number | null>(null);
  const scheme = useScheme();
  const areas = useMemo(() => areasOf(found), [found]);
  const rateNoun = found.rate_of === "step" ? "steps" : "syncs";
  const hasRate = found.rate.some((value) => value !== null);
  const hasCpu = found.cpu.some((value) => value !== null);
  useEffect(() => {
    const box = place.current;
    if (!box) return undefined;
    const context = { box, found, incidents, setAt, select: (begin: number, end: number) => selectTime(route, { begin_ns: String(begin), end_ns: String(end) }), reset: () => selectTime(route, null) };
    const charts = [sharePlot(areas, context)];
    if (hasRate) charts.push(linePlot(`${rateNoun}/s`, found.rate, "--part-busy", undefined, !hasCpu, context));
    if (hasCpu) charts.push(linePlot("CPU", found.cpu.map((value) => (value === null ? null : 100 * value)), "--state-run", 100, true, context));
    const resized = new ResizeObserver(() => charts.forEach((chart) => chart.setSize({ width: box.clientWidth, height: chart.height })));
    resized.observe(box);
    return () => {
      resized.disconnect();
      charts.forEach((chart) => chart.destroy());
    };
  }, [found, areas, incidents, scheme]);
  const summary = areas.map((one) => `${one.text} ${percent(mean(one.values))}`).join(", ");
  return (
    <figure class="time-chart">
      <figcaption>
        <span>Share of wall time{hasRate && `, ${rateNoun} per second`}{hasCpu && ", host CPU"}</span>
        <ZoomButtons found={found} route={route} />
      </figcaption>
      <div ref={place} role="img" aria-label={`Over the time shown, on average: ${summary}`} />
      <Legend found={found} areas={areas} at={at} />
    </figure>
  );
}

// What a pointer does by dragging, by keys and touch.
function ZoomButtons(props: { found: Found; route: Route }) {
  const { found, route } = props;
  const begin = found.window.begin_ns, length = found.window.duration_ns;
  const isPart = Object.keys(timeOf(route)).length > 0;
  const go = (from: number, to: number) => selectTime(route, { begin_ns: String(Math.max(0, Math.round(from))), end_ns: String(Math.round(to)) });
  return (
    <span class="zoom" role="group" aria-label="Time shown">
      <button type="button" disabled={!isPart} onClick={() => go(begin - length / 2, begin + length / 2)} aria-label="Earlier">←</button>
      <button type="button" disabled={!isPart} onClick={() => go(begin + length / 2, begin + 1.5 * length)} aria-label="Later">→</button>
      <button type="button" onClick={() => go(begin + length / 4, begin + (3 * length) / 4)} aria-label="Zoom in">+</button>
      <button type="button" disabled={!isPart} onClick={() => go(begin - length / 2, begin + 1.5 * length)} aria-label="Zoom out">−</button>
      <button type="button" disabled={!isPart} onClick={() => selectTime(route, null)}>All</button>
    </span>
  );
}

function Legend(props: { found: Found; areas: Area[]; at: number | null }) {
  const { found, areas, at } = props;
  const when = at === null ? null : found.times_ns[at];
  const value = (values: Values) => (at === null ? mean(values) : values[at] ?? null);
  const rate = value(found.rate), cpu = value(found.cpu);
  return (
    <div class="legend readout">
      <span class="entry when">{when == null ? "average" : clock(when, found.window.duration_ns)}</span>
      {areas.map((one) => (
        <span key={one.key} class="entry">
          <span class="dot" style={{ background: `var(${one.color})` }} aria-hidden="true" /> {one.text} <b>{percent(value(one.values))}</b>
        </span>
      ))}
      {rate !== null && <span class="entry"><b>{rate < 10 ? rate.toFixed(2) : rate.toFixed(1)}</b> {found.rate_of === "step" ? "steps" : "syncs"}/s{found.processes.length > 1 && " per process"}</span>}
      {cpu !== null && <span class="entry"><span class="dot state-run" aria-hidden="true" /> host CPU <b>{percent(cpu)}</b></span>}
    </div>
  );
}

// Bottom to top: what is useful, what waits, what was lost.
function areasOf(found: Found): Area[] {
  const parts = [...found.parts].sort((one, other) => ORDER.indexOf(one.name) - ORDER.indexOf(other.name)).map((one): Area => {
    const [text, color] = PARTS[one.name] ?? [one.name, "--part-idle"];
    return { key: one.name, text, color, values: one.values };
  });
  const byCause = new Map<string, Values[]>();
  for (const one of found.lost) byCause.set(one.cause, [...(byCause.get(one.cause) ?? []), one.values]);
  const lost = [...byCause].map(([cause, values]) => ({ cause, values: added(values) })).sort((one, other) => (mean(other.values) ?? 0) - (mean(one.values) ?? 0));
  const own = lost.slice(0, LOST_COLOURS).map(({ cause, values }, place): Area => ({ key: `lost ${cause}`, text: `lost: ${causeTitle(cause)}`, color: `--lost-${place + 1}`, values }));
  const rest = lost.slice(LOST_COLOURS);
  if (rest.length) own.push({ key: "lost", text: `lost: ${rest.length} other causes`, color: "--lost-6", values: added(rest.map((one) => one.values)) });
  return [...parts, ...own];
}

function added(columns: Values[]): Values {
  return (columns[0] ?? []).map((_, at) => columns.reduce<number | null>((sum, values) => (values[at] == null ? sum : (sum ?? 0) + values[at]), null));
}

function mean(values: Values): number | null {
  const known = values.filter((value): value is number => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

interface Context {
  box: HTMLElement;
  found: Found;
  incidents: Incident[];
  setAt: (at: number | null) => void;
  select: (begin: number, end: number) => void;
  reset: () => void;
}

function pen(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A column holds until its end: the last one's stands once more behind it.
function columns(values: Values): Values {
  return [...values, values[values.length - 1] ?? null];
}

function edges(found: Found): number[] {
  const last = found.times_ns[found.times_ns.length - 1] ?? 0;
  return [...found.times_ns, last + found.step_ns].map((one) => one / 1e9);
}

function sharePlot(areas: Area[], context: Context): uPlot {
  const sums = areas.map((_, count) => added(areas.slice(0, count + 1).map((one) => one.values)).map((value) => (value === null ? null : 100 * Math.min(value, 1))));
  const stacked = areas.map((one, at) => ({ one, values: sums[at] ?? [] })).reverse(); // each is painted over those above it
  return plot(context, SHARE_HEIGHT, 100, "%", false, stacked.map(({ values }) => columns(values)), stacked.map(({ one }) => ({
    label: one.text,
    stroke: pen(one.color),
    fill: pen(one.color),
    width: 0,
  })));
}

function linePlot(unit: string, values: Values, color: string, most: number | undefined, isLast: boolean, context: Context): uPlot {
  return plot(context, LINE_HEIGHT - (isLast ? 0 : 14), most, unit, isLast, [columns(values)], [{ label: unit, stroke: pen(color), width: 1.5 }]);
}

function plot(context: Context, height: number, most: number | undefined, unit: string, hasTimes: boolean, data: Values[], series: uPlot.Series[]): uPlot {
  const { box, found } = context;
  const times = edges(found);
  const [begin, end] = [found.window.begin_ns / 1e9, found.window.end_ns / 1e9];
  const isLong = end - begin > 86_400;
  const isPercent = most === 100;
  const axis = { stroke: pen("--quiet"), grid: { stroke: pen("--rule"), width: 1 }, ticks: { stroke: pen("--rule"), size: 4 }, font: "12px system-ui, sans-serif" };
  const text = (seconds: number) => (isLong ? moment(seconds * 1e9) : clock(seconds * 1e9, (end - begin) * 1e9));
  const isNarrow = box.clientWidth < NARROW;
  return new uPlot(
    {
      width: box.clientWidth,
      height,
      padding: [6, 8, hasTimes || height === SHARE_HEIGHT ? 0 : 9, 0],
      legend: { show: false },
      cursor: { sync: { key: "time", setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { show: false }, bind: { dblclick: () => () => { context.reset(); return null; } } },
      scales: { x: { time: true, range: () => [begin, end] }, y: { range: (_, __, max) => [0, most ?? Math.max(max, 0.001) * 1.1] } },
      axes: [
        { ...axis, show: hasTimes || height === SHARE_HEIGHT, space: isLong ? 170 : isNarrow ? 80 : 90, size: 26, gap: 3, values: (chart, ticks) => ticks.map((tick) => (chart.valToPos(tick, "x") > chart.over.clientWidth - (isLong ? 60 : 24) ? "" : text(tick))) },
        { ...axis, size: AXIS_WIDTH, space: height === SHARE_HEIGHT ? 40 : 24, values: (_, ticks) => ticks.map((tick) => (isPercent ? `${tick}%` : tick >= 1e6 ? `${tick / 1e6} M` : tick >= 1e3 ? `${tick / 1e3} k` : `${tick}`)), label: isPercent && unit === "%" ? undefined : unit, labelSize: 14, labelGap: 0, labelFont: "12px system-ui, sans-serif", ...(isPercent && unit === "%" ? {} : { size: AXIS_WIDTH - 14 }) },
      ],
      series: [{}, ...series.map((one) => ({ ...one, paths: uPlot.paths.stepped?.({ align: 1 }), points: { show: false } }))],
      hooks: {
        drawSeries: [],
        draw: [(chart) => bands(chart, context, height === SHARE_HEIGHT)],
        setCursor: [(chart) => { const index = chart.cursor.idx; context.setAt(index == null || chart.cursor.left == null || chart.cursor.left < 0 ? null : Math.min(columnAt(found, chart), found.times_ns.length - 1)); }],
        setSelect: [(chart) => {
          const { left, width } = chart.select;
          if (width < 4) return;
          const from = Math.round(chart.posToVal(left, "x") * 1e9), to = Math.round(chart.posToVal(left + width, "x") * 1e9);
          context.select(Math.max(from, found.window.begin_ns), Math.min(to, found.window.end_ns));
        }],
      },
    },
    [times, ...data],
    box,
  );
}

function columnAt(found: Found, chart: uPlot): number {
  const seconds = chart.posToVal(chart.cursor.left ?? 0, "x");
  return Math.max(0, Math.floor((seconds * 1e9 - (found.times_ns[0] ?? 0)) / found.step_ns));
}

// Incidents: a strip above the shares, and between dashed lines on the others, as long as each lasted.
function bands(chart: uPlot, context: Context, isMain: boolean): void {
  const { ctx, bbox } = chart;
  ctx.save();
  for (const one of [...context.incidents].reverse()) {
    const begin = one.start_ns || context.found.window.begin_ns;
    const end = one.end_ns ?? context.found.window.end_ns;
    const left = Math.max(chart.valToPos(begin / 1e9, "x", true), bbox.left);
    const right = Math.min(chart.valToPos(end / 1e9, "x", true), bbox.left + bbox.width);
    if (right < left) continue;
    const width = Math.max(right - left, 2 * devicePixelRatio);
    ctx.fillStyle = pen(`--${one.severity.toLowerCase()}`);
    if (isMain) {
      ctx.fillRect(left, bbox.top - 5 * devicePixelRatio, width, 5 * devicePixelRatio);
    } else {
      ctx.globalAlpha = 0.13;
      ctx.fillRect(left, bbox.top, width, bbox.height);
    }
    ctx.globalAlpha = 0.7;
    ctx.strokeStyle = pen(`--${one.severity.toLowerCase()}`);
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const at of [left, left + width]) {
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.globalAlpha = 1;
  }
  ctx.restore();
}

// The incidents of the chart as links, in order of time: what the bands are.
export function BandLinks(props: { incidents: Incident[]; since: string; length: number }) {
  const inOrder = [...props.incidents].sort((one, other) => one.start_ns - other.start_ns);
  if (!inOrder.length) return null;
  return (
    <ol class="band-links" aria-label="Incidents in order of time">
      {inOrder.map((one) => (
        <li key={one.number}>
          <span class={`dot bar-${one.severity.toLowerCase()}`} aria-hidden="true" />{" "}
          <a href={link("incidents", one.number, { since: props.since })} title={one.headline}>
            {causeTitle(one.cause)}
            {one.start_ns > 0 && ` at ${clock(one.start_ns, props.length)}`}{one.impact.lost_ns > 0 && `, lost ${ns(one.impact.lost_ns)}`}
          </a>
        </li>
      ))}
    </ol>
  );
}
