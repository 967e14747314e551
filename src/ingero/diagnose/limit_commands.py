"""Commands that change the resource limits of a cgroup, for its manager: Kubernetes, a container runtime, systemd, a
batch scheduler.

A limit set by a runtime must be changed through that runtime, which would otherwise restore it. `<...>` stands for a
value that is not in the recording. Cgroup names are chosen by their creators and not trusted: every word is quoted.
"""

from __future__ import annotations

import enum
import math
import re

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Fix
from ingero.foreign_text import operand, shell_word
from ingero.identity import job_text, short_id, unescaped_unit
from ingero.store.records import Container

PERIOD_US = 100_000  # default CFS quota period of the kernel
# what `kubectl set resources` accepts
_KINDS_WITH_TEMPLATE = ("deployment/", "statefulset/", "daemonset/", "replicaset/")
_UNIT_SUFFIXES = (".slice", ".service", ".scope")  # path components of a cgroup that are systemd units
# Units that run other users' jobs, or the host itself: a limit on one applies to all of these.
_MANAGER_UNITS = re.compile(
    r"(?:[\w-]*slurmstepd|slurmd[\w@.-]*|slurmctld|condor|htcondor|pbs|pbs_mom|lsfd?|flux|sge_?execd[\w.-]*|nomad|ray"
    r"|containerd|docker|podman|crio|cri-docker|kubelet|k3s(?:-agent)?|rke2-(?:server|agent)|k0s\w+"
    r"|snap\.(?:microk8s|k8s|lxd|docker|incus)\..+|ecs|amazon-ecs-agent|garden|mesos-\w+"
    r"|libvirtd|virtqemud|lxd|incus|lxc[\w-]*|lxcfs|actions\.runner\..+"
    r"|user@\d+|init|dbus[\w-]*|systemd-(?!nspawn)[\w@-]+|sshd?|crond?|atd)\.(?:service|scope)"
)
# Virtual machines by cgroup path (libvirt, Proxmox), and the command that gives each the lowest CPU weight.
_VIRTUAL_MACHINES = (
    (
        re.compile(r"/machine-qemu\\x2d\d+\\x2d([^/]+)\.scope(?:/|\Z)"),
        "sudo virsh schedinfo --live {name} cpu_shares=2",
    ),
    (re.compile(r"/qemu\.slice/(\d+)\.scope(?:/|\Z)"), "sudo qm set {name} --cpuunits 1"),
)
# Each batch scheduler's options for more CPUs and for more memory, and its command to suspend a job.
_RESOURCE_REQUESTS = {
    "slurm": ("sbatch --cpus-per-task={cpus}", "sbatch --mem={memory}"),
    "flux": ("flux batch --cores-per-task={cpus}", "flux batch --setattr=memory={memory}"),
    "pbs": ("qsub -l select=1:ncpus={cpus}", "qsub -l select=1:mem={memory}"),
    "lsf": ("bsub -n {cpus}", "bsub -M {memory}"),
    "htcondor": ("condor_submit -append request_cpus={cpus}", "condor_submit -append request_memory={memory}"),
    "gridengine": ("qsub -pe smp {cpus}", "qsub -l h_vmem={memory}"),
    "ray": ("@ray.remote(num_cpus={cpus})", "@ray.remote(memory={memory})"),
}
_SUSPEND_COMMANDS = {
    "slurm": "sudo scontrol suspend {job}",
    "pbs": "qsig -s suspend {job}",
    "lsf": "bstop {job}",
    "htcondor": "condor_suspend {job}",
    "gridengine": "qmod -sj {job}",
}
_UPDATE_TOOLS = {"docker": "docker", "podman": "podman", "containerd": "nerdctl"}


def cgroup_by_id(evidence: Evidence, cgroup_id: int | None) -> Container | None:
    """A cgroup's recorded facts; None where the cgroup is unknown."""
    return evidence.containers.get(cgroup_id or 0)


def cgroup_of_pid(evidence: Evidence, pid: int) -> Container | None:
    """The cgroup of a process, traced or only seen running; None where it is unknown."""
    process = evidence.process_at(pid)
    if process and process.cgroup_id:
        return cgroup_by_id(evidence, process.cgroup_id)
    traced = [number for number, process in evidence.processes.items() if process.is_traced]
    seen = (row for number in traced for row in evidence.culprits((evidence.window,), number))
    return next((cgroup_by_id(evidence, row.culprit_cgroup_id) for row in seen if row.culprit_pid == pid), None)


def set_cpus(group: Container | None, cpus: float | None = None, *, period_us: int = PERIOD_US) -> str:
    """The command that sets a cgroup's CPU limit. cpus: None leaves a placeholder for the reader to fill in."""
    if group and group.scheduler in _RESOURCE_REQUESTS:
        return (
            f"{_RESOURCE_REQUESTS[group.scheduler][0].format(cpus='<cores>' if cpus is None else math.ceil(cpus))} ..."
        )
    if _is_pod(group):
        return _kubectl(group, f"cpu={'<cores>' if cpus is None else f'{math.ceil(1000 * cpus)}m'}")
    if tool := _update_tool(group):
        return f"sudo {tool} update --cpus={'<cores>' if cpus is None else _rounded_up(cpus)} {_container_id(group)}"
    if group and group.unit:
        quota = "<percent>%" if cpus is None else f"{math.ceil(100 * cpus)}%"
        return f"sudo systemctl set-property {operand(group.unit)} CPUQuota={quota}"
    quota_us = "<us>" if cpus is None else str(math.ceil(cpus * period_us))
    file = _cgroup_file(_cgroup_path(group), "cpu.max")
    return f"echo '{quota_us} {period_us}' | sudo tee {file}  # v1: cpu.cfs_quota_us"


def remove_io_limit(path: str, device: str, limit: str) -> str:
    """The command that removes an I/O limit from a cgroup. device: major:minor; limit: one entry of `io.max`."""
    name = limit.partition("=")[0]
    command = f"echo {shell_word(f'{device} {name}=max')} | sudo tee {_cgroup_file(path.rstrip('/'), 'io.max')}"
    return f"{command}  # v1: '{device} 0' to its blkio.throttle file"


def set_memory(group: Container | None) -> str:
    """The command that raises a cgroup's memory limit."""
    if group and group.scheduler in _RESOURCE_REQUESTS:
        return f"{_RESOURCE_REQUESTS[group.scheduler][1].format(memory='<more>')} ..."
    if _is_pod(group):
        return _kubectl(group, "memory=<more>")
    if tool := _update_tool(group):
        return f"sudo {tool} update --memory=<more> --memory-swap=<more> {_container_id(group)}"
    if group and group.unit:
        return f"sudo systemctl set-property {operand(group.unit)} MemoryMax=<more>"
    return f"echo <bytes> | sudo tee {_cgroup_file(_cgroup_path(group), 'memory.max')}  # v1: memory.limit_in_bytes"


def processes_of(group: Container | None) -> str:
    """The command that shows the processes of a cgroup, of twenty at most, with the CPU time that they take now."""
    file = _cgroup_file(_cgroup_path(group), "cgroup.procs")
    return f'top -b -n1 -p "$(head -20 {file} | paste -sd,)"  # v1: below /sys/fs/cgroup/cpu'


class Weight(enum.Enum):
    """CPU weights for a cgroup relative to its siblings: (cpu.weight, cpu.shares of v1, cores of a pod)."""

    MORE = (1000, 10240, "<cores>")
    LEAST = (1, 2, "<fewer cores>")


def set_weight(group: Container | None, weight: Weight, *, beside: Container | None = None) -> str:
    """The command that sets a cgroup's CPU weight to ten times the default, or to the minimum.

    beside: the cgroup it competes with. A weight takes effect where the two paths diverge, which may be at an ancestor.
    """
    value, shares, cores = weight.value
    if _is_pod(group):
        return _kubectl(group, f"cpu={cores}", of="requests")
    if tool := _update_tool(group):
        return f"sudo {tool} update --cpu-shares={shares} {_container_id(group)}"
    path = competing_cgroup(group, beside)
    unit = group.unit if group and group.unit and is_weighed_directly(group, beside) else path.rpartition("/")[2]
    if unit.endswith(_UNIT_SUFFIXES):
        return f"sudo systemctl set-property {operand(unit)} CPUWeight={value}"
    return f"echo {value} | sudo tee {_cgroup_file(path, 'cpu.weight')}  # v1: {shares} to cpu.shares"


def competing_cgroup(group: Container | None, beside: Container | None) -> str:
    """The outermost of this cgroup and its ancestors that does not contain `beside`; "" where no path is known."""
    own_parts, other_parts = _path_parts(group), _path_parts(beside)
    diverge_at = next(
        (depth for depth, (own, theirs) in enumerate(zip(own_parts, other_parts, strict=False), 1) if own != theirs),
        len(own_parts),
    )
    return "".join(f"/{part}" for part in own_parts[:diverge_at])


def is_weighed_directly(group: Container | None, beside: Container | None) -> bool:
    """Whether this cgroup itself, not an ancestor that holds more, is weighed against the other."""
    return competing_cgroup(group, beside) == competing_cgroup(group, None)


def _path_parts(group: Container | None) -> list[str]:
    return [part for part in group.cgroup_path.split("/") if part] if group else []


def cap_cpu(evidence: Evidence, pid: int, name: str) -> Fix | None:
    """A CPU limit for a process, set through its manager; None for a process in no container or unit."""
    group = cgroup_of_pid(evidence, pid)
    if group and (managed := fix_for_managed_cgroup(group, f"{name} [{pid}]")):
        return managed
    has_own_limit = group and (group.container_id or group.unit)
    return Fix(text=f"or cap the CPU of {name} [{pid}]", command=set_cpus(group)) if has_own_limit else None


def fix_for_managed_cgroup(group: Container, who: str) -> Fix | None:
    """What to do about a process in a scheduler's job, a VM or its manager's own cgroup; None: its limit may be set."""
    if group.job:
        job = job_text(group.scheduler, group.job)
        command = _SUSPEND_COMMANDS.get(group.scheduler, "").format(job=shell_word(group.job))
        return Fix(text=f"or move {job} ({who}) to another host, or suspend it", command=command)
    for pattern, template in _VIRTUAL_MACHINES:
        if machine := pattern.search(f"{group.cgroup_path}/{group.unit}"):
            name = unescaped_unit(machine[1])
            text = f"or lower the CPU weight of virtual machine {name} ({who}), or move it to another host"
            return Fix(text=text, command=template.format(name=operand(name)))
    if not group.container_id and _MANAGER_UNITS.fullmatch(_own_unit(group)):
        text = f"or ask the owner of {who}: a limit on its cgroup, {_own_unit(group)}, would apply to everything in it"
        return Fix(text=text)
    return None


def _own_unit(group: Container) -> str:
    """The systemd unit whose limits apply to the cgroup."""
    return group.unit or next((part for part in reversed(_path_parts(group)) if part.endswith(_UNIT_SUFFIXES)), "")


def exclusive_cores(group: Container | None) -> Fix | None:
    """How to give a container exclusive cores; None where its runtime has no known way to do so."""
    if _is_pod(group):
        return Fix(text="give the affected process exclusive cores: Guaranteed QoS with the static CPU manager")
    if tool := _update_tool(group):
        command = f"sudo {tool} update --cpuset-cpus=<cores> {_container_id(group)}"
        return Fix(text="give the affected process CPUs that the culprits may not use", command=command)
    return None


def _is_pod(group: Container | None) -> bool:
    return bool(group and (group.pod or group.orchestrator == "kubernetes"))


def _kubectl(group: Container | None, limit: str, *, of: str = "limits") -> str:
    """The command that changes a pod's limits or requests in the object that created it."""
    namespace = f" -n {shell_word(group.namespace)}" if group and group.namespace else ""
    owner = f"deployment/<that made {shell_word(group.pod)}>" if group and group.pod else "deployment/<name>"
    if group and group.owner:
        owner = shell_word(group.owner)
        if not owner.startswith(_KINDS_WITH_TEMPLATE):
            return f"kubectl{namespace} edit {owner}  # resources.{of}.{limit.replace('=', ': ')}"
    return f"kubectl{namespace} set resources {owner} --{of}={limit}"


def _update_tool(group: Container | None) -> str:
    """The command-line tool that can update a running container; "" where there is none, or it is unknown."""
    if group is None or not group.container_id:
        return ""
    return _UPDATE_TOOLS.get(group.runtime or group.orchestrator, "")


def _container_id(group: Container | None) -> str:
    return operand(short_id(group.container_id)) if group else ""


def _cgroup_path(group: Container | None) -> str:
    return group.cgroup_path.rstrip("/") if group else ""


def _cgroup_file(path: str, name: str) -> str:
    return shell_word(f"/sys/fs/cgroup{path}/{name}") if path else f"<cgroup>/{name}"


def _rounded_up(cpus: float) -> str:
    return f"{math.ceil(100 * cpus) / 100:g}"
