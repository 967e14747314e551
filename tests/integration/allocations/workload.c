/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates and frees in ways that a follower of allocations must get right, and prints what it holds at the end: one
 * JSON object {scenario's own numbers}. Usage: workload SCENARIO [number].
 */
#include "cuda_calls.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS 4
#define HELD 64 /* allocations that a thread holds on to, so that addresses go from one thread to another */
#define MIB (1ull << 20)

static int number;
static double per_second = 20000;

struct sums {
	unsigned long long allocated, freed, allocations, frees, failures, bytes_failed;
};

static struct sums sums[THREADS];

static void *allocate(struct sums *mine, size_t bytes)
{
	void *block = NULL;

	if (cudaMalloc(&block, bytes)) {
		mine->failures++;
		mine->bytes_failed += bytes;
		return NULL;
	}
	mine->allocations++;
	mine->allocated += bytes;
	return block;
}

static void release(struct sums *mine, void *block, size_t bytes)
{
	if (block && !cudaFree(block)) {
		mine->frees++;
		mine->freed += bytes;
	}
}

static void pace(const struct timespec *start, int done, double rate)
{
	double due = start->tv_sec + start->tv_nsec / 1e9 + done / rate;
	struct timespec until = {(time_t)due, (long)((due - (time_t)due) * 1e9)};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* As a program that makes its buffers larger: the new one is there before the old one goes. */
static void *churn(void *argument)
{
	struct sums *mine = argument;
	unsigned int seed = (unsigned int)(mine - sums) + 1;
	void *held[HELD] = {0};
	size_t bytes[HELD] = {0};
	struct timespec start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int i = 0; i < number; i++) {
		int at = rand_r(&seed) % HELD;
		size_t size = 256 + rand_r(&seed) % 65536;
		void *larger = allocate(mine, size);

		release(mine, held[at], bytes[at]);
		held[at] = larger;
		bytes[at] = larger ? size : 0;
		if (i % 64 == 0)
			pace(&start, i, per_second / THREADS);
	}
	return NULL;
}

static void print_sums(void)
{
	struct sums all = {0};

	for (int i = 0; i < THREADS; i++) {
		all.allocated += sums[i].allocated;
		all.freed += sums[i].freed;
		all.allocations += sums[i].allocations;
		all.frees += sums[i].frees;
		all.failures += sums[i].failures;
		all.bytes_failed += sums[i].bytes_failed;
	}
	printf("{\"allocated\": %llu, \"freed\": %llu, \"allocations\": %llu, \"frees\": %llu, \"failures\": %llu, "
	       "\"bytes_failed\": %llu}\n",
	       all.allocated, all.freed, all.allocations, all.frees, all.failures, all.bytes_failed);
}

static int in_threads(void)
{
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, churn, &sums[i]);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	print_sums();
	return 0;
}

/* One of each way to allocate, half of them freed; the numbers are the bytes held of each kind. */
static int every_kind(void)
{
	unsigned long long properties[8] = {1ull | 1ull << 32, 1}, kept = 0, gone = 0;
	device_ptr reserved = 0, driver = 0, managed = 0;
	void *block = NULL, *host = NULL, *stream = NULL, *own = malloc(8192);

	cudaStreamCreateWithFlags(&stream, 1);
	cudaMalloc(&block, 1000);
	cudaMalloc(&block, 2000);
	cudaFree(block);
	cudaMallocAsync(&block, 3000, stream);
	cudaMallocAsync(&block, 4000, stream);
	cudaFreeAsync(block, stream);
	cuMemAlloc_v2(&driver, 5000);
	cudaMallocManaged(&block, 6000, 1);
	cuMemAllocManaged(&managed, 7000, 1);
	cuMemFree_v2(managed);
	cudaMallocHost(&host, 8000);
	cudaFreeHost(host);
	cudaHostAlloc(&host, 9000, 0);
	cuMemHostAlloc(&host, 10000, 0);
	cudaFreeHost(host);
	cudaHostRegister(own, 4096, 0);
	cudaMallocPitch(&block, &(size_t){0}, 100, 10); /* ten rows of 512 bytes in the simulator */
	cudaFree(NULL);
	cuMemAddressReserve(&reserved, 8 * MIB, 0, 0, 0);
	cuMemCreate(&kept, 2 * MIB, properties, 0); /* released while it is mapped: it stays */
	cuMemMap(reserved, 2 * MIB, 0, kept, 0);
	cuMemRelease(kept);
	cuMemCreate(&gone, 4 * MIB, properties, 0); /* unmapped and released: it goes with the later of the two */
	cuMemMap(reserved + 2 * MIB, 4 * MIB, 0, gone, 0);
	cuMemUnmap(reserved + 2 * MIB, 4 * MIB);
	cuMemRelease(gone);
	printf("{\"device\": %d, \"managed\": %d, \"pinned\": %d, \"mapped\": %llu}\n", 1000 + 3000 + 5000 + 5120, 6000,
	       9000 + 4096, 2 * MIB);
	return 0;
}

/* Frees that fail, of an address that was never allocated and of one that is freed twice. */
static int bad_frees(void)
{
	void *block = NULL;

	cudaMalloc(&block, 1000);
	cudaFree((char *)block + 16);
	cudaMalloc(&block, 2000);
	cudaFree(block);
	cudaFree(block);
	printf("{\"device\": 1000}\n");
	return 0;
}

/* Allocates, waits until it is told to go on, and frees what it had before anybody looked. */
static int old_pointers(void)
{
	void *old[8], *block;

	for (int i = 0; i < 8; i++)
		cudaMalloc(&old[i], MIB);
	fprintf(stderr, "held %d\n", getpid());
	if (getchar() == EOF)
		return 1;
	for (int i = 0; i < 8; i++)
		cudaFree(old[i]);
	cudaMalloc(&block, 3000);
	printf("{\"device\": 3000, \"foreign\": 8}\n");
	return 0;
}

/* A communicator whose library allocates for it, and gives half of it back. */
static int nested(void)
{
	struct nccl_id id = {0};
	void *communicator = NULL, *block = NULL;

	if (!ncclCommInitRank)
		return 3;
	cudaMalloc(&block, 1000);
	ncclCommInitRank(&communicator, 1, id, 0);
	ncclCommDestroy(communicator);
	printf("{\"device\": %llu, \"own\": 1000}\n", 1000 + MIB);
	return 0;
}

static void wait_for_line(void)
{
	printf("step\n");
	fflush(stdout);
	if (getchar() == EOF)
		exit(1);
}

/* Three steps, each when it is told to. */
static int steps(void)
{
	void *block = NULL, *gone = NULL;

	wait_for_line();
	cudaMalloc(&gone, 1000);
	cudaMalloc(&block, 2000);
	wait_for_line();
	cudaFree(gone);
	cudaMalloc(&block, 4000);
	wait_for_line();
	cudaMalloc(&block, 8000);
	printf("done\n");
	return 0;
}

/* More at a time than there is room for, and all of it given back. */
static int many(void)
{
	void **blocks = calloc(number, sizeof(*blocks));
	int failed = 0;

	for (int i = 0; i < number; i++)
		failed += cudaMalloc(&blocks[i], 512) != 0;
	for (int i = 0; i < number; i++)
		failed += cudaFree(blocks[i]) != 0;
	printf("{\"failed\": %d}\n", failed);
	return 0;
}

/* As a program whose arithmetic went wrong: sizes of which four make a sum of 64 bits begin anew. */
static int mistaken(void)
{
	for (int i = 0; i < number; i++)
		allocate(&sums[0], 1ULL << 62);
	print_sums();
	return 0;
}

/* Leaves memory behind and becomes another program, which allocates less. */
static int becomes(char **argv)
{
	void *block = NULL;

	if (number == 0) {
		cudaMalloc(&block, 5000);
		printf("{\"device\": 5000}\n");
		return 0;
	}
	for (int i = 0; i < number; i++)
		cudaMalloc(&block, MIB);
	execl("/proc/self/exe", argv[0], argv[1], "0", NULL);
	return 1;
}

int main(int argc, char **argv)
{
	number = argc > 2 ? atoi(argv[2]) : 0;
	if (argc < 2 || resolve_calls())
		return 2;
	cudaSetDevice(0);
	if (!strcmp(argv[1], "churn"))
		return in_threads();
	if (!strcmp(argv[1], "kinds"))
		return every_kind();
	if (!strcmp(argv[1], "bad-frees"))
		return bad_frees();
	if (!strcmp(argv[1], "old"))
		return old_pointers();
	if (!strcmp(argv[1], "steps"))
		return steps();
	if (!strcmp(argv[1], "nested"))
		return nested();
	if (!strcmp(argv[1], "many"))
		return many();
	if (!strcmp(argv[1], "mistaken"))
		return mistaken();
	if (!strcmp(argv[1], "becomes"))
		return becomes(argv);
	return 2;
}
