/* SPDX-License-Identifier: Apache-2.0 */
/* What the simulated device is, told alike by the driver, the runtime and NVML. */
#ifndef GPUSIM_IDENTITY_H
#define GPUSIM_IDENTITY_H

#include <string.h>

#define GPUSIM_DEVICE_NAME "Simulated GPU"
#define GPUSIM_MULTIPROCESSORS 132
#define GPUSIM_CAPABILITY_MAJOR 9
#define GPUSIM_CAPABILITY_MINOR 0
#define GPUSIM_UUID_BYTES 16

static inline void gpusim_device_uuid(int device, unsigned char uuid[GPUSIM_UUID_BYTES])
{
	memcpy(uuid, "gpusim-device\0\0", GPUSIM_UUID_BYTES);
	uuid[GPUSIM_UUID_BYTES - 1] = device;
}

static inline int gpusim_device_bus(int device)
{
	return device + 1;
}

#endif
