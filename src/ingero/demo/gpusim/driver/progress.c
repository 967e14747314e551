// SPDX-License-Identifier: Apache-2.0
/* The only thread of a device: it looks whether other ranks have come, while work waits for them. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>

#include "clock.h"
#include "knobs.h"
#include "queue.h"
#include "wait.h"

#define INTERVAL_NS 100000

static pthread_cond_t has_work = PTHREAD_COND_INITIALIZER;

static uint64_t advance(struct stream *stream)
{
	uint64_t waiting;

	stream_resolve(stream);
	waiting = stream->enqueued - stream->resolved;
	stream_free_if_done(stream);
	return waiting;
}

/* How much is still unresolved. */
static uint64_t advance_all(void)
{
	uint64_t waiting = 0;

	for (int device = 0; device < GPUSIM_MAX_DEVICES; device++) {
		struct context *context = context_of(device);
		struct stream *next;

		if (!context->attached)
			continue;
		waiting += advance(&context->legacy);
		for (struct stream *stream = context->streams; stream; stream = next) {
			next = stream->next;
			waiting += advance(stream);
		}
	}
	return waiting;
}

static void *progress(void *unused)
{
	struct sched_param real_time = { .sched_priority = 1 };
	struct timespec interval = { .tv_nsec = INTERVAL_NS };
	uint64_t seen = 0;

	pthread_setname_np(pthread_self(), "gpusim-device");
	/* A device does not compete for CPUs. Without the privilege it does; its timestamps stay right. */
	pthread_setschedparam(pthread_self(), SCHED_FIFO, &real_time);
	pthread_mutex_lock(&queue_lock);
	for (;;) {
		uint64_t waiting = advance_all();
		bool news = seen != queue_late_resolutions;

		seen = queue_late_resolutions;
		if (!waiting && !news) {
			pthread_cond_wait(&has_work, &queue_lock);
			continue;
		}
		pthread_mutex_unlock(&queue_lock);
		if (news)
			wait_wake_all();
		else
			clock_nanosleep(CLOCK_MONOTONIC, 0, &interval, NULL);
		pthread_mutex_lock(&queue_lock);
	}
	return NULL;
}

/* The application's signals are not for this thread. */
static bool start_thread(void)
{
	sigset_t all, before;
	pthread_t thread;
	bool started;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	started = !pthread_create(&thread, NULL, progress, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (started)
		pthread_detach(thread);
	return started;
}

void progress_start(void)
{
	static bool started;

	if (!started)
		started = start_thread();
	pthread_cond_signal(&has_work);
}
