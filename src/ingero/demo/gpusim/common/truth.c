// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "truth.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "shared_file.h"

extern struct gpusim_entry __start_gpusim_entries[] __attribute__((visibility("hidden")));
extern struct gpusim_entry __stop_gpusim_entries[] __attribute__((visibility("hidden")));

static bool is_stale;			/* the process forked and writes a file per process */
static struct gpusim_truth_file *file;
static const char *own_layer;
static int64_t left_out_ns;		/* of each call: what lies before the first reading of its clock and after the last */

/* gettid() is of glibc 2.30, which is newer than what ingero-gpusim runs with. */
static pid_t thread_id(void)
{
	return syscall(SYS_gettid);
}

/* The table is append-only and equal libraries append in equal order, so the first guess is mostly right. */
static struct gpusim_truth_function *find(struct gpusim_truth_file *f, const char *name, uint64_t *guess)
{
	for (uint64_t n = 0; n < f->header.functions; n++) {
		uint64_t i = (*guess + n) % f->header.functions;

		if (!strcmp(f->function[i].name, name) && !strcmp(f->function[i].layer, own_layer)) {
			*guess = i + 1;
			return &f->function[i];
		}
	}
	if (f->header.functions == GPUSIM_TRUTH_FUNCTIONS)
		return NULL;
	*guess = f->header.functions + 1;
	snprintf(f->function[f->header.functions].name, sizeof(f->function->name), "%s", name);
	snprintf(f->function[f->header.functions].layer, sizeof(f->function->layer), "%s", own_layer);
	return &f->function[f->header.functions++];
}

static void register_entries(void *memory)
{
	struct gpusim_truth_file *f = memory;
	uint64_t guess = 0;

	f->header.magic = GPUSIM_TRUTH_MAGIC;
	for (struct gpusim_entry *e = __start_gpusim_entries; e < __stop_gpusim_entries; e++) {
		e->truth = find(f, e->name, &guess);
		e->number = e->truth ? e->truth - f->function : 0;
	}
}

static void open_file(void)
{
	char path[PATH_MAX];

	if (gpusim_env_path("GPUSIM_TRACE", path, sizeof(path)))
		file = gpusim_map_file(path, sizeof(*file), register_entries, NULL);
}

static void mark_stale(void)
{
	const char *pattern = getenv("GPUSIM_TRACE");

	is_stale = pattern && strstr(pattern, "%p");
}

static void reopen(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&lock);
	if (is_stale)
		open_file();
	is_stale = false;
	pthread_mutex_unlock(&lock);
}

static void add(uint64_t *counter, uint64_t amount)
{
	__atomic_fetch_add(counter, amount, __ATOMIC_RELAXED);
}

struct gpusim_call gpusim_enter(const struct gpusim_entry *entry)
{
	/* first: a runtime's first call finds its thread in a driver that is yet to be loaded */
	struct gpusim_call call = { .enter_ns = entry->truth ? now_ns() : 0 };

	call.thread = gpusim_thread();
	if (__builtin_expect(is_stale, 0))
		reopen();
	if (call.thread->depth++ == 0) {
		call.thread->enter_ns = call.enter_ns;
		call.thread->outer = entry;
	}
	if (entry->truth)
		add(call.thread->depth > 1 ? &entry->truth->nested_entered : &entry->truth->outer_entered, 1);
	return call;
}

static void count_return(struct gpusim_truth_function *truth, bool nested, int error)
{
	if (error && error != ERROR_NOT_READY)
		add(&truth->errors, 1);
	add(nested ? &truth->nested_returned : &truth->outer_returned, 1);
}

static void count_time(struct gpusim_truth_function *truth, bool nested, uint64_t ns)
{
	add(nested ? &truth->nested_ns : &truth->outer_ns, ns);
	if (!nested && ns > __atomic_load_n(&truth->outer_max_ns, __ATOMIC_RELAXED))
		__atomic_store_n(&truth->outer_max_ns, ns, __ATOMIC_RELAXED);
}

/* Half of each reading of the clock lies outside of what it measures, and so does the counting. */
static int64_t measure_left_out(void)
{
	int64_t least = INT64_MAX;

	for (int turn = 0; turn < 5; turn++) { /* an interrupt only ever adds */
		struct gpusim_truth_function one = { 0 };
		int64_t begin = now_ns(), left_out;

		for (int i = 0; i < 200; i++) {
			int64_t enter = now_ns();

			count_time(&one, false, now_ns() - enter);
		}
		left_out = (now_ns() - begin - (int64_t)one.outer_ns) / 200;
		least = left_out < least ? left_out : least;
	}
	return least;
}

void gpusim_truth_open(const char *layer)
{
	own_layer = layer;
	left_out_ns = measure_left_out();
	open_file();
	pthread_atfork(NULL, NULL, mark_stale);
}

static void complete(struct gpusim_thread *thread, int64_t now)
{
	while (thread->pending)
		__atomic_store_n(thread->return_ns[--thread->pending], now, __ATOMIC_RELEASE);
}

void gpusim_truth_go_on(void)
{
	struct gpusim_thread *thread = gpusim_thread();

	thread->enter_ns = now_ns();
	complete(thread, thread->enter_ns);
}

int gpusim_leave(const struct gpusim_entry *entry, struct gpusim_call call, int error)
{
	int64_t now;

	call.thread->depth--;
	if (!entry->truth)
		return error;
	count_return(entry->truth, call.thread->depth > 0, error);
	now = now_ns(); /* late: what is counted after it lies outside of the truth, but inside of the call */
	if (!call.thread->depth)
		complete(call.thread, now);
	count_time(entry->truth, call.thread->depth > 0, now - call.enter_ns + left_out_ns);
	return error;
}

/* The outermost call's return completes the record: the wait itself ends a little earlier. */
static void complete_at_return(struct gpusim_thread *thread, int64_t *return_ns)
{
	if (thread->depth && thread->pending < GPUSIM_PENDING)
		thread->return_ns[thread->pending++] = return_ns;
	else
		*return_ns = now_ns();
}

static uint32_t outer_function(const struct gpusim_thread *thread)
{
	return thread->outer ? thread->outer->number : 0;
}

void gpusim_truth_sync(int device, uint64_t stream, int64_t device_end_ns)
{
	struct gpusim_thread *thread = gpusim_thread();
	struct gpusim_truth_sync *record;
	uint64_t n;

	if (!file)
		return;
	n = __atomic_fetch_add(&file->header.syncs, 1, __ATOMIC_RELAXED);
	record = &file->sync[n % GPUSIM_TRUTH_SYNCS];
	*record = (struct gpusim_truth_sync){
		.stream = stream, .pid = getpid(), .tid = thread_id(), .device = device,
		.function = outer_function(thread), .enter_ns = thread->enter_ns,
		.device_end_ns = device_end_ns,
	};
	__atomic_store_n(&record->sequence, n + 1, __ATOMIC_RELEASE);
	complete_at_return(thread, &record->return_ns);
}

void gpusim_truth_drain(int device, uint64_t stream, uint64_t enqueues, int64_t first_enqueue_ns,
			int64_t device_end_ns)
{
	struct gpusim_thread *thread = gpusim_thread();
	struct gpusim_truth_drain *record;
	uint64_t n;

	if (!file)
		return;
	n = __atomic_fetch_add(&file->header.drains, 1, __ATOMIC_RELAXED);
	record = &file->drain[n % GPUSIM_TRUTH_DRAINS];
	*record = (struct gpusim_truth_drain){
		.stream = stream, .pid = getpid(), .tid = thread_id(), .device = device,
		.function = outer_function(thread), .enqueues = enqueues,
		.first_enqueue_ns = first_enqueue_ns, .enter_ns = thread->enter_ns,
		.device_end_ns = device_end_ns,
	};
	__atomic_store_n(&record->sequence, n + 1, __ATOMIC_RELEASE);
	complete_at_return(thread, &record->return_ns);
}

void gpusim_truth_collective(struct gpusim_truth_collective what)
{
	struct gpusim_thread *thread = gpusim_thread();
	struct gpusim_truth_collective *record;
	uint64_t n;

	if (!file)
		return;
	n = __atomic_fetch_add(&file->header.collectives, 1, __ATOMIC_RELAXED);
	record = &file->collective[n % GPUSIM_TRUTH_COLLECTIVES];
	what.sequence = 0;
	what.pid = getpid();
	what.tid = thread_id();
	what.function = outer_function(thread);
	what.enter_ns = thread->enter_ns;
	what.return_ns = now_ns();
	*record = what;
	__atomic_store_n(&record->sequence, n + 1, __ATOMIC_RELEASE);
}

/* Names are never removed. Of more than fit, the last are not counted. */
static uint64_t find_kernel(const char *name)
{
	uint64_t i;

	while (__atomic_exchange_n(&file->kernels_lock, 1, __ATOMIC_ACQUIRE))
		sched_yield();
	for (i = 0; i < file->kernels; i++)
		if (!strncmp(file->kernel[i].name, name, sizeof(file->kernel->name) - 1))
			break;
	if (i == file->kernels && i < GPUSIM_TRUTH_KERNELS) {
		snprintf(file->kernel[i].name, sizeof(file->kernel->name), "%s", name);
		file->kernels++;
	}
	__atomic_store_n(&file->kernels_lock, 0, __ATOMIC_RELEASE);
	return i;
}

void gpusim_truth_launch(const char *name, uint64_t *place)
{
	if (!file)
		return;
	if (*place >= GPUSIM_TRUTH_KERNELS ||
	    strncmp(file->kernel[*place].name, name, sizeof(file->kernel->name) - 1))
		*place = find_kernel(name);
	if (*place < GPUSIM_TRUTH_KERNELS)
		add(&file->kernel[*place].launches, 1);
}
