/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer NAME FILE [PERCENT]: 16 threads write 256 KiB each at random places of a 128 MiB file, past the page cache,
 * for PERCENT (100) of every half second. All writers of a machine begin together.
 */
#include "disturber.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define THREADS 16
#define BLOCK_BYTES (256 << 10)
#define FILE_BYTES (128 << 20)
#define PERIOD_NS 500000000L

static int file;
static long busy_ns = PERIOD_NS;

/* Sleeps through the rest of a period in which nothing is written. */
static void wait_for_turn(void)
{
	struct timespec now, rest = {0, 0};
	long into;

	clock_gettime(CLOCK_MONOTONIC, &now);
	into = now.tv_nsec % PERIOD_NS;
	if (into < busy_ns)
		return;
	rest.tv_nsec = PERIOD_NS - into;
	nanosleep(&rest, NULL);
}

static void *write_for_ever(void *seed)
{
	unsigned int state = (unsigned int)(uintptr_t)seed;
	void *block;

	if (posix_memalign(&block, 4096, BLOCK_BYTES))
		return NULL;
	memset(block, 'w', BLOCK_BYTES);
	for (;;) {
		off_t place = (off_t)(rand_r(&state) % (FILE_BYTES / BLOCK_BYTES)) * BLOCK_BYTES;

		wait_for_turn();
		if (pwrite(file, block, BLOCK_BYTES, place) != BLOCK_BYTES) {
			perror("pwrite");
			exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	pthread_t thread;

	file = argc > 2 ? open(argv[2], O_WRONLY | O_CREAT | O_DIRECT, 0600) : -1;
	if (file < 0 || posix_fallocate(file, 0, FILE_BYTES)) {
		perror("writer");
		return 1;
	}
	if (argc > 3)
		busy_ns = (long)(PERIOD_NS * atof(argv[3]) / 100);
	begin(argc, argv);
	for (uintptr_t i = 1; i < THREADS; i++)
		pthread_create(&thread, NULL, write_for_ever, (void *)i);
	write_for_ever((void *)THREADS);
	return 1;
}
