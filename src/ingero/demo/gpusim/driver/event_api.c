// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "context.h"
#include "event.h"
#include "graph.h"
#include "wait.h"

API(cuEventCreate, (struct event **event, unsigned int flags), (event, flags))
{
	NEED_CONTEXT(context);

	*event = calloc(1, sizeof(**event));
	if (!*event)
		return ERROR_OUT_OF_MEMORY;
	(*event)->flags = flags;
	return SUCCESS;
}

/* With queue_lock held. */
static void forget(struct event *event)
{
	if (event->stream)
		stream_release(event->stream);
	moment_release(event->moment);
	graph_release(event->capture);
	event->stream = NULL;
	event->moment = NULL;
	event->capture = NULL;
}

API(cuEventDestroy_v2, (struct event *event), (event))
{
	if (!event)
		return ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&queue_lock);
	forget(event);
	pthread_mutex_unlock(&queue_lock);
	free(event);
	return SUCCESS;
}

static int record(struct event *event, struct stream *stream)
{
	int64_t freed_ns;
	int error = stream_lock_with_room(stream, &freed_ns);

	if (error)
		return error;
	forget(event);
	if (stream->capture) {
		event->capture = graph_retain(stream->capture);
		event->capture_ns = stream->capture_ns;
	} else {
		event->stream = stream;
		stream->references++;
		event->begun = stream->begun;
		event->moment = stream_mark(stream);
	}
	pthread_mutex_unlock(&queue_lock);
	return SUCCESS;
}

API_STREAM(cuEventRecord, _ptsz, (struct event *event, void *handle), (event, handle))
{
	NEED_STREAM(stream, handle);

	return event ? record(event, stream) : ERROR_INVALID_HANDLE;
}

API_STREAM(cuEventRecordWithFlags, _ptsz, (struct event *event, void *handle, unsigned int flags),
	   (event, handle, flags))
{
	NEED_STREAM(stream, handle);

	return event ? record(event, stream) : ERROR_INVALID_HANDLE;
}

int event_await(struct event *event, struct stream *stream)
{
	int64_t freed_ns;
	int error;

	if (!event)
		return ERROR_INVALID_HANDLE;
	error = stream_lock_with_room(stream, &freed_ns);
	if (error)
		return error;
	if (event->capture)
		graph_join_capture(stream, event->capture, event->capture_ns);
	else if (stream->capture && event->moment)
		error = ERROR_STREAM_CAPTURE_UNSUPPORTED;
	else if (event->moment)
		stream_await(stream, event->moment);
	pthread_mutex_unlock(&queue_lock);
	return error;
}

/* The recorded moment with references to it and its stream, so that another thread may record again meanwhile. */
static struct moment *get_moment(struct event *event)
{
	struct moment *moment;

	pthread_mutex_lock(&queue_lock);
	moment = event->moment;
	if (moment) {
		moment->references++;
		event->stream->references++;
		if (!moment->ns)
			stream_resolve(event->stream);
	}
	pthread_mutex_unlock(&queue_lock);
	return moment;
}

static void put_moment(struct moment *moment)
{
	struct stream *stream;

	if (!moment)
		return;
	stream = moment->stream;
	pthread_mutex_lock(&queue_lock);
	moment_release(moment);
	stream_release(stream);
	pthread_mutex_unlock(&queue_lock);
}

API(cuEventQuery, (struct event *event), (event))
{
	struct moment *moment;
	bool done;

	if (!event)
		return ERROR_INVALID_HANDLE;
	if (event->capture)
		return ERROR_STREAM_CAPTURE_UNSUPPORTED;
	moment = get_moment(event);
	if (!moment)
		return SUCCESS;
	done = moment->ns && moment->ns <= context_now_ns(moment->stream->context);
	put_moment(moment);
	return done ? SUCCESS : ERROR_NOT_READY;
}

API(cuEventSynchronize, (struct event *event), (event))
{
	struct moment *moment;
	int error;

	if (!event)
		return ERROR_INVALID_HANDLE;
	if (event->capture)
		return ERROR_STREAM_CAPTURE_UNSUPPORTED;
	moment = get_moment(event);
	if (!moment)
		return SUCCESS;
	error = wait_for_moment(moment, event->begun, event->flags & EVENT_BLOCKING_SYNC);
	put_moment(moment);
	return error;
}

static int elapsed(float *ms, struct event *start, struct event *end)
{
	struct moment *from, *to;
	int error = SUCCESS;

	if (!start || !end || (start->flags | end->flags) & EVENT_DISABLE_TIMING)
		return ERROR_INVALID_HANDLE;
	from = get_moment(start);
	to = get_moment(end);
	if (!from || !to)
		error = ERROR_INVALID_HANDLE;
	else if (!to->ns || !from->ns || to->ns > context_now_ns(to->stream->context))
		error = ERROR_NOT_READY;
	else
		*ms = (to->ns - from->ns) / 1e6f;
	put_moment(from);
	put_moment(to);
	return error;
}

API(cuEventElapsedTime, (float *ms, struct event *start, struct event *end), (ms, start, end))
{
	return elapsed(ms, start, end);
}

API(cuEventElapsedTime_v2, (float *ms, struct event *start, struct event *end), (ms, start, end))
{
	return elapsed(ms, start, end);
}
