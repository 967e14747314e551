/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libcudart and libnccl get from libcuda besides the public functions:
 * the calling thread's state, so that a driver call inside a runtime call is
 * known as such. It travels through cuGetExportTable, as such things do in the
 * real libraries, so that no symbol has to be added.
 */
#ifndef GPUSIM_BRIDGE_H
#define GPUSIM_BRIDGE_H

#include "truth.h"

#define GPUSIM_BRIDGE_UUID "gpusim-bridge-01"

struct gpusim_bridge {
	struct gpusim_thread *(*thread)(void);
};

#endif
