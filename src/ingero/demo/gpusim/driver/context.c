// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "context.h"

#include <stdlib.h>
#include <string.h>

#include "knobs.h"
#include "wait.h"

#define PUSHED_CONTEXTS 16

static struct context contexts[GPUSIM_MAX_DEVICES];
static __thread struct context *pushed[PUSHED_CONTEXTS];	/* the last one is current */
static __thread int depth;
static __thread struct stream *thread_streams[GPUSIM_MAX_DEVICES];

static bool initialized, forked;
static int visible[GPUSIM_MAX_DEVICES], visible_count;

static void forget_parent(void)
{
	forked = initialized;		/* as with the real driver, a child cannot use what its parent began */
}

static void read_visible(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	char *end;

	if (!list) {
		for (visible_count = 0; visible_count < gpusim_device_count(); visible_count++)
			visible[visible_count] = visible_count;
		return;
	}
	while (visible_count < GPUSIM_MAX_DEVICES) {
		long number = strtol(list, &end, 10);

		if (end == list || number < 0 || number >= gpusim_device_count())
			break;
		visible[visible_count++] = number;
		if (*end != ',')
			break;
		list = end + 1;
	}
}

static void initialize(void)
{
	pthread_atfork(NULL, NULL, forget_parent);
	read_visible();
	for (int i = 0; i < GPUSIM_MAX_DEVICES; i++) {
		contexts[i].device = i;
		stream_init(&contexts[i].legacy, &contexts[i], STREAM_LEGACY);
	}
	initialized = true;
}

API(cuInit, (unsigned int flags), (flags))
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (flags)
		return ERROR_INVALID_VALUE;
	if (forked)
		return ERROR_NOT_INITIALIZED;
	pthread_once(&once, initialize);
	return visible_count ? SUCCESS : ERROR_NO_DEVICE;
}

int driver_ready(void)
{
	return initialized && !forked ? SUCCESS : ERROR_NOT_INITIALIZED;
}

int driver_device_count(void)
{
	return visible_count;
}

int driver_physical(int ordinal)
{
	return ordinal >= 0 && ordinal < visible_count ? visible[ordinal] : -1;
}

int driver_ordinal(int physical)
{
	for (int i = 0; i < visible_count; i++)
		if (visible[i] == physical)
			return i;
	return -1;
}

struct context *context_of(int device)
{
	return &contexts[device];
}

int context_current(struct context **context)
{
	int error = driver_ready();

	if (error)
		return error;
	if (!depth || !pushed[depth - 1])
		return ERROR_INVALID_CONTEXT;
	*context = pushed[depth - 1];
	return SUCCESS;
}

static struct stream *own_stream(struct context *context)
{
	struct stream **stream = &thread_streams[context->device];

	if (!*stream)
		*stream = stream_create(context, 0, 0);
	return *stream;
}

struct stream *stream_get(struct context *context, void *handle, void *fallback)
{
	if (!handle)
		handle = fallback;
	if (handle == STREAM_LEGACY)
		return &context->legacy;
	if (handle == STREAM_PER_THREAD)
		return own_stream(context);
	return handle;
}

static void set_current(struct context *context)
{
	if (!depth)
		depth = 1;
	pushed[depth - 1] = context;
}

static int retain(struct context **out, int ordinal)
{
	int device = driver_physical(ordinal);
	int error = driver_ready();

	if (error)
		return error;
	if (device < 0)
		return ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&queue_lock);
	if (!contexts[device].attached)
		contexts[device].attached = gpusim_device_attach(device);
	contexts[device].retained++;
	pthread_mutex_unlock(&queue_lock);
	*out = &contexts[device];
	return contexts[device].attached ? SUCCESS : ERROR_OUT_OF_MEMORY;
}

API(cuDevicePrimaryCtxRetain, (struct context **context, int device), (context, device))
{
	return retain(context, device);
}

API(cuDevicePrimaryCtxRelease_v2, (int device), (device))
{
	if (driver_physical(device) < 0)
		return ERROR_INVALID_DEVICE;
	if (!contexts[driver_physical(device)].retained)
		return ERROR_INVALID_CONTEXT;
	contexts[driver_physical(device)].retained--;
	return SUCCESS;
}

API(cuDevicePrimaryCtxReset_v2, (int device), (device))
{
	if (driver_physical(device) < 0)
		return ERROR_INVALID_DEVICE;
	return wait_for_context(&contexts[driver_physical(device)], false);
}

API(cuDevicePrimaryCtxSetFlags_v2, (int device, unsigned int flags), (device, flags))
{
	if (driver_physical(device) < 0)
		return ERROR_INVALID_DEVICE;
	contexts[driver_physical(device)].flags = flags;
	return SUCCESS;
}

API(cuDevicePrimaryCtxGetState, (int device, unsigned int *flags, int *active), (device, flags, active))
{
	if (driver_physical(device) < 0)
		return ERROR_INVALID_DEVICE;
	*flags = contexts[driver_physical(device)].flags;
	*active = contexts[driver_physical(device)].attached;
	return SUCCESS;
}

/* The simulation has one context per device: creating one more is retaining that. */
static int create(struct context **context, unsigned int flags, int device)
{
	int error = retain(context, device);

	if (error)
		return error;
	(*context)->flags = flags;
	if (depth == PUSHED_CONTEXTS)
		return ERROR_INVALID_VALUE;
	pushed[depth++] = *context;
	return SUCCESS;
}

API(cuCtxCreate_v2, (struct context **context, unsigned int flags, int device), (context, flags, device))
{
	return create(context, flags, device);
}

API(cuCtxCreate_v3, (struct context **context, void *affinity, int count, unsigned int flags, int device),
    (context, affinity, count, flags, device))
{
	return create(context, flags, device);
}

API(cuCtxCreate_v4, (struct context **context, void *parameters, unsigned int flags, int device),
    (context, parameters, flags, device))
{
	return create(context, flags, device);
}

API(cuCtxDestroy_v2, (struct context *context), (context))
{
	if (!context)
		return ERROR_INVALID_CONTEXT;
	if (depth && pushed[depth - 1] == context)
		depth--;
	context->retained--;
	return SUCCESS;
}

API(cuCtxSetCurrent, (struct context *context), (context))
{
	int error = driver_ready();

	if (!error)
		set_current(context);
	return error;
}

API(cuCtxGetCurrent, (struct context **context), (context))
{
	*context = depth ? pushed[depth - 1] : NULL;
	return driver_ready();
}

API(cuCtxPushCurrent_v2, (struct context *context), (context))
{
	if (!context || depth == PUSHED_CONTEXTS)
		return ERROR_INVALID_CONTEXT;
	pushed[depth++] = context;
	return SUCCESS;
}

API(cuCtxPopCurrent_v2, (struct context **context), (context))
{
	if (!depth)
		return ERROR_INVALID_CONTEXT;
	depth--;
	if (context)
		*context = pushed[depth];
	return SUCCESS;
}

API(cuCtxGetDevice, (int *device), (device))
{
	NEED_CONTEXT(context);

	*device = driver_ordinal(context->device);
	return SUCCESS;
}

API(cuCtxGetFlags, (unsigned int *flags), (flags))
{
	NEED_CONTEXT(context);

	*flags = context->flags;
	return SUCCESS;
}

API(cuCtxSetFlags, (unsigned int flags), (flags))
{
	NEED_CONTEXT(context);

	context->flags = flags;
	return SUCCESS;
}

API(cuCtxGetApiVersion, (struct context *context, unsigned int *version), (context, version))
{
	*version = 3020;
	return SUCCESS;
}

API(cuCtxSynchronize, (void), ())
{
	NEED_CONTEXT(context);

	return wait_for_context(context, true);
}

API(cuCtxGetStreamPriorityRange, (int *least, int *greatest), (least, greatest))
{
	NEED_CONTEXT(context);

	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return SUCCESS;
}

/* Limits, cache preferences and peer access are accepted and change nothing. */
API(cuCtxGetLimit, (size_t *value, int limit), (value, limit))
{
	*value = 1024;
	return SUCCESS;
}

API(cuCtxSetLimit, (int limit, size_t value), (limit, value))
{
	return SUCCESS;
}

API(cuCtxGetCacheConfig, (int *config), (config))
{
	*config = 0;
	return SUCCESS;
}

API(cuCtxSetCacheConfig, (int config), (config))
{
	return SUCCESS;
}

API(cuCtxEnablePeerAccess, (struct context *peer, unsigned int flags), (peer, flags))
{
	return SUCCESS;
}

API(cuCtxDisablePeerAccess, (struct context *peer), (peer))
{
	return SUCCESS;
}
