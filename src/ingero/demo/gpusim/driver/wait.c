// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "wait.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "api.h"
#include "clock.h"
#include "error.h"
#include "knobs.h"

#define KNOB_POLL_MS 100		/* a sleeper looks at the knobs this often */
#define HANG_POLL_MS 10

/* What a thread sleeps on: the device's time, and news from other ranks. */
struct sleeper {
	int timer;
	int news;
	struct sleeper *next;
};

static pthread_mutex_t sleepers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sleeper *sleepers;
static pthread_key_t sleeper_key;

static void forget_sleeper(void *memory)
{
	struct sleeper *sleeper = memory, **link = &sleepers;

	pthread_mutex_lock(&sleepers_lock);
	while (*link != sleeper)
		link = &(*link)->next;
	*link = sleeper->next;
	pthread_mutex_unlock(&sleepers_lock);
	close(sleeper->timer);
	close(sleeper->news);
	free(sleeper);
}

static void make_key(void)
{
	pthread_key_create(&sleeper_key, forget_sleeper);
}

static struct sleeper *own_sleeper(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct sleeper *sleeper;

	pthread_once(&once, make_key);
	sleeper = pthread_getspecific(sleeper_key);
	if (sleeper)
		return sleeper;
	sleeper = calloc(1, sizeof(*sleeper));
	if (!sleeper)
		abort();
	sleeper->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	sleeper->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_setspecific(sleeper_key, sleeper);
	pthread_mutex_lock(&sleepers_lock);
	sleeper->next = sleepers;
	sleepers = sleeper;
	pthread_mutex_unlock(&sleepers_lock);
	return sleeper;
}

void wait_wake_all(void)
{
	pthread_mutex_lock(&sleepers_lock);
	for (struct sleeper *sleeper = sleepers; sleeper; sleeper = sleeper->next)
		eventfd_write(sleeper->news, 1);
	pthread_mutex_unlock(&sleepers_lock);
}

/* @until_ns 0: not known yet. */
static void sleep_until(int64_t until_ns, bool hung)
{
	struct sleeper *sleeper = own_sleeper();
	struct itimerspec when = { .it_value = { until_ns / NS_PER_SEC, until_ns % NS_PER_SEC } };
	struct pollfd files[2] = {
		{ .fd = sleeper->timer, .events = POLLIN }, { .fd = sleeper->news, .events = POLLIN },
	};
	eventfd_t ignored;

	if (hung)
		when.it_value = (struct timespec){ 0 };
	timerfd_settime(sleeper->timer, TFD_TIMER_ABSTIME, &when, NULL);
	poll(files, 2, hung ? HANG_POLL_MS : KNOB_POLL_MS);
	if (files[1].revents)
		eventfd_read(sleeper->news, &ignored);
}

static enum wait_mode context_mode(struct context *context)
{
	uint64_t knob = gpusim_knobs(context->device)->sched;
	const char *name = getenv("GPUSIM_SCHED");

	if (knob)
		return knob;
	if (context->flags & (WAIT_SPIN | WAIT_YIELD | WAIT_BLOCK))
		return context->flags & (WAIT_SPIN | WAIT_YIELD | WAIT_BLOCK);
	if (name && !strcmp(name, "yield"))
		return WAIT_YIELD;
	if (name && !strcmp(name, "block"))
		return WAIT_BLOCK;
	return WAIT_SPIN;
}

static void pause_once(enum wait_mode mode, int64_t until_ns, bool hung)
{
	if (mode == WAIT_BLOCK) {
		sleep_until(until_ns, hung);
	} else if (mode == WAIT_YIELD) {
		sched_yield();
	} else {
		for (int i = 0; i < 16; i++)
			relax();
	}
}

/* Wait until reached(@what) is known and past; @end_ns receives when the device was done. */
static int wait_until(struct context *context, enum wait_mode mode, int64_t (*reached)(void *), void *what,
		      int64_t *end_ns)
{
	const volatile struct gpusim_knobs *knobs = gpusim_knobs(context->device);
	int64_t until = 0, hung_ns = 0;

	for (;;) {
		int64_t now = now_ns();
		bool hung = knobs->hang;

		if (knobs->xid) {
			*end_ns = now;
			return knobs->xid;
		}
		if (!until)
			until = reached(what);
		if (until && until <= context_now_ns(context)) {
			*end_ns = until > hung_ns ? until : hung_ns;
			return SUCCESS;
		}
		if (hung)
			hung_ns = now;
		pause_once(mode, until, hung);
	}
}

struct position {
	struct stream *stream;
	uint64_t number;
	uint64_t begun;
	bool was_quiet;			/* no other thread was in the middle of an enqueue */
};

static int64_t position_reached(void *what)
{
	struct position *position = what;
	int64_t ns;

	pthread_mutex_lock(&queue_lock);
	ns = stream_reached(position->stream, position->number);
	pthread_mutex_unlock(&queue_lock);
	return ns;
}

static int64_t moment_reached(void *what)
{
	struct moment *moment = what;

	if (!moment->ns) {
		pthread_mutex_lock(&queue_lock);
		if (!moment->ns)
			stream_resolve(moment->stream);
		pthread_mutex_unlock(&queue_lock);
	}
	return moment->ns;
}

/* With queue_lock held; takes a reference. */
static struct position position_now(struct stream *stream)
{
	stream->references++;
	return (struct position){
		.stream = stream, .number = stream->enqueued,
		.begun = stream->begun, .was_quiet = !stream->enqueuing,
	};
}

/* If nothing was enqueued meanwhile, the stream is empty and a sync interval ends. */
static void record_drain(struct position *position, int64_t end_ns)
{
	struct stream *stream = position->stream;
	uint64_t enqueues = position->begun - stream->begun_at_drain;
	int64_t first, none = 0;

	if (!position->was_quiet || stream->begun != position->begun || !enqueues)
		return;
	first = atomic_exchange(&stream->first_enqueue_ns, 0);
	stream->begun_at_drain = position->begun;
	if (stream->begun != position->begun)	/* one began in between: it opens the next sync interval */
		atomic_compare_exchange_strong(&stream->first_enqueue_ns, &none, now_ns());
	gpusim_truth_drain(stream->context->device, (uintptr_t)stream->handle, enqueues, first, end_ns);
}

static void position_release(struct position *position)
{
	pthread_mutex_lock(&queue_lock);
	stream_release(position->stream);
	pthread_mutex_unlock(&queue_lock);
}

static int wait_in_mode(struct stream *stream, enum wait_mode mode, int64_t *end_ns)
{
	struct position position;
	int error;

	if (stream->capture)
		return ERROR_STREAM_CAPTURE_UNSUPPORTED;
	pthread_mutex_lock(&queue_lock);
	position = position_now(stream);
	pthread_mutex_unlock(&queue_lock);
	error = wait_until(stream->context, mode, position_reached, &position, end_ns);
	gpusim_truth_sync(stream->context->device, (uintptr_t)stream->handle, *end_ns);
	if (!error)
		record_drain(&position, *end_ns);
	position_release(&position);
	return error;
}

int wait_for_stream(struct stream *stream, int64_t *end_ns)
{
	return wait_in_mode(stream, context_mode(stream->context), end_ns);
}

int wait_until_past(struct moment *moment)
{
	struct context *context = moment->stream->context;
	int64_t end_ns;

	return wait_until(context, context_mode(context), moment_reached, moment, &end_ns);
}

int wait_for_bytes(struct stream *stream, struct moment *before, int64_t *end_ns)
{
	int error = wait_until_past(before);

	return error ? error : wait_in_mode(stream, WAIT_SPIN, end_ns);
}

static int all_positions(struct context *context, struct position **positions)
{
	int count = 1;

	pthread_mutex_lock(&queue_lock);
	for (struct stream *stream = context->streams; stream; stream = stream->next)
		count++;
	*positions = calloc(count, sizeof(**positions));
	if (!*positions)
		abort();
	(*positions)[0] = position_now(&context->legacy);
	count = 1;
	for (struct stream *stream = context->streams; stream; stream = stream->next)
		(*positions)[count++] = position_now(stream);
	pthread_mutex_unlock(&queue_lock);
	return count;
}

int wait_for_context(struct context *context, bool is_drain)
{
	struct position *positions;
	int count = all_positions(context, &positions);
	int64_t last_ns = 0;
	int error = 0;

	for (int i = 0; i < count; i++) {
		int64_t end_ns = 0;

		if (!error)
			error = wait_until(context, context_mode(context), position_reached, &positions[i], &end_ns);
		if (!error && is_drain)
			record_drain(&positions[i], end_ns);
		if (end_ns > last_ns)
			last_ns = end_ns;
		position_release(&positions[i]);
	}
	free(positions);
	gpusim_truth_sync(context->device, 0, last_ns);
	return error;
}

int wait_for_moment(struct moment *moment, uint64_t begun, bool block)
{
	struct stream *stream = moment->stream;
	struct context *context = stream->context;
	struct position position = { .stream = stream, .begun = begun, .was_quiet = !stream->enqueuing };
	enum wait_mode mode = block ? WAIT_BLOCK : context_mode(context);
	int64_t end_ns;
	int error = wait_until(context, mode, moment_reached, moment, &end_ns);

	gpusim_truth_sync(context->device, (uintptr_t)stream->handle, end_ns);
	if (!error)
		record_drain(&position, end_ns);
	return error;
}

int wait_for_room(struct context *context)
{
	/* The driver does not sleep here: a full queue is a short wait. */
	pause_once(context_mode(context) == WAIT_SPIN ? WAIT_SPIN : WAIT_YIELD, 0, false);
	return gpusim_knobs(context->device)->xid;
}
