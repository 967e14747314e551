// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "queue.h"

#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "clock.h"
#include "error.h"
#include "knobs.h"
#include "wait.h"

#define FULL_QUEUE_RETURN_NS 6000	/* from room in the queue to the launch's return: 5.1 to 7.3 us on a V100 */

pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
uint64_t queue_late_resolutions;

void stream_init(struct stream *stream, struct context *context, void *handle)
{
	stream->context = context;
	stream->handle = handle ? handle : stream;
	stream->references = 1;
}

struct stream *stream_create(struct context *context, unsigned int flags, int priority)
{
	struct stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	stream_init(stream, context, NULL);
	stream->flags = flags;
	stream->priority = priority;
	pthread_mutex_lock(&queue_lock);
	stream->next = context->streams;
	context->streams = stream;
	pthread_mutex_unlock(&queue_lock);
	return stream;
}

void stream_release(struct stream *stream)
{
	stream->references--;
	stream_free_if_done(stream);
}

void stream_free_if_done(struct stream *stream)
{
	struct stream **link = &stream->context->streams;

	/* Work that is still unresolved keeps a destroyed stream; the progress thread comes back to it. */
	if (stream->references > 0 || stream->resolved < stream->enqueued)
		return;
	while (*link && *link != stream)
		link = &(*link)->next;
	if (*link)
		*link = stream->next;
	free(stream);
}

void moment_release(struct moment *moment)
{
	if (moment && --moment->references == 0)
		free(moment);
}

static struct work *slot(struct stream *stream, uint64_t number)
{
	return &stream->ring[number % QUEUE_SLOTS];
}

/* False while a participant is missing. */
static bool resolve_join(struct stream *stream, struct work *work, int64_t start_ns)
{
	struct join *join = work->join;

	if (!join->published) {
		for (int i = 0; i < join->mine; i++) {
			join->point[i].cell->ready_ns = start_ns;
			join->point[i].cell->sequence = join->point[i].sequence;
		}
		join->published = 1;
	}
	for (int i = join->mine; i < join->points && !*join->aborted; i++) {
		if (join->point[i].cell->sequence < join->point[i].sequence)
			return false;
		if (join->point[i].cell->ready_ns > start_ns)
			start_ns = join->point[i].cell->ready_ns;
	}
	work->end_ns = start_ns + join->duration_ns;
	gpusim_device_mark_busy(stream->context->device, ENGINE_COMPUTE, start_ns, work->end_ns);
	free(join);
	return true;
}

static bool resolve_await(struct stream *stream, struct work *work)
{
	struct moment *moment = work->moment;

	if (!moment->ns && moment->stream != stream && !moment->stream->resolving)
		stream_resolve(moment->stream);
	if (!moment->ns)
		return false;
	work->end_ns = moment->ns > stream->end_ns ? moment->ns : stream->end_ns;
	moment_release(moment);
	return true;
}

static bool resolve(struct stream *stream, struct work *work)
{
	int64_t start_ns = work->enqueued_ns > stream->end_ns ? work->enqueued_ns : stream->end_ns;

	switch (work->kind) {
	case WORK_RUN:
		work->end_ns = gpusim_device_run(stream->context->device, work->engine, start_ns,
						 work->duration_ns);
		return true;
	case WORK_JOIN:
		return resolve_join(stream, work, start_ns);
	case WORK_MARK:
		work->end_ns = stream->end_ns;
		work->moment->ns = start_ns;
		moment_release(work->moment);
		return true;
	case WORK_AWAIT:
		return resolve_await(stream, work);
	}
	return true;
}

void stream_resolve(struct stream *stream)
{
	stream->resolving = true;
	while (stream->resolved < stream->enqueued) {
		struct work *work = slot(stream, stream->resolved);

		if (!resolve(stream, work))
			break;
		stream->end_ns = work->end_ns;
		stream->resolved++;
		queue_late_resolutions += work->was_late;
	}
	stream->resolving = false;
}

int64_t stream_reached(struct stream *stream, uint64_t position)
{
	stream_resolve(stream);
	if (position > stream->resolved)
		return 0;
	if (!position || stream->enqueued - position >= QUEUE_SLOTS)
		return 1;		/* its slot is used again, so it ended long ago */
	return slot(stream, position - 1)->end_ns;
}

int64_t context_now_ns(struct context *context)
{
	int64_t now = now_ns(), running = 0;

	if (!gpusim_knobs(context->device)->hang) {
		context->hung_since_ns = 0;
		return now;
	}
	if (atomic_compare_exchange_strong(&context->hung_since_ns, &running, now))
		return now;
	return running;
}

static uint64_t queue_depth(struct stream *stream)
{
	uint64_t depth = gpusim_knobs(stream->context->device)->queue_depth;

	return depth < 1 ? 1 : depth > MAX_QUEUE_DEPTH ? MAX_QUEUE_DEPTH : depth;
}

/* When the work ends whose place the next one takes; @full_ns: not known yet. */
static int64_t room_ns(struct stream *stream, int64_t full_ns)
{
	uint64_t depth = queue_depth(stream);

	stream_resolve(stream);
	if (stream->enqueued < depth)
		return 0;
	if (stream->enqueued - stream->resolved >= depth)
		return full_ns;
	return slot(stream, stream->enqueued - depth)->end_ns;
}

int stream_lock_with_room(struct stream *stream, int64_t *freed_ns)
{
	int64_t room;

	*freed_ns = 0;
	pthread_mutex_lock(&queue_lock);
	while ((room = room_ns(stream, INT64_MAX)) > context_now_ns(stream->context)) {
		int error;

		*freed_ns = room;
		pthread_mutex_unlock(&queue_lock);
		error = wait_for_room(stream->context);
		if (error)
			return error;
		pthread_mutex_lock(&queue_lock);
	}
	return SUCCESS;
}

static void push(struct stream *stream, struct work work)
{
	*slot(stream, stream->enqueued++) = work;
	stream_resolve(stream);
	if (stream->resolved == stream->enqueued)
		return;
	slot(stream, stream->enqueued - 1)->was_late = true;
	progress_start();
}

static struct moment *moment_create(struct stream *stream, int references)
{
	struct moment *moment = calloc(1, sizeof(*moment));

	if (!moment)
		abort();
	moment->stream = stream;
	moment->references = references;
	return moment;
}

struct moment *stream_mark(struct stream *stream)
{
	struct moment *moment;
	int64_t now = now_ns();

	stream_resolve(stream);
	if (stream->resolved == stream->enqueued) {
		moment = moment_create(stream, 1);
		moment->ns = stream->end_ns > now ? stream->end_ns : now;
		return moment;
	}
	if (slot(stream, stream->enqueued - 1)->kind == WORK_MARK) {	/* the same point of the queue */
		moment = slot(stream, stream->enqueued - 1)->moment;
		moment->references++;
		return moment;
	}
	moment = moment_create(stream, 2);
	push(stream, (struct work){ .kind = WORK_MARK, .enqueued_ns = now, .moment = moment });
	return moment;
}

void stream_await(struct stream *stream, struct moment *moment)
{
	stream_resolve(stream);
	if (moment->ns && stream->resolved == stream->enqueued && moment->ns <= stream->end_ns)
		return;
	moment->references++;
	push(stream, (struct work){ .kind = WORK_AWAIT, .enqueued_ns = now_ns(), .moment = moment });
}

static void follow(struct stream *stream, struct stream *before)
{
	struct moment *moment;

	if (before == stream || !before->enqueued)
		return;
	stream_resolve(before);
	if (before->resolved == before->enqueued && before->end_ns <= now_ns())
		return;
	moment = stream_mark(before);
	stream_await(stream, moment);
	moment_release(moment);
}

/* The legacy stream waits for every blocking stream, and they wait for it. */
static void order_with_legacy(struct stream *stream)
{
	struct context *context = stream->context;

	if (stream->flags & STREAM_NON_BLOCKING)
		return;
	if (stream != &context->legacy) {
		follow(stream, &context->legacy);
		return;
	}
	for (struct stream *other = context->streams; other; other = other->next)
		if (!(other->flags & STREAM_NON_BLOCKING))
			follow(stream, other);
}

void stream_begin_enqueue(struct stream *stream)
{
	int64_t none = 0;

	stream->enqueuing++;
	stream->begun++;
	atomic_compare_exchange_strong(&stream->first_enqueue_ns, &none, gpusim_thread()->enter_ns);
}

int stream_enqueue(struct stream *stream, struct work work)
{
	int64_t freed_ns;
	int error;

	context_now_ns(stream->context);	/* a hang that nobody has seen yet begins before this work ends */
	error = stream_lock_with_room(stream, &freed_ns);
	if (!error) {
		order_with_legacy(stream);
		work.enqueued_ns = now_ns();
		push(stream, work);
		pthread_mutex_unlock(&queue_lock);
		error = gpusim_knobs(stream->context->device)->xid;
		if (freed_ns && freed_ns < INT64_MAX)
			burn_until(freed_ns + FULL_QUEUE_RETURN_NS);
	}
	stream->enqueuing--;
	return error;
}
