// SPDX-License-Identifier: Apache-2.0
/* NVML: what the shared device state and the knobs say, in the structures of nvml.h. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api.h"
#include "device.h"
#include "identity.h"
#include "knobs.h"

enum {					/* nvmlReturn_t */
	NVML_SUCCESS = 0,
	NVML_UNINITIALIZED = 1,
	NVML_INVALID_ARGUMENT = 2,
	NVML_NOT_SUPPORTED = 3,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_SIZE = 7,
};

#define WINDOW_NS NS_PER_SEC		/* what utilisation is measured over */
#define IDLE_WINDOW_NS (NS_PER_SEC / 5)
#define REASON_GPU_IDLE 1ull
#define CLOCK_MEMORY 2
#define MEMORY_CLOCK_MHZ 2619

/* A device handle is its number plus one, so that none is NULL. */
typedef uintptr_t handle_t;

static atomic_int initialized;

#define NEED_DEVICE(device, handle)					\
	int device = (int)(handle) - 1;					\
	if (!initialized)						\
		return NVML_UNINITIALIZED;				\
	if (device < 0 || device >= gpusim_device_count())		\
		return NVML_INVALID_ARGUMENT

EXPORT int nvmlInit_v2(void)
{
	initialized++;
	return NVML_SUCCESS;
}

EXPORT int nvmlInitWithFlags(unsigned int flags)
{
	initialized++;
	return NVML_SUCCESS;
}

EXPORT int nvmlShutdown(void)
{
	if (!initialized)
		return NVML_UNINITIALIZED;
	initialized--;
	return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(int error)
{
	static const char *const texts[] = {
		"Success", "Uninitialized", "Invalid Argument", "Not Supported", "No Permission",
		"Already Initialized", "Not Found", "Insufficient Size",
	};

	return error >= 0 && error < (int)(sizeof(texts) / sizeof(*texts)) ? texts[error] : "Unknown Error";
}

static int copy_text(char *to, unsigned int size, const char *from)
{
	if (strlen(from) >= size)
		return NVML_INSUFFICIENT_SIZE;
	strcpy(to, from);
	return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
	return copy_text(version, size, "580.00.00");
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned int size)
{
	return copy_text(version, size, "13.580.00.00");
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version)
{
	*version = 13000;
	return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	*version = 13000;
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count)
{
	*count = gpusim_device_count();
	return initialized ? NVML_SUCCESS : NVML_UNINITIALIZED;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, handle_t *handle)
{
	NEED_DEVICE(device, index + 1);

	*handle = device + 1;
	return NVML_SUCCESS;
}

static void uuid_text(int device, char text[64])
{
	unsigned char u[GPUSIM_UUID_BYTES];
	int length = snprintf(text, 64, "GPU-");

	gpusim_device_uuid(device, u);
	for (int i = 0; i < GPUSIM_UUID_BYTES; i++)
		length += snprintf(text + length, 64 - length, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
				   u[i]);
}

EXPORT int nvmlDeviceGetUUID(handle_t handle, char *text, unsigned int size)
{
	char uuid[64];
	NEED_DEVICE(device, handle);

	uuid_text(device, uuid);
	return copy_text(text, size, uuid);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *text, handle_t *handle)
{
	char uuid[64];

	if (!initialized)
		return NVML_UNINITIALIZED;
	for (int device = 0; device < gpusim_device_count(); device++) {
		uuid_text(device, uuid);
		*handle = device + 1;
		if (!strcmp(uuid, text))
			return NVML_SUCCESS;
	}
	return NVML_NOT_FOUND;
}

static void bus_text(int device, char text[32])
{
	snprintf(text, 32, "00000000:%02X:00.0", gpusim_device_bus(device));
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *text, handle_t *handle)
{
	unsigned int domain, bus;

	if (sscanf(text, "%x:%x", &domain, &bus) != 2)
		return NVML_INVALID_ARGUMENT;
	*handle = bus;
	return bus >= 1 && (int)bus <= gpusim_device_count() ? NVML_SUCCESS : NVML_NOT_FOUND;
}

struct pci_info {			/* nvmlPciInfo_t */
	char legacy_bus_id[16];
	unsigned int domain, bus, device, device_id, subsystem_id;
	char bus_id[32];
};

EXPORT int nvmlDeviceGetPciInfo_v3(handle_t handle, struct pci_info *info)
{
	NEED_DEVICE(device, handle);

	*info = (struct pci_info){ .bus = gpusim_device_bus(device), .device_id = 0x000010de };
	bus_text(device, info->bus_id);
	snprintf(info->legacy_bus_id, sizeof(info->legacy_bus_id), "%s", info->bus_id + 4);
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetName(handle_t handle, char *name, unsigned int size)
{
	NEED_DEVICE(device, handle);

	(void)device;
	return copy_text(name, size, GPUSIM_DEVICE_NAME);
}

EXPORT int nvmlDeviceGetIndex(handle_t handle, unsigned int *index)
{
	NEED_DEVICE(device, handle);

	*index = device;
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMinorNumber(handle_t handle, unsigned int *minor)
{
	NEED_DEVICE(device, handle);

	*minor = device;
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(handle_t handle, int *major, int *minor)
{
	NEED_DEVICE(device, handle);

	(void)device;
	*major = GPUSIM_CAPABILITY_MAJOR;
	*minor = GPUSIM_CAPABILITY_MINOR;
	return NVML_SUCCESS;
}

struct utilization {			/* nvmlUtilization_t, percent */
	unsigned int gpu, memory;
};

EXPORT int nvmlDeviceGetUtilizationRates(handle_t handle, struct utilization *rates)
{
	NEED_DEVICE(device, handle);
	double in = gpusim_device_busy_ratio(device, ENGINE_COPY_IN, WINDOW_NS);
	double out = gpusim_device_busy_ratio(device, ENGINE_COPY_OUT, WINDOW_NS);

	rates->gpu = 100 * gpusim_device_busy_ratio(device, ENGINE_COMPUTE, WINDOW_NS) + 0.5;
	rates->memory = 100 * (in > out ? in : out) + 0.5;
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetClockInfo(handle_t handle, int type, unsigned int *mhz)
{
	NEED_DEVICE(device, handle);

	*mhz = type == CLOCK_MEMORY ? MEMORY_CLOCK_MHZ : gpusim_knobs(device)->sm_clock_mhz;
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMaxClockInfo(handle_t handle, int type, unsigned int *mhz)
{
	NEED_DEVICE(device, handle);

	*mhz = type == CLOCK_MEMORY ? MEMORY_CLOCK_MHZ : gpusim_knobs(device)->sm_clock_max_mhz;
	return NVML_SUCCESS;
}

static int reasons(handle_t handle, unsigned long long *mask)
{
	NEED_DEVICE(device, handle);

	*mask = gpusim_knobs(device)->throttle_reasons;
	if (gpusim_device_busy_ratio(device, ENGINE_COMPUTE, IDLE_WINDOW_NS) == 0)
		*mask |= REASON_GPU_IDLE;
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(handle_t handle, unsigned long long *mask)
{
	return reasons(handle, mask);
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(handle_t handle, unsigned long long *mask)
{
	return reasons(handle, mask);
}

struct memory {				/* nvmlMemory_t */
	unsigned long long total, free, used;
};

struct memory_v2 {			/* nvmlMemory_v2_t */
	unsigned int version;
	unsigned long long total, reserved, free, used;
};

static struct memory memory_of(int device)
{
	struct memory memory = {
		.total = gpusim_knobs(device)->mem_limit_bytes, .used = gpusim_device_memory_used(device),
	};

	memory.free = memory.used < memory.total ? memory.total - memory.used : 0;
	return memory;
}

EXPORT int nvmlDeviceGetMemoryInfo(handle_t handle, struct memory *memory)
{
	NEED_DEVICE(device, handle);

	*memory = memory_of(device);
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(handle_t handle, struct memory_v2 *memory)
{
	NEED_DEVICE(device, handle);
	struct memory plain = memory_of(device);

	memory->total = plain.total;
	memory->reserved = 0;
	memory->free = plain.free;
	memory->used = plain.used;
	return NVML_SUCCESS;
}

struct process {			/* nvmlProcessInfo_t of _v2 and _v3 */
	unsigned int pid;
	unsigned long long memory_bytes;
	unsigned int gpu_instance, compute_instance;
};

static int processes(handle_t handle, unsigned int *count, struct process *out)
{
	uint64_t memory_bytes[GPUSIM_MAX_PROCESSES];
	int pids[GPUSIM_MAX_PROCESSES], found;
	unsigned int capacity = *count;
	NEED_DEVICE(device, handle);

	found = gpusim_device_processes(device, GPUSIM_MAX_PROCESSES, pids, memory_bytes);
	*count = found;
	if (found > (int)capacity)
		return NVML_INSUFFICIENT_SIZE;
	for (int i = 0; i < found; i++)
		out[i] = (struct process){ pids[i], memory_bytes[i], -1u, -1u };
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(handle_t handle, unsigned int *count, struct process *out)
{
	return processes(handle, count, out);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(handle_t handle, unsigned int *count, struct process *out)
{
	return processes(handle, count, out);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(handle_t handle, unsigned int *count, struct process *out)
{
	NEED_DEVICE(device, handle);

	(void)device;
	*count = 0;
	return NVML_SUCCESS;
}

struct process_utilization {		/* nvmlProcessUtilizationSample_t; percent */
	unsigned int pid;
	unsigned long long time_us;
	unsigned int sm, memory, encoder, decoder;
};

/* One sample a process, of now; @since_us only asks for newer ones. */
EXPORT int nvmlDeviceGetProcessUtilization(handle_t handle, struct process_utilization *out, unsigned int *count,
					   unsigned long long since_us)
{
	int pids[GPUSIM_MAX_PROCESSES], found;
	double ratios[GPUSIM_MAX_PROCESSES];
	unsigned int capacity = *count;
	struct timespec now;
	NEED_DEVICE(device, handle);

	clock_gettime(CLOCK_REALTIME, &now);
	found = gpusim_device_shares(device, WINDOW_NS, GPUSIM_MAX_PROCESSES, pids, ratios);
	*count = found;
	if (!found || since_us >= now.tv_sec * 1000000ull + now.tv_nsec / 1000)
		return NVML_NOT_FOUND;
	if (!out || found > (int)capacity)
		return NVML_INSUFFICIENT_SIZE;
	for (int i = 0; i < found; i++)
		out[i] = (struct process_utilization){
			.pid = pids[i], .time_us = now.tv_sec * 1000000ull + now.tv_nsec / 1000,
			.sm = 100 * ratios[i] + 0.5,
		};
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(handle_t handle, int sensor, unsigned int *celsius)
{
	NEED_DEVICE(device, handle);

	*celsius = gpusim_knobs(device)->temperature_c;
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetPowerUsage(handle_t handle, unsigned int *milliwatt)
{
	NEED_DEVICE(device, handle);

	*milliwatt = gpusim_knobs(device)->power_w * 1000;
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(handle_t handle, unsigned int *milliwatt)
{
	NEED_DEVICE(device, handle);

	(void)device;
	*milliwatt = 700000;
	return NVML_SUCCESS;
}
