-- Every table of a recording. Users ask the views of views.sql; tables named raw_* may change with a migration.
--
-- Times are unix nanoseconds. A column `id` is handed out by SQLite; every other column is inserted by the recorder.
-- Columns that say "string" hold raw_strings.string, 0 = none. 0 addresses, pids and names mean "none"; NULL means
-- "not recorded". Unsigned 64-bit kernel values are stored as the signed number with the same bits.
-- `process` is raw_processes.process, 0 = not a traced process. `period_s`: how long a row stands for: 1 s or, where
-- the recorder looked sooner or later, that; 60 once retention has downsampled seconds.

CREATE TABLE raw_strings (
    string INTEGER PRIMARY KEY,
    text   TEXT NOT NULL
) STRICT;

CREATE TABLE raw_sessions (
    session      INTEGER PRIMARY KEY,
    uuid         TEXT NOT NULL,
    node         TEXT NOT NULL,
    boot_id      TEXT NOT NULL DEFAULT '',
    machine_id   TEXT NOT NULL DEFAULT '',     -- hash of the installation behind the node's name; empty: not known
    started_ns   INTEGER NOT NULL,
    last_seen_ns INTEGER NOT NULL,             -- the last commit; the end of a recording that was killed
    stopped_ns   INTEGER,                      -- NULL: still recording, or killed
    stop_reason  TEXT NOT NULL DEFAULT '',
    kernel       TEXT NOT NULL DEFAULT '',
    os_release   TEXT NOT NULL DEFAULT '',
    cpu_model    TEXT NOT NULL DEFAULT '',
    cpu_count    INTEGER NOT NULL DEFAULT 0,
    memory_bytes INTEGER NOT NULL DEFAULT 0,
    gpu_model    TEXT NOT NULL DEFAULT '',
    gpu_driver   TEXT NOT NULL DEFAULT '',
    cuda_ver     TEXT NOT NULL DEFAULT '',
    python_ver   TEXT NOT NULL DEFAULT '',
    ingero_ver   TEXT NOT NULL DEFAULT '',
    pid_filter   TEXT NOT NULL DEFAULT '',     -- pids asked for, comma separated; empty: every GPU process
    flags        TEXT NOT NULL DEFAULT '',
    options      TEXT NOT NULL DEFAULT '{}',   -- JSON object
    not_traced   TEXT NOT NULL DEFAULT '{}',   -- JSON object: name of a source -> why nothing of it can be here
    agent_pid    INTEGER NOT NULL DEFAULT 0,   -- of the recorder itself; 0: not known
    cgroup_base  INTEGER NOT NULL DEFAULT 0,   -- added to the kernel's cgroup ids, so that two boots or nodes
                                               -- never share one
    seq_base     INTEGER NOT NULL DEFAULT 0,   -- what merging added to each `id` of the session's rows, a multiple of
                                               -- 2^40; events.id is node:(raw_events.id - seq_base)
    older_version    TEXT NOT NULL DEFAULT '', -- of the Ingero 0.x database that it was merged from; empty: ours
    has_exact_totals INTEGER NOT NULL DEFAULT 1 -- 0: raw_op_stats are sums of the calls that happened to be stored
) STRICT;

CREATE TABLE raw_clock_pairs (
    session INTEGER NOT NULL,
    mono_ns INTEGER NOT NULL,                  -- CLOCK_MONOTONIC, in the initial time namespace
    unix_ns INTEGER NOT NULL,
    suspended_ns INTEGER,                      -- for how long the host had been suspended since its start, which
                                               -- CLOCK_MONOTONIC does not count; NULL: not recorded
    PRIMARY KEY (session, mono_ns)
) STRICT, WITHOUT ROWID;

-- How far the clock of a node was ahead when its recording was fetched, by the clock of who fetched it. Offsets of one
-- reference are of one clock; those of two cannot be compared.
CREATE TABLE raw_node_clocks (
    session   INTEGER NOT NULL,
    at_ns     INTEGER NOT NULL,                -- by the clock of who fetched it
    offset_ns INTEGER NOT NULL,                -- below 0: it was behind
    bound_ns  INTEGER NOT NULL,                -- by how much that may be off at most
    reference TEXT NOT NULL DEFAULT '',        -- one name for each time that somebody fetched recordings
    PRIMARY KEY (session, at_ns)
) STRICT, WITHOUT ROWID;

CREATE TABLE raw_processes (
    process       INTEGER PRIMARY KEY,
    session       INTEGER NOT NULL,
    pid           INTEGER NOT NULL,
    start_ns      INTEGER NOT NULL,            -- of the process; with pid it is the identity
    name          TEXT NOT NULL DEFAULT '',
    cmdline       TEXT NOT NULL DEFAULT '',
    uid           INTEGER,
    parent_pid    INTEGER,
    cgroup_id     INTEGER,
    rank          INTEGER,
    local_rank    INTEGER,
    world_size    INTEGER,
    slurm_job     TEXT NOT NULL DEFAULT '',
    scheduler     TEXT NOT NULL DEFAULT '',    -- of the job: slurm, flux, pbs, lsf, htcondor, gridengine, ray
    job           TEXT NOT NULL DEFAULT '',
    job_step      TEXT NOT NULL DEFAULT '',
    rank_source   TEXT NOT NULL DEFAULT '',    -- communicator, a launcher, title; or why there is no rank
    is_traced     INTEGER NOT NULL DEFAULT 1,  -- 0: seen only as somebody's culprit or waker
    first_seen_ns INTEGER NOT NULL DEFAULT 0,
    last_seen_ns  INTEGER NOT NULL DEFAULT 0,
    exit_ns       INTEGER,                     -- NULL: was alive when last seen
    exit_code     INTEGER
) STRICT;
CREATE INDEX raw_processes_pid ON raw_processes(pid);

CREATE TABLE raw_threads (
    process       INTEGER NOT NULL,
    tid           INTEGER NOT NULL,
    start_ns      INTEGER NOT NULL DEFAULT 0,
    name          TEXT NOT NULL DEFAULT '',
    first_seen_ns INTEGER NOT NULL DEFAULT 0,
    last_seen_ns  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (process, tid, start_ns)
) STRICT, WITHOUT ROWID;

-- Recorded calls and host events. What arg0, arg1 and arg2 mean for an operation stands in table ops.
CREATE TABLE raw_events (
    id             INTEGER PRIMARY KEY,
    session        INTEGER NOT NULL,
    start_ns       INTEGER NOT NULL,
    duration_ns    INTEGER NOT NULL DEFAULT 0,
    process        INTEGER NOT NULL DEFAULT 0,
    pid            INTEGER NOT NULL,
    tid            INTEGER NOT NULL,
    source         INTEGER NOT NULL,
    op             INTEGER NOT NULL,
    arg0           INTEGER NOT NULL DEFAULT 0, -- bytes
    arg1           INTEGER NOT NULL DEFAULT 0, -- handle
    arg2           INTEGER DEFAULT 0,          -- extra
    stream         INTEGER NOT NULL DEFAULT 0,
    ret_code       INTEGER NOT NULL DEFAULT 0,
    gpu_id         INTEGER NOT NULL DEFAULT -1, -- CUDA's ordinal in that process (raw_process_gpus); -1: unknown
    caller         INTEGER NOT NULL DEFAULT 0, -- return address at entry
    caller_library INTEGER NOT NULL DEFAULT 0, -- string
    function       INTEGER NOT NULL DEFAULT 0, -- raw_kernels.function of a launch
    detail         INTEGER NOT NULL DEFAULT 0, -- string: what the arguments cannot hold (addresses, file names)
    cgroup_id      INTEGER NOT NULL DEFAULT 0,
    comm           INTEGER NOT NULL DEFAULT 0, -- string
    cpu            INTEGER NOT NULL DEFAULT -1, -- -1: unknown
    run_ns         INTEGER,                    -- thread-state times are NULL where there are none (host events)
    runq_ns        INTEGER,
    throttled_ns   INTEGER,
    yielded_ns     INTEGER,
    sleep_ns       INTEGER,
    io_ns          INTEGER,
    uninterruptible_ns INTEGER,
    stopped_ns     INTEGER,
    residual_ns    INTEGER,                    -- duration minus the sum of the clocks
    involuntary_switches INTEGER,
    switches       INTEGER,
    culprit_pid    INTEGER NOT NULL DEFAULT 0,
    culprit_name   INTEGER NOT NULL DEFAULT 0, -- string
    culprit_ns     INTEGER NOT NULL DEFAULT 0,
    waker_kind     INTEGER DEFAULT 0,          -- waker_kinds.id
    waker_tid      INTEGER NOT NULL DEFAULT 0,
    waker_name     INTEGER NOT NULL DEFAULT 0, -- string
    woken_ns       INTEGER NOT NULL DEFAULT 0, -- time of the last wake-up inside the call
    flags          INTEGER NOT NULL DEFAULT 0, -- call_flags; of host events: host_flags
    stack_hash     INTEGER NOT NULL DEFAULT 0,
    queue_ns       INTEGER                     -- block I/O: before the GPU had it, not in duration_ns
) STRICT;
CREATE INDEX raw_events_start ON raw_events(start_ns);

-- One interval off the CPU of a tracked thread.
CREATE TABLE raw_offcpu (
    id           INTEGER PRIMARY KEY,
    session      INTEGER NOT NULL,
    start_ns     INTEGER NOT NULL,
    duration_ns  INTEGER NOT NULL,
    process      INTEGER NOT NULL DEFAULT 0,
    pid          INTEGER NOT NULL,
    tid          INTEGER NOT NULL,
    comm         INTEGER NOT NULL DEFAULT 0,   -- string
    state        INTEGER,                      -- thread_states.id at the switch-out; NULL: not recorded
    woken_ns     INTEGER NOT NULL DEFAULT 0,   -- 0: never slept; from here to the end it was runnable
    cpu          INTEGER NOT NULL DEFAULT -1,
    culprit_pid  INTEGER NOT NULL DEFAULT 0,   -- who ran longest instead
    culprit_name INTEGER NOT NULL DEFAULT 0,   -- string
    culprit_ns   INTEGER NOT NULL DEFAULT 0,
    waker_kind   INTEGER DEFAULT 0,            -- waker_kinds.id
    waker_pid    INTEGER NOT NULL DEFAULT 0,
    waker_tid    INTEGER NOT NULL DEFAULT 0,
    waker_name   INTEGER NOT NULL DEFAULT 0,   -- string
    futex        INTEGER NOT NULL DEFAULT 0,   -- address that it slept at; odd: its interpreter's lock; 0: none; 2 to
                                               -- 14: in a call of a kind (2 sends, 4 receives, 6 waits for events, 8
                                               -- asks a file system, 10 locks a file, 12 waits for a child), or in a
                                               -- page fault (14)
    stack_hash   INTEGER NOT NULL DEFAULT 0,   -- its Python frames as it went to sleep; 0: not read
    is_gpu_call  INTEGER NOT NULL DEFAULT 0    -- 1: in a call that may wait for the GPU
) STRICT;
CREATE INDEX raw_offcpu_start ON raw_offcpu(start_ns);

-- One sync of a stream (process, GPU, stream): sync_end_ns - prev_sync_end_ns = idle_ns + busy_ns + return_delay_ns.
-- prev_sync_end_ns: return of the previous sync (0: none before). Thread-state time: idle_* until the first launch and
-- sync_* in the sync, of the syncing thread; launch_* in between, of the launching thread. NULL: another one took over.
CREATE TABLE raw_sync_intervals (
    id                     INTEGER PRIMARY KEY,
    session                INTEGER NOT NULL,
    process                INTEGER NOT NULL,
    pid                    INTEGER NOT NULL,
    device                 INTEGER NOT NULL DEFAULT -1, -- as raw_events.gpu_id
    stream                 INTEGER NOT NULL DEFAULT 0,
    prev_sync_end_ns                   INTEGER NOT NULL,
    first_launch_ns                   INTEGER NOT NULL,
    sync_start_ns                   INTEGER NOT NULL,
    gpu_done_ns                   INTEGER NOT NULL,
    gpu_done_low_ns               INTEGER NOT NULL,
    gpu_done_high_ns              INTEGER NOT NULL,
    sync_end_ns                   INTEGER NOT NULL,
    idle_ns                   INTEGER NOT NULL,   -- GPU idle
    busy_ns                   INTEGER NOT NULL,   -- GPU busy
    return_delay_ns                   INTEGER NOT NULL,   -- returned late
    launches               INTEGER NOT NULL DEFAULT 0,
    bytes                  INTEGER NOT NULL DEFAULT 0,
    op_set                 INTEGER NOT NULL DEFAULT 0, -- string: names of the enqueued operations, comma separated
    step_type              INTEGER NOT NULL DEFAULT 0, -- string
    source                 INTEGER NOT NULL DEFAULT 0, -- the sync's operation
    op                     INTEGER NOT NULL DEFAULT 0,
    caller                 INTEGER NOT NULL DEFAULT 0,
    graph                  INTEGER NOT NULL DEFAULT 0,
    prev_sync_tid                  INTEGER NOT NULL DEFAULT 0,
    first_launch_tid                  INTEGER NOT NULL DEFAULT 0,
    sync_tid                  INTEGER NOT NULL DEFAULT 0,
    flags                  INTEGER NOT NULL DEFAULT 0, -- sync_interval_flags
    idle_run_ns           INTEGER,
    idle_runq_ns          INTEGER,
    idle_throttled_ns     INTEGER,
    idle_yielded_ns       INTEGER,
    idle_sleep_ns         INTEGER,
    idle_io_ns            INTEGER,
    idle_uninterruptible_ns   INTEGER,
    idle_stopped_ns       INTEGER,
    launch_run_ns         INTEGER,
    launch_runq_ns        INTEGER,
    launch_throttled_ns   INTEGER,
    launch_yielded_ns     INTEGER,
    launch_sleep_ns       INTEGER,
    launch_io_ns          INTEGER,
    launch_uninterruptible_ns INTEGER,
    launch_stopped_ns     INTEGER,
    sync_run_ns           INTEGER,
    sync_runq_ns          INTEGER,
    sync_throttled_ns     INTEGER,
    sync_yielded_ns       INTEGER,
    sync_sleep_ns         INTEGER,
    sync_io_ns            INTEGER,
    sync_uninterruptible_ns   INTEGER,
    sync_stopped_ns       INTEGER,
    checkpoint_step        INTEGER NOT NULL DEFAULT 0, -- launches between two checkpoints
    checkpoints            BLOB                        -- little-endian int64 unix ns
) STRICT;
CREATE INDEX raw_sync_intervals_end ON raw_sync_intervals(sync_end_ns);

-- The sync intervals of one stream that one commit stored, in short (sync_interval_digest.py): kept for longer than
-- they are.
CREATE TABLE raw_sync_interval_digest (
    id       INTEGER PRIMARY KEY,
    session  INTEGER NOT NULL,
    process  INTEGER NOT NULL,
    pid      INTEGER NOT NULL,
    device   INTEGER NOT NULL DEFAULT -1,      -- as raw_events.gpu_id
    stream   INTEGER NOT NULL DEFAULT 0,
    begin_ns INTEGER NOT NULL,                 -- first prev_sync_end_ns
    end_ns   INTEGER NOT NULL,                 -- last sync_end_ns
    sync_intervals   INTEGER NOT NULL,
    step_types TEXT NOT NULL DEFAULT '',       -- texts of their step_type, one per line
    packed   BLOB NOT NULL,
    sums     BLOB NOT NULL
) STRICT;
CREATE INDEX raw_sync_interval_digest_end ON raw_sync_interval_digest(end_ns);

-- What a program does again and again, found by its own calls: from one step marker to the next. Thread-state time is
-- that of the thread that makes the marker's call, and covers the step: blocked_* the part inside calls that waited for
-- the GPU, host_* the rest. NULL where a profiler's file gave the step.
CREATE TABLE raw_steps (
    id                       INTEGER PRIMARY KEY,
    session                  INTEGER NOT NULL,
    process                  INTEGER NOT NULL,
    pid                      INTEGER NOT NULL,
    tid                      INTEGER NOT NULL,             -- thread that makes the marker's call
    device                   INTEGER NOT NULL DEFAULT -1,  -- as raw_events.gpu_id
    stream                   INTEGER NOT NULL DEFAULT 0,   -- main stream of the process
    start_ns                 INTEGER NOT NULL,
    end_ns                   INTEGER NOT NULL,
    how                      INTEGER NOT NULL DEFAULT 0,   -- string: repetition, sync, both, user
    step_type                INTEGER NOT NULL DEFAULT 0,   -- string: steps of one type do the same work
    source                   INTEGER NOT NULL DEFAULT 0,   -- the marker's operation
    op                       INTEGER NOT NULL DEFAULT 0,
    function                 INTEGER NOT NULL DEFAULT 0,   -- raw_kernels.function of the marker; 0: not a launch
    launches                 INTEGER NOT NULL DEFAULT 0,
    copies                   INTEGER NOT NULL DEFAULT 0,
    collectives              INTEGER NOT NULL DEFAULT 0,
    syncs                    INTEGER NOT NULL DEFAULT 0,
    host_to_gpu_bytes        INTEGER NOT NULL DEFAULT 0,
    gpu_to_host_bytes        INTEGER NOT NULL DEFAULT 0,
    blocked_sync_ns          INTEGER NOT NULL DEFAULT 0,   -- in synchronizations and blocking copies
    blocked_copy_ns          INTEGER NOT NULL DEFAULT 0,   -- in asynchronous copies that waited
    blocked_launch_ns        INTEGER NOT NULL DEFAULT 0,   -- in launches on a full launch queue
    blocked_alloc_ns         INTEGER NOT NULL DEFAULT 0,   -- in allocations and frees that synchronize
    flags                    INTEGER NOT NULL DEFAULT 0,   -- sync_interval_flags
    host_run_ns              INTEGER,
    host_runq_ns             INTEGER,
    host_throttled_ns        INTEGER,
    host_yielded_ns          INTEGER,
    host_sleep_ns            INTEGER,
    host_io_ns               INTEGER,
    host_uninterruptible_ns      INTEGER,
    host_stopped_ns          INTEGER,
    blocked_run_ns           INTEGER,
    blocked_runq_ns          INTEGER,
    blocked_throttled_ns     INTEGER,
    blocked_yielded_ns       INTEGER,
    blocked_sleep_ns         INTEGER,
    blocked_io_ns            INTEGER,
    blocked_uninterruptible_ns   INTEGER,
    blocked_stopped_ns       INTEGER
) STRICT;
CREATE INDEX raw_steps_end ON raw_steps(end_ns);

-- How far the GPU was, seen from the host: at time_ns the work enqueued on a stream was done up to a position.
CREATE TABLE raw_progress_marks (
    id       INTEGER PRIMARY KEY,
    session  INTEGER NOT NULL,
    process  INTEGER NOT NULL,
    device   INTEGER NOT NULL DEFAULT -1,  -- as raw_events.gpu_id
    stream   INTEGER NOT NULL DEFAULT 0,
    kind     INTEGER NOT NULL,             -- string: sync, copy, full_queue, event_query
    position INTEGER NOT NULL,             -- calls that enqueued something on the stream, counted from 1
    queued   INTEGER NOT NULL DEFAULT 0,   -- such calls by then; 0: not known
    blocked_ns INTEGER NOT NULL DEFAULT 0, -- in calls that waited for the stream since its mark before
    time_ns  INTEGER NOT NULL
) STRICT;
CREATE INDEX raw_progress_marks_time ON raw_progress_marks(time_ns);

-- What a GPU did, as a profiler measured it. Only imported recordings have rows.
CREATE TABLE raw_gpu_activities (
    id          INTEGER PRIMARY KEY,
    session     INTEGER NOT NULL,
    process     INTEGER NOT NULL,
    device      INTEGER NOT NULL DEFAULT -1,  -- as raw_events.gpu_id
    stream      INTEGER NOT NULL DEFAULT 0,
    start_ns    INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    kind        INTEGER NOT NULL,             -- string: kernel, memcpy, memset, sync
    function    INTEGER NOT NULL DEFAULT 0,   -- raw_kernels.function; 0: not a kernel
    bytes       INTEGER NOT NULL DEFAULT 0,
    direction   INTEGER NOT NULL DEFAULT 0,   -- string: host_to_gpu, gpu_to_host, gpu_to_gpu, host_to_host; of copies
    host_memory INTEGER NOT NULL DEFAULT 0,   -- string: pageable, pinned; of copies, where the profiler says so
    call_ns     INTEGER NOT NULL DEFAULT 0,   -- begin of the call that enqueued it; 0: not in the file
    communicator INTEGER NOT NULL DEFAULT 0   -- of a collective: raw_communicators.number; 0: not one, or not known
) STRICT;
CREATE INDEX raw_gpu_activities_time ON raw_gpu_activities(start_ns);

-- What a program or its framework marked as a range of time, as a profiler stored it. Only imported recordings have
-- rows.
CREATE TABLE raw_user_ranges (
    id          INTEGER PRIMARY KEY,
    session     INTEGER NOT NULL,
    process     INTEGER NOT NULL,
    tid         INTEGER NOT NULL DEFAULT 0,
    start_ns    INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    kind        INTEGER NOT NULL,             -- string: step, data_loading, range (record_function, NVTX, roctx),
                                              -- operator
    name        INTEGER NOT NULL DEFAULT 0    -- string
) STRICT;
CREATE INDEX raw_user_ranges_time ON raw_user_ranges(start_ns);

-- Exact sums of a process's calls, outermost only. Several rows may share a key: sum them.
CREATE TABLE raw_op_stats (
    id             INTEGER PRIMARY KEY,
    session        INTEGER NOT NULL,
    start_ns       INTEGER NOT NULL,
    period_s       REAL    NOT NULL DEFAULT 1,
    process        INTEGER NOT NULL,
    source         INTEGER NOT NULL,
    op             INTEGER NOT NULL,
    library        INTEGER NOT NULL DEFAULT 0, -- string: of the caller
    count          INTEGER NOT NULL,
    errors         INTEGER DEFAULT 0,
    nested         INTEGER DEFAULT 0,          -- inside another traced call, not in count
    untimed        INTEGER NOT NULL DEFAULT 0, -- of count, counted at entry only: not in sum_ns and the clocks
    recorded       INTEGER NOT NULL DEFAULT 0, -- of count, stored in raw_events
    sum_ns         INTEGER NOT NULL,
    max_ns         INTEGER NOT NULL DEFAULT 0,
    bytes          INTEGER NOT NULL DEFAULT 0,
    run_ns         INTEGER,
    runq_ns        INTEGER,
    throttled_ns   INTEGER,
    yielded_ns     INTEGER,
    sleep_ns       INTEGER,
    io_ns          INTEGER,
    uninterruptible_ns INTEGER,
    stopped_ns     INTEGER
) STRICT;
CREATE INDEX raw_op_stats_start ON raw_op_stats(start_ns);

-- Beside raw_op_stats, of copies with the host's memory: what a copy inside a GPU moves is in no row.
CREATE TABLE raw_copies (
    id                INTEGER PRIMARY KEY,
    session           INTEGER NOT NULL,
    start_ns          INTEGER NOT NULL,
    period_s          REAL    NOT NULL DEFAULT 1,
    process           INTEGER NOT NULL,
    source            INTEGER NOT NULL,
    op                INTEGER NOT NULL,
    host_to_gpu_bytes INTEGER NOT NULL DEFAULT 0,
    gpu_to_host_bytes INTEGER NOT NULL DEFAULT 0,
    blocked_ns        INTEGER NOT NULL DEFAULT 0 -- in asynchronous copies that waited, because their memory is pageable
) STRICT;
CREATE INDEX raw_copies_start ON raw_copies(start_ns);

-- Exact histogram of one call site. Several rows may share a key: sum them.
CREATE TABLE raw_call_sites (
    id        INTEGER PRIMARY KEY,
    session   INTEGER NOT NULL,
    start_ns  INTEGER NOT NULL,
    period_s  REAL    NOT NULL DEFAULT 60,
    process   INTEGER NOT NULL,
    source    INTEGER NOT NULL,
    op        INTEGER NOT NULL,
    caller    INTEGER NOT NULL DEFAULT 0,
    library   INTEGER NOT NULL DEFAULT 0,      -- string
    offset    INTEGER NOT NULL DEFAULT 0,      -- of caller in its library's file
    count     INTEGER NOT NULL,
    sum_ns    INTEGER NOT NULL,
    max_ns    INTEGER NOT NULL DEFAULT 0,
    bytes     INTEGER NOT NULL DEFAULT 0,
    histogram BLOB NOT NULL                    -- histograms.pack()
) STRICT;
CREATE INDEX raw_call_sites_start ON raw_call_sites(start_ns);

-- Memory for a GPU by what allocated it; a row where something changed, and each minute while something is live. live_*
-- are levels at the end of the row's period: the newest row holds until exit_ns of the process. Growth stands in the
-- other columns: sum it. Calls that were recorded have their stack, those that were not are together under 0.
CREATE TABLE raw_allocations (
    id              INTEGER PRIMARY KEY,
    session         INTEGER NOT NULL,
    start_ns        INTEGER NOT NULL,
    period_s        REAL    NOT NULL DEFAULT 1,
    process         INTEGER NOT NULL,
    source          INTEGER NOT NULL,
    op              INTEGER NOT NULL,
    caller          INTEGER NOT NULL DEFAULT 0,
    library         INTEGER NOT NULL DEFAULT 0, -- string
    offset          INTEGER NOT NULL DEFAULT 0, -- of caller in its library's file
    memory_kind     INTEGER NOT NULL,           -- memory_kinds.id
    stack_hash      INTEGER NOT NULL DEFAULT 0,
    live_bytes      INTEGER NOT NULL,
    live_count      INTEGER NOT NULL,
    peak_bytes      INTEGER NOT NULL,           -- the most live at a time since the program began or was first traced
    allocated_bytes INTEGER NOT NULL DEFAULT 0,
    freed_bytes     INTEGER NOT NULL DEFAULT 0, -- of what was allocated here, wherever it was freed
    allocations     INTEGER NOT NULL DEFAULT 0,
    frees           INTEGER NOT NULL DEFAULT 0,
    failures        INTEGER NOT NULL DEFAULT 0,
    failed_bytes    INTEGER NOT NULL DEFAULT 0, -- asked for, not received
    foreign_frees   INTEGER NOT NULL DEFAULT 0  -- frees by this caller of what was allocated unseen
) STRICT;
CREATE INDEX raw_allocations_start ON raw_allocations(start_ns);

-- The same per process: levels at the end of the period, a row where they changed, and each minute.
CREATE TABLE raw_memory_seconds (
    id          INTEGER PRIMARY KEY,
    session     INTEGER NOT NULL,
    start_ns    INTEGER NOT NULL,
    period_s    REAL    NOT NULL DEFAULT 1,
    process     INTEGER NOT NULL,
    memory_kind INTEGER NOT NULL,              -- memory_kinds.id
    live_bytes  INTEGER NOT NULL,
    live_count  INTEGER NOT NULL,
    peak_bytes  INTEGER NOT NULL,
    unpaired    INTEGER NOT NULL DEFAULT 0     -- allocations and frees that do not count: the levels are not exact
) STRICT;
CREATE INDEX raw_memory_seconds_start ON raw_memory_seconds(start_ns);

-- Exact sums of a process's launches. Several rows may share a key: sum them.
CREATE TABLE raw_kernel_launches (
    id         INTEGER PRIMARY KEY,
    session    INTEGER NOT NULL,
    start_ns   INTEGER NOT NULL,
    period_s   REAL    NOT NULL DEFAULT 1,
    process    INTEGER NOT NULL,
    function   INTEGER NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0,     -- raw_kernels.generation
    library    INTEGER NOT NULL DEFAULT 0,     -- string: of the caller
    count      INTEGER NOT NULL
) STRICT;
CREATE INDEX raw_kernel_launches_start ON raw_kernel_launches(start_ns);

-- What a launched function is. A handle is used again once its module is unloaded: `generation` counts its kernels, and
-- a launch belongs to the newest one that is not younger than itself. 0: a host stub, or a handle of which nothing is
-- known.
CREATE TABLE raw_kernels (
    process        INTEGER NOT NULL,
    function       INTEGER NOT NULL,           -- address of the host stub in that process, or handle
    generation     INTEGER NOT NULL DEFAULT 0,
    since_ns       INTEGER NOT NULL DEFAULT 0, -- 0: ever
    name           TEXT,                       -- demangled; NULL: not known
    short_name     TEXT,                       -- without template arguments and parameters
    library        TEXT NOT NULL DEFAULT '',   -- the file that holds the host stub
    source_of_name TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (process, function, generation)
) STRICT, WITHOUT ROWID;

-- What the threads of a process were doing, summed over them.
CREATE TABLE raw_thread_state_seconds (
    id             INTEGER PRIMARY KEY,
    session        INTEGER NOT NULL,
    start_ns       INTEGER NOT NULL,
    period_s       REAL    NOT NULL DEFAULT 1,
    process        INTEGER NOT NULL,
    threads        INTEGER NOT NULL DEFAULT 0,
    run_ns         INTEGER NOT NULL,
    runq_ns        INTEGER NOT NULL,
    throttled_ns   INTEGER NOT NULL,
    yielded_ns     INTEGER NOT NULL,
    sleep_ns       INTEGER NOT NULL,
    io_ns          INTEGER NOT NULL,
    uninterruptible_ns INTEGER NOT NULL,
    stopped_ns     INTEGER NOT NULL,
    switches       INTEGER NOT NULL DEFAULT 0,
    involuntary_switches INTEGER NOT NULL DEFAULT 0,
    major_faults   INTEGER                     -- pages read from disk because they were touched
) STRICT;
CREATE INDEX raw_thread_state_seconds_start ON raw_thread_state_seconds(start_ns);

-- Who ran while a process waited to run.
CREATE TABLE raw_culprits (
    id                INTEGER PRIMARY KEY,
    session           INTEGER NOT NULL,
    start_ns          INTEGER NOT NULL,
    period_s          REAL    NOT NULL DEFAULT 1,
    process           INTEGER NOT NULL,          -- the affected process
    kind              INTEGER NOT NULL,          -- thread_states.id: 2 runq, 4 yielded
    culprit_pid       INTEGER NOT NULL,          -- 0: idle CPU, -1: unknown
    culprit_name      INTEGER NOT NULL DEFAULT 0, -- string
    culprit_cgroup_id INTEGER NOT NULL DEFAULT 0,
    ns                INTEGER NOT NULL,
    switches          INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX raw_culprits_start ON raw_culprits(start_ns);

-- Who ended the sleeps of a process, and how long those were.
CREATE TABLE raw_wakers (
    id         INTEGER PRIMARY KEY,
    session    INTEGER NOT NULL,
    start_ns   INTEGER NOT NULL,
    period_s   REAL    NOT NULL DEFAULT 1,
    process    INTEGER NOT NULL,               -- the sleeper
    waker_kind INTEGER NOT NULL,               -- waker_kinds.id
    waker_pid  INTEGER NOT NULL DEFAULT 0,
    waker_tid  INTEGER NOT NULL DEFAULT 0,
    waker_name INTEGER NOT NULL DEFAULT 0,     -- string
    count      INTEGER NOT NULL,
    sleep_ns   INTEGER NOT NULL
) STRICT;
CREATE INDEX raw_wakers_start ON raw_wakers(start_ns);

CREATE TABLE raw_snapshots (
    id                  INTEGER PRIMARY KEY,
    session             INTEGER NOT NULL,
    time_ns             INTEGER NOT NULL,
    cpu_percent         REAL,
    mem_percent         REAL,
    mem_available_bytes INTEGER,
    swap_used_bytes     INTEGER,
    load_avg            REAL,                  -- 1 minute
    psi_cpu_some_ns     INTEGER,               -- stalled time since the last snapshot; NULL: no PSI
    psi_memory_some_ns  INTEGER,
    psi_memory_full_ns  INTEGER,
    psi_io_some_ns      INTEGER,
    psi_io_full_ns      INTEGER,
    agent_cpu_ns        INTEGER,               -- the recorder's own use since the last snapshot
    agent_rss_bytes     INTEGER
) STRICT;
CREATE INDEX raw_snapshots_time ON raw_snapshots(time_ns);

-- How each CPU spent the time since the row before.
CREATE TABLE raw_cpu_seconds (
    id         INTEGER PRIMARY KEY,
    session    INTEGER NOT NULL,
    time_ns    INTEGER NOT NULL,               -- the end of that time
    elapsed_ns INTEGER NOT NULL,
    tick_ns    INTEGER NOT NULL,
    cpus       TEXT NOT NULL                   -- JSON array of [cpu, busy, idle, iowait, irq, steal], times in ticks
) STRICT;
CREATE INDEX raw_cpu_seconds_time ON raw_cpu_seconds(time_ns);

-- What one GPU was doing; NULL where it or its driver does not say.
CREATE TABLE raw_gpu_samples (
    id                 INTEGER PRIMARY KEY,
    session            INTEGER NOT NULL,
    time_ns            INTEGER NOT NULL,
    uuid               TEXT NOT NULL,
    gpu_index          INTEGER NOT NULL,
    asked_ns           INTEGER NOT NULL DEFAULT 0, -- in the driver, by this program, for all GPUs' samples then
    gpu_percent        INTEGER,                -- of the last sample period with any kernel running
    memory_percent     INTEGER,                -- of that period with device memory read or written
    memory_used_bytes  INTEGER,
    memory_total_bytes INTEGER,
    sm_clock_mhz       INTEGER,
    max_sm_clock_mhz   INTEGER,
    throttle_reasons   INTEGER,                -- bits of throttle_reasons; 1: idle
    power_mw           INTEGER,
    temperature_c      INTEGER,
    pcie_generation    INTEGER,                -- of the link as it was then; an idle GPU lowers it
    pcie_lanes         INTEGER,
    processes          TEXT NOT NULL DEFAULT '[]' -- JSON array of [pid, memory in bytes, percent of the last
                                                  -- sample period with a kernel of it running, its name]
) STRICT;
CREATE INDEX raw_gpu_samples_time ON raw_gpu_samples(time_ns);

-- How the scheduler is set to treat a thread: when first seen, at each change, and every ten minutes.
CREATE TABLE raw_scheduling (
    id           INTEGER PRIMARY KEY,
    session      INTEGER NOT NULL,
    time_ns      INTEGER NOT NULL,
    process      INTEGER NOT NULL,             -- 0: seen only as somebody's culprit
    pid          INTEGER NOT NULL,
    tid          INTEGER NOT NULL,
    nice         INTEGER NOT NULL,
    policy       TEXT NOT NULL,                -- other, batch, idle, fifo, rr, deadline, ext
    rt_priority  INTEGER NOT NULL DEFAULT 0,   -- fifo and rr: 1 to 99
    cpus_allowed TEXT NOT NULL,                -- such as 0-3,8
    cpu_weight   INTEGER,                      -- of its group, 100 if nobody set it (v1: shares * 100 / 1024),
                                               -- NULL: none seen
    quota_us     INTEGER,                      -- the tightest from its group upwards; NULL: none
    period_us    INTEGER,
    io_limits    TEXT NOT NULL DEFAULT '[]'    -- JSON: [major:minor, limit as in io.max, path of the group that has it]
) STRICT;
CREATE INDEX raw_scheduling_tid ON raw_scheduling(tid, time_ns);
CREATE INDEX raw_scheduling_time ON raw_scheduling(time_ns);

CREATE TABLE raw_cgroup_throttling (
    id           INTEGER PRIMARY KEY,
    session      INTEGER NOT NULL,
    start_ns     INTEGER NOT NULL,
    period_s     REAL    NOT NULL DEFAULT 1,
    cgroup_id    INTEGER NOT NULL,
    nr_throttled INTEGER NOT NULL,
    throttled_ns INTEGER NOT NULL
) STRICT;
CREATE INDEX raw_cgroup_throttling_start ON raw_cgroup_throttling(start_ns);

CREATE TABLE raw_drops (
    id       INTEGER PRIMARY KEY,
    session  INTEGER NOT NULL,
    start_ns INTEGER NOT NULL,
    period_s REAL    NOT NULL DEFAULT 1,
    counter  TEXT NOT NULL,
    reason   TEXT NOT NULL DEFAULT '',
    count    INTEGER NOT NULL                  -- growth; nanoseconds where the counter's name ends in _ns
) STRICT;
CREATE INDEX raw_drops_start ON raw_drops(start_ns);

-- What --max-db has taken from the file so far.
CREATE TABLE raw_pruned (
    name         TEXT NOT NULL,                -- of the table
    kind         TEXT NOT NULL,                -- removed; folded: from seconds into minutes, every sum unchanged
    until_ns     INTEGER NOT NULL,
    rows         INTEGER NOT NULL,
    noted_ns     INTEGER NOT NULL,             -- the last time
    max_db_bytes INTEGER NOT NULL,
    seq_base     INTEGER NOT NULL DEFAULT 0,   -- of the sessions of that file, where files were merged
    PRIMARY KEY (seq_base, name, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE raw_in_flight (
    id       INTEGER PRIMARY KEY,
    session  INTEGER NOT NULL,
    time_ns  INTEGER NOT NULL,                 -- when it was seen to be open
    process  INTEGER NOT NULL,
    pid      INTEGER NOT NULL,
    tid      INTEGER NOT NULL,
    source   INTEGER NOT NULL,
    op       INTEGER NOT NULL,
    since_ns INTEGER NOT NULL,
    awake_ns INTEGER NOT NULL DEFAULT 0,       -- since it was first seen open: its thread ran, or could have run
    caller   INTEGER NOT NULL DEFAULT 0,
    handle   INTEGER NOT NULL DEFAULT 0,
    communicator INTEGER NOT NULL DEFAULT 0,   -- NCCL: raw_communicators.number, 0 = none
    sequence INTEGER NOT NULL DEFAULT 0,       -- NCCL: place in the communicator's sequence, 0 = unknown
    stack_hash INTEGER NOT NULL DEFAULT 0      -- read from its memory while it was blocked; 0 = none (yet)
) STRICT;
CREATE INDEX raw_in_flight_time ON raw_in_flight(time_ns);

-- A process that has made traced calls and makes none any more: a row for each thread that it waits for, at each look.
CREATE TABLE raw_halts (
    id        INTEGER PRIMARY KEY,
    session   INTEGER NOT NULL,
    time_ns   INTEGER NOT NULL,                -- of the look
    halted    INTEGER NOT NULL,                -- number of the process that makes no calls
    since_ns  INTEGER NOT NULL,                -- the end of the second that saw its last one
    depth     INTEGER NOT NULL,                -- 0: its own thread, 1: of a thread that could end that wait, and so on
    process   INTEGER NOT NULL DEFAULT 0,      -- of this thread; 0: not traced
    pid       INTEGER NOT NULL,
    tid       INTEGER NOT NULL,
    name      INTEGER NOT NULL DEFAULT 0,      -- string: of the process
    state     TEXT NOT NULL DEFAULT '',        -- the letter of /proc
    syscall   TEXT NOT NULL DEFAULT '',
    wchan     TEXT NOT NULL DEFAULT '',
    kind      TEXT NOT NULL DEFAULT '',        -- pipe-read, pipe-write, futex, shared-futex, file-lock, network-file,
                                               -- socket-read, socket-write, timer, child and others
    object    TEXT NOT NULL DEFAULT '',
    is_timed  INTEGER NOT NULL DEFAULT 0,      -- it ends by itself, to begin anew
    level     INTEGER NOT NULL,                -- 1: somebody named could end it, 2: nobody who could will,
                                               -- 3: it is stopped
    owners    TEXT NOT NULL DEFAULT '[]',      -- JSON array of [pid, name, state] of those who could
    shm_bytes INTEGER,                         -- size of /dev/shm as the halted process sees it; NULL: not known
    shm_free_bytes INTEGER
) STRICT;
CREATE INDEX raw_halts_time ON raw_halts(time_ns);

-- Where a thread was outside traced calls: on a CPU at a tick of its clock, or sleeping when it was sampled.
CREATE TABLE raw_stack_samples (
    id         INTEGER PRIMARY KEY,
    session    INTEGER NOT NULL,
    time_ns    INTEGER NOT NULL,
    process    INTEGER NOT NULL,
    pid        INTEGER NOT NULL,
    tid        INTEGER NOT NULL,
    comm       INTEGER NOT NULL DEFAULT 0,     -- string
    state      INTEGER NOT NULL,               -- thread_states.id
    weight_ns  INTEGER NOT NULL,               -- the time that it stands for; 0: sampled because another thread called
    is_collecting INTEGER NOT NULL DEFAULT 0,  -- it collected the garbage of its interpreter
    stack_hash INTEGER NOT NULL DEFAULT 0      -- 0: not known
) STRICT;
CREATE INDEX raw_stack_samples_time ON raw_stack_samples(time_ns);

CREATE TABLE raw_probes (
    session     INTEGER NOT NULL,
    library     TEXT NOT NULL,                 -- path of the copy
    symbol      TEXT NOT NULL,
    offset      INTEGER NOT NULL DEFAULT 0,
    build_id    TEXT NOT NULL DEFAULT '',
    source      INTEGER NOT NULL DEFAULT 0,
    op          INTEGER NOT NULL DEFAULT 0,
    is_attached INTEGER NOT NULL,
    reason      TEXT NOT NULL DEFAULT '',      -- why not
    PRIMARY KEY (session, library, symbol, offset)
) STRICT, WITHOUT ROWID;

-- What the overhead limiter found and did: a row at the start, and at each step.
CREATE TABLE raw_overhead_levels (
    id              INTEGER PRIMARY KEY,
    session         INTEGER NOT NULL,
    time_ns         INTEGER NOT NULL,
    level            INTEGER NOT NULL,          -- highest one in force; 0: everything is traced
    agent_level     INTEGER NOT NULL DEFAULT 0, -- of the limiter of the agent's own CPU time; 0: none
    not_traced      TEXT NOT NULL DEFAULT '',  -- what is not traced from now on: codes, comma separated
    reason          TEXT NOT NULL DEFAULT '',
    overhead_ratio  REAL NOT NULL DEFAULT 0,   -- of the wall time of the busiest traced thread, in the second before
    hits_per_s      REAL NOT NULL DEFAULT 0,   -- its probed entries
    tid             INTEGER NOT NULL DEFAULT 0,
    agent_cpu_ratio REAL NOT NULL DEFAULT 0,   -- of a core
    full_ns         REAL NOT NULL DEFAULT 0,   -- calibrated cost of a probed entry: accounted, in another call,
    nested_ns       REAL NOT NULL DEFAULT 0,   -- counted, passed over
    counted_ns      REAL NOT NULL DEFAULT 0,
    suspended_ns    REAL NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX raw_overhead_levels_time ON raw_overhead_levels(time_ns);

CREATE TABLE raw_cgroups (
    cgroup_id        INTEGER PRIMARY KEY,      -- the kernel's id plus the session's cgroup_base
    kernel_cgroup_id INTEGER NOT NULL,
    node             TEXT NOT NULL,
    container_id     TEXT NOT NULL DEFAULT '', -- empty: not a container
    cgroup_path      TEXT NOT NULL DEFAULT '',
    pod              TEXT NOT NULL DEFAULT '',
    namespace        TEXT NOT NULL DEFAULT '',
    orchestrator     TEXT NOT NULL DEFAULT '',
    pod_uid          TEXT NOT NULL DEFAULT '',
    runtime          TEXT NOT NULL DEFAULT '', -- what started the container
    slurm_job        TEXT NOT NULL DEFAULT '',
    scheduler        TEXT NOT NULL DEFAULT '', -- of the job that the group is of, as raw_processes has it
    job              TEXT NOT NULL DEFAULT '',
    job_step         TEXT NOT NULL DEFAULT '',
    owner            TEXT NOT NULL DEFAULT '', -- of a pod, as kubectl takes it: deployment/NAME; by the pod's name
    ecs_task         TEXT NOT NULL DEFAULT '',
    unit             TEXT NOT NULL DEFAULT ''  -- of systemd
) STRICT;

CREATE TABLE raw_gpus (
    session      INTEGER NOT NULL,
    uuid         TEXT NOT NULL,
    gpu_index    INTEGER NOT NULL,             -- in the order of PCI bus ids
    name         TEXT NOT NULL DEFAULT '',
    pci_bus_id   TEXT NOT NULL DEFAULT '',
    memory_bytes INTEGER NOT NULL DEFAULT 0,
    slices       INTEGER NOT NULL DEFAULT 0,   -- MIG devices that it is divided into
    PRIMARY KEY (session, uuid)
) STRICT, WITHOUT ROWID;

-- Which CPUs and GPUs a NUMA node has; no rows on a host with one node.
CREATE TABLE raw_numa_nodes (
    session   INTEGER NOT NULL,
    numa_node INTEGER NOT NULL,
    cpus      TEXT NOT NULL DEFAULT '',        -- such as 0-15,32-47
    gpus      TEXT NOT NULL DEFAULT '[]',      -- JSON array of uuids
    PRIMARY KEY (session, numa_node)
) STRICT, WITHOUT ROWID;

-- Which GPU a device ordinal of a process means, where that is proven: by the driver's list of processes, or because
-- the process can reach no other.
CREATE TABLE raw_process_gpus (
    process INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,                  -- -1: whichever it uses, the driver has seen it on this GPU only
    uuid    TEXT NOT NULL,                     -- empty: it was that, and is not any more
    slice   TEXT NOT NULL DEFAULT '',          -- GPU and compute instance of MIG; empty: none, or not known
    PRIMARY KEY (process, ordinal)
) STRICT, WITHOUT ROWID;

-- One rank's communicator. A NULL is not known: `note` says why.
CREATE TABLE raw_communicators (
    process      INTEGER NOT NULL,
    number       INTEGER NOT NULL,             -- in the recording; column function of a NCCL call holds
                                               -- number << 40 | sequence
    handle       INTEGER,
    comm_id_hash INTEGER,                      -- equal on all ranks, on every node
    rank         INTEGER,
    nranks       INTEGER,
    parent       INTEGER,                      -- number of the communicator it was split from
    origin       TEXT NOT NULL DEFAULT '',     -- the call that made it; empty: made before tracing began
    created_ns   INTEGER NOT NULL,             -- entry of that call, or when it was first seen
    destroyed_ns INTEGER NOT NULL DEFAULT 9223372036854775807,
    ended_by     TEXT NOT NULL DEFAULT '',     -- the call that ended it
    collectives  INTEGER NOT NULL DEFAULT 0,   -- entered so far, recorded or not; since created_ns
    last_ns      INTEGER NOT NULL DEFAULT 0,   -- entry of the latest of these, recorded or not; 0: none, or not known
    last_tid     INTEGER NOT NULL DEFAULT 0,
    last_op      INTEGER NOT NULL DEFAULT 0,
    last_bytes   INTEGER NOT NULL DEFAULT 0,
    last_arg2    INTEGER NOT NULL DEFAULT 0,   -- as of its call: datatype, reduction and root
    note         TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (process, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX raw_communicators_handle ON raw_communicators(process, handle);

CREATE TABLE raw_stacks (
    hash    INTEGER PRIMARY KEY,
    ips     TEXT NOT NULL DEFAULT '',          -- JSON array of hexadecimal addresses; '': not known
    frames  TEXT NOT NULL DEFAULT '',          -- JSON array of objects, innermost first
    note    TEXT NOT NULL DEFAULT '',          -- what of it is missing, and why
    process INTEGER NOT NULL DEFAULT 0,        -- 0: not recorded; a hash is of one process
    is_python_whole INTEGER NOT NULL DEFAULT 1 -- 0: Python frames may be missing, `note` says why
) STRICT;
CREATE INDEX raw_stacks_process ON raw_stacks(process);

CREATE TABLE raw_incidents (
    incident     INTEGER PRIMARY KEY,
    session      INTEGER NOT NULL,
    cause        TEXT NOT NULL,
    resource     TEXT NOT NULL DEFAULT '',
    root         TEXT NOT NULL DEFAULT '',
    severity     TEXT NOT NULL,
    start_ns     INTEGER NOT NULL,
    end_ns       INTEGER,                      -- NULL: open
    lost_ns      INTEGER NOT NULL DEFAULT 0,
    lost_ratio   REAL,
    explained_ratio REAL,
    peak         REAL,
    summary      TEXT NOT NULL DEFAULT '',
    kind         TEXT NOT NULL DEFAULT '',     -- incident, bottleneck, event
    affected      TEXT NOT NULL DEFAULT '[]',   -- JSON
    culprits     TEXT NOT NULL DEFAULT '[]',   -- JSON
    evidence     TEXT NOT NULL DEFAULT '{}',   -- JSON
    fixes        TEXT NOT NULL DEFAULT '[]',   -- JSON
    line         TEXT NOT NULL DEFAULT 'null', -- JSON: file, line, function
    chain        TEXT NOT NULL DEFAULT '[]',   -- JSON
    breakdown      TEXT NOT NULL DEFAULT '{}'    -- JSON: lost ns by part.state
) STRICT;

CREATE TABLE raw_causal_chains (
    chain           TEXT PRIMARY KEY,
    session         INTEGER NOT NULL,
    incident        INTEGER,
    detected_ns     INTEGER NOT NULL,
    severity        TEXT NOT NULL,
    summary         TEXT NOT NULL,
    root_cause      TEXT NOT NULL,
    explanation     TEXT NOT NULL,
    recommendations TEXT NOT NULL DEFAULT '[]', -- JSON
    cuda_op         TEXT NOT NULL DEFAULT '',
    cuda_p99_us     INTEGER,
    cuda_p50_us     INTEGER,
    tail_ratio      REAL,
    timeline        TEXT NOT NULL DEFAULT '[]'  -- JSON
) STRICT, WITHOUT ROWID;

-- Vocabulary, written once when the database is made (vocabulary.py).
CREATE TABLE sources (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    description TEXT NOT NULL
) STRICT;

CREATE TABLE ops (
    source_id   INTEGER NOT NULL,
    op_id       INTEGER NOT NULL,
    name        TEXT NOT NULL,
    description TEXT NOT NULL,
    arg0        TEXT NOT NULL DEFAULT '',
    arg1        TEXT NOT NULL DEFAULT '',
    arg2        TEXT NOT NULL DEFAULT '',
    aliases     TEXT NOT NULL DEFAULT '',      -- names that older versions used, comma separated
    kind        TEXT NOT NULL DEFAULT '',      -- launch, copy, collective, wait (for the GPU), comma separated
    PRIMARY KEY (source_id, op_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE nccl_datatypes (id INTEGER PRIMARY KEY, name TEXT NOT NULL, bytes INTEGER NOT NULL) STRICT;
CREATE TABLE nccl_reduce_ops (id INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
CREATE TABLE thread_states (id INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
CREATE TABLE waker_kinds (id INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
CREATE TABLE memory_kinds (id INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
CREATE TABLE call_flags (bit INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
CREATE TABLE host_flags (bit INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
CREATE TABLE throttle_reasons (bit INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
CREATE TABLE sync_interval_flags (bit INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
