// Collectives: exact totals per operation, and of the recorded calls each communicator with its late ranks.

import type { CommunicatorOp, Nccl as NcclAnswer } from "./api";
import { address } from "./api";
import { count, ns, percent } from "./format";
import type { ViewProps } from "./incidents";
import { Answered, useAnswer } from "./live";
import { type Column, Table, columnsOf } from "./table";

const total = columnsOf<NcclAnswer["totals"][number]>();
const call = columnsOf<CommunicatorOp>();

export function Nccl(props: ViewProps) {
  const asked = useAnswer<NcclAnswer>(address("nccl", { since: props.since }), props.growth);
  return (
    <>
      <h2>NCCL</h2>
      <Answered asked={asked}>
        {(found) => found.totals.length === 0 ? <p class="notice">No NCCL call in this time. Calls are traced where the program uses NCCL and --nccl is on (the default).</p> : <Tables found={found} />}
      </Answered>
    </>
  );
}

function Tables(props: { found: NcclAnswer }) {
  const { found } = props;
  const calls = found.totals.reduce((sum, one) => sum + one.calls, 0);
  const recorded = found.by_communicator.reduce((sum, one) => sum + one.calls, 0);
  return (
    <>
      <Table
        caption={found.has_exact_totals ? "All calls per operation and rank" : "Sampled calls per operation and rank"}
        name="nccl"
        rows={found.totals}
        columns={[
          total.text("op", "operation"),
          total.number("rank", "rank"),
          total.number("pid", "pid"),
          total.count("calls", "calls"),
          total.size("bytes", "bytes"),
          total.duration("p50_ns", "p50"),
          total.duration("p99_ns", "p99"),
          total.duration("max_ns", "max"),
          total.duration("sum_ns", "total"),
          total.count("errors", "errors"),
        ]}
      />
      <p class="quiet">Time is host time inside the call; the GPU communicates after it.</p>
      {found.by_communicator.length > 0 ? (
        <>
          <Table caption="Recorded calls per communicator, operation and rank" name="nccl-communicators" rows={found.by_communicator} columns={COLUMNS} />
          <p class="quiet">
            These are {count(recorded)} recorded of {count(calls)} calls
            {found.is_truncated && ", the newest ones"}. Late: after the first rank of those whose call of the same
            collective is recorded, too; ranks of other recordings have other clocks and are not compared.
          </p>
        </>
      ) : (
        <p class="notice">No single call of a communicator was recorded, so late ranks cannot be determined. --record-all stores every call.</p>
      )}
    </>
  );
}

const COLUMNS: Column<CommunicatorOp>[] = [
  { ...call.text("communicator", "communicator"), show: (one) => one.communicator || "not known" },
  call.text("op", "operation"),
  { ...call.number("rank", "rank"), show: rank },
  call.number("pid", "pid"),
  call.count("calls", "calls"),
  call.size("bytes", "bytes"),
  call.duration("p50_ns", "p50"),
  call.duration("p99_ns", "p99"),
  { key: "return_delay_p50_ns", head: "late p50", value: (one) => one.lateness?.p50_ns ?? null, show: (one) => ns(one.lateness?.p50_ns), isNumber: true },
  { key: "return_delay_p99_ns", head: "late p99", value: (one) => one.lateness?.p99_ns ?? null, show: (one) => ns(one.lateness?.p99_ns), isNumber: true },
  { key: "last", head: "came last", value: (one) => one.lateness?.last ?? null, show: last, isNumber: true },
  call.count("failed", "failed"),
];

function rank(one: CommunicatorOp): string {
  return one.rank === null ? "" : one.ranks === null ? String(one.rank) : `${one.rank} of ${one.ranks}`;
}

function last(one: CommunicatorOp): string {
  return one.lateness ? `${count(one.lateness.last)} (${percent(one.lateness.last / one.lateness.matched)})` : "";
}
