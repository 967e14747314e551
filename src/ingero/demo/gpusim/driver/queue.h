/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts and streams: bounded queues of work whose ends are computed as soon
 * as everything they wait for has an end. Almost always that is at once; only
 * work behind a collective that other ranks have not joined stays unresolved.
 */
#ifndef GPUSIM_QUEUE_H
#define GPUSIM_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "device.h"
#include "join.h"

#define MAX_QUEUE_DEPTH 1024		/* of the knob queue_depth: work that may run ahead of the device */
#define QUEUE_SLOTS (2 * MAX_QUEUE_DEPTH)	/* marks and awaits that order streams are never refused */

struct stream;
struct graph;

/* The time at which a stream passes a point of its queue. */
struct moment {
	int references;
	struct stream *stream;
	_Atomic int64_t ns;		/* 0: not known yet */
};

enum work_kind {
	WORK_RUN,			/* occupies an engine */
	WORK_JOIN,			/* begins when all participants are there */
	WORK_MARK,			/* gives a moment its time */
	WORK_AWAIT,			/* lets the stream go on after a moment */
};

struct work {
	enum work_kind kind;
	enum gpusim_engine engine;
	bool was_late;			/* could not be resolved at once */
	int64_t enqueued_ns;
	int64_t duration_ns;
	int64_t end_ns;			/* valid once resolved */
	struct join *join;
	struct moment *moment;
};

struct stream {
	struct context *context;
	struct stream *next;
	void *handle;			/* what the application calls it */
	unsigned int flags;
	int priority;
	int references;			/* the application's, and one per wait and event that looks at it */
	bool resolving;
	struct graph *capture;
	int64_t capture_ns;		/* position of this stream inside the captured graph */
	uint64_t enqueued, resolved;	/* numbers of work in the ring, ever */
	int64_t end_ns;			/* of the newest resolved work */
	atomic_int enqueuing;		/* calls that are about to enqueue */
	_Atomic uint64_t begun;		/* such calls, ever */
	_Atomic int64_t first_enqueue_ns;	/* since the last sync */
	uint64_t begun_at_drain;
	struct work ring[QUEUE_SLOTS];
};

struct context {
	int device;			/* physical number */
	int retained;
	unsigned int flags;
	bool attached;
	struct stream legacy;
	struct stream *streams;		/* all others */
	_Atomic int64_t hung_since_ns;
};

#define STREAM_NON_BLOCKING 1u		/* does not synchronize with the legacy stream */

/* Guards every queue, moment and context of this process. Held for well under a microsecond. */
extern pthread_mutex_t queue_lock;

/* How often work that could not be resolved at once has been since. Under queue_lock. */
extern uint64_t queue_late_resolutions;

/* The context of a device, whether anybody has retained it or not. */
struct context *context_of(int device);

/* Current context of the calling thread, or the error its absence means. */
int context_current(struct context **context);

/* The stream behind a handle; @fallback replaces NULL. */
struct stream *stream_get(struct context *context, void *handle, void *fallback);

struct stream *stream_create(struct context *context, unsigned int flags, int priority);
void stream_init(struct stream *stream, struct context *context, void *handle);

/* The device's clock, by which work is done or not: stands still while the device hangs. */
int64_t context_now_ns(struct context *context);

/* With queue_lock held: */
void stream_free_if_done(struct stream *stream);
void stream_release(struct stream *stream);
void stream_resolve(struct stream *stream);
int64_t stream_reached(struct stream *stream, uint64_t position);	/* 0: not known yet */
struct moment *stream_mark(struct stream *stream);			/* a new reference */
void stream_await(struct stream *stream, struct moment *moment);
void moment_release(struct moment *moment);

/*
 * Takes queue_lock once the queue has room, which it may wait for; @freed_ns receives when the work ended that made
 * room, 0 if there was some at once. Not taken if it returns an error.
 */
int stream_lock_with_room(struct stream *stream, int64_t *freed_ns);

/* Without queue_lock. A launch spends its host time between begin and enqueue, which waits while the queue is full. */
void stream_begin_enqueue(struct stream *stream);
int stream_enqueue(struct stream *stream, struct work work);

/* Resolves what waits for other ranks, while there is any; wakes those that sleep on it. */
void progress_start(void);

#endif
