/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls every traced family at a high rate from several threads of several
 * forked processes, and prints how often it called what: the truth against
 * which a recording is compared.
 *
 * Even threads call the runtime (whose calls enter the driver: nested calls),
 * odd threads call the driver themselves. Between calls the stack grows and is
 * left by longjmp, so a tracer that pairs entries by depth must cope.
 */
#include "cuda_calls.h"

#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define MAX_PROCESSES 64
#define COPY_BYTES 4096
#define HUGE_BYTES (1ull << 50) /* no device has this: the allocation fails */
#define MAX_DEPTH 24

enum call_id {
#define AS_ID(name, arguments) ID_##name,
	ALL_CALLS(AS_ID) CALL_COUNT
};

static const char *const call_names[] = {
#define AS_NAME(name, arguments) #name,
	ALL_CALLS(AS_NAME)
};

struct process_counts {
	pid_t pid;
	uint64_t made[CALL_COUNT];
	uint64_t failed[CALL_COUNT];
	uint64_t longjmps;
};

static struct process_counts *shared; /* one per process, written by all its threads */
static struct process_counts *mine;
static int thread_count = 2, process_count = 1;
static double seconds = 5, rate_per_thread;
static volatile bool stopping;
static char kernel_symbol[8];

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static __thread uint64_t calls_of_this_thread;

static int note(enum call_id id, int result)
{
	calls_of_this_thread++;
	__atomic_fetch_add(&mine->made[id], 1, __ATOMIC_RELAXED);
	if (result)
		__atomic_fetch_add(&mine->failed[id], 1, __ATOMIC_RELAXED);
	return result;
}

/* A name that this library version does not export is skipped and reported as missing. */
#define TRY(name, arguments) (name ? note(ID_##name, name arguments) : -1)

struct caller {
	int number;
	uint64_t rounds, start_ns;
	void *stream, *event, *host, *device, *graph_exec, *function, *context, *communicator;
	device_ptr reserved;
};

static __thread jmp_buf *escape;

static __attribute__((noinline)) void deeper(struct caller *c, int depth)
{
	volatile char frame[256];

	frame[0] = (char)depth;
	if (depth > 0)
		deeper(c, depth - 1);
	if (c->number % 2)
		TRY(cuEventRecord, (c->event, c->stream));
	else
		TRY(cudaEventRecord, (c->event, c->stream));
	longjmp(*escape, 1);
}

/* Make a call at another depth of the stack, and leave the frames there by longjmp. */
static void call_and_jump(struct caller *c)
{
	jmp_buf here;

	escape = &here;
	if (!setjmp(here))
		deeper(c, c->rounds % MAX_DEPTH);
	__atomic_fetch_add(&mine->longjmps, 1, __ATOMIC_RELAXED);
}

static void runtime_set_up(struct caller *c)
{
	void *graph = NULL;
	struct dim3 one = {1, 1, 1};

	TRY(cudaSetDevice, (0));
	cudaStreamCreateWithFlags(&c->stream, 1);
	cudaEventCreateWithFlags(&c->event, 2);
	TRY(cudaMalloc, (&c->device, COPY_BYTES));
	TRY(cudaHostAlloc, (&c->host, COPY_BYTES, 0));
	TRY(cudaStreamBeginCapture, (c->stream, 1));
	TRY(cudaLaunchKernel, (kernel_symbol, one, one, NULL, 0, c->stream));
	TRY(cudaStreamEndCapture, (c->stream, &graph));
	if (TRY(cudaGraphInstantiate, (&c->graph_exec, graph, 0)))
		c->graph_exec = NULL;
}

static void runtime_often(struct caller *c)
{
	struct dim3 one = {1, 1, 1};
	struct cuda_launch_config config = {one, one, 0, c->stream, NULL, 0};

	for (int i = 0; i < 4; i++) {
		TRY(cudaLaunchKernel, (kernel_symbol, one, one, NULL, 0, c->stream));
		TRY(cudaEventRecord, (c->event, c->stream));
		TRY(cudaStreamWaitEvent, (c->stream, c->event, 0));
	}
	TRY(cudaLaunchKernelExC, (&config, kernel_symbol, NULL));
	TRY(cudaMemcpyAsync, (c->device, c->host, COPY_BYTES, 1, c->stream));
	TRY(cudaMemcpyAsync, (c->host, c->device, COPY_BYTES, 2, c->stream));
	TRY(cudaMemsetAsync, (c->device, 0, COPY_BYTES, c->stream));
	TRY(cudaStreamSynchronize, (c->stream));
	TRY(cudaEventSynchronize, (c->event));
	TRY(cudaSetDevice, (0));
}

static void runtime_seldom(struct caller *c)
{
	struct dim3 one = {1, 1, 1};
	void *block = NULL;

	TRY(cudaLaunchCooperativeKernel, (kernel_symbol, one, one, NULL, 0, c->stream));
	if (c->graph_exec)
		TRY(cudaGraphLaunch, (c->graph_exec, c->stream));
	TRY(cudaMemcpy2DAsync, (c->device, 64, c->host, 64, 64, 16, 1, c->stream));
	TRY(cudaMemcpyPeerAsync, (c->device, 0, c->device, 0, 64, c->stream));
	TRY(cudaMemcpy, (c->device, c->host, COPY_BYTES, 1));
	TRY(cudaMemset, (c->device, 0, COPY_BYTES));
	TRY(cudaEventRecordWithFlags, (c->event, c->stream, 0));
	TRY(cudaStreamSynchronize_ptsz, (c->stream));
	if (!TRY(cudaMalloc, (&block, COPY_BYTES)))
		TRY(cudaFree, (block));
	if (!TRY(cudaMallocAsync, (&block, COPY_BYTES, c->stream)))
		TRY(cudaFreeAsync, (block, c->stream));
	if (!TRY(cudaMallocManaged, (&block, COPY_BYTES, 1)))
		TRY(cudaFree, (block));
	if (!TRY(cudaMallocHost, (&block, COPY_BYTES)))
		TRY(cudaFreeHost, (block));
	TRY(cudaMalloc, (&block, HUGE_BYTES)); /* fails: errors must be counted like successes */
	TRY(cudaSetDevice, (9999));
	TRY(cudaDeviceSynchronize, ());
}

static void driver_set_up(struct caller *c)
{
	void *module = NULL, *graph = NULL;
	device_ptr device = 0;
	int ordinal = 0;

	cuInit(0);
	cuDeviceGet(&ordinal, 0);
	cuDevicePrimaryCtxRetain(&c->context, ordinal);
	TRY(cuCtxSetCurrent, (c->context));
	if (!TRY(cuModuleLoadData, (&module, "gpusim")))
		cuModuleGetFunction(&c->function, module, "driver_kernel#ns=500");
	if (!c->function && __cudaGetKernel)
		__cudaGetKernel(&c->function, kernel_symbol);
	cuStreamCreate(&c->stream, 1);
	cuEventCreate(&c->event, 2);
	TRY(cuMemAlloc_v2, (&device, COPY_BYTES));
	c->device = (void *)device;
	TRY(cuMemHostAlloc, (&c->host, COPY_BYTES, 0));
	if (cuMemAddressReserve)
		cuMemAddressReserve(&c->reserved, 2 << 20, 0, 0, 0);
	TRY(cuStreamBeginCapture_v2, (c->stream, 1));
	TRY(cuLaunchKernel, (c->function, 1, 1, 1, 1, 1, 1, 0, c->stream, NULL, NULL));
	TRY(cuStreamEndCapture, (c->stream, &graph));
	if (TRY(cuGraphInstantiateWithFlags, (&c->graph_exec, graph, 0)))
		c->graph_exec = NULL;
}

static void driver_often(struct caller *c)
{
	device_ptr device = (device_ptr)c->device;
	struct driver_launch_config config = {1, 1, 1, 1, 1, 1, 0, c->stream, NULL, 0};

	for (int i = 0; i < 4; i++) {
		TRY(cuLaunchKernel, (c->function, 1, 1, 1, 1, 1, 1, 0, c->stream, NULL, NULL));
		TRY(cuEventRecord, (c->event, c->stream));
		TRY(cuStreamWaitEvent, (c->stream, c->event, 0));
	}
	TRY(cuLaunchKernelEx, (&config, c->function, NULL, NULL));
	TRY(cuMemcpyHtoDAsync_v2, (device, c->host, COPY_BYTES, c->stream));
	TRY(cuMemcpyDtoHAsync_v2, (c->host, device, COPY_BYTES, c->stream));
	TRY(cuMemsetD8Async, (device, 0, COPY_BYTES, c->stream));
	TRY(cuStreamSynchronize, (c->stream));
	TRY(cuEventSynchronize, (c->event));
	TRY(cuCtxSetCurrent, (c->context));
}

static void driver_virtual_memory(struct caller *c)
{
	uint64_t properties[8] = {1ull | 1ull << 32, 1}; /* CUmemAllocationProp: pinned, on device 0 */
	unsigned long long handle = 0;

	if (!c->reserved || TRY(cuMemCreate, (&handle, 2 << 20, properties, 0)))
		return;
	if (!TRY(cuMemMap, (c->reserved, 2 << 20, 0, handle, 0)))
		TRY(cuMemUnmap, (c->reserved, 2 << 20));
	TRY(cuMemRelease, (handle));
}

static void driver_seldom(struct caller *c)
{
	device_ptr block = 0, device = (device_ptr)c->device;
	void *host = NULL;

	TRY(cuLaunchCooperativeKernel, (c->function, 1, 1, 1, 1, 1, 1, 0, c->stream, NULL));
	if (c->graph_exec)
		TRY(cuGraphLaunch, (c->graph_exec, c->stream));
	TRY(cuMemcpyHtoD_v2, (device, c->host, COPY_BYTES));
	TRY(cuMemcpyDtoH_v2, (c->host, device, COPY_BYTES));
	TRY(cuMemcpyDtoDAsync_v2, (device, device, 64, c->stream));
	TRY(cuMemsetD8_v2, (device, 0, COPY_BYTES));
	TRY(cuMemsetD32Async, (device, 0, 64, c->stream));
	if (!TRY(cuMemAlloc_v2, (&block, COPY_BYTES)))
		TRY(cuMemFree_v2, (block));
	if (!TRY(cuMemAllocAsync, (&block, COPY_BYTES, c->stream)))
		TRY(cuMemFreeAsync, (block, c->stream));
	if (!TRY(cuMemAllocManaged, (&block, COPY_BYTES, 1)))
		TRY(cuMemFree_v2, (block));
	if (!TRY(cuMemHostAlloc, (&host, COPY_BYTES, 0)))
		TRY(cuMemFreeHost, (host));
	driver_virtual_memory(c);
	TRY(cuMemAlloc_v2, (&block, HUGE_BYTES)); /* fails */
	TRY(cuCtxSynchronize, ());
}

static void collectives(struct caller *c)
{
	struct nccl_id id;

	if (!ncclGetUniqueId)
		return;
	if (!c->communicator && (ncclGetUniqueId(&id) || TRY(ncclCommInitRank, (&c->communicator, 1, id, 0))))
		return;
	TRY(ncclAllReduce, (c->device, c->device, 64, 7, 0, c->communicator, c->stream));
	TRY(ncclGroupStart, ());
	TRY(ncclBroadcast, (c->device, c->device, 64, 7, 0, c->communicator, c->stream));
	TRY(ncclReduce, (c->device, c->device, 64, 7, 0, 0, c->communicator, c->stream));
	TRY(ncclGroupEnd, ());
	TRY(ncclAllGather, (c->device, c->device, 64, 7, c->communicator, c->stream));
	TRY(ncclReduceScatter, (c->device, c->device, 64, 7, 0, c->communicator, c->stream));
}

/* Sleep until this thread is no longer ahead of its share of --rate. */
static void pace(struct caller *c)
{
	uint64_t due_ns;
	struct timespec until;

	if (!rate_per_thread)
		return;
	due_ns = c->start_ns + (uint64_t)(calls_of_this_thread / rate_per_thread * 1e9);
	until = (struct timespec){due_ns / 1000000000, due_ns % 1000000000};
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static void *call_forever(void *argument)
{
	struct caller *c = argument;
	bool driver = c->number % 2;
	uint64_t end_ns;

	prctl(PR_SET_NAME, driver ? "calls-driver" : "calls-runtime");
	(driver ? driver_set_up : runtime_set_up)(c);
	c->start_ns = now_ns();
	end_ns = c->start_ns + (uint64_t)(seconds * 1e9);
	for (c->rounds = 0; !stopping && now_ns() < end_ns; c->rounds++) {
		(driver ? driver_often : runtime_often)(c);
		call_and_jump(c);
		if (c->rounds % 16 == 15)
			(driver ? driver_seldom : runtime_seldom)(c);
		if (c->rounds % 16 == 7 && c->number == 0)
			collectives(c);
		pace(c);
	}
	if (c->communicator)
		TRY(ncclCommDestroy, (c->communicator));
	return NULL;
}

static void run_process(void)
{
	struct caller callers[thread_count];
	pthread_t threads[thread_count];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	register_kernel(kernel_symbol, "runtime_kernel#ns=500");
	memset(callers, 0, sizeof(callers));
	for (int i = 0; i < thread_count; i++) {
		callers[i].number = i;
		pthread_create(&threads[i], NULL, call_forever, &callers[i]);
	}
	for (int i = 0; i < thread_count; i++)
		pthread_join(threads[i], NULL);
}

static void print_object(const char *title, const uint64_t *values)
{
	const char *separator = "";

	printf("\"%s\": {", title);
	for (int i = 0; i < CALL_COUNT; i++) {
		if (!values[i])
			continue;
		printf("%s\"%s\": %lu", separator, call_names[i], (unsigned long)values[i]);
		separator = ", ";
	}
	printf("}");
}

/* One line for each process: {"pid", "longjmps", "calls": {name: n}, "failed": {name: n}}. */
static void print_counts(void)
{
	for (int p = 0; p < process_count; p++) {
		printf("{\"pid\": %d, \"longjmps\": %lu, ", shared[p].pid, (unsigned long)shared[p].longjmps);
		print_object("calls", shared[p].made);
		printf(", ");
		print_object("failed", shared[p].failed);
		printf("}\n");
	}
}

static void on_term(int number)
{
	(void)number;
	stopping = true;
	for (int p = 0; p < process_count; p++)
		if (shared[p].pid && shared[p].pid != getpid())
			kill(shared[p].pid, SIGTERM);
}

static void parse_options(int argc, char **argv, const char **gate)
{
	static const struct option options[] = {{"threads", 1, 0, 't'}, {"processes", 1, 0, 'p'}, {"seconds", 1, 0, 's'},
						{"rate", 1, 0, 'r'},	{"gate", 1, 0, 'g'},	  {0, 0, 0, 0}};
	double rate = 0;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 't')
			thread_count = atoi(optarg);
		else if (option == 'p')
			process_count = atoi(optarg);
		else if (option == 's')
			seconds = atof(optarg);
		else if (option == 'r')
			rate = atof(optarg);
		else if (option == 'g')
			*gate = optarg;
		else
			exit(2);
	}
	if (thread_count < 1 || process_count < 1 || process_count > MAX_PROCESSES)
		exit(2);
	rate_per_thread = rate / (thread_count * process_count);
}

int main(int argc, char **argv)
{
	const char *gate = NULL;
	int failures = 0, status;

	parse_options(argc, argv, &gate);
	if (resolve_calls())
		return 1;
	shared = mmap(NULL, sizeof(*shared) * process_count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	signal(SIGTERM, on_term);
	fprintf(stderr, "loaded %d\n", getpid());
	while (gate && access(gate, F_OK))
		usleep(5000);
	for (int p = 0; p < process_count; p++) {
		pid_t child = fork();

		mine = &shared[p];
		if (!child) {
			run_process();
			_exit(0);
		}
		mine->pid = child;
	}
	fprintf(stderr, "ready %d\n", getpid());
	while (waitpid(-1, &status, 0) > 0 || errno == EINTR)
		failures += status != 0;
	print_counts();
	return failures != 0;
}
