// SPDX-License-Identifier: Apache-2.0
/* Copies and memsets: bytes over the bandwidth of the way they go, plus a fixed latency. */
#include <string.h>

#include "allocation.h"
#include "clock.h"
#include "context.h"
#include "knobs.h"
#include "launch.h"
#include "wait.h"

#define LATENCY_NS 1500
#define PAGEABLE_RETURN_NS 8000		/* from a copy's end to the return of its call: 5 to 12 us on a V100 */
#define SMALL_BYTES 65536		/* up to here the bytes really move, so that programs read what they wrote */
/*
 * Pageable memory goes to the device through pinned memory of the driver. On an H200 (driver 580) copies of up to 2 MiB
 * are written there and return, whatever the stream has to do, if at most one of more than 64 KiB is still on its way;
 * larger ones wait for their stream. A thread writes 15 to 17 bytes a nanosecond there.
 */
#define STAGED_BYTES 2097152
#define STAGED_FREELY_BYTES 65536
#define STAGING_BYTES_PER_NS 16

enum way {
	WAY_IN,
	WAY_OUT,
	WAY_INSIDE,
	WAY_PEER,
	WAY_BY_ADDRESS,
};

static enum way way_of(uint64_t to, uint64_t from)
{
	struct allocation target = allocation_find(to), source = allocation_find(from);

	if (target.kind <= ALLOCATION_HOST)
		return WAY_OUT;
	if (source.kind <= ALLOCATION_HOST)
		return WAY_IN;
	return target.device == source.device ? WAY_INSIDE : WAY_PEER;
}

static enum gpusim_engine engine_of(enum way way)
{
	return way == WAY_INSIDE ? ENGINE_COMPUTE : way == WAY_OUT ? ENGINE_COPY_OUT : ENGINE_COPY_IN;
}

static double gbps_of(int device, enum way way)
{
	const volatile struct gpusim_knobs *knobs = gpusim_knobs(device);

	return way == WAY_INSIDE ? knobs->device_gbps : way == WAY_PEER ? knobs->nvlink_gbps : knobs->pcie_gbps;
}

/* Which waits belong to a copy. */
enum waits {
	WAITS_NEVER,
	WAITS_AFTER,			/* for the copy */
	WAITS_FROM_HOST,		/* asynchronous by name, from memory that the device cannot read */
	WAITS_TO_HOST,
};

/* Pinned memory is read and written by the device; any other the driver copies to memory that is. */
static enum waits waits_of(enum way way, uint64_t to, uint64_t from)
{
	uint64_t host = way == WAY_IN ? from : way == WAY_OUT ? to : 0;

	if (!host || allocation_find(host).kind)
		return WAITS_NEVER;
	return way == WAY_IN ? WAITS_FROM_HOST : WAITS_TO_HOST;
}

static struct moment *mark(struct stream *stream)
{
	struct moment *moment;

	pthread_mutex_lock(&queue_lock);
	moment = stream_mark(stream);
	pthread_mutex_unlock(&queue_lock);
	return moment;
}

static void release(struct moment *moment)
{
	pthread_mutex_lock(&queue_lock);
	moment_release(moment);
	pthread_mutex_unlock(&queue_lock);
}

/* The host writes the bytes to the driver's memory and goes on; its two places are taken in turn. */
static int run_staged(struct stream *stream, int64_t ns, size_t bytes)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct moment *places[2];
	static unsigned int next;
	struct moment **place;
	int error = 0;

	burn_us((double)bytes / STAGING_BYTES_PER_NS / NS_PER_US);
	if (bytes <= STAGED_FREELY_BYTES)
		return launch_run(stream, ENGINE_COPY_IN, ns);
	pthread_mutex_lock(&lock);
	place = &places[next++ % 2];
	if (*place) {
		error = wait_until_past(*place);
		release(*place);
	}
	if (!error)
		error = launch_run(stream, ENGINE_COPY_IN, ns);
	*place = error ? NULL : mark(stream);
	pthread_mutex_unlock(&lock);
	return error;
}

/*
 * More bytes than are staged: the stream's earlier work has ended before the last of them are. The thread copies at the
 * pace of the bus, or at its own; it sleeps at most once, before.
 */
static int run_from_host(struct stream *stream, int64_t ns, size_t bytes)
{
	int64_t end_ns, own_ns = bytes / STAGING_BYTES_PER_NS;
	int error;

	if (bytes <= STAGED_BYTES)
		return run_staged(stream, ns, bytes);
	error = wait_for_stream(stream, &end_ns);
	if (error)
		return error;
	if (own_ns > ns)
		ns = own_ns;
	gpusim_truth_go_on();
	error = launch_run(stream, ENGINE_COPY_IN, ns);
	burn_us((double)ns / NS_PER_US);	/* nothing moves while it does not run */
	return error;
}

/* The thread reads the bytes from the driver's memory as they arrive there; until the first do it may sleep. */
static int run_to_host(struct stream *stream, enum gpusim_engine engine, int64_t ns)
{
	struct moment *before = mark(stream);
	int64_t end_ns;
	int error = launch_run(stream, engine, ns);

	if (!error)
		error = wait_for_bytes(stream, before, &end_ns);
	release(before);
	if (!error)
		burn_until(end_ns + PAGEABLE_RETURN_NS);
	return error;
}

/* A gigabyte a second is a byte a nanosecond. */
static int run(void *handle, void *fallback, size_t bytes, enum way way, enum waits waits)
{
	NEED_STREAM(stream, handle);
	int64_t end_ns, ns = LATENCY_NS + (int64_t)(bytes / gbps_of(context->device, way));
	int error;

	if (stream->capture && waits == WAITS_AFTER)
		return ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture)
		waits = WAITS_NEVER;
	if (waits == WAITS_FROM_HOST)
		return run_from_host(stream, ns, bytes);
	if (waits == WAITS_TO_HOST)
		return run_to_host(stream, engine_of(way), ns);
	error = launch_run(stream, engine_of(way), ns);
	if (!error && waits != WAITS_NEVER)
		error = wait_for_stream(stream, &end_ns);
	return error;
}

static int copy(void *handle, void *fallback, uint64_t to, uint64_t from, size_t bytes, enum way way, bool wait)
{
	if (!bytes)
		return SUCCESS;
	if (way == WAY_BY_ADDRESS)
		way = way_of(to, from);
	if (to && from && bytes <= SMALL_BYTES)
		memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
	return run(handle, fallback, bytes, way, wait ? WAITS_AFTER : WAITS_NEVER);
}

static int copy_async(void *handle, void *fallback, uint64_t to, uint64_t from, size_t bytes, enum way way)
{
	if (way == WAY_BY_ADDRESS)
		way = way_of(to, from);
	if (bytes && to && from && bytes <= SMALL_BYTES)
		memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
	return bytes ? run(handle, fallback, bytes, way, waits_of(way, to, from)) : SUCCESS;
}

API_STREAM(cuMemcpy, _ptds, (uint64_t to, uint64_t from, size_t bytes), (to, from, bytes))
{
	return copy(NULL, fallback, to, from, bytes, WAY_BY_ADDRESS, true);
}

API_STREAM(cuMemcpyHtoD_v2, _ptds, (uint64_t to, const void *from, size_t bytes), (to, from, bytes))
{
	return copy(NULL, fallback, to, (uintptr_t)from, bytes, WAY_IN, true);
}

API_STREAM(cuMemcpyDtoH_v2, _ptds, (void *to, uint64_t from, size_t bytes), (to, from, bytes))
{
	return copy(NULL, fallback, (uintptr_t)to, from, bytes, WAY_OUT, true);
}

/* Inside a device a copy is not waited for, although it is not called asynchronous. */
API_STREAM(cuMemcpyDtoD_v2, _ptds, (uint64_t to, uint64_t from, size_t bytes), (to, from, bytes))
{
	return copy(NULL, fallback, to, from, bytes, WAY_INSIDE, false);
}

API_STREAM(cuMemcpyPeer, _ptds,
	   (uint64_t to, struct context *to_context, uint64_t from, struct context *from_context, size_t bytes),
	   (to, to_context, from, from_context, bytes))
{
	enum way way = to_context == from_context ? WAY_INSIDE : WAY_PEER;

	return copy(NULL, fallback, to, from, bytes, way, false);
}

API_STREAM(cuMemcpyAsync, _ptsz, (uint64_t to, uint64_t from, size_t bytes, void *handle), (to, from, bytes, handle))
{
	return copy_async(handle, fallback, to, from, bytes, WAY_BY_ADDRESS);
}

API_STREAM(cuMemcpyHtoDAsync_v2, _ptsz, (uint64_t to, const void *from, size_t bytes, void *handle),
	   (to, from, bytes, handle))
{
	return copy_async(handle, fallback, to, (uintptr_t)from, bytes, WAY_IN);
}

API_STREAM(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, uint64_t from, size_t bytes, void *handle),
	   (to, from, bytes, handle))
{
	return copy_async(handle, fallback, (uintptr_t)to, from, bytes, WAY_OUT);
}

API_STREAM(cuMemcpyDtoDAsync_v2, _ptsz, (uint64_t to, uint64_t from, size_t bytes, void *handle),
	   (to, from, bytes, handle))
{
	return copy(handle, fallback, to, from, bytes, WAY_INSIDE, false);
}

API_STREAM(cuMemcpyPeerAsync, _ptsz,
	   (uint64_t to, struct context *to_context, uint64_t from, struct context *from_context, size_t bytes,
	    void *handle),
	   (to, to_context, from, from_context, bytes, handle))
{
	enum way way = to_context == from_context ? WAY_INSIDE : WAY_PEER;

	return copy(handle, fallback, to, from, bytes, way, false);
}

/* The two sides of a 2D or 3D copy; arrays are not simulated. */
struct place_2d {
	size_t x_bytes, y;
	int memory_type;		/* CUmemorytype: 1 host, 2 device, 4 by address */
	void *host;
	uint64_t device;
	void *array;
	size_t pitch;
};

struct copy_2d {			/* CUDA_MEMCPY2D */
	struct place_2d from, to;
	size_t width_bytes, height;
};

struct place_3d {
	size_t x_bytes, y, z, level;
	int memory_type;
	void *host;
	uint64_t device;
	void *array;
	void *context;			/* of CUDA_MEMCPY3D_PEER; reserved in CUDA_MEMCPY3D */
	size_t pitch, height;
};

struct copy_3d {
	struct place_3d from, to;
	size_t width_bytes, height, depth;
};

#define MEMORY_HOST 1
#define MEMORY_BY_ADDRESS 4

static enum way way_of_types(int to, uint64_t to_address, int from, uint64_t from_address)
{
	if (to == MEMORY_BY_ADDRESS || from == MEMORY_BY_ADDRESS)
		return way_of(to_address, from_address);
	return to == MEMORY_HOST ? WAY_OUT : from == MEMORY_HOST ? WAY_IN : WAY_INSIDE;
}

static enum waits waits_of_places(enum way way, bool wait, uint64_t to, uint64_t from)
{
	if (!wait)
		return waits_of(way, to, from);
	return way == WAY_INSIDE ? WAITS_NEVER : WAITS_AFTER;
}

static uint64_t address_of(int memory_type, const void *host, uint64_t device)
{
	return memory_type == MEMORY_HOST ? (uintptr_t)host : device;
}

static int copy_2d(void *handle, void *fallback, const struct copy_2d *c, bool wait)
{
	uint64_t to = address_of(c->to.memory_type, c->to.host, c->to.device);
	uint64_t from = address_of(c->from.memory_type, c->from.host, c->from.device);
	enum way way = way_of_types(c->to.memory_type, to, c->from.memory_type, from);

	return run(handle, fallback, c->width_bytes * c->height, way, waits_of_places(way, wait, to, from));
}

static int copy_3d(void *handle, void *fallback, const struct copy_3d *c, bool wait)
{
	uint64_t to = address_of(c->to.memory_type, c->to.host, c->to.device);
	uint64_t from = address_of(c->from.memory_type, c->from.host, c->from.device);
	enum way way = way_of_types(c->to.memory_type, to, c->from.memory_type, from);

	return run(handle, fallback, c->width_bytes * c->height * c->depth, way,
		   waits_of_places(way, wait, to, from));
}

static int copy_3d_peer(void *handle, void *fallback, const struct copy_3d *c)
{
	return run(handle, fallback, c->width_bytes * c->height * c->depth, WAY_PEER, WAITS_NEVER);
}

API_STREAM(cuMemcpy2D_v2, _ptds, (const struct copy_2d *c), (c))
{
	return copy_2d(NULL, fallback, c, true);
}

API_STREAM(cuMemcpy2DUnaligned_v2, _ptds, (const struct copy_2d *c), (c))
{
	return copy_2d(NULL, fallback, c, true);
}

API_STREAM(cuMemcpy2DAsync_v2, _ptsz, (const struct copy_2d *c, void *handle), (c, handle))
{
	return copy_2d(handle, fallback, c, false);
}

API_STREAM(cuMemcpy3D_v2, _ptds, (const struct copy_3d *c), (c))
{
	return copy_3d(NULL, fallback, c, true);
}

API_STREAM(cuMemcpy3DAsync_v2, _ptsz, (const struct copy_3d *c, void *handle), (c, handle))
{
	return copy_3d(handle, fallback, c, false);
}

API_STREAM(cuMemcpy3DPeer, _ptds, (const struct copy_3d *c), (c))
{
	return copy_3d_peer(NULL, fallback, c);
}

API_STREAM(cuMemcpy3DPeerAsync, _ptsz, (const struct copy_3d *c, void *handle), (c, handle))
{
	return copy_3d_peer(handle, fallback, c);
}

API_STREAM(cuMemPrefetchAsync, _ptsz, (uint64_t address, size_t bytes, int device, void *handle),
	   (address, bytes, device, handle))
{
	return run(handle, fallback, bytes, device < 0 ? WAY_OUT : WAY_IN, WAITS_NEVER);
}

struct location {			/* CUmemLocation */
	int type;			/* 1: a device, 2 and more: the host */
	int id;
};

API_STREAM(cuMemPrefetchAsync_v2, _ptsz,
	   (uint64_t address, size_t bytes, struct location to, unsigned int flags, void *handle),
	   (address, bytes, to, flags, handle))
{
	return run(handle, fallback, bytes, to.type == 1 ? WAY_IN : WAY_OUT, WAITS_NEVER);
}

API(cuMemAdvise, (uint64_t address, size_t bytes, int advice, int device), (address, bytes, advice, device))
{
	return SUCCESS;
}

API(cuMemAdvise_v2, (uint64_t address, size_t bytes, int advice, struct location where),
    (address, bytes, advice, where))
{
	return SUCCESS;
}

/* Memset does not make the host wait, asynchronous by name or not. */
static int fill(void *handle, void *fallback, uint64_t to, unsigned int value, size_t count, int width)
{
	if (!count)
		return SUCCESS;
	if (to && count * width <= SMALL_BYTES)
		for (size_t i = 0; i < count; i++)
			memcpy((char *)(uintptr_t)to + i * width, &value, width);
	return run(handle, fallback, count * width, WAY_INSIDE, WAITS_NEVER);
}

#define MEMSET(bits, type)									\
	API_STREAM(cuMemsetD##bits##_v2, _ptds, (uint64_t to, type value, size_t count),	\
		   (to, value, count))								\
	{											\
		return fill(NULL, fallback, to, value, count, sizeof(type));			\
	}											\
	API_STREAM(cuMemsetD##bits##Async, _ptsz,						\
		   (uint64_t to, type value, size_t count, void *handle), (to, value, count, handle))	\
	{											\
		return fill(handle, fallback, to, value, count, sizeof(type));			\
	}											\
	API_STREAM(cuMemsetD2D##bits##_v2, _ptds,						\
		   (uint64_t to, size_t pitch, type value, size_t width, size_t height),	\
		   (to, pitch, value, width, height))						\
	{											\
		(void)to, (void)pitch, (void)value;						\
		return run(NULL, fallback, width * height * sizeof(type), WAY_INSIDE, WAITS_NEVER);	\
	}											\
	API_STREAM(cuMemsetD2D##bits##Async, _ptsz,						\
		   (uint64_t to, size_t pitch, type value, size_t width, size_t height, void *handle),	\
		   (to, pitch, value, width, height, handle))					\
	{											\
		(void)to, (void)pitch, (void)value;						\
		return run(handle, fallback, width * height * sizeof(type), WAY_INSIDE, WAITS_NEVER);	\
	}

MEMSET(8, unsigned char)
MEMSET(16, unsigned short)
MEMSET(32, unsigned int)
