/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every family of CUDA and NCCL calls that is traced, with its C signature, as
 * one table. Resolved by dlsym, so that a program links against no CUDA library
 * and runs with whichever runtime it is given.
 */
#ifndef INGERO_CUDA_CALLS_H
#define INGERO_CUDA_CALLS_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct dim3 {
	unsigned int x, y, z;
};

struct cuda_launch_config { /* cudaLaunchConfig_t */
	struct dim3 grid, block;
	size_t shared_bytes;
	void *stream, *attributes;
	unsigned int attribute_count;
};

struct driver_launch_config { /* CUlaunchConfig */
	unsigned int grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
	void *stream, *attributes;
	unsigned int attribute_count;
};

struct nccl_id { /* ncclUniqueId */
	char internal[128];
};

typedef uint64_t device_ptr; /* CUdeviceptr */

/* name, arguments */
#define RUNTIME_CALLS(CALL)                                                                                        \
	CALL(cudaLaunchKernel, (const void *, struct dim3, struct dim3, void **, size_t, void *))                  \
	CALL(cudaLaunchKernelExC, (const struct cuda_launch_config *, const void *, void **))                      \
	CALL(cudaLaunchCooperativeKernel, (const void *, struct dim3, struct dim3, void **, size_t, void *))       \
	CALL(cudaGraphLaunch, (void *, void *))                                                                    \
	CALL(cudaGraphInstantiate, (void **, void *, unsigned long long))                                          \
	CALL(cudaStreamBeginCapture, (void *, int))                                                                \
	CALL(cudaStreamEndCapture, (void *, void **))                                                              \
	CALL(cudaMalloc, (void **, size_t))                                                                        \
	CALL(cudaFree, (void *))                                                                                   \
	CALL(cudaMallocAsync, (void **, size_t, void *))                                                           \
	CALL(cudaFreeAsync, (void *, void *))                                                                      \
	CALL(cudaMallocManaged, (void **, size_t, unsigned int))                                                   \
	CALL(cudaMallocHost, (void **, size_t))                                                                    \
	CALL(cudaHostAlloc, (void **, size_t, unsigned int))                                                       \
	CALL(cudaFreeHost, (void *))                                                                               \
	CALL(cudaMemcpy, (void *, const void *, size_t, int))                                                      \
	CALL(cudaMemcpyAsync, (void *, const void *, size_t, int, void *))                                         \
	CALL(cudaMemcpy2DAsync, (void *, size_t, const void *, size_t, size_t, size_t, int, void *))               \
	CALL(cudaMemcpyPeerAsync, (void *, int, const void *, int, size_t, void *))                                \
	CALL(cudaMemset, (void *, int, size_t))                                                                    \
	CALL(cudaMemsetAsync, (void *, int, size_t, void *))                                                       \
	CALL(cudaStreamSynchronize, (void *))                                                                      \
	CALL(cudaStreamSynchronize_ptsz, (void *))                                                                 \
	CALL(cudaDeviceSynchronize, (void))                                                                        \
	CALL(cudaEventRecord, (void *, void *))                                                                    \
	CALL(cudaEventRecordWithFlags, (void *, void *, unsigned int))                                             \
	CALL(cudaEventSynchronize, (void *))                                                                       \
	CALL(cudaStreamWaitEvent, (void *, void *, unsigned int))                                                  \
	CALL(cudaSetDevice, (int))

#define DRIVER_CALLS(CALL)                                                                                         \
	CALL(cuLaunchKernel, (void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,        \
			      unsigned int, unsigned int, void *, void **, void **))                               \
	CALL(cuLaunchKernelEx, (const struct driver_launch_config *, void *, void **, void **))                    \
	CALL(cuLaunchCooperativeKernel, (void *, unsigned int, unsigned int, unsigned int, unsigned int,           \
					 unsigned int, unsigned int, unsigned int, void *, void **))               \
	CALL(cuGraphLaunch, (void *, void *))                                                                      \
	CALL(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                   \
	CALL(cuStreamBeginCapture_v2, (void *, int))                                                               \
	CALL(cuStreamEndCapture, (void *, void **))                                                                \
	CALL(cuMemAlloc_v2, (device_ptr *, size_t))                                                                \
	CALL(cuMemFree_v2, (device_ptr))                                                                           \
	CALL(cuMemAllocAsync, (device_ptr *, size_t, void *))                                                      \
	CALL(cuMemFreeAsync, (device_ptr, void *))                                                                 \
	CALL(cuMemAllocManaged, (device_ptr *, size_t, unsigned int))                                              \
	CALL(cuMemHostAlloc, (void **, size_t, unsigned int))                                                      \
	CALL(cuMemFreeHost, (void *))                                                                              \
	CALL(cuMemCreate, (unsigned long long *, size_t, const void *, unsigned long long))                        \
	CALL(cuMemMap, (device_ptr, size_t, size_t, unsigned long long, unsigned long long))                       \
	CALL(cuMemUnmap, (device_ptr, size_t))                                                                     \
	CALL(cuMemRelease, (unsigned long long))                                                                   \
	CALL(cuMemcpyHtoD_v2, (device_ptr, const void *, size_t))                                                  \
	CALL(cuMemcpyDtoH_v2, (void *, device_ptr, size_t))                                                        \
	CALL(cuMemcpyHtoDAsync_v2, (device_ptr, const void *, size_t, void *))                                     \
	CALL(cuMemcpyDtoHAsync_v2, (void *, device_ptr, size_t, void *))                                           \
	CALL(cuMemcpyDtoDAsync_v2, (device_ptr, device_ptr, size_t, void *))                                       \
	CALL(cuMemsetD8_v2, (device_ptr, unsigned char, size_t))                                                   \
	CALL(cuMemsetD8Async, (device_ptr, unsigned char, size_t, void *))                                         \
	CALL(cuMemsetD32Async, (device_ptr, unsigned int, size_t, void *))                                         \
	CALL(cuStreamSynchronize, (void *))                                                                        \
	CALL(cuCtxSynchronize, (void))                                                                             \
	CALL(cuEventRecord, (void *, void *))                                                                      \
	CALL(cuEventSynchronize, (void *))                                                                         \
	CALL(cuStreamWaitEvent, (void *, void *, unsigned int))                                                    \
	CALL(cuCtxSetCurrent, (void *))                                                                            \
	CALL(cuModuleLoadData, (void **, const void *))                                                            \
	CALL(cuModuleUnload, (void *))

#define NCCL_CALLS(CALL)                                                                                           \
	CALL(ncclCommInitRank, (void **, int, struct nccl_id, int))                                                \
	CALL(ncclCommDestroy, (void *))                                                                            \
	CALL(ncclGroupStart, (void))                                                                               \
	CALL(ncclGroupEnd, (void))                                                                                 \
	CALL(ncclAllReduce, (const void *, void *, size_t, int, int, void *, void *))                              \
	CALL(ncclBroadcast, (const void *, void *, size_t, int, int, void *, void *))                              \
	CALL(ncclReduce, (const void *, void *, size_t, int, int, int, void *, void *))                            \
	CALL(ncclAllGather, (const void *, void *, size_t, int, void *, void *))                                   \
	CALL(ncclReduceScatter, (const void *, void *, size_t, int, int, void *, void *))

#define ALL_CALLS(CALL) RUNTIME_CALLS(CALL) DRIVER_CALLS(CALL) NCCL_CALLS(CALL)

/* Needed to set up, but not traced: the same table form, resolved with the rest. */
#define SETUP_CALLS(CALL)                                                                                          \
	CALL(cudaStreamCreateWithFlags, (void **, unsigned int))                                                   \
	CALL(cudaEventCreateWithFlags, (void **, unsigned int))                                                    \
	CALL(cudaMallocPitch, (void **, size_t *, size_t, size_t))                                                 \
	CALL(cudaHostRegister, (void *, size_t, unsigned int))                                                     \
	CALL(cudaGraphExecDestroy, (void *))                                                                       \
	CALL(cudaGraphDestroy, (void *))                                                                           \
	CALL(cuInit, (unsigned int))                                                                               \
	CALL(cuDeviceGet, (int *, int))                                                                            \
	CALL(cuDevicePrimaryCtxRetain, (void **, int))                                                             \
	CALL(cuStreamCreate, (void **, unsigned int))                                                              \
	CALL(cuEventCreate, (void **, unsigned int))                                                               \
	CALL(cuGraphExecDestroy, (void *))                                                                         \
	CALL(cuGraphDestroy, (void *))                                                                             \
	CALL(cuModuleGetFunction, (void **, void *, const char *))                                                 \
	CALL(cuMemAddressReserve, (device_ptr *, size_t, size_t, device_ptr, unsigned long long))                  \
	CALL(cuMemAddressFree, (device_ptr, size_t))                                                               \
	CALL(ncclGetUniqueId, (struct nccl_id *))                                                                  \
	CALL(__cudaGetKernel, (void **, const void *))

#define AS_TYPE(name, arguments) typedef int(*name##_fn) arguments;
ALL_CALLS(AS_TYPE)
SETUP_CALLS(AS_TYPE)

#define AS_POINTER(name, arguments) static name##_fn name __attribute__((unused));
ALL_CALLS(AS_POINTER)
SETUP_CALLS(AS_POINTER)

typedef void (*register_function_fn)(void **, const char *, char *, const char *, int, void *, void *, void *, void *,
				     int *);
static register_function_fn register_function;

static inline void *open_library(const char *soname)
{
	void *library = dlopen(soname, RTLD_NOW | RTLD_GLOBAL);

	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	return library;
}

/* Load the runtime of $GPUSIM_RUNTIME (default libcudart.so.12), the driver and NCCL; 0 if runtime and driver exist. */
static inline int resolve_calls(void)
{
	const char *chosen = getenv("GPUSIM_RUNTIME");
	void *runtime = open_library(chosen ? chosen : "libcudart.so.12");
	void *driver = open_library("libcuda.so.1");

	if (!runtime || !driver)
		return -1;
	dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL); /* optional */
#define AS_LOOKUP(name, arguments) name = (name##_fn)dlsym(RTLD_DEFAULT, #name);
	ALL_CALLS(AS_LOOKUP)
	SETUP_CALLS(AS_LOOKUP)
	register_function = (register_function_fn)dlsym(runtime, "__cudaRegisterFunction");
	return 0;
}

/* Register a device function that lasts `ns`; the address of `symbol` launches it. */
static inline void register_kernel(const char *symbol, const char *name_with_ns)
{
	register_function(NULL, symbol, (char *)name_with_ns, name_with_ns, -1, NULL, NULL, NULL, NULL, NULL);
}

#endif
