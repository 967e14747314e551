"""Commands that change what a control group may use, in the terms of whoever runs it: a pod, a container, a unit.

A limit that a runtime has set is set through it, because it sets its own again. `<...>` is what a recording does not
hold. Whoever may make a control group chooses its name: each word of it is quoted.
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

PERIOD_US = 100_000  # of a quota, unless its group has another
_WITH_TEMPLATE = ("deployment/", "statefulset/", "daemonset/", "replicaset/")  # of `kubectl set resources`
_UNITS = (".slice", ".service", ".scope")  # what a path of systemd is made of
# Units that run other people's work, or the machine itself: a limit on one is a limit on all of that.
_MANAGER = re.compile(
    r"(?:[\w-]*slurmstepd|slurmd[\w@.-]*|slurmctld|condor|htcondor|pbs|pbs_mom|lsfd?|flux|sge_?execd[\w.-]*|nomad|ray"
    r"|containerd|docker|podman|crio|cri-docker|kubelet|k3s(?:-agent)?|rke2-(?:server|agent)|k0s\w+"
    r"|snap\.(?:microk8s|k8s|lxd|docker|incus)\..+|ecs|amazon-ecs-agent|garden|mesos-\w+"
    r"|libvirtd|virtqemud|lxd|incus|lxc[\w-]*|lxcfs|actions\.runner\..+"
    r"|user@\d+|init|dbus[\w-]*|systemd-(?!nspawn)[\w@-]+|sshd?|crond?|atd)\.(?:service|scope)"
)
# Virtual machines by the path of their group (libvirt, Proxmox), and how each is given as good as none of the CPUs.
_VIRTUAL_MACHINES = (
    (
        re.compile(r"/machine-qemu\\x2d\d+\\x2d([^/]+)\.scope(?:/|\Z)"),
        "sudo virsh schedinfo --live {name} cpu_shares=2",
    ),
    (re.compile(r"/qemu\.slice/(\d+)\.scope(?:/|\Z)"), "sudo qm set {name} --cpuunits 1"),
)
# How a job is given more CPUs or memory, and how it is held, in the words of its scheduler.
_MORE = {
    "slurm": ("sbatch --cpus-per-task={cpus}", "sbatch --mem={memory}"),
    "flux": ("flux batch --cores-per-task={cpus}", "flux batch --setattr=memory={memory}"),
    "pbs": ("qsub -l select=1:ncpus={cpus}", "qsub -l select=1:mem={memory}"),
    "lsf": ("bsub -n {cpus}", "bsub -M {memory}"),
    "htcondor": ("condor_submit -append request_cpus={cpus}", "condor_submit -append request_memory={memory}"),
    "gridengine": ("qsub -pe smp {cpus}", "qsub -l h_vmem={memory}"),
    "ray": ("@ray.remote(num_cpus={cpus})", "@ray.remote(memory={memory})"),
}
_HOLD = {
    "slurm": "sudo scontrol suspend {job}",
    "pbs": "qsig -s suspend {job}",
    "lsf": "bstop {job}",
    "htcondor": "condor_suspend {job}",
    "gridengine": "qmod -sj {job}",
}
_WITH_UPDATE = {"docker": "docker", "podman": "podman", "containerd": "nerdctl"}


def group_of(evidence: Evidence, cgroup_id: int | None) -> Container | None:
    """What is known of a control group."""
    return evidence.containers.get(cgroup_id or 0)


def group_of_pid(evidence: Evidence, pid: int) -> Container | None:
    """That of a process, also of one that is not traced and was only seen to run; None where it is not known."""
    process = evidence.process_at(pid)
    if process and process.cgroup_id:
        return group_of(evidence, process.cgroup_id)
    affected = [number for number, one in evidence.processes.items() if one.is_traced]
    seen = (one for number in affected for one in evidence.culprits((evidence.window,), number))
    return next((group_of(evidence, one.culprit_cgroup_id) for one in seen if one.culprit_pid == pid), None)


def set_cpus(group: Container | None, cpus: float | None = None, *, period_us: int = PERIOD_US) -> str:
    """Lets a control group use so many CPUs; None: a number that is for the reader to choose."""
    if group and group.scheduler in _MORE:
        return f"{_MORE[group.scheduler][0].format(cpus='<cores>' if cpus is None else math.ceil(cpus))} ..."
    if _is_pod(group):
        return _kubectl(group, f"cpu={'<cores>' if cpus is None else f'{math.ceil(1000 * cpus)}m'}")
    if tool := _tool(group):
        return f"sudo {tool} update --cpus={'<cores>' if cpus is None else _up(cpus)} {_id(group)}"
    if group and group.unit:
        quota = "<percent>%" if cpus is None else f"{math.ceil(100 * cpus)}%"
        return f"sudo systemctl set-property {operand(group.unit)} CPUQuota={quota}"
    quota_us = "<us>" if cpus is None else str(math.ceil(cpus * period_us))
    return f"echo '{quota_us} {period_us}' | sudo tee {_file(_cgroup_path(group), 'cpu.max')}  # v1: cpu.cfs_quota_us"


def free_io(path: str, device: str, limit: str) -> str:
    """Takes a limit from the control group at this path. device: major:minor; limit: as `io.max` has it."""
    name = limit.partition("=")[0]
    command = f"echo {shell_word(f'{device} {name}=max')} | sudo tee {_file(path.rstrip('/'), 'io.max')}"
    return f"{command}  # v1: '{device} 0' to its blkio.throttle file"


def set_memory(group: Container | None) -> str:
    """Lets a control group use more memory."""
    if group and group.scheduler in _MORE:
        return f"{_MORE[group.scheduler][1].format(memory='<more>')} ..."
    if _is_pod(group):
        return _kubectl(group, "memory=<more>")
    if tool := _tool(group):
        return f"sudo {tool} update --memory=<more> --memory-swap=<more> {_id(group)}"
    if group and group.unit:
        return f"sudo systemctl set-property {operand(group.unit)} MemoryMax=<more>"
    return f"echo <bytes> | sudo tee {_file(_cgroup_path(group), 'memory.max')}  # v1: memory.limit_in_bytes"


class Weight(enum.Enum):
    """How a control group is to be weighed against those beside it: (cpu.weight, cpu.shares of v1, cores of a pod)."""

    MORE = (1000, 10240, "<cores>")
    LEAST = (1, 2, "<fewer cores>")


def set_weight(group: Container | None, weight: Weight, *, beside: Container | None = None) -> str:
    """Gives a control group ten times the usual share of the CPUs that it competes for, or as good as none.

    beside: whom it competes with. A weight counts where the paths of both part, which may be a group around this one.
    """
    value, shares, cores = weight.value
    if _is_pod(group):
        return _kubectl(group, f"cpu={cores}", of="requests")
    if tool := _tool(group):
        return f"sudo {tool} update --cpu-shares={shares} {_id(group)}"
    path = branch(group, beside)
    unit = group.unit if group and group.unit and has_own_branch(group, beside) else path.rpartition("/")[2]
    if unit.endswith(_UNITS):
        return f"sudo systemctl set-property {operand(unit)} CPUWeight={value}"
    return f"echo {value} | sudo tee {_file(path, 'cpu.weight')}  # v1: {shares} to cpu.shares"


def branch(group: Container | None, beside: Container | None) -> str:
    """The group, of those around this one and itself, that does not hold the other; "" where no path is known."""
    path, other = _path(group), _path(beside)
    parts = next((at for at, (one, two) in enumerate(zip(path, other, strict=False), 1) if one != two), len(path))
    return "".join(f"/{one}" for one in path[:parts])


def has_own_branch(group: Container | None, beside: Container | None) -> bool:
    """Whether it is this group itself that is weighed against the other, not one around it that holds more."""
    return branch(group, beside) == branch(group, None)


def _path(group: Container | None) -> list[str]:
    return [one for one in group.cgroup_path.split("/") if one] if group else []


def cap(evidence: Evidence, pid: int, name: str) -> Fix | None:
    """A limit for whoever took the CPU, by who runs it; None for a process of the host."""
    group = group_of_pid(evidence, pid)
    if group and (asked := ask_instead(group, f"{name} [{pid}]")):
        return asked
    is_apart = group and (group.container_id or group.unit)
    return Fix(text=f"or cap the CPU of {name} [{pid}]", command=set_cpus(group)) if is_apart else None


def ask_instead(group: Container, who: str) -> Fix | None:
    """What is done about a process whose group is a scheduler's job, or a manager's own; None: a limit may be set."""
    if group.job:
        job = job_text(group.scheduler, group.job)
        command = _HOLD.get(group.scheduler, "").format(job=shell_word(group.job))
        return Fix(text=f"or move {job} ({who}) to another host, or suspend it", command=command)
    for pattern, template in _VIRTUAL_MACHINES:
        if machine := pattern.search(f"{group.cgroup_path}/{group.unit}"):
            name = unescaped_unit(machine[1])
            text = f"or lower the CPU weight of virtual machine {name} ({who}), or move it to another host"
            return Fix(text=text, command=template.format(name=operand(name)))
    if not group.container_id and _MANAGER.fullmatch(_own_unit(group)):
        text = f"or ask the owner of {who}: a limit on its cgroup, {_own_unit(group)}, would apply to everything in it"
        return Fix(text=text)
    return None


def _own_unit(group: Container) -> str:
    """The unit whose limits are the group's."""
    return group.unit or next((one for one in reversed(_path(group)) if one.endswith(_UNITS)), "")


def exclusive_cores(group: Container | None) -> Fix | None:
    """Cores that a container shares with nobody; None where its runtime has no way that is known."""
    if _is_pod(group):
        return Fix(text="give the affected process exclusive cores: Guaranteed QoS with the static CPU manager")
    if tool := _tool(group):
        command = f"sudo {tool} update --cpuset-cpus=<cores> {_id(group)}"
        return Fix(text="give the affected process CPUs that the culprits may not use", command=command)
    return None


def _is_pod(group: Container | None) -> bool:
    return bool(group and (group.pod or group.orchestrator == "kubernetes"))


def _kubectl(group: Container | None, limit: str, *, of: str = "limits") -> str:
    """The limits of a pod, and its requests, are those of what it was made from."""
    namespace = f" -n {shell_word(group.namespace)}" if group and group.namespace else ""
    owner = f"deployment/<that made {shell_word(group.pod)}>" if group and group.pod else "deployment/<name>"
    if group and group.owner:
        owner = shell_word(group.owner)
        if not owner.startswith(_WITH_TEMPLATE):
            return f"kubectl{namespace} edit {owner}  # resources.{of}.{limit.replace('=', ': ')}"
    return f"kubectl{namespace} set resources {owner} --{of}={limit}"


def _tool(group: Container | None) -> str:
    """The command of the runtime that started a container; "" where that is not known or has none."""
    if group is None or not group.container_id:
        return ""
    return _WITH_UPDATE.get(group.runtime or group.orchestrator, "")


def _id(group: Container | None) -> str:
    return operand(short_id(group.container_id)) if group else ""


def _cgroup_path(group: Container | None) -> str:
    return group.cgroup_path.rstrip("/") if group else ""


def _file(path: str, name: str) -> str:
    return shell_word(f"/sys/fs/cgroup{path}/{name}") if path else f"<cgroup>/{name}"


def _up(cpus: float) -> str:
    return f"{math.ceil(100 * cpus) / 100:g}"
