// Containers: what the processes of each did, and how much CPU time they used while others waited.

import type { Group, State } from "./api";
import { address } from "./api";
import { clockColumns } from "./state_columns";
import type { ViewProps } from "./incidents";
import { Answered, useAnswer } from "./live";
import { ClockLegend } from "./parts";
import { link } from "./route";
import { Table, columnsOf } from "./table";

const group = columnsOf<Group>();

export function Containers(props: ViewProps) {
  const asked = useAnswer<State & { containers: Group[] }>(address("containers", { since: props.since }), props.growth);
  return (
    <>
      <h2>Containers</h2>
      <Answered asked={asked}>
        {(found) => found.containers.length === 0 ? <p class="notice">No process was traced in this time: start one while `sudo ingero trace` runs, or name it with --pid.</p> : <Groups groups={found.containers} since={props.since} />}
      </Answered>
    </>
  );
}

function Groups(props: { groups: Group[]; since: string }) {
  const { groups, since } = props;
  return (
    <>
      <Table
        caption="Sorted by GPU sync wait"
        name="containers"
        rows={groups}
        columns={[
          { ...group.text("name", "container"), show: title, isLong: true },
          { key: "processes", head: "processes", value: (one) => one.processes.length, isNumber: true },
          group.count("calls", "GPU calls"),
          group.count("launches", "launches"),
          group.duration("gpu_wait_ns", "GPU sync wait"),
          group.size("copied_bytes", "copied"),
          group.size("collective_bytes", "communicated"),
          group.duration("throttled_ns", "throttled"),
          group.duration("took_ns", "ran instead"),
          ...clockColumns(title),
          { ...group.text("container_id", "id"), isHidden: true },
        ]}
      />
      <ClockLegend />
      <p class="quiet">Ran instead: time that its processes, traced or not, ran while traced ones of other cgroups waited for a CPU.</p>
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
