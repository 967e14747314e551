// SPDX-License-Identifier: Apache-2.0
/* Allocation, and what a pointer points at. */
#include <string.h>

#include "runtime.h"

API(cudaMemGetInfo, (size_t *free_bytes, size_t *total_bytes), (free_bytes, total_bytes))
{
	ENTER();
	return driver.cuMemGetInfo(free_bytes, total_bytes);
}

API(cudaMalloc, (address_t *address, size_t bytes), (address, bytes))
{
	ENTER();
	*address = 0;
	return bytes ? driver.cuMemAlloc(address, bytes) : SUCCESS;
}

API(cudaMallocPitch, (address_t *address, size_t *pitch, size_t width, size_t height),
    (address, pitch, width, height))
{
	ENTER();
	return driver.cuMemAllocPitch(address, pitch, width, height, 4);
}

API(cudaMallocManaged, (address_t *address, size_t bytes, unsigned int flags), (address, bytes, flags))
{
	ENTER();
	return driver.cuMemAllocManaged(address, bytes, flags);
}

API(cudaFree, (address_t address), (address))
{
	ENTER();
	return address ? driver.cuMemFree(address) : SUCCESS;	/* cudaFree(NULL) is the idiom that creates a context */
}

API(cudaMallocHost, (void **memory, size_t bytes), (memory, bytes))
{
	ENTER();
	return driver.cuMemHostAlloc(memory, bytes, 0);
}

API(cudaHostAlloc, (void **memory, size_t bytes, unsigned int flags), (memory, bytes, flags))
{
	ENTER();
	return driver.cuMemHostAlloc(memory, bytes, flags);
}

API(cudaFreeHost, (void *memory), (memory))
{
	ENTER();
	return driver.cuMemFreeHost(memory);
}

API(cudaHostRegister, (void *memory, size_t bytes, unsigned int flags), (memory, bytes, flags))
{
	ENTER();
	return driver.cuMemHostRegister(memory, bytes, flags);
}

API(cudaHostUnregister, (void *memory), (memory))
{
	ENTER();
	return driver.cuMemHostUnregister(memory);
}

API(cudaHostGetDevicePointer, (address_t *address, void *memory, unsigned int flags), (address, memory, flags))
{
	ENTER();
	return driver.cuMemHostGetDevicePointer(address, memory, flags);
}

API_STREAM(cudaMallocAsync, _ptsz, (address_t *address, size_t bytes, void *stream), (address, bytes, stream))
{
	ENTER();
	return ON_STREAM(cuMemAllocAsync)(address, bytes, stream);
}

API_STREAM(cudaMallocFromPoolAsync, _ptsz, (address_t *address, size_t bytes, void *pool, void *stream),
	   (address, bytes, pool, stream))
{
	ENTER();
	return ON_STREAM(cuMemAllocFromPoolAsync)(address, bytes, pool, stream);
}

API_STREAM(cudaFreeAsync, _ptsz, (address_t address, void *stream), (address, stream))
{
	ENTER();
	return ON_STREAM(cuMemFreeAsync)(address, stream);
}

API(cudaDeviceGetDefaultMemPool, (void **pool, int device), (pool, device))
{
	ENTER();
	return driver.cuDeviceGetDefaultMemPool(pool, device);
}

API(cudaDeviceGetMemPool, (void **pool, int device), (pool, device))
{
	ENTER();
	return driver.cuDeviceGetDefaultMemPool(pool, device);
}

API(cudaMemPoolCreate, (void **pool, const void *properties), (pool, properties))
{
	ENTER();
	return driver.cuMemPoolCreate(pool, properties);
}

API(cudaMemPoolDestroy, (void *pool), (pool))
{
	ENTER();
	return driver.cuMemPoolDestroy(pool);
}

API(cudaMemPoolTrimTo, (void *pool, size_t keep_bytes), (pool, keep_bytes))
{
	ENTER();
	return driver.cuMemPoolTrimTo(pool, keep_bytes);
}

API(cudaMemPoolSetAttribute, (void *pool, int attribute, void *value), (pool, attribute, value))
{
	ENTER();
	return driver.cuMemPoolSetAttribute(pool, attribute, value);
}

API(cudaMemPoolGetAttribute, (void *pool, int attribute, void *value), (pool, attribute, value))
{
	ENTER();
	return driver.cuMemPoolGetAttribute(pool, attribute, value);
}

#define ATTRIBUTE_MEMORY_TYPE 2
#define ATTRIBUTE_IS_MANAGED 8
#define ATTRIBUTE_DEVICE_ORDINAL 9

struct pointer_attributes {		/* cudaPointerAttributes; type: 0 unregistered, 1 host, 2 device, 3 managed */
	int type;
	int device;
	address_t device_address, host_address;
};

API(cudaPointerGetAttributes, (struct pointer_attributes *attributes, address_t address), (attributes, address))
{
	int managed = 0;

	ENTER();
	*attributes = (struct pointer_attributes){ .device = -1, .host_address = address };
	if (driver.cuPointerGetAttribute(&attributes->type, ATTRIBUTE_MEMORY_TYPE, address))
		return SUCCESS;		/* ordinary host memory */
	driver.cuPointerGetAttribute(&attributes->device, ATTRIBUTE_DEVICE_ORDINAL, address);
	driver.cuPointerGetAttribute(&managed, ATTRIBUTE_IS_MANAGED, address);
	attributes->device_address = address;
	if (managed)
		attributes->type = 3;
	else if (attributes->type == 2)
		attributes->host_address = 0;
	return SUCCESS;
}
