/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A workload under a strict seccomp filter, as model servers in hardened
 * containers run: any system call that it does not need kills the process.
 *
 * A return probe of Linux 6.11 and later on x86-64 leaves a function through
 * the system call `uretprobe` (335), an optimised probe of 6.18 enters through
 * `uprobe` (336). Where the kernel lets seccomp judge them, tracing kills this
 * program; they are not on its list, as on nobody's.
 *
 * usage: sandboxed [SECONDS]; exit 0 if it lived, SIGSYS if not.
 */
#include "cuda_calls.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "no seccomp architecture for this processor"
#endif

#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static char kernel[8];
static void *stream, *event, *host;

static int sandbox(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(read), ALLOW(write), ALLOW(close), ALLOW(fstat), ALLOW(newfstatat), ALLOW(futex), ALLOW(mmap), ALLOW(munmap),
		ALLOW(mprotect), ALLOW(madvise), ALLOW(brk), ALLOW(ppoll), ALLOW(timerfd_create), ALLOW(timerfd_settime),
		ALLOW(sched_yield), ALLOW(nanosleep), ALLOW(clock_nanosleep), ALLOW(clock_gettime), ALLOW(gettid),
		ALLOW(eventfd2), ALLOW(getpid), ALLOW(rt_sigprocmask), ALLOW(rt_sigreturn), ALLOW(exit), ALLOW(exit_group),
#ifdef __NR_poll
		ALLOW(poll),
#endif
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int one_step(void)
{
	struct dim3 one = {1, 1, 1};
	void *block = NULL;
	int failed = cudaMalloc(&block, 4096);

	for (int i = 0; i < 20; i++)
		failed |= cudaLaunchKernel(kernel, one, one, NULL, 0, stream);
	failed |= cudaMemcpyAsync(block, host, 4096, 1, stream);
	failed |= cudaEventRecord(event, stream);
	failed |= cudaStreamWaitEvent(stream, event, 0);
	failed |= cudaStreamSynchronize(stream);
	failed |= cudaDeviceSynchronize();
	return failed | cudaFree(block);
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	double end = now_s() + (argc > 1 ? atof(argv[1]) : 1);
	long steps = 0;
	int failed;

	if (resolve_calls())
		return 1;
	register_kernel(kernel, "sandboxed_kernel#ns=20000");
	cudaStreamCreateWithFlags(&stream, 1);
	cudaEventCreateWithFlags(&event, 2);
	cudaHostAlloc(&host, 4096, 0);
	if (one_step()) /* whatever the libraries open, they open before the filter */
		return 1;
	if (sandbox()) {
		perror("seccomp");
		return 1;
	}
	fprintf(stderr, "ready %d\n", getpid());
	do {
		failed = one_step();
		steps++;
	} while (!failed && now_s() < end);
	printf("{\"steps\": %ld}\n", steps);
	fflush(stdout);
	return failed ? 3 : 0;
}
