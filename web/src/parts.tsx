// Pieces that several views share: bars of thread states, charts.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import type { Lost } from "./api";
import { clock, moment, ns, percent } from "./format";

// The states of a thread in the order in which the server names them, and what the GPU adds.
export const STATE_TEXTS: Record<string, string> = {
  run: "running",
  runq: "runnable (waiting for a CPU)",
  throttled: "throttled (CPU quota)",
  yielded: "yielded",
  sleep: "sleeping",
  io: "I/O wait",
  uninterruptible: "uninterruptible (D state)",
  stopped: "stopped by a signal",
  gpu_execution: "GPU execution",
  unknown: "unattributed",
};

export interface Share {
  name: string; // chooses the color: a state, or "part.state"
  text: string;
  ns: number;
}

// A bar of what adds up, with its legend: colors alone say nothing.
export function StackedBar(props: { shares: Share[]; label: string; hasLegend?: boolean }) {
  const shown = props.shares.filter((one) => one.ns > 0);
  const total = shown.reduce((sum, one) => sum + one.ns, 0);
  if (!total) return null;
  let begin = 0;
  const text = shown.map((one) => `${one.text} ${ns(one.ns)}`).join(", ");
  return (
    <figure class="stacked">
      <svg viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label={`${props.label}: ${text}`}>
        {shown.map((one) => {
          const width = (1000 * one.ns) / total;
          const x = begin;
          begin += width;
          return (
            <rect key={one.name} class={`fill ${color(one.name)}`} x={x} y="0" width={width} height="20">
              <title>{`${one.text}: ${ns(one.ns)}, ${percent(one.ns / total)}`}</title>
            </rect>
          );
        })}
      </svg>
      {props.hasLegend !== false && (
        <figcaption>
          {shown.map((one) => (
            <span key={one.name} class="entry">
              <span class={`dot ${color(one.name)}`} aria-hidden="true" /> {one.text} <b>{ns(one.ns)}</b>{" "}
              {percent(one.ns / total)}
            </span>
          ))}
        </figcaption>
      )}
    </figure>
  );
}

export function clockShares(clocks: Record<string, number>): Share[] {
  return Object.entries(clocks).map(([column, value]) => {
    const name = column.replace(/_ns$/, "");
    return { name, text: STATE_TEXTS[name] ?? name, ns: value };
  });
}

export function lostShares(breakdown: Lost[]): Share[] {
  return breakdown.map((one) => ({ name: `${one.part}.${one.state}`, text: one.text, ns: one.lost_ns }));
}

// The same by what the thread was doing alone: its states, GPU execution, and what no state covers.
export function stateShares(breakdown: Lost[]): Share[] {
  const sums = new Map<string, number>();
  for (const one of breakdown) sums.set(one.state || "unknown", (sums.get(one.state || "unknown") ?? 0) + one.lost_ns);
  return Object.keys(STATE_TEXTS)
    .filter((name) => sums.has(name))
    .map((name) => ({ name, text: STATE_TEXTS[name] ?? name, ns: sums.get(name) ?? 0 }));
}

export function ClockLegend() {
  return (
    <p class="legend">
      {Object.entries(STATE_TEXTS).slice(0, 8).map(([name, text]) => (
        <span key={name} class="entry"><span class={`dot state-${name}`} aria-hidden="true" /> {text}</span>
      ))}
    </p>
  );
}

function color(name: string): string {
  const [part = "", state = ""] = name.split(".");
  return `state-${state || part}`;
}

export function Severity(props: { name: string }) {
  return <span class={`severity ${props.name.toLowerCase()}`}>{props.name}</span>;
}

// Light or dark: what is painted on a canvas has to be painted anew.
export function useScheme(): boolean {
  const [isDark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return isDark;
}

export interface Line {
  label: string;
  color: string; // a CSS variable
  values: (number | null)[];
}

// Lines over time (unix seconds). most: of the scale, where it does not follow the values.
export function Chart(props: { title: string; unit: string; times: number[]; lines: Line[]; most?: number }) {
  const place = useRef<HTMLDivElement>(null);
  const scheme = useScheme();
  useEffect(() => {
    const at = place.current;
    if (!at || !props.times.length) return undefined;
    const style = getComputedStyle(document.documentElement);
    const pen = (name: string) => style.getPropertyValue(name).trim();
    const [begin = 0, end = 0] = [props.times[0], props.times[props.times.length - 1]];
    const isLong = end - begin > 86_400;
    const time = (seconds: number) => (isLong ? moment : clock)(seconds * 1e9);
    const axis = { stroke: pen("--quiet"), grid: { stroke: pen("--rule"), width: 1 }, ticks: { stroke: pen("--rule") } };
    const chart = new uPlot(
      {
        width: at.clientWidth,
        height: 170,
        cursor: { drag: { x: true, y: false } },
        scales: { y: { range: (_, __, max) => [0, props.most ?? Math.max(max, 1) * 1.05] } },
        axes: [
          { ...axis, space: isLong ? 170 : 90, values: (_, ticks) => ticks.map(time) },
          { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => quantity(String(tick), props.unit)) },
        ],
        series: [
          { label: "at", value: (_, value) => (value == null ? `${time(begin)} to ${time(end)}` : time(value)) },
          ...props.lines.map((line) => ({
            label: line.label,
            stroke: pen(line.color),
            width: 1.5,
            points: { show: props.times.length < 2 },
            value: (_: uPlot, value: number | null) => (value == null ? `peak ${quantity(peak(line), props.unit)}` : quantity(value.toFixed(1), props.unit)),
          })),
        ],
      },
      [props.times, ...props.lines.map((line) => line.values)],
      at,
    );
    const resized = new ResizeObserver(() => chart.setSize({ width: at.clientWidth, height: 170 }));
    resized.observe(at);
    return () => {
      resized.disconnect();
      chart.destroy();
    };
  }, [props.times, props.lines, scheme]);
  const last = props.lines.map((line) => `${line.label} peak ${quantity(peak(line), props.unit)}`).join(", ");
  return (
    <figure class="chart">
      <figcaption>{props.title}</figcaption>
      <div ref={place} role="img" aria-label={`${props.title}: ${last}`} />
    </figure>
  );
}

function quantity(value: string, unit: string): string {
  return unit === "%" ? `${value}%` : unit ? `${value} ${unit}` : value;
}

function peak(line: Line): string {
  return Math.max(0, ...line.values.map((value) => value ?? 0)).toFixed(1);
}
