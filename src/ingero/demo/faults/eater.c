/* SPDX-License-Identifier: Apache-2.0 */
/* eater NAME BYTES: touches memory up to a bound, 1 MiB every 2 ms, then holds it; meant to meet its cgroup's limit first. */
#include "disturber.h"

#include <string.h>

#define STEP_BYTES (1 << 20)

int main(int argc, char **argv)
{
	long left = argc > 2 ? atol(argv[2]) : 0;

	begin(argc, argv);
	for (; left > 0; left -= STEP_BYTES) {
		char *block = malloc(STEP_BYTES);

		if (!block)
			return 1;
		memset(block, 1, STEP_BYTES);
		usleep(2000);
	}
	pause();
	return 0;
}
