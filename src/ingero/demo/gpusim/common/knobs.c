// SPDX-License-Identifier: Apache-2.0
#include "knobs.h"

#include <limits.h>
#include <pthread.h>

#include "shared_file.h"

union block {
	struct gpusim_knobs knobs;
	char bytes[GPUSIM_KNOBS_BYTES];
};

static const struct gpusim_knobs defaults = {
	.magic = GPUSIM_KNOBS_MAGIC,
#define GPUSIM_KNOB_DEFAULT(type, name, value) .name = value,
	GPUSIM_KNOBS(GPUSIM_KNOB_DEFAULT)
#undef GPUSIM_KNOB_DEFAULT
};

static const union block *blocks;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void prepare(void *memory)
{
	union block *block = memory;

	for (int i = 0; i < GPUSIM_MAX_DEVICES; i++)
		if (block[i].knobs.magic != GPUSIM_KNOBS_MAGIC)
			block[i].knobs = defaults;
}

static void open_knobs(void)
{
	static union block fixed[GPUSIM_MAX_DEVICES];
	char path[PATH_MAX];

	if (gpusim_env_path("GPUSIM_CTL", path, sizeof(path)))
		blocks = gpusim_map_file(path, sizeof(fixed), prepare, NULL);
	if (!blocks) {
		prepare(fixed);
		blocks = fixed;
	}
}

const volatile struct gpusim_knobs *gpusim_knobs(int device)
{
	pthread_once(&once, open_knobs);
	return &blocks[device].knobs;
}
