/* SPDX-License-Identifier: Apache-2.0 */
/* hog NAME [PERCENT]: runs on one CPU for PERCENT (100) of every 20 ms, under that name, while its parent lives. */
#include "disturber.h"

#include <time.h>

#define PERIOD_NS 20000000L

static long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

int main(int argc, char **argv)
{
	double percent = argc > 2 ? atof(argv[2]) : 100;
	struct timespec rest = {0, (long)(PERIOD_NS * (100 - percent) / 100)};

	begin(argc, argv);
	for (;;) {
		long end = now_ns() + (long)(PERIOD_NS * percent / 100);

		while (now_ns() < end)
			;
		if (percent < 100)
			nanosleep(&rest, NULL);
	}
}
