// SPDX-License-Identifier: Apache-2.0
/* Devices, the current one of each thread, limits, and the last error. */
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>

#include "device_prop.h"
#include "identity.h"
#include "knobs.h"
#include "runtime.h"

static void *contexts[GPUSIM_MAX_DEVICES];
static __thread int current_device;
static __thread int is_current;		/* this thread has a context */
static __thread int last_error;

int runtime_result(int error)
{
	if (error && error != ERROR_NOT_READY)
		last_error = error;
	return error;
}

int runtime_device(void)
{
	return current_device;
}

static int check_driver(void)
{
	int count;

	if (!driver_load())
		return ERROR_INSUFFICIENT_DRIVER;
	return driver.cuDeviceGetCount(&count);	/* also refuses a forked child */
}

int runtime_context(int device, void **context)
{
	int error;

	if (device < 0 || device >= GPUSIM_MAX_DEVICES)
		return ERROR_INVALID_DEVICE;
	if (!contexts[device]) {
		error = driver.cuDevicePrimaryCtxRetain(&contexts[device], device);
		if (error) {
			contexts[device] = NULL;
			return error;
		}
	}
	*context = contexts[device];
	return SUCCESS;
}

static int make_current(int device)
{
	void *context;
	int error = runtime_context(device, &context);

	if (!error)
		error = driver.cuCtxSetCurrent(context);
	if (error)
		return error;
	current_device = device;
	is_current = 1;
	return SUCCESS;
}

int runtime_enter(void)
{
	int error;

	if (is_current)
		return SUCCESS;
	error = check_driver();
	return error ? error : make_current(current_device);
}

API(cudaRuntimeGetVersion, (int *version), (version))
{
	*version = CUDART_VERSION;
	return SUCCESS;
}

API(cudaDriverGetVersion, (int *version), (version))
{
	*version = 0;
	return driver_load() ? driver.cuDriverGetVersion(version) : SUCCESS;
}

API(cudaGetDeviceCount, (int *count), (count))
{
	int error = check_driver();

	*count = 0;
	return error ? error : driver.cuDeviceGetCount(count);
}

API(cudaSetDevice, (int device), (device))
{
	int error = check_driver();

	return error ? error : make_current(device);
}

API(cudaInitDevice, (int device, unsigned int device_flags, unsigned int flags), (device, device_flags, flags))
{
	int error = check_driver();

	return error ? error : make_current(device);
}

API(cudaGetDevice, (int *device), (device))
{
	int error = is_current ? SUCCESS : check_driver();

	*device = current_device;
	return error;
}

API(cudaChooseDevice, (int *device, const struct device_prop *wanted), (device, wanted))
{
	*device = 0;
	return check_driver();
}

API(cudaSetDeviceFlags, (unsigned int flags), (flags))
{
	int error = check_driver();

	return error ? error : driver.cuDevicePrimaryCtxSetFlags(current_device, flags);
}

API(cudaGetDeviceFlags, (unsigned int *flags), (flags))
{
	int active, error = check_driver();

	return error ? error : driver.cuDevicePrimaryCtxGetState(current_device, flags, &active);
}

API(cudaDeviceSynchronize, (void), ())
{
	ENTER();
	return driver.cuCtxSynchronize();
}

API(cudaThreadSynchronize, (void), ())
{
	ENTER();
	return driver.cuCtxSynchronize();
}

API(cudaDeviceReset, (void), ())
{
	ENTER();
	return driver.cuDevicePrimaryCtxReset(current_device);
}

API(cudaDeviceGetAttribute, (int *value, int attribute, int device), (value, attribute, device))
{
	int error = check_driver();

	return error ? error : driver.cuDeviceGetAttribute(value, attribute, device);
}

API(cudaDeviceGetPCIBusId, (char *text, int size, int device), (text, size, device))
{
	int error = check_driver();

	return error ? error : driver.cuDeviceGetPCIBusId(text, size, device);
}

API(cudaDeviceGetByPCIBusId, (int *device, const char *text), (device, text))
{
	int error = check_driver();

	return error ? error : driver.cuDeviceGetByPCIBusId(device, text);
}

API(cudaDeviceCanAccessPeer, (int *can, int device, int peer), (can, device, peer))
{
	int error = check_driver();

	return error ? error : driver.cuDeviceCanAccessPeer(can, device, peer);
}

API(cudaDeviceEnablePeerAccess, (int peer, unsigned int flags), (peer, flags))
{
	void *context;

	ENTER();
	return runtime_context(peer, &context) ? ERROR_INVALID_DEVICE : driver.cuCtxEnablePeerAccess(context, flags);
}

API(cudaDeviceDisablePeerAccess, (int peer), (peer))
{
	void *context;

	ENTER();
	return runtime_context(peer, &context) ? ERROR_INVALID_DEVICE : driver.cuCtxDisablePeerAccess(context);
}

API(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), (least, greatest))
{
	ENTER();
	return driver.cuCtxGetStreamPriorityRange(least, greatest);
}

API(cudaDeviceGetLimit, (size_t *value, int limit), (value, limit))
{
	ENTER();
	return driver.cuCtxGetLimit(value, limit);
}

API(cudaDeviceSetLimit, (int limit, size_t value), (limit, value))
{
	ENTER();
	return driver.cuCtxSetLimit(limit, value);
}

static int fill(struct device_prop *prop, int device)
{
	unsigned char uuid[GPUSIM_UUID_BYTES];
	size_t memory;
	int error = check_driver();

	error = error ? error : driver.cuDeviceTotalMem(&memory, device);
	error = error ? error : driver.cuDeviceGetUuid(uuid, device);
	if (error)
		return error;
	*prop = (struct device_prop){
		.name = GPUSIM_DEVICE_NAME, .total_memory = memory, .shared_per_block = 49152,
		.registers_per_block = 65536, .warp_size = 32, .memory_pitch = 0x7fffffff,
		.threads_per_block = 1024, .block_dim = { 1024, 1024, 64 },
		.grid_dim = { 0x7fffffff, 65535, 65535 }, .constant_memory = 65536,
		.major = GPUSIM_CAPABILITY_MAJOR, .minor = GPUSIM_CAPABILITY_MINOR,
		.texture_alignment = 512, .texture_pitch_alignment = 32,
		.multiprocessors = GPUSIM_MULTIPROCESSORS, .can_map_host = 1, .surface_alignment = 512,
		.concurrent_kernels = 1, .pci_bus = gpusim_device_bus(device), .async_engines = 3,
		.unified_addressing = 1, .memory_bus_bits = 5120, .l2_bytes = 50 << 20,
		.threads_per_multiprocessor = 2048, .stream_priorities = 1, .global_l1 = 1, .local_l1 = 1,
		.shared_per_multiprocessor = 233472, .registers_per_multiprocessor = 65536,
		.managed_memory = 1, .cooperative_launch = 1, .shared_per_block_optin = 232448,
		.blocks_per_multiprocessor = 32, .memory_pools = 1,
	};
	memcpy(prop->uuid, uuid, sizeof(uuid));
	return SUCCESS;
}

/* Before CUDA 13 the unversioned name fills the shorter structure of CUDA 11. */
API(cudaGetDeviceProperties, (struct device_prop *prop, int device), (prop, device))
{
	struct device_prop whole;
	int error = fill(&whole, device);
	size_t bytes = CUDART_VERSION < 13000 ? offsetof(struct device_prop, since_cuda_12) : sizeof(whole);

	if (!error)
		memcpy(prop, &whole, bytes);
	return error;
}

API(cudaGetDeviceProperties_v2, (struct device_prop *prop, int device), (prop, device))
{
	return fill(prop, device);
}

/* Not counted like the others: their result is an old error, not one of their own. */
EXPORT int cudaGetLastError(void)
{
	int error = last_error;

	last_error = SUCCESS;
	return error;
}

EXPORT int cudaPeekAtLastError(void)
{
	return last_error;
}

struct error_text {
	int code;
	const char *name, *text;
};

static const struct error_text *error_text(int code)
{
	static const struct error_text texts[] = {
		{ SUCCESS, "cudaSuccess", "no error" },
		{ ERROR_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument" },
		{ ERROR_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory" },
		{ ERROR_NOT_INITIALIZED, "cudaErrorInitializationError", "initialization error" },
		{ ERROR_INSUFFICIENT_DRIVER, "cudaErrorInsufficientDriver", "driver is missing or too old" },
		{ ERROR_INVALID_DEVICE_FUNCTION, "cudaErrorInvalidDeviceFunction", "invalid device function" },
		{ ERROR_NO_DEVICE, "cudaErrorNoDevice", "no device" },
		{ ERROR_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal" },
		{ ERROR_INVALID_CONTEXT, "cudaErrorDeviceUninitialized", "invalid device context" },
		{ ERROR_INVALID_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle" },
		{ ERROR_NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found" },
		{ ERROR_NOT_READY, "cudaErrorNotReady", "device not ready" },
		{ ERROR_NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported" },
		{ ERROR_STREAM_CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported",
		  "not permitted while a stream is capturing" },
		{ ERROR_STREAM_CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated",
		  "the stream is not capturing" },
	};
	static const struct error_text unknown = { 999, "cudaErrorUnknown", "unknown error" };

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
		if (texts[i].code == code)
			return &texts[i];
	return &unknown;
}

EXPORT const char *cudaGetErrorName(int code)
{
	return error_text(code)->name;
}

EXPORT const char *cudaGetErrorString(int code)
{
	return error_text(code)->text;
}

API(cudaGetDriverEntryPoint, (const char *name, void **address, unsigned long long flags, int *result),
    (name, address, flags, result))
{
	int error = check_driver();

	error = error ? error : driver_find(name, address, CUDART_VERSION, flags);
	if (result)
		*result = error ? 1 : 0;	/* cudaDriverEntryPointSymbolNotFound */
	return error == ERROR_NOT_FOUND && result ? SUCCESS : error;
}

API(cudaGetDriverEntryPointByVersion,
    (const char *name, void **address, unsigned int version, unsigned long long flags, int *result),
    (name, address, version, flags, result))
{
	int error = check_driver();

	error = error ? error : driver_find(name, address, version, flags);
	if (result)
		*result = error ? 1 : 0;
	return error == ERROR_NOT_FOUND && result ? SUCCESS : error;
}

API(cudaProfilerStart, (void), ())
{
	ENTER();
	return driver.cuProfilerStart();
}

API(cudaProfilerStop, (void), ())
{
	ENTER();
	return driver.cuProfilerStop();
}
