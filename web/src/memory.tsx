// GPU memory: which lines and containers held how much over time, and what was refused.

import { useMemo } from "preact/hooks";
import type { Memory as MemoryAnswer, Series } from "./api";
import { address } from "./api";
import { bytes, count } from "./format";
import type { ViewProps } from "./incidents";
import { Answered, useAnswer } from "./live";
import { Chart } from "./parts";
import { link } from "./route";
import { Table } from "./table";

const STEPS: [number, string][] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];

export function Memory(props: ViewProps) {
  const asked = useAnswer<MemoryAnswer>(address("memory", { since: props.since }), props.growth);
  return (
    <>
      <h2>GPU memory</h2>
      <Answered asked={asked}>{(found) => <Held found={found} since={props.since} />}</Answered>
    </>
  );
}

function Held(props: { found: MemoryAnswer; since: string }) {
  const { found, since } = props;
  const failed = found.places.filter((one) => one.failures > 0);
  const unpaired = Math.max(0, ...found.holders.map((one) => one.unpaired));
  if (!found.holders.length && !found.places.length && !found.used_gpus.length) {
    return <p class="notice">{found.has_allocations ? "No GPU memory was allocated in this time." : "Allocations were not recorded by the version that wrote this file."}</p>;
  }
  return (
    <>
      {unpaired > 0 && <p class="notice">Not exact: {count(unpaired)} allocations or frees could not be followed.</p>}
      {found.foreign_frees > 0 && <p class="notice">{count(found.foreign_frees)} frees were of memory that was allocated before tracing or unseen.</p>}
      <Levels title="Live, by line or call site" times={found.times_ns} series={found.by_place} />
      <Levels title="Live, by container" times={found.times_ns} series={found.by_container} />
      <Levels title="In use on the GPU, by the driver" times={found.times_ns} series={found.used_gpus} />
      {failed.length > 0 && (
        <Table
          caption="Allocations that failed"
          name="failed-allocations"
          rows={failed}
          columns={[
            { key: "place", head: "line or call site", value: (one) => one.place },
            { key: "op", head: "call", value: (one) => one.op },
            { key: "failures", head: "failed", value: (one) => one.failures, show: (one) => count(one.failures), isNumber: true },
            { key: "failed_bytes", head: "asked for", value: (one) => one.failed_bytes, show: (one) => bytes(one.failed_bytes), isNumber: true },
          ]}
        />
      )}
      {found.places.length > 0 && (
        <Table
          caption="Held at the end, by line or call site"
          name="memory-places"
          rows={found.places}
          columns={[
            { key: "place", head: "line or call site", value: (one) => one.place },
            { key: "op", head: "call", value: (one) => one.op },
            { key: "live_bytes", head: "live", value: (one) => one.live_bytes, show: (one) => bytes(one.live_bytes), isNumber: true },
            { key: "live_count", head: "blocks", value: (one) => one.live_count, show: (one) => count(one.live_count), isNumber: true },
            { key: "growth_bytes", head: "change", value: (one) => one.growth_bytes, show: (one) => signed(one.growth_bytes), isNumber: true },
            { key: "failures", head: "failed", value: (one) => one.failures, show: (one) => count(one.failures), isNumber: true },
          ]}
        />
      )}
      {found.holders.length > 0 && (
        <Table
          caption="Held by processes"
          name="memory-processes"
          rows={found.holders}
          columns={[
            { key: "name", head: "process", value: (one) => one.name, show: (one) => <a href={link("processes", one.process, { since })}>{one.name || "unknown"}</a> },
            { key: "pid", head: "pid", value: (one) => one.pid, isNumber: true },
            { key: "container", head: "container", value: (one) => one.container },
            { key: "kind", head: "kind", value: (one) => one.kind },
            { key: "live_bytes", head: "live", value: (one) => one.live_bytes, show: (one) => bytes(one.live_bytes), isNumber: true },
            { key: "peak_bytes", head: "peak", value: (one) => one.peak_bytes, show: (one) => bytes(one.peak_bytes), isNumber: true },
          ]}
        />
      )}
    </>
  );
}

function Levels(props: { title: string; times: number[]; series: Series[] }) {
  const { times, series } = props;
  const most = Math.max(0, ...series.flatMap((one) => one.values));
  const [step, unit] = STEPS.find(([size]) => most >= size) ?? [1, "B"];
  const seconds = useMemo(() => times.map((one) => one / 1e9), [times]);
  const lines = useMemo(
    () => series.map((one, at) => ({ label: one.name, colour: `--series-${(at % 9) + 1}`, values: one.values.map((value) => value / step) })),
    [series, step],
  );
  if (!series.length) return null;
  return <Chart title={props.title} unit={unit} times={seconds} lines={lines} />;
}

function signed(value: number): string {
  return `${value < 0 ? "-" : "+"}${bytes(Math.abs(value))}`;
}
