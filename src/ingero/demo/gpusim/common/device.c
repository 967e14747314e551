// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "device.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "knobs.h"
#include "shared_file.h"

#define BIN_NS 10000000ll		/* busy time is kept per 10 ms ... */
#define BINS 1024			/* ... for 10 s around now */
#define BIN_BUSY_BITS 24		/* 10 ms in ns need 24 bits, the bin's number has the rest */
#define BIN_BUSY_MASK ((1ull << BIN_BUSY_BITS) - 1)
#define REAP_INTERVAL_NS 100000000ll	/* looking for dead processes costs a system call per slot */

struct bins {
	_Atomic uint64_t of[BINS];
};

struct process {
	_Atomic int pid;		/* 0: the slot is free */
	_Atomic uint64_t memory_bytes;
	_Atomic int64_t busy_until_ns[ENGINES];
	_Atomic int64_t debt_ns[ENGINES];	/* time that others took out of work already handed over */
	struct bins computed;		/* its own slices of the compute engine */
};

struct device {
	struct process processes[GPUSIM_MAX_PROCESSES];
	struct bins busy[ENGINES];
};

static struct device *devices;
static int devices_fd = -1;
static struct process *own[GPUSIM_MAX_DEVICES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void leave_to_parent(void)
{
	/* The lock that proves a slot's owner alive belongs to the open file: a child must not keep it. */
	if (devices_fd >= 0)
		close(devices_fd);
	devices_fd = -1;
	memset(own, 0, sizeof(own));
	once = (pthread_once_t)PTHREAD_ONCE_INIT;
}

static void open_devices(void)
{
	static bool fork_handled;
	char path[PATH_MAX], derived[PATH_MAX + 8];
	const char *file = gpusim_env_path("GPUSIM_DEVICE_SHM", path, sizeof(path));

	if (!file && gpusim_env_path("GPUSIM_CTL", path, sizeof(path))) {
		snprintf(derived, sizeof(derived), "%s.device", path);
		file = derived;
	}
	devices = gpusim_map_file(file, GPUSIM_MAX_DEVICES * sizeof(*devices), NULL, &devices_fd);
	if (!devices)
		abort();
	if (!fork_handled)
		pthread_atfork(NULL, NULL, leave_to_parent);
	fork_handled = true;
}

static struct device *get(int device)
{
	pthread_once(&once, open_devices);
	return &devices[device];
}

int gpusim_device_count(void)
{
	const char *text = getenv("GPUSIM_DEVICES");
	int count = text ? atoi(text) : 1;

	return count < 1 ? 1 : count > GPUSIM_MAX_DEVICES ? GPUSIM_MAX_DEVICES : count;
}

/*
 * A slot's owner holds a lock on one byte of the file, which the kernel drops
 * when the owner dies, however it dies and in whatever PID namespace.
 */
static struct flock slot_lock(int device, int slot)
{
	return (struct flock){
		.l_type = F_WRLCK, .l_whence = SEEK_SET,
		.l_start = device * GPUSIM_MAX_PROCESSES + slot, .l_len = 1,
	};
}

static void clear(struct process *process)
{
	for (int i = 0; i < ENGINES; i++) {
		process->busy_until_ns[i] = 0;
		process->debt_ns[i] = 0;
	}
	memset(&process->computed, 0, sizeof(process->computed));
	process->memory_bytes = 0;
	process->pid = 0;
}

static void reap(int device)
{
	struct device *d = get(device);

	for (int i = 0; i < GPUSIM_MAX_PROCESSES; i++) {
		struct flock lock = slot_lock(device, i);

		if (!d->processes[i].pid || &d->processes[i] == own[device])
			continue;
		if (!fcntl(devices_fd, F_OFD_GETLK, &lock) && lock.l_type == F_UNLCK)
			clear(&d->processes[i]);
	}
}

bool gpusim_device_attach(int device)
{
	struct device *d = get(device);

	if (own[device])
		return true;
	for (int i = 0; i < GPUSIM_MAX_PROCESSES; i++) {
		struct flock lock = slot_lock(device, i);

		if (fcntl(devices_fd, F_OFD_SETLK, &lock))
			continue;
		clear(&d->processes[i]);
		d->processes[i].pid = getpid();
		own[device] = &d->processes[i];
		return true;
	}
	return false;
}

void gpusim_device_detach(void)
{
	for (int i = 0; i < GPUSIM_MAX_DEVICES; i++) {
		if (own[i])
			clear(own[i]);
		own[i] = NULL;
	}
}

static void mark(struct bins *bins, int64_t start_ns, int64_t end_ns)
{
	int64_t horizon = now_ns() + (BINS - 200) * BIN_NS;	/* keeps the last two seconds readable */

	if (end_ns > horizon)
		end_ns = horizon;
	while (start_ns < end_ns) {
		uint64_t number = start_ns / BIN_NS;
		int64_t next = (int64_t)(number + 1) * BIN_NS;
		uint64_t part = (next < end_ns ? next : end_ns) - start_ns;
		_Atomic uint64_t *bin = &bins->of[number % BINS];
		uint64_t seen = *bin, busy;

		do {
			busy = seen >> BIN_BUSY_BITS == number ? (seen & BIN_BUSY_MASK) + part : part;
			if (busy > BIN_NS)
				busy = BIN_NS;
		} while (!atomic_compare_exchange_weak(bin, &seen, number << BIN_BUSY_BITS | busy));
		start_ns = next;
	}
}

void gpusim_device_mark_busy(int device, enum gpusim_engine engine, int64_t start_ns, int64_t end_ns)
{
	mark(&get(device)->busy[engine], start_ns, end_ns);
}

static double ratio_of(struct bins *bins, int64_t window_ns)
{
	uint64_t last = now_ns() / BIN_NS, count = window_ns / BIN_NS, busy = 0;

	for (uint64_t number = last - count; number < last; number++) {
		uint64_t seen = bins->of[number % BINS];

		if (seen >> BIN_BUSY_BITS == number)
			busy += seen & BIN_BUSY_MASK;
	}
	return count ? (double)busy / (count * BIN_NS) : 0;
}

double gpusim_device_busy_ratio(int device, enum gpusim_engine engine, int64_t window_ns)
{
	return ratio_of(&get(device)->busy[engine], window_ns);
}

/* Processes other than this one with work on @engine after @t; @until: when the first of them is done. */
static int busy_others(struct device *d, struct process *me, int engine, int64_t t, int64_t *until)
{
	int count = 0;

	*until = INT64_MAX;
	for (int i = 0; i < GPUSIM_MAX_PROCESSES; i++) {
		int64_t end = d->processes[i].busy_until_ns[engine];

		if (&d->processes[i] == me || end <= t)
			continue;
		count++;
		if (end < *until)
			*until = end;
	}
	return count;
}

/*
 * Others were promised 1/@others of the engine each and now get 1/(@others+1):
 * what they lose together is what we get, so the device does no work twice.
 */
static void charge_others(struct device *d, struct process *me, int engine, int64_t t, int64_t span, int others)
{
	for (int i = 0; i < GPUSIM_MAX_PROCESSES; i++)
		if (&d->processes[i] != me && d->processes[i].busy_until_ns[engine] > t)
			d->processes[i].debt_ns[engine] += span / others / (others + 1);
}

static bool reap_sometimes(int device)
{
	static _Atomic int64_t last;
	int64_t now = now_ns();

	if (now - last < REAP_INTERVAL_NS)
		return false;
	last = now;
	reap(device);
	return true;
}

int64_t gpusim_device_run(int device, enum gpusim_engine engine, int64_t start_ns, int64_t work_ns)
{
	struct device *d = get(device);
	struct process *me = own[device];
	int64_t t = start_ns, claimed, until;

	if (!me)
		return start_ns + work_ns;
	claimed = me->busy_until_ns[engine];
	work_ns += atomic_exchange(&me->debt_ns[engine], 0);
	for (;;) {
		int others = busy_others(d, me, engine, t, &until);
		bool finishes = !others || work_ns <= (until - t) / (others + 1);
		int64_t span = finishes ? work_ns * (others + 1) : until - t;
		int64_t unclaimed = t + span - (claimed > t ? claimed : t);

		if (others && reap_sometimes(device))
			continue;	/* some of them may have been dead */
		if (others && unclaimed > 0)
			charge_others(d, me, engine, t, unclaimed, others);
		if (engine == ENGINE_COMPUTE && unclaimed > 0)
			mark(&me->computed, t + span - unclaimed, t + span - unclaimed + unclaimed / (others + 1));
		t += span;
		if (finishes)
			break;
		work_ns -= span / (others + 1);
	}
	gpusim_device_mark_busy(device, engine, start_ns > claimed ? start_ns : claimed, t);
	if (t > claimed)
		me->busy_until_ns[engine] = t;
	return t;
}

uint64_t gpusim_device_memory_used(int device)
{
	struct device *d = get(device);
	uint64_t used = 0;

	for (int i = 0; i < GPUSIM_MAX_PROCESSES; i++)
		used += d->processes[i].memory_bytes;
	return used;
}

bool gpusim_device_take_memory(int device, size_t bytes)
{
	uint64_t limit = gpusim_knobs(device)->mem_limit_bytes;

	if (!own[device])
		return false;
	own[device]->memory_bytes += bytes;
	if (gpusim_device_memory_used(device) > limit) {
		reap(device);
		if (gpusim_device_memory_used(device) > limit) {
			own[device]->memory_bytes -= bytes;
			return false;
		}
	}
	return true;
}

void gpusim_device_give_memory(int device, size_t bytes)
{
	if (own[device])
		own[device]->memory_bytes -= bytes;
}

int gpusim_device_shares(int device, int64_t window_ns, int capacity, int *pids, double *ratios)
{
	struct device *d = get(device);
	int count = 0;

	reap(device);
	for (int i = 0; i < GPUSIM_MAX_PROCESSES && count < capacity; i++) {
		double ratio = ratio_of(&d->processes[i].computed, window_ns);

		if (!d->processes[i].pid || ratio == 0)
			continue;
		pids[count] = d->processes[i].pid;
		ratios[count++] = ratio;
	}
	return count;
}

int gpusim_device_processes(int device, int capacity, int *pids, uint64_t *memory_bytes)
{
	struct device *d = get(device);
	int count = 0;

	reap(device);
	for (int i = 0; i < GPUSIM_MAX_PROCESSES && count < capacity; i++) {
		if (!d->processes[i].pid)
			continue;
		pids[count] = d->processes[i].pid;
		memory_bytes[count++] = d->processes[i].memory_bytes;
	}
	return count;
}
