// SPDX-License-Identifier: Apache-2.0
/* What a device says about itself, and what errors are called. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "context.h"
#include "identity.h"
#include "knobs.h"

#define DRIVER_VERSION 13000

API(cuDriverGetVersion, (int *version), (version))
{
	*version = DRIVER_VERSION;
	return SUCCESS;
}

static int check(int device)
{
	int error = driver_ready();

	return error ? error : driver_physical(device) < 0 ? ERROR_INVALID_DEVICE : SUCCESS;
}

API(cuDeviceGetCount, (int *count), (count))
{
	*count = driver_device_count();
	return driver_ready();
}

API(cuDeviceGet, (int *device, int ordinal), (device, ordinal))
{
	*device = ordinal;
	return check(ordinal);
}

API(cuDeviceGetName, (char *name, int size, int device), (name, size, device))
{
	snprintf(name, size, "%s", GPUSIM_DEVICE_NAME);
	return check(device);
}

API(cuDeviceTotalMem_v2, (size_t *bytes, int device), (bytes, device))
{
	int error = check(device);

	if (!error)
		*bytes = gpusim_knobs(driver_physical(device))->mem_limit_bytes;
	return error;
}

static int get_uuid(unsigned char *uuid, int device)
{
	int error = check(device);

	if (!error)
		gpusim_device_uuid(driver_physical(device), uuid);
	return error;
}

API(cuDeviceGetUuid, (unsigned char *uuid, int device), (uuid, device))
{
	return get_uuid(uuid, device);
}

API(cuDeviceGetUuid_v2, (unsigned char *uuid, int device), (uuid, device))
{
	return get_uuid(uuid, device);
}

API(cuDeviceGetPCIBusId, (char *text, int size, int device), (text, size, device))
{
	int error = check(device);

	if (!error)
		snprintf(text, size, "0000:%02x:00.0", gpusim_device_bus(driver_physical(device)));
	return error;
}

API(cuDeviceGetByPCIBusId, (int *device, const char *text), (device, text))
{
	unsigned int domain, bus;

	if (sscanf(text, "%x:%x", &domain, &bus) != 2)
		return ERROR_INVALID_VALUE;
	for (*device = 0; *device < driver_device_count(); (*device)++)
		if (gpusim_device_bus(driver_physical(*device)) == (int)bus)
			return SUCCESS;
	return ERROR_INVALID_DEVICE;
}

API(cuDeviceComputeCapability, (int *major, int *minor, int device), (major, minor, device))
{
	*major = GPUSIM_CAPABILITY_MAJOR;
	*minor = GPUSIM_CAPABILITY_MINOR;
	return check(device);
}

API(cuDeviceCanAccessPeer, (int *can, int device, int peer), (can, device, peer))
{
	*can = device != peer;
	return check(device);
}

struct attribute {
	int which;			/* CUdevice_attribute */
	int value;
};

static const struct attribute attributes[] = {
	{ 1, 1024 },			/* threads per block */
	{ 2, 1024 }, { 3, 1024 }, { 4, 64 },
	{ 5, 0x7fffffff }, { 6, 65535 }, { 7, 65535 },
	{ 8, 49152 },			/* shared memory per block */
	{ 9, 65536 },			/* constant memory */
	{ 10, 32 },			/* warp size */
	{ 12, 65536 },			/* registers per block */
	{ 13, 1980000 },		/* clock, kHz */
	{ 16, GPUSIM_MULTIPROCESSORS },
	{ 18, 0 },			/* not integrated */
	{ 19, 1 },			/* can map host memory */
	{ 20, 0 },			/* compute mode: default */
	{ 31, 1 },			/* concurrent kernels */
	{ 36, 2619000 },		/* memory clock, kHz */
	{ 37, 5120 },			/* memory bus, bits */
	{ 38, 50 << 20 },		/* L2 */
	{ 39, 2048 },			/* threads per multiprocessor */
	{ 40, 3 },			/* copy engines */
	{ 41, 1 },			/* unified addressing */
	{ 75, GPUSIM_CAPABILITY_MAJOR },
	{ 76, GPUSIM_CAPABILITY_MINOR },
	{ 78, 1 },			/* stream priorities */
	{ 81, 233472 },			/* shared memory per multiprocessor */
	{ 82, 65536 },			/* registers per multiprocessor */
	{ 83, 1 },			/* managed memory */
	{ 95, 1 },			/* cooperative launch */
	{ 97, 232448 },			/* opt-in shared memory per block */
	{ 102, 1 },			/* virtual memory management */
	{ 115, 1 },			/* memory pools */
};

API(cuDeviceGetAttribute, (int *value, int which, int device), (value, which, device))
{
	int error = check(device);

	if (error)
		return error;
	*value = 0;			/* a property this device does not have */
	if (which == 33)
		*value = gpusim_device_bus(driver_physical(device));
	for (size_t i = 0; i < sizeof(attributes) / sizeof(*attributes); i++)
		if (attributes[i].which == which)
			*value = attributes[i].value;
	return SUCCESS;
}

struct error_text {
	int code;
	const char *name, *text;
};

static const struct error_text errors[] = {
	{ SUCCESS, "CUDA_SUCCESS", "no error" },
	{ ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
	{ ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no device" },
	{ ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
	{ ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
	{ ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
	{ ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
	{ ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready" },
	{ ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
};

static const struct error_text *find(int code)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
		if (errors[i].code == code)
			return &errors[i];
	return NULL;
}

API(cuGetErrorName, (int code, const char **name), (code, name))
{
	const struct error_text *error = find(code);

	*name = error ? error->name : "CUDA_ERROR_UNKNOWN";
	return error ? SUCCESS : ERROR_INVALID_VALUE;
}

API(cuGetErrorString, (int code, const char **text), (code, text))
{
	const struct error_text *error = find(code);

	*text = error ? error->text : "unknown error";
	return error ? SUCCESS : ERROR_INVALID_VALUE;
}

API(cuProfilerStart, (void), ())
{
	return SUCCESS;
}

API(cuProfilerStop, (void), ())
{
	return SUCCESS;
}
