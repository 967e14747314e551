// SPDX-License-Identifier: Apache-2.0
/* Copies and memsets: which driver function each kind becomes. */
#include <string.h>

#include "runtime.h"

enum kind {				/* cudaMemcpyKind */
	HOST_TO_HOST,
	HOST_TO_DEVICE,
	DEVICE_TO_HOST,
	DEVICE_TO_DEVICE,
	BY_ADDRESS,
};

#define POINTER(address) ((void *)(uintptr_t)(address))

static int copy(void *fallback, address_t to, address_t from, size_t bytes, enum kind kind)
{
	ENTER();
	if (!bytes)
		return SUCCESS;
	switch (kind) {
	case HOST_TO_HOST:
		memmove(POINTER(to), POINTER(from), bytes);
		return SUCCESS;
	case HOST_TO_DEVICE:
		return ON_STREAM(cuMemcpyHtoD)(to, POINTER(from), bytes);
	case DEVICE_TO_HOST:
		return ON_STREAM(cuMemcpyDtoH)(POINTER(to), from, bytes);
	case DEVICE_TO_DEVICE:
		return ON_STREAM(cuMemcpyDtoD)(to, from, bytes);
	default:
		return ON_STREAM(cuMemcpy)(to, from, bytes);
	}
}

static int copy_async(void *fallback, address_t to, address_t from, size_t bytes, enum kind kind, void *stream)
{
	ENTER();
	if (!bytes)
		return SUCCESS;
	switch (kind) {
	case HOST_TO_DEVICE:
		return ON_STREAM(cuMemcpyHtoDAsync)(to, POINTER(from), bytes, stream);
	case DEVICE_TO_HOST:
		return ON_STREAM(cuMemcpyDtoHAsync)(POINTER(to), from, bytes, stream);
	case DEVICE_TO_DEVICE:
		return ON_STREAM(cuMemcpyDtoDAsync)(to, from, bytes, stream);
	default:
		return ON_STREAM(cuMemcpyAsync)(to, from, bytes, stream);
	}
}

API_STREAM(cudaMemcpy, _ptds, (address_t to, address_t from, size_t bytes, int kind), (to, from, bytes, kind))
{
	return copy(fallback, to, from, bytes, kind);
}

API_STREAM(cudaMemcpyAsync, _ptsz, (address_t to, address_t from, size_t bytes, int kind, void *stream),
	   (to, from, bytes, kind, stream))
{
	return copy_async(fallback, to, from, bytes, kind, stream);
}

static int peer_contexts(void **to, int to_device, void **from, int from_device)
{
	int error;

	ENTER();
	error = runtime_context(to_device, to);
	return error ? error : runtime_context(from_device, from);
}

API(cudaMemcpyPeer, (address_t to, int to_device, address_t from, int from_device, size_t bytes),
    (to, to_device, from, from_device, bytes))
{
	void *to_context, *from_context;
	int error = peer_contexts(&to_context, to_device, &from_context, from_device);

	return error ? error : driver.cuMemcpyPeer[0](to, to_context, from, from_context, bytes);
}

API(cudaMemcpyPeerAsync,
    (address_t to, int to_device, address_t from, int from_device, size_t bytes, void *stream),
    (to, to_device, from, from_device, bytes, stream))
{
	void *to_context, *from_context;
	int error = peer_contexts(&to_context, to_device, &from_context, from_device);

	return error ? error : driver.cuMemcpyPeerAsync[0](to, to_context, from, from_context, bytes, stream);
}

struct driver_place_2d {		/* half of CUDA_MEMCPY2D */
	size_t x_bytes, y;
	int memory_type;
	void *host;
	address_t device;
	void *array;
	size_t pitch;
};

struct driver_copy_2d {
	struct driver_place_2d from, to;
	size_t width_bytes, height;
};

#define MEMORY_HOST 1
#define MEMORY_DEVICE 2
#define MEMORY_BY_ADDRESS 4

static int type_of_target(enum kind kind)
{
	return kind == BY_ADDRESS ? MEMORY_BY_ADDRESS :
	       kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE ? MEMORY_DEVICE : MEMORY_HOST;
}

static int type_of_source(enum kind kind)
{
	return kind == BY_ADDRESS ? MEMORY_BY_ADDRESS :
	       kind == DEVICE_TO_HOST || kind == DEVICE_TO_DEVICE ? MEMORY_DEVICE : MEMORY_HOST;
}

static struct driver_copy_2d copy_2d(address_t to, size_t to_pitch, address_t from, size_t from_pitch, size_t width,
				     size_t height, enum kind kind)
{
	return (struct driver_copy_2d){
		.from = { .memory_type = type_of_source(kind), .host = POINTER(from), .device = from,
			  .pitch = from_pitch },
		.to = { .memory_type = type_of_target(kind), .host = POINTER(to), .device = to, .pitch = to_pitch },
		.width_bytes = width, .height = height,
	};
}

API_STREAM(cudaMemcpy2D, _ptds,
	   (address_t to, size_t to_pitch, address_t from, size_t from_pitch, size_t width, size_t height, int kind),
	   (to, to_pitch, from, from_pitch, width, height, kind))
{
	struct driver_copy_2d c = copy_2d(to, to_pitch, from, from_pitch, width, height, kind);

	ENTER();
	return ON_STREAM(cuMemcpy2DUnaligned)(&c);
}

API_STREAM(cudaMemcpy2DAsync, _ptsz,
	   (address_t to, size_t to_pitch, address_t from, size_t from_pitch, size_t width, size_t height, int kind,
	    void *stream),
	   (to, to_pitch, from, from_pitch, width, height, kind, stream))
{
	struct driver_copy_2d c = copy_2d(to, to_pitch, from, from_pitch, width, height, kind);

	ENTER();
	return ON_STREAM(cuMemcpy2DAsync)(&c, stream);
}

struct pitched {			/* cudaPitchedPtr */
	address_t address;
	size_t pitch, x_bytes, y_bytes;
};

struct extent {				/* cudaExtent, cudaPos */
	size_t width, height, depth;
};

struct copy_3d {			/* cudaMemcpy3DParms */
	void *from_array;
	struct extent from_position;
	struct pitched from;
	void *to_array;
	struct extent to_position;
	struct pitched to;
	struct extent extent;
	int kind;
};

struct copy_3d_peer {			/* cudaMemcpy3DPeerParms */
	void *from_array;
	struct extent from_position;
	struct pitched from;
	int from_device;
	void *to_array;
	struct extent to_position;
	struct pitched to;
	int to_device;
	struct extent extent;
};

struct driver_place_3d {		/* half of CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER */
	size_t x_bytes, y, z, level;
	int memory_type;
	void *host;
	address_t device;
	void *array;
	void *context;
	size_t pitch, height;
};

struct driver_copy_3d {
	struct driver_place_3d from, to;
	size_t width_bytes, height, depth;
};

static struct driver_copy_3d driver_3d(struct pitched to, struct pitched from, struct extent extent, enum kind kind)
{
	return (struct driver_copy_3d){
		.from = { .memory_type = type_of_source(kind), .host = POINTER(from.address),
			  .device = from.address, .pitch = from.pitch, .height = from.y_bytes },
		.to = { .memory_type = type_of_target(kind), .host = POINTER(to.address), .device = to.address,
			.pitch = to.pitch, .height = to.y_bytes },
		.width_bytes = extent.width, .height = extent.height, .depth = extent.depth,
	};
}

API_STREAM(cudaMemcpy3D, _ptds, (const struct copy_3d *c), (c))
{
	struct driver_copy_3d d = driver_3d(c->to, c->from, c->extent, c->kind);

	ENTER();
	return ON_STREAM(cuMemcpy3D)(&d);
}

API_STREAM(cudaMemcpy3DAsync, _ptsz, (const struct copy_3d *c, void *stream), (c, stream))
{
	struct driver_copy_3d d = driver_3d(c->to, c->from, c->extent, c->kind);

	ENTER();
	return ON_STREAM(cuMemcpy3DAsync)(&d, stream);
}

API_STREAM(cudaMemcpy3DPeer, _ptds, (const struct copy_3d_peer *c), (c))
{
	struct driver_copy_3d d = driver_3d(c->to, c->from, c->extent, DEVICE_TO_DEVICE);

	ENTER();
	return ON_STREAM(cuMemcpy3DPeer)(&d);
}

API_STREAM(cudaMemcpy3DPeerAsync, _ptsz, (const struct copy_3d_peer *c, void *stream), (c, stream))
{
	struct driver_copy_3d d = driver_3d(c->to, c->from, c->extent, DEVICE_TO_DEVICE);

	ENTER();
	return ON_STREAM(cuMemcpy3DPeerAsync)(&d, stream);
}

API_STREAM(cudaMemset, _ptds, (address_t to, int value, size_t bytes), (to, value, bytes))
{
	ENTER();
	return ON_STREAM(cuMemsetD8)(to, value, bytes);
}

API_STREAM(cudaMemsetAsync, _ptsz, (address_t to, int value, size_t bytes, void *stream),
	   (to, value, bytes, stream))
{
	ENTER();
	return ON_STREAM(cuMemsetD8Async)(to, value, bytes, stream);
}

API_STREAM(cudaMemset2D, _ptds, (address_t to, size_t pitch, int value, size_t width, size_t height),
	   (to, pitch, value, width, height))
{
	ENTER();
	return ON_STREAM(cuMemsetD2D8)(to, pitch, value, width, height);
}

API_STREAM(cudaMemset2DAsync, _ptsz,
	   (address_t to, size_t pitch, int value, size_t width, size_t height, void *stream),
	   (to, pitch, value, width, height, stream))
{
	ENTER();
	return ON_STREAM(cuMemsetD2D8Async)(to, pitch, value, width, height, stream);
}

static int prefetch(void *fallback, address_t address, size_t bytes, struct location to, void *stream)
{
	ENTER();
	OR_UNSUPPORTED(ON_STREAM(cuMemPrefetchAsync));
	return ON_STREAM(cuMemPrefetchAsync)(address, bytes, to, 0, stream);
}

#if CUDART_VERSION >= 13000
API_STREAM(cudaMemPrefetchAsync, _ptsz,
	   (address_t address, size_t bytes, struct location to, unsigned int flags, void *stream),
	   (address, bytes, to, flags, stream))
{
	return prefetch(fallback, address, bytes, to, stream);
}
#else
API_STREAM(cudaMemPrefetchAsync, _ptsz, (address_t address, size_t bytes, int device, void *stream),
	   (address, bytes, device, stream))
{
	struct location to = { device >= 0 ? 1 : 2, device };

	return prefetch(fallback, address, bytes, to, stream);
}

API_STREAM(cudaMemPrefetchAsync_v2, _ptsz,
	   (address_t address, size_t bytes, struct location to, unsigned int flags, void *stream),
	   (address, bytes, to, flags, stream))
{
	return prefetch(fallback, address, bytes, to, stream);
}
#endif
