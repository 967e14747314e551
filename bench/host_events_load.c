/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does one thing N times and prints the CPU time it took in nanoseconds. `host_events_load MODE [FILE]` reads N from
 * each line of its input, so that one process can be measured with and without probes.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define BATCH 1024

static int sockets[2], file_fd;
static char *buffer;

static void pages(long count)
{
	for (long done = 0; done < count; done += BATCH)
		munmap(mmap(NULL, BATCH * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0),
		       BATCH * PAGE);
}

static void faults(long count)
{
	for (long done = 0; done < count; done += BATCH) {
		char *memory = mmap(NULL, BATCH * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		madvise(memory, BATCH * PAGE, MADV_NOHUGEPAGE);
		for (long at = 0; at < BATCH; at++)
			memory[at * PAGE] = 1;
		munmap(memory, BATCH * PAGE);
	}
}

static void messages(long count)
{
	for (long done = 0; done < count; done++)
		if (send(sockets[0], "x", 1, 0) != 1 || recv(sockets[1], buffer, 1, 0) != 1)
			abort();
}

static void calls(long count)
{
	for (long done = 0; done < count; done++)
		syscall(SYS_getppid);
}

static void reads(long count)
{
	for (long done = 0; done < count; done++)
		if (pread(file_fd, buffer, PAGE, done % BATCH * PAGE) != PAGE)
			abort();
}

static void (*find(const char *mode))(long)
{
	return !strcmp(mode, "pages")	   ? pages
	       : !strcmp(mode, "faults")   ? faults
	       : !strcmp(mode, "messages") ? messages
	       : !strcmp(mode, "calls")	   ? calls
	       : !strcmp(mode, "reads")	   ? reads
					   : NULL;
}

static long long cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(int argc, char **argv)
{
	void (*work)(long) = argc > 1 ? find(argv[1]) : NULL;
	long count;

	if (!work || socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) || posix_memalign((void **)&buffer, PAGE, PAGE))
		return 2;
	if (argc > 2 && (file_fd = open(argv[2], O_RDONLY | O_DIRECT)) < 0)
		return 1;
	while (scanf("%ld", &count) == 1) {
		long long begin = cpu_ns();

		work(count);
		printf("%lld\n", cpu_ns() - begin);
		fflush(stdout);
	}
	return 0;
}
