// SPDX-License-Identifier: Apache-2.0
/* cuStream*: creation, order, waiting. Capture is in graph_api.c. */
#include <stdint.h>

#include "context.h"
#include "event.h"
#include "wait.h"

API(cuStreamCreate, (void **stream, unsigned int flags), (stream, flags))
{
	NEED_CONTEXT(context);

	*stream = stream_create(context, flags, 0);
	return *stream ? SUCCESS : ERROR_OUT_OF_MEMORY;
}

API(cuStreamCreateWithPriority, (void **stream, unsigned int flags, int priority), (stream, flags, priority))
{
	NEED_CONTEXT(context);

	*stream = stream_create(context, flags, priority);
	return *stream ? SUCCESS : ERROR_OUT_OF_MEMORY;
}

API(cuStreamDestroy_v2, (void *handle), (handle))
{
	NEED_CONTEXT(context);

	if ((uintptr_t)handle <= (uintptr_t)STREAM_PER_THREAD)
		return ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&queue_lock);
	stream_release(handle);
	pthread_mutex_unlock(&queue_lock);
	return SUCCESS;
}

API_STREAM(cuStreamSynchronize, _ptsz, (void *handle), (handle))
{
	NEED_STREAM(stream, handle);

	return wait_for_stream(stream, &(int64_t){ 0 });
}

API_STREAM(cuStreamQuery, _ptsz, (void *handle), (handle))
{
	NEED_STREAM(stream, handle);
	int64_t reached;

	if (stream->capture)
		return ERROR_STREAM_CAPTURE_UNSUPPORTED;
	pthread_mutex_lock(&queue_lock);
	reached = stream_reached(stream, stream->enqueued);
	pthread_mutex_unlock(&queue_lock);
	return reached && reached <= context_now_ns(context) ? SUCCESS : ERROR_NOT_READY;
}

API_STREAM(cuStreamWaitEvent, _ptsz, (void *handle, struct event *event, unsigned int flags), (handle, event, flags))
{
	NEED_STREAM(stream, handle);

	return event_await(event, stream);
}

API_STREAM(cuStreamGetPriority, _ptsz, (void *handle, int *priority), (handle, priority))
{
	NEED_STREAM(stream, handle);

	*priority = stream->priority;
	return SUCCESS;
}

API_STREAM(cuStreamGetFlags, _ptsz, (void *handle, unsigned int *flags), (handle, flags))
{
	NEED_STREAM(stream, handle);

	*flags = stream->flags;
	return SUCCESS;
}

API_STREAM(cuStreamGetId, _ptsz, (void *handle, unsigned long long *id), (handle, id))
{
	NEED_STREAM(stream, handle);

	*id = (uintptr_t)stream->handle;
	return SUCCESS;
}

API_STREAM(cuStreamGetCtx, _ptsz, (void *handle, struct context **out), (handle, out))
{
	NEED_STREAM(stream, handle);

	*out = stream->context;
	return SUCCESS;
}

API_STREAM(cuStreamGetDevice, _ptsz, (void *handle, int *device), (handle, device))
{
	NEED_STREAM(stream, handle);

	*device = driver_ordinal(stream->context->device);
	return SUCCESS;
}
