// GPU memory: how much lines and containers had in use over time, and what failed.

import { useMemo } from "preact/hooks";
import type { Memory as MemoryAnswer, Series } from "./api";
import { address } from "./api";
import { bytes, count } from "./format";
import type { ViewProps } from "./incidents";
import { Answered, useAnswer } from "./live";
import { Chart } from "./parts";
import { link } from "./route";
import { Table, columnsOf } from "./table";

const place = columnsOf<MemoryAnswer["places"][number]>();
const holder = columnsOf<MemoryAnswer["holders"][number]>();

const PLACE = [place.text("place", "line or call site"), place.text("op", "call")];
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
    return <p class="notice">{found.has_allocations ? "No GPU memory was allocated or freed in this time. Only allocations made while `sudo ingero trace` runs are seen: start it before the program, or let it run longer." : "Allocations were not recorded by the version that wrote this file."}</p>;
  }
  return (
    <>
      {unpaired > 0 && <p class="notice">Not exact: {count(unpaired)} allocations or frees could not be matched.</p>}
      {found.foreign_frees > 0 && <p class="notice">{count(found.foreign_frees)} frees were of memory allocated before tracing began, or unseen.</p>}
      {!found.holders.length && !found.places.length && (
        <p class="notice">
          {found.has_allocations
            ? "No allocation or free was seen in this time, so lines of code and containers are not known. Memory allocated before tracing began is counted by the driver alone."
            : "The version that wrote this file did not record allocations; only the driver's count is known."}
        </p>
      )}
      <Levels title="In use, by line or call site" times={found.times_ns} series={found.by_place} />
      <Levels title="In use, by container" times={found.times_ns} series={found.by_container} />
      <Levels title="In use on the GPU, as the driver reports" times={found.times_ns} series={found.used_gpus} />
      {failed.length > 0 && (
        <Table
          caption="Allocations that failed"
          name="failed-allocations"
          rows={failed}
          columns={[
            ...PLACE,
            place.count("failures", "failed"),
            place.size("failed_bytes", "requested"),
          ]}
        />
      )}
      {found.places.length > 0 && (
        <Table
          caption="In use at the end, by line or call site"
          name="memory-places"
          rows={found.places}
          columns={[
            ...PLACE,
            place.size("live_bytes", "in use"),
            place.count("live_count", "blocks"),
            { ...place.size("growth_bytes", "change"), show: (one) => signed(one.growth_bytes) },
            place.count("failures", "failed"),
          ]}
        />
      )}
      {found.holders.length > 0 && (
        <Table
          caption="In use by process"
          name="memory-processes"
          rows={found.holders}
          columns={[
            { ...holder.text("name", "process"), show: (one) => <a href={link("processes", one.process, { since })}>{one.name || "unknown"}</a> },
            holder.number("pid", "pid"),
            holder.text("container", "container"),
            holder.text("kind", "kind"),
            holder.size("live_bytes", "in use"),
            holder.size("peak_bytes", "peak"),
          ]}
        />
      )}
    </>
  );
}

function Levels(props: { title: string; times: number[]; series: Series[] }) {
  const { times, series } = props;
  const most = Math.max(0, ...series.flatMap((one) => one.values.map((value) => value ?? 0)));
  const [step, unit] = STEPS.find(([size]) => most >= size) ?? [1, "B"];
  const seconds = useMemo(() => times.map((one) => one / 1e9), [times]);
  const lines = useMemo(
    () => series.map((one, at) => ({ label: one.name, color: `--series-${(at % 9) + 1}`, values: one.values.map((value) => (value === null ? null : value / step)) })),
    [series, step],
  );
  if (!series.length) return null;
  return <Chart title={props.title} unit={unit} times={seconds} lines={lines} />;
}

function signed(value: number): string {
  return `${value < 0 ? "-" : "+"}${bytes(Math.abs(value))}`;
}
