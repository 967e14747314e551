// What the server answers (/openapi.json), and how it is asked. Times are unix ns; as numbers they are off by up to 256 ns.

import { currentNode, currentTime } from "./route";

export type Clocks = Record<string, number>;

export interface Window {
  begin_ns: number;
  end_ns: number;
  duration_ns: number;
}

export interface State {
  now_ns: number;
  is_live: boolean;
  older_version: string;
  window: Window;
}

export interface Where {
  text: string;
  file: string | null;
  line: number | null;
  function: string | null;
  waiting_thread: string;
  thread: string;
  call: string;
  mean_ns: number | null;
  baseline_mean_ns: number | null;
  longest_ns: number | null;
  reason: string;
}

export interface Culprit {
  pid: number;
  name: string;
  lost_ns: number;
  context_switches: number | null;
  container: string;
}

export interface Affected {
  process: number;
  pid: number;
  name: string;
  lost_ns: number;
  rank: number | null;
  container: string;
}

export interface Evidence {
  text: string;
  seen_ns: number;
  expected_ns: number | null;
  source: string;
  order: string;
}

export interface Lost {
  part: string;
  state: string;
  text: string;
  lost_ns: number;
  share_ratio: number;
}

export interface Incident {
  number: number;
  cause: string;
  resource: string;
  root: string;
  kind: string;
  severity: string;
  start_ns: number;
  end_ns: number | null;
  headline: string;
  impact: Impact;
  where: Where;
  fix: { text: string; command: string }[];
  breakdown: Lost[];
  affected: Affected[];
  culprits: Culprit[];
  contributing: { cause: string; lost_ns: number; share_ratio: number; headline: string }[];
  evidence: Evidence[];
  timeline: { begin_ns: number; end_ns: number; lost_ratio: number }[];
  details: Record<string, string | number | boolean | null>;
}

export interface Impact {
  lost_ns: number;
  lost_ratio: number;
  peak_ratio: number;
  explained_ratio: number;
  judged_by: string | null;
  per_s: number | null;
  baseline_per_s: number | null;
  p50_ns: number | null;
  baseline_p50_ns: number | null;
  p99_ns: number | null;
  baseline_p99_ns: number | null;
  involuntary_off_cpu_ratio: number | null;
  baseline_involuntary_off_cpu_ratio: number | null;
  context_switches: number | null;
  involuntary_context_switches: number | null;
}

export interface Diagnosis {
  window: Window;
  incidents: Incident[];
  verdicts: { process: number; pid: number; name: string; text: string; has_incident: boolean }[];
  not_checked: { cause: string; reason: string; ranges: Window[] }[];
  not_traced: Record<string, string>;
}

export interface Op {
  process: number;
  pid: number;
  name: string;
  source: string;
  count: number;
  nested: number;
  errors: number | null;
  recorded: number;
  sum_ns: number;
  max_ns: number;
  bytes: number;
  p50_ns: number | null;
  p95_ns: number | null;
  p99_ns: number | null;
  clocks: Clocks | null;
}

export interface Facts extends State {
  database: string;
  sessions: {
    node: string;
    started_ns: number;
    stopped_ns: number | null;
    last_seen_ns: number;
    gpu_model: string;
    gpu_driver: string;
    kernel: string;
  }[];
  processes: { process: number; pid: number; name: string; rank: number | null }[];
  calls: number;
  recorded_calls: number;
  has_exact_totals: boolean;
  top_op: Op | null;
  system: Record<string, number | null> | null;
  overhead: Overhead;
  lost: number;
}

export interface Overhead {
  agent_cpu_ratio: number | null;
  agent_rss_bytes: number | null;
}

/** judged_by: `step` or `sync interval`; null of a profile. text: how many and how they are known; times null where they are not found by repetition. */
export interface Steps {
  how: string;
  count: number;
  text: string;
  judged_by: string | null;
  wall_ns: number | null;
  host_ns: number | null;
  blocked_ns: Record<string, number> | null;
}

/** Shares of the time; 0 and 1 where nothing is proven, and then without a text. */
export interface GpuIdle {
  min_ratio: number;
  max_ratio: number;
  min_from: string;
  max_from: string;
  text: string;
}

export interface Lane {
  device: number | null;
  stream: string;
  sync_intervals: number;
  wall_ns: number;
  idle_ns: number;
  busy_ns: number;
  return_delay_ns: number;
}

export interface Process {
  process: number;
  pid: number;
  name: string;
  rank: number | null;
  cmdline: string;
  container: string;
  pod: string;
  exit_code: number | null;
  threads: number | null;
  involuntary_switches: number | null;
  clocks: Clocks | null;
  steps: Steps | null;
  gpu_idle: GpuIdle | null;
  gpu_streams: Lane[];
  culprits: { kind: string; culprit_pid: number; culprit_name: string; ns: number; switches: number }[];
}

export interface Snapshots extends State {
  snapshots_per_point: number;
  snapshots: Record<string, number | null>[];
}

export interface ClockPoints extends State {
  clocks: string[];
  step_ns: number;
  points: { start_ns: number; elapsed_ns: number; ns: number[] }[];
}

type Values = (number | null)[]; // one for each column; null: nothing was measured in it

/** Columns of step_ns each; parts and lost are shares of wall time, and together 1. */
export interface TimeChart extends State {
  step_ns: number;
  times_ns: number[];
  processes: { process: number; pid: number; name: string; rank: number | null; noun: string }[];
  parts: { name: string; values: Values }[];
  has_lost: boolean;
  lost: { number: number; cause: string; severity: string; values: Values }[];
  rate: Values;
  rate_of: string;
  cpu: Values;
}

export interface Detection {
  cause: string;
  title: string;
  evidence: string;
  limits: string;
  needs: string[];
}

export interface Drops extends State {
  drops: { counter: string; reason: string; count: number }[];
  overhead_limiter: { time_ns: number; not_traced: string; reason: string }[];
  pruned: { name: string; kind: string; until_ns: number; rows: number }[];
  missing_probes: { library: string; symbol: string; reason: string }[];
  overhead: Overhead;
}

export interface Nccl extends State {
  totals: {
    op: string;
    process: number;
    pid: number;
    rank: number | null;
    calls: number;
    recorded: number;
    errors: number | null;
    bytes: number;
    sum_ns: number;
    p50_ns: number | null;
    p99_ns: number | null;
    max_ns: number;
  }[];
  by_communicator: CommunicatorOp[];
  is_truncated: boolean;
  has_exact_totals: boolean;
}

export interface CommunicatorOp {
  communicator: string;
  op: string;
  process: number;
  pid: number;
  rank: number | null;
  ranks: number | null;
  calls: number;
  bytes: number;
  failed: number;
  p50_ns: number;
  p99_ns: number;
  lateness: { matched: number; last: number; p50_ns: number; p99_ns: number; max_ns: number } | null;
}

export interface Series {
  name: string;
  values: (number | null)[]; // null: not known
}

export interface Memory extends State {
  times_ns: number[];
  by_place: Series[];
  by_container: Series[];
  used_gpus: Series[];
  places: {
    place: string;
    op: string;
    live_bytes: number;
    live_count: number;
    growth_bytes: number;
    failures: number;
    failed_bytes: number;
  }[];
  holders: {
    process: number;
    pid: number;
    name: string;
    container: string;
    kind: string;
    live_bytes: number;
    peak_bytes: number;
    unpaired: number;
  }[];
  foreign_frees: number;
  has_allocations: boolean;
}

export interface RecordedCall {
  id: string;
  op: string;
  process: number;
  pid: number;
  tid: number;
  thread: string;
  start_ns: number;
  duration_ns: number;
  ret_code: number;
  bytes: number;
  kernel: string;
  culprit: string;
  clocks: Clocks | null;
  stack: string;
  place: string;
  waiting_thread: string;
  waiting: string;
}

export interface Stack {
  stack: string;
  frames: { kind: string; function: string; file: string; line: number; is_own: boolean }[];
  note: string;
}

export interface StackShare {
  what: string;
  ns: number;
  count: number;
  is_on_line: boolean;
  stack: string;
  frames: Stack["frames"];
  note: string;
  waiting_thread: string;
}

export interface IncidentStacks extends State {
  process: number | null;
  calls: StackShare[];
  samples: StackShare[];
  count: number;
  without_stack: number;
  where: Record<string, string>;
}

export interface Node {
  name: string;
  kind: string;
  is_own: boolean;
  ns: number;
  count: number;
  children: Node[];
}

export interface Tree extends State {
  of: string;
  root: Node;
  total_ns: number;
  note: string;
}

export interface Group {
  cgroup_id: string;
  name: string;
  container_id: string;
  pod: string;
  namespace: string;
  orchestrator: string;
  node: string;
  path: string;
  processes: { process: number; pid: number; name: string; rank: number | null }[];
  calls: number;
  launches: number;
  gpu_wait_ns: number;
  copied_bytes: number;
  collective_bytes: number;
  clocks: Clocks | null;
  nr_throttled: number;
  throttled_ns: number;
  took_ns: number;
}

export class ApiError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly hint: string,
  ) {
    super(message);
  }
}

export function address(path: string, parameters: Record<string, string>): string {
  const asked = { ...currentTime(), ...parameters };
  const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== ""));
  const node = currentNode();
  return `/api/v1/${node === "" ? "" : `fleet/nodes/${node}/`}${path}${query.size ? `?${query}` : ""}`;
}

export async function get<T>(url: string, signal?: AbortSignal): Promise<T> {
  return body<T>(await reached(fetch(url, { signal })));
}

async function reached(asked: Promise<Response>): Promise<Response> {
  try {
    return await asked;
  } catch (error) {
    if (error instanceof DOMException) throw error;
    throw new ApiError("unreachable", "The server does not answer.", "Is `ingero dashboard` still running?");
  }
}

async function body<T>(response: Response): Promise<T> {
  if (response.status === 401) window.location.assign("/login");
  const found = await response.json().catch(() => null);
  if (response.ok && found !== null) return found as T;
  const { code, message, hint } = found?.error ?? {};
  throw new ApiError(code ?? "unknown", message ?? `The server answered ${response.status}.`, hint ?? "");
}
