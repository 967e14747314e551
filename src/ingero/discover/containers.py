"""Finds the container, pod or job of a process, by its cgroup path and its environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ingero.discover.rooted import RootFiles
from ingero.identity import unescaped_unit

_ID = r"[0-9a-f]{64}"
_FARGATE_ID = r"[0-9a-f]{32}-\d+"  # the task's id and a number
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_UNIT_NAME = r"[^/]+\.(?:service|scope|slice|socket|mount)"
_END = r"(?=/|\Z)"  # an id is a whole name or its end: one that is cut off is worse than none
_CONTAINER_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern + _END), runtime)
    for pattern, runtime in (
        (rf"/({_ID})", ""),  # of Docker's --cgroup-parent, containerd's namespaces, Podman's split groups, a pod
        (rf"/(?:[^/]*:)?docker[-:]({_ID})(?:\.scope)?", "docker"),
        (rf"/docker/({_ID})", "docker"),
        (rf"/(?:[^/]*:)?cri-containerd[-:]({_ID})(?:\.scope)?", "containerd"),
        (rf"/(?:[^/]*:)?nerdctl[-:]({_ID})(?:\.scope)?", "containerd"),
        (rf"\A(?:/\.\.)*/default/((?!{_ID}{_END}|{_UNIT_NAME}{_END})\w[\w.-]*)", "containerd"),  # ctr: a name is the id
        (rf"/(?:[^/]*:)?crio[-:]({_ID})(?:\.scope)?", "cri-o"),
        (rf"/(?:[^/]*:)?libpod[-:](?:payload-)?({_ID})(?:\.scope)?", "podman"),
        (rf"/kata_({_ID})", ""),
        (rf"/ecs/(?:[^/]+/)+({_ID})", "docker"),
        (rf"/ecs/(?:[^/]+/)*({_FARGATE_ID})", ""),
        (r"/lxc(?:/|\.payload[./])([^/]+)", "lxc"),
        (r"/machine\.slice/machine-lxc\\x2d\d+\\x2d([^/]+?)\.scope", "lxc"),  # libvirt's
        (r"/(?:lxc-\d+-)?([^/]+)\.libvirt-lxc", "lxc"),  # the same without systemd
        (
            r"/machine\.slice/machine-(?!qemu|xen|libxl|bhyve|vmspawn|ch\\x2d|lxc\\x2d)([^/]+?)\.scope(?!/supervisor)",
            "systemd-nspawn",
        ),
        (r"/systemd-nspawn@([^/]+)\.service(?!/supervisor)", "systemd-nspawn"),
        (r"/machine\.slice/container@([^/]+)\.service(?!/supervisor)", "systemd-nspawn"),  # NixOS's
        (rf"/nomad(?:\.slice)?/(?:[^/]+/)*({_UUID})\.[^/]+?", "nomad"),
        (r"/garden/(?:good/|bad/)?([0-9a-f]+(?:-[0-9a-f]+)+)", ""),  # good, bad: by their use of the CPU
        (rf"/mesos/({_UUID})", "mesos"),
    )
)
_NAMED_BY_SYSTEMD = ("systemd-nspawn", "lxc")  # whose machine names may be escaped as a unit's are
_NO_RUNTIME = ("nomad", "mesos")  # an orchestrator that runs tasks itself
_KUBEPODS = re.compile(r"/(?:[^/]*-)?kubepods(?:-(?:burstable|besteffort))?(?:\.slice)?(?=/|\Z)")
_NOMAD = re.compile(r"/nomad\.slice/")
_DELETED = " (deleted)"  # what the kernel puts behind the path of a group that is gone
_POD = re.compile(r"(?:/|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[/.:]|\Z)")
# The number of a job, or its SLUID from 26.05 on: 13 digits of Crockford's base 32.
_SLURM = re.compile(
    r"/(?:slurm[^/]*(?:/uid_\d+)?|[^/]*slurmstepd\.scope)/(?:job_(\d+)|s[0-9A-HJKMNP-TV-Z]{13})(?:/step_([^/]+))?(?=/|\Z)"
)
_ECS_TASK = re.compile(rf"/(?:ecs/(?:[^/]+/)?|ecstasks-)([0-9a-f]{{32}}|{_UUID})(?:\.slice)?/")
_FARGATE_TASK = re.compile(r"/ecs/(?:[^/]+/)?([0-9a-f]{32})-\d+(?=/|\Z)")
_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?=/|\Z)")
_FARGATE_URI = re.compile(r"/v4/([0-9a-f]{32})-\d+\Z")  # on EC2 the last part is a random name
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")  # of a pod or namespace (DNS-1123 subdomain)
_SAFE = "[bcdfghjklmnpqrstvwxz2456789]"  # what Kubernetes makes names up of
_DEPLOYED_POD = re.compile(rf"(.+)-{_SAFE}{{7,10}}-{_SAFE}{{5}}")
_INDEXED_POD = re.compile(rf"(.+)-(\d+)-{_SAFE}{{5}}")
_REPLICA_POD = re.compile(r"(.+)-(?:master|worker)-\d+")
_HOST_NAME_LENGTH = 63  # a pod's longer name is cut off in its host name
_POD_NAME_VARIABLES = ("POD_NAME", "MY_POD_NAME", "K8S_POD_NAME", "KUBERNETES_POD_NAME")
_NAMESPACE_VARIABLES = ("POD_NAMESPACE", "MY_POD_NAMESPACE", "K8S_NAMESPACE", "KUBERNETES_NAMESPACE")
_NAMESPACE_FILE = "var/run/secrets/kubernetes.io/serviceaccount/namespace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What runs a cgroup: orchestrator, runtime, job or unit. None: does not apply or is not known.

    orchestrator: kubernetes, ecs, slurm, nomad, mesos, docker, podman, containerd, lxc, systemd-nspawn or systemd.
    runtime: what started the container, where the path says so.
    container_id: as the runtime names it.
    job: the Slurm job; step: its step; task: the ECS task; unit: the systemd unit of a process in no container.
    """

    orchestrator: str | None = None
    runtime: str | None = None
    container_id: str | None = None
    pod_uid: str | None = None
    job: str | None = None
    step: str | None = None
    task: str | None = None
    unit: str | None = None

    @property
    def is_containerized(self) -> bool:
        """Whether the cgroup belongs to a container."""
        return self.container_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The Kubernetes names of a process; None if neither environment nor files say."""

    name: str | None
    namespace: str | None


def placement_of(cgroup_path: str) -> Placement:
    """The placement in a cgroup path, v1 or v2, also one seen from inside another namespace (`/../..`)."""
    cgroup_path = cgroup_path.removesuffix(_DELETED)
    runtime, container_id = _container(cgroup_path)
    pods = _POD.findall(cgroup_path)  # the innermost counts: a cluster may run in a pod
    slurm = _SLURM.search(cgroup_path)
    task = _ECS_TASK.search(cgroup_path) or _FARGATE_TASK.search(cgroup_path)
    units = [] if container_id or slurm else _UNIT.findall(cgroup_path)
    if pods or _KUBEPODS.search(cgroup_path):
        orchestrator: str | None = "kubernetes"
    elif task:
        orchestrator = "ecs"
    elif slurm:
        orchestrator = "slurm"
    elif container_id and _NOMAD.search(cgroup_path):
        orchestrator = "nomad"
    else:
        orchestrator = runtime or ("systemd" if units else None)
    return Placement(
        orchestrator=orchestrator,
        runtime=None if runtime in _NO_RUNTIME else runtime,
        container_id=container_id,
        pod_uid=pods[-1].replace("_", "-") if pods else None,
        job=slurm[1] if slurm else None,
        step=slurm[2] if slurm else None,
        task=task[1] if task else None,
        unit=units[-1] if units else None,
    )


def placement_among(paths: Iterable[str]) -> Placement:
    """The placement of a process by its cgroups in all hierarchies: first a pod, then container or job, then unit.

    On hosts with cgroup v1 and v2 one hierarchy may tell the container and another its daemon, or the machine inside
    which a cluster runs and the pod in that.
    """
    places = [placement_of(path) for path in paths]
    placed = [place for place in places if place.is_containerized or place.job or place.step]
    of_pod = [place for place in placed if place.pod_uid]
    units = [place for place in places if place.unit]
    return next(iter((*of_pod, *placed, *units, *places)), Placement())


def placement_in(placement: Placement, environ: Mapping[str, str]) -> Placement:
    """The placement completed by the environment: an orchestrator that the path does not show.

    Sources: Kubernetes, "Accessing the Service" (KUBERNETES_SERVICE_HOST); Amazon ECS, "Task metadata endpoint version
    4"; Nomad, "Runtime environment settings"; Mesos, "Docker Containerizer".
    """
    if not placement.is_containerized or placement.orchestrator != placement.runtime:
        return placement
    if environ.get("NOMAD_ALLOC_ID"):
        return replace(placement, orchestrator="nomad")
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return replace(placement, orchestrator="kubernetes")
    if environ.get("MESOS_TASK_ID"):
        return replace(placement, orchestrator="mesos")
    uri = environ.get("ECS_CONTAINER_METADATA_URI_V4", "")
    if uri or environ.get("ECS_CONTAINER_METADATA_URI"):
        task = _FARGATE_URI.search(uri)
        return replace(placement, orchestrator="ecs", task=task[1] if task else None)
    return placement


def slurm_job_of(environ: Mapping[str, str]) -> str | None:
    """The Slurm job that started a process: its cgroup need not say, and one cgroup may hold several jobs.

    Source: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES".
    """
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
    return job if re.fullmatch(r"[0-9]{1,10}", job) else None


def pod_of(pid: int, environ: Mapping[str, str], *, node_name: str, files: RootFiles | None = None) -> Pod:
    """The pod's name and namespace of a process that Kubernetes runs.

    A pod's host name is its name unless it uses the node's network; then it is `node_name` and says nothing.
    """
    files = files or RootFiles()
    hostname = environ.get("HOSTNAME") or _line(files, pid, "etc/hostname")
    guess = hostname if hostname != node_name and len(hostname) < _HOST_NAME_LENGTH else ""
    return Pod(
        name=_name(_first(environ, _POD_NAME_VARIABLES) or guess),
        namespace=_name(_first(environ, _NAMESPACE_VARIABLES) or _line(files, pid, _NAMESPACE_FILE)),
    )


def owner_of(pod: str | None, environ: Mapping[str, str]) -> str | None:
    """The owner of a pod in kubectl's form (`deployment/train`), if name and environment leave no doubt.

    A bare pod, a StatefulSet's and a Job's may have the same name. Sources: apimachinery, rand.SafeEncodeString; the
    documents of Indexed Jobs, of Kubeflow's PyTorchJob, of LeaderWorkerSet and of KubeRay.
    """
    if pod is None or len(pod) >= _HOST_NAME_LENGTH:  # the name of the owner may be cut off
        return None
    cluster = environ.get("RAY_CLUSTER_NAME", "")
    if cluster and pod.startswith(f"{cluster}-"):
        return _owner("raycluster", cluster)
    if environ.get("LWS_LEADER_ADDRESS") and (match := re.fullmatch(r"(.+?)-\d+(?:-\d+)?", pod)):
        return _owner("leaderworkerset", match[1])
    if environ.get("JOB_COMPLETION_INDEX") and (match := _INDEXED_POD.fullmatch(pod)):
        return _owner("job", match[1]) if match[2] == environ["JOB_COMPLETION_INDEX"] else None
    if (match := _REPLICA_POD.fullmatch(pod)) and environ.get("MASTER_ADDR") in (f"{match[1]}-master-0", "localhost"):
        return _owner("pytorchjob", match[1])
    match = _DEPLOYED_POD.fullmatch(pod)
    return _owner("deployment", match[1]) if match else None


def _owner(kind: str, name: str) -> str | None:
    return f"{kind}/{name}" if _NAME.fullmatch(name) else None


def _container(path: str) -> tuple[str | None, str | None]:
    """(runtime, id) of the innermost container; the form of the path may leave its runtime open."""
    found: tuple[int, str, str] | None = None
    for pattern, runtime in _CONTAINER_PATTERNS:
        for match in pattern.finditer(path):
            if found is None or match.start(1) > found[0] or (match.start(1) == found[0] and runtime):
                found = (match.start(1), runtime, match[1])
    if found is None:
        return None, None
    _, runtime, name = found
    return runtime or None, unescaped_unit(name) if runtime in _NAMED_BY_SYSTEMD else name


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _line(files: RootFiles, pid: int, path: str) -> str:
    """The first line of a small file inside a container, which may be anything."""
    try:
        text = files.read(pid, path, 254)
    except OSError:
        return ""
    return text.split(b"\n")[0].strip().decode("ascii", "replace")


def _name(text: str) -> str | None:
    return text if _NAME.fullmatch(text) else None
