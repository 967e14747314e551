/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver functions the runtime uses. Like the real one it finds libcuda
 * with dlopen, looks up cuGetProcAddress alone, and asks that for the rest by
 * name and CUDA version; functions of the default stream are asked for twice.
 */
#ifndef GPUSIM_DRIVER_H
#define GPUSIM_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* CUmemLocation */
struct location {
	int type;
	int id;
};

typedef uint64_t address_t;
typedef unsigned int uint_t;

#define DRIVER_FUNCTIONS(PLAIN)									\
	PLAIN(cuInit, 2000, (uint_t))								\
	PLAIN(cuDriverGetVersion, 2020, (int *))						\
	PLAIN(cuGetExportTable, 3000, (const void **, const void *))				\
	PLAIN(cuGetErrorName, 6000, (int, const char **))					\
	PLAIN(cuGetErrorString, 6000, (int, const char **))					\
	PLAIN(cuDeviceGetCount, 2000, (int *))							\
	PLAIN(cuDeviceGet, 2000, (int *, int))							\
	PLAIN(cuDeviceGetAttribute, 2000, (int *, int, int))					\
	PLAIN(cuDeviceTotalMem, 3020, (size_t *, int))						\
	PLAIN(cuDeviceGetUuid, 11040, (void *, int))						\
	PLAIN(cuDeviceGetPCIBusId, 4010, (char *, int, int))					\
	PLAIN(cuDeviceGetByPCIBusId, 4010, (int *, const char *))				\
	PLAIN(cuDeviceCanAccessPeer, 4000, (int *, int, int))					\
	PLAIN(cuDeviceGetDefaultMemPool, 11020, (void **, int))					\
	PLAIN(cuDevicePrimaryCtxRetain, 7000, (void **, int))					\
	PLAIN(cuDevicePrimaryCtxReset, 7000, (int))						\
	PLAIN(cuDevicePrimaryCtxSetFlags, 11000, (int, uint_t))					\
	PLAIN(cuDevicePrimaryCtxGetState, 7000, (int, uint_t *, int *))				\
	PLAIN(cuCtxSetCurrent, 4000, (void *))							\
	PLAIN(cuCtxGetCurrent, 4000, (void **))							\
	PLAIN(cuCtxSynchronize, 2000, (void))							\
	PLAIN(cuCtxGetStreamPriorityRange, 5050, (int *, int *))				\
	PLAIN(cuCtxGetLimit, 3010, (size_t *, int))						\
	PLAIN(cuCtxSetLimit, 3010, (int, size_t))						\
	PLAIN(cuCtxEnablePeerAccess, 4000, (void *, uint_t))					\
	PLAIN(cuCtxDisablePeerAccess, 4000, (void *))						\
	PLAIN(cuModuleLoadData, 2000, (void **, const void *))					\
	PLAIN(cuModuleGetFunction, 2000, (void **, void *, const char *))			\
	PLAIN(cuModuleGetGlobal, 3020, (address_t *, size_t *, void *, const char *))		\
	PLAIN(cuLibraryLoadData, 12000,								\
	      (void **, const void *, int *, void **, uint_t, int *, void **, uint_t))		\
	PLAIN(cuLibraryUnload, 12000, (void *))							\
	PLAIN(cuLibraryGetKernel, 12000, (void **, void *, const char *))			\
	PLAIN(cuFuncGetAttribute, 2020, (int *, int, void *))					\
	PLAIN(cuFuncSetAttribute, 9000, (void *, int, int))					\
	PLAIN(cuFuncGetName, 12030, (const char **, void *))					\
	PLAIN(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000,			\
	      (int *, void *, int, size_t, uint_t))						\
	PLAIN(cuMemGetInfo, 3020, (size_t *, size_t *))						\
	PLAIN(cuMemAlloc, 3020, (address_t *, size_t))						\
	PLAIN(cuMemAllocPitch, 3020, (address_t *, size_t *, size_t, size_t, uint_t))		\
	PLAIN(cuMemAllocManaged, 6000, (address_t *, size_t, uint_t))				\
	PLAIN(cuMemFree, 3020, (address_t))							\
	PLAIN(cuMemHostAlloc, 2020, (void **, size_t, uint_t))					\
	PLAIN(cuMemFreeHost, 2000, (void *))							\
	PLAIN(cuMemHostRegister, 6050, (void *, size_t, uint_t))				\
	PLAIN(cuMemHostUnregister, 4000, (void *))						\
	PLAIN(cuMemHostGetDevicePointer, 3020, (address_t *, void *, uint_t))			\
	PLAIN(cuMemPoolCreate, 11020, (void **, const void *))					\
	PLAIN(cuMemPoolDestroy, 11020, (void *))						\
	PLAIN(cuMemPoolTrimTo, 11020, (void *, size_t))						\
	PLAIN(cuMemPoolSetAttribute, 11020, (void *, int, void *))				\
	PLAIN(cuMemPoolGetAttribute, 11020, (void *, int, void *))				\
	PLAIN(cuPointerGetAttribute, 4000, (void *, int, address_t))				\
	PLAIN(cuStreamCreate, 2000, (void **, uint_t))						\
	PLAIN(cuStreamCreateWithPriority, 5050, (void **, uint_t, int))				\
	PLAIN(cuStreamDestroy, 4000, (void *))							\
	PLAIN(cuThreadExchangeStreamCaptureMode, 10010, (int *))				\
	PLAIN(cuEventCreate, 2000, (void **, uint_t))						\
	PLAIN(cuEventDestroy, 4000, (void *))							\
	PLAIN(cuEventQuery, 2000, (void *))							\
	PLAIN(cuEventSynchronize, 2000, (void *))						\
	PLAIN(cuEventElapsedTime, 2000, (float *, void *, void *))				\
	PLAIN(cuGraphCreate, 10000, (void **, uint_t))						\
	PLAIN(cuGraphDestroy, 10000, (void *))							\
	PLAIN(cuGraphClone, 10000, (void **, void *))						\
	PLAIN(cuGraphGetNodes, 10000, (void *, void **, size_t *))				\
	PLAIN(cuGraphAddEmptyNode, 10000, (void **, void *, const void *, size_t))		\
	PLAIN(cuGraphAddKernelNode, 12000, (void **, void *, const void *, size_t, const void *))	\
	PLAIN(cuGraphInstantiateWithFlags, 11040, (void **, void *, unsigned long long))	\
	PLAIN(cuGraphExecUpdate, 12000, (void *, void *, void *))				\
	PLAIN(cuGraphExecDestroy, 10000, (void *))						\
	PLAIN(cuProfilerStart, 4000, (void))							\
	PLAIN(cuProfilerStop, 4000, (void))

#define DRIVER_STREAM_FUNCTIONS(STREAM)								\
	STREAM(cuLaunchKernel, 4000,								\
	       (void *, uint_t, uint_t, uint_t, uint_t, uint_t, uint_t, uint_t, void *, void **, void **))	\
	STREAM(cuLaunchKernelEx, 11060, (const void *, void *, void **, void **))		\
	STREAM(cuLaunchCooperativeKernel, 9000,							\
	       (void *, uint_t, uint_t, uint_t, uint_t, uint_t, uint_t, uint_t, void *, void **))	\
	STREAM(cuGraphLaunch, 10000, (void *, void *))						\
	STREAM(cuGraphUpload, 11010, (void *, void *))						\
	STREAM(cuMemAllocAsync, 11020, (address_t *, size_t, void *))				\
	STREAM(cuMemAllocFromPoolAsync, 11020, (address_t *, size_t, void *, void *))		\
	STREAM(cuMemFreeAsync, 11020, (address_t, void *))					\
	STREAM(cuMemcpy, 4000, (address_t, address_t, size_t))					\
	STREAM(cuMemcpyHtoD, 3020, (address_t, const void *, size_t))				\
	STREAM(cuMemcpyDtoH, 3020, (void *, address_t, size_t))					\
	STREAM(cuMemcpyDtoD, 3020, (address_t, address_t, size_t))				\
	STREAM(cuMemcpyPeer, 4000, (address_t, void *, address_t, void *, size_t))		\
	STREAM(cuMemcpyAsync, 4000, (address_t, address_t, size_t, void *))			\
	STREAM(cuMemcpyHtoDAsync, 3020, (address_t, const void *, size_t, void *))		\
	STREAM(cuMemcpyDtoHAsync, 3020, (void *, address_t, size_t, void *))			\
	STREAM(cuMemcpyDtoDAsync, 3020, (address_t, address_t, size_t, void *))			\
	STREAM(cuMemcpyPeerAsync, 4000, (address_t, void *, address_t, void *, size_t, void *))	\
	STREAM(cuMemcpy2DUnaligned, 3020, (const void *))					\
	STREAM(cuMemcpy2DAsync, 3020, (const void *, void *))					\
	STREAM(cuMemcpy3D, 3020, (const void *))						\
	STREAM(cuMemcpy3DAsync, 3020, (const void *, void *))					\
	STREAM(cuMemcpy3DPeer, 4000, (const void *))						\
	STREAM(cuMemcpy3DPeerAsync, 4000, (const void *, void *))				\
	STREAM(cuMemPrefetchAsync, 12020, (address_t, size_t, struct location, uint_t, void *))	\
	STREAM(cuMemsetD8, 3020, (address_t, unsigned char, size_t))				\
	STREAM(cuMemsetD8Async, 3020, (address_t, unsigned char, size_t, void *))		\
	STREAM(cuMemsetD2D8, 3020, (address_t, size_t, unsigned char, size_t, size_t))		\
	STREAM(cuMemsetD2D8Async, 3020, (address_t, size_t, unsigned char, size_t, size_t, void *))	\
	STREAM(cuStreamSynchronize, 2000, (void *))						\
	STREAM(cuStreamQuery, 2000, (void *))							\
	STREAM(cuStreamWaitEvent, 3020, (void *, void *, uint_t))				\
	STREAM(cuStreamGetPriority, 5050, (void *, int *))					\
	STREAM(cuStreamGetFlags, 5050, (void *, uint_t *))					\
	STREAM(cuStreamGetId, 12000, (void *, unsigned long long *))				\
	STREAM(cuStreamGetDevice, 12080, (void *, int *))					\
	STREAM(cuStreamBeginCapture, 10010, (void *, int))					\
	STREAM(cuStreamBeginCaptureToGraph, 12030,						\
	       (void *, void *, const void *, const void *, size_t, int))			\
	STREAM(cuStreamEndCapture, 10000, (void *, void **))					\
	STREAM(cuStreamIsCapturing, 10000, (void *, int *))					\
	STREAM(cuStreamGetCaptureInfo, 12030,							\
	       (void *, int *, uint64_t *, void **, const void **, const void **, size_t *))	\
	STREAM(cuEventRecord, 2000, (void *, void *))						\
	STREAM(cuEventRecordWithFlags, 11010, (void *, void *, uint_t))

struct driver {
#define DRIVER_FIELD(name, version, params) int (*name) params;
	DRIVER_FUNCTIONS(DRIVER_FIELD)
#undef DRIVER_FIELD
#define DRIVER_FIELD(name, version, params) int (*name[2]) params;	/* legacy, per thread */
	DRIVER_STREAM_FUNCTIONS(DRIVER_FIELD)
#undef DRIVER_FIELD
};

extern struct driver driver;

/* Resolve all of them, once. False without a driver. */
int driver_load(void);

/* A driver function by any name and version, as cudaGetDriverEntryPoint offers it. */
int driver_find(const char *name, void **address, int version, uint64_t flags);

#endif
