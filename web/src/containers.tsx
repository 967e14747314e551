// Containers: what the processes of each did, and whose CPU they took.

import type { Group, State } from "./api";
import { address } from "./api";
import { clockColumns } from "./clock_columns";
import { bytes, count, ns } from "./format";
import type { ViewProps } from "./incidents";
import { Answered, useAnswer } from "./live";
import { ClockLegend } from "./parts";
import { link } from "./route";
import { Table } from "./table";

export function Containers(props: ViewProps) {
  const asked = useAnswer<State & { containers: Group[] }>(address("containers", { since: props.since }), props.growth);
  return (
    <>
      <h2>Containers</h2>
      <Answered asked={asked}>
        {(found) => found.containers.length === 0 ? <p class="notice">No process was traced in this time.</p> : <Groups groups={found.containers} since={props.since} />}
      </Answered>
    </>
  );
}

function Groups(props: { groups: Group[]; since: string }) {
  const { groups, since } = props;
  return (
    <>
      <Table
        caption="Those first that waited longest for their GPU"
        name="containers"
        rows={groups}
        columns={[
          { key: "name", head: "container", value: (one) => one.name, show: (one) => title(one) },
          { key: "processes", head: "processes", value: (one) => one.processes.length, isNumber: true },
          { key: "calls", head: "GPU calls", value: (one) => one.calls, show: (one) => count(one.calls), isNumber: true },
          { key: "launches", head: "launches", value: (one) => one.launches, show: (one) => count(one.launches), isNumber: true },
          { key: "gpu_wait_ns", head: "waited for GPU", value: (one) => one.gpu_wait_ns, show: (one) => ns(one.gpu_wait_ns), isNumber: true },
          { key: "copied_bytes", head: "copied", value: (one) => one.copied_bytes, show: (one) => bytes(one.copied_bytes), isNumber: true },
          { key: "collective_bytes", head: "communicated", value: (one) => one.collective_bytes, show: (one) => bytes(one.collective_bytes), isNumber: true },
          { key: "throttled_ns", head: "throttled", value: (one) => one.throttled_ns, show: (one) => ns(one.throttled_ns), isNumber: true },
          { key: "took_ns", head: "took from others", value: (one) => one.took_ns, show: (one) => ns(one.took_ns), isNumber: true },
          ...clockColumns((one: Group) => title(one)),
          { key: "container_id", head: "id", value: (one) => one.container_id, isHidden: true },
        ]}
      />
      <ClockLegend />
      <p class="quiet">Took from others: its processes, traced or not, ran while traced ones of other groups waited for a CPU.</p>
      {groups.map((one) => (
        <article key={one.cgroup_id} class="card">
          <h3>{title(one)}</h3>
          <p class="quiet">{[one.container_id && `container ${one.container_id.slice(0, 12)}`, one.namespace && `namespace ${one.namespace}`, one.orchestrator, one.node, one.path].filter(Boolean).join(", ")}</p>
          {one.processes.length ? (
            <ul class="plain">
              {one.processes.map((process) => (
                <li key={process.process}>
                  <a href={link("processes", process.process, { since })}>{process.name} [{process.pid}]</a>
                  {process.rank !== null && `, rank ${process.rank}`}
                </li>
              ))}
            </ul>
          ) : (
            <p>None of its processes was traced.</p>
          )}
        </article>
      ))}
    </>
  );
}

function title(one: Group): string {
  return one.name || (one.path ? `no container (${one.path})` : "no container");
}
