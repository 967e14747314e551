// Collectives: exact totals per operation, and of the recorded calls each communicator with its late ranks.

import type { CommunicatorOp, Nccl as NcclAnswer } from "./api";
import { address } from "./api";
import { bytes, count, ns, percent } from "./format";
import type { ViewProps } from "./incidents";
import { Answered, useAnswer } from "./live";
import { Table } from "./table";

export function Nccl(props: ViewProps) {
  const asked = useAnswer<NcclAnswer>(address("nccl", { since: props.since }), props.growth);
  return (
    <>
      <h2>NCCL</h2>
      <Answered asked={asked}>
        {(found) => found.totals.length === 0 ? <p class="notice">No NCCL call was traced in this time.</p> : <Tables found={found} />}
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
        caption={found.has_exact_totals ? "All calls per operation and rank" : "Stored calls per operation and rank, a part of all"}
        name="nccl"
        rows={found.totals}
        columns={[
          { key: "op", head: "operation", value: (one) => one.op },
          { key: "rank", head: "rank", value: (one) => one.rank, isNumber: true },
          { key: "pid", head: "pid", value: (one) => one.pid, isNumber: true },
          { key: "calls", head: "calls", value: (one) => one.calls, show: (one) => count(one.calls), isNumber: true },
          { key: "bytes", head: "bytes", value: (one) => one.bytes, show: (one) => bytes(one.bytes), isNumber: true },
          { key: "p50_ns", head: "p50", value: (one) => one.p50_ns, show: (one) => ns(one.p50_ns), isNumber: true },
          { key: "p99_ns", head: "p99", value: (one) => one.p99_ns, show: (one) => ns(one.p99_ns), isNumber: true },
          { key: "max_ns", head: "max", value: (one) => one.max_ns, show: (one) => ns(one.max_ns), isNumber: true },
          { key: "sum_ns", head: "total", value: (one) => one.sum_ns, show: (one) => ns(one.sum_ns), isNumber: true },
          { key: "errors", head: "errors", value: (one) => one.errors, show: (one) => count(one.errors), isNumber: true },
        ]}
      />
      <p class="quiet">The time is that of the host inside the call; the device communicates after it.</p>
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
        <p class="notice">No single call of a communicator is recorded, so that late ranks cannot be told.</p>
      )}
    </>
  );
}

const COLUMNS = [
  { key: "communicator", head: "communicator", value: (one: CommunicatorOp) => one.communicator, show: (one: CommunicatorOp) => one.communicator || "not known" },
  { key: "op", head: "operation", value: (one: CommunicatorOp) => one.op },
  { key: "rank", head: "rank", value: (one: CommunicatorOp) => one.rank, show: (one: CommunicatorOp) => rank(one), isNumber: true },
  { key: "pid", head: "pid", value: (one: CommunicatorOp) => one.pid, isNumber: true },
  { key: "calls", head: "calls", value: (one: CommunicatorOp) => one.calls, show: (one: CommunicatorOp) => count(one.calls), isNumber: true },
  { key: "bytes", head: "bytes", value: (one: CommunicatorOp) => one.bytes, show: (one: CommunicatorOp) => bytes(one.bytes), isNumber: true },
  { key: "p50_ns", head: "p50", value: (one: CommunicatorOp) => one.p50_ns, show: (one: CommunicatorOp) => ns(one.p50_ns), isNumber: true },
  { key: "p99_ns", head: "p99", value: (one: CommunicatorOp) => one.p99_ns, show: (one: CommunicatorOp) => ns(one.p99_ns), isNumber: true },
  { key: "late_p50_ns", head: "late p50", value: (one: CommunicatorOp) => one.lateness?.p50_ns ?? null, show: (one: CommunicatorOp) => ns(one.lateness?.p50_ns), isNumber: true },
  { key: "late_p99_ns", head: "late p99", value: (one: CommunicatorOp) => one.lateness?.p99_ns ?? null, show: (one: CommunicatorOp) => ns(one.lateness?.p99_ns), isNumber: true },
  { key: "last", head: "came last", value: (one: CommunicatorOp) => one.lateness?.last ?? null, show: (one: CommunicatorOp) => last(one), isNumber: true },
  { key: "failed", head: "failed", value: (one: CommunicatorOp) => one.failed, show: (one: CommunicatorOp) => count(one.failed), isNumber: true },
];

function rank(one: CommunicatorOp): string {
  return one.rank === null ? "" : one.ranks === null ? String(one.rank) : `${one.rank} of ${one.ranks}`;
}

function last(one: CommunicatorOp): string {
  return one.lateness ? `${count(one.lateness.last)} (${percent(one.lateness.last / one.lateness.matched)})` : "";
}
