/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forks, spawns and execs while another thread is in the middle of a call: the
 * child has that thread's memory but not the thread, and an exec ends the
 * thread inside the call.
 *
 * usage: forker [ROUNDS]; exit 0 if every child did what it should.
 */
#include "cuda_calls.h"

#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static char kernel[8];
static atomic_long calls_begun, calls_ended;

static void set_up(void)
{
	register_kernel(kernel, "forker_kernel#ns=3000000");
	cudaSetDevice(0);
}

static int launch_and_wait(void *stream)
{
	struct dim3 one = {1, 1, 1};
	int failed = cudaLaunchKernel(kernel, one, one, NULL, 0, stream);

	atomic_fetch_add(&calls_begun, 1);
	failed |= cudaStreamSynchronize(stream);
	atomic_fetch_add(&calls_ended, 1);
	return failed;
}

static void *wait_for_ever(void *unused)
{
	void *stream;

	(void)unused;
	cudaStreamCreateWithFlags(&stream, 1);
	while (!launch_and_wait(stream))
		;
	abort();
}

/* Return once the other thread is inside a synchronization of 3 ms. */
static void until_in_call(void)
{
	long seen = calls_ended;

	while (calls_ended == seen)
		usleep(100);
	while (calls_begun == calls_ended)
		;
}

static pid_t start_child(int kind, char *self)
{
	char *const true_argv[] = {"true", NULL}, *const self_argv[] = {self, "child", NULL};
	pid_t child = 0;

	if (kind == 0)
		return posix_spawnp(&child, "true", NULL, NULL, true_argv, environ) ? -1 : child;
	child = fork();
	if (child)
		return child;
	if (kind == 1)
		execvp("true", true_argv);
	else if (kind == 2)
		execv("/proc/self/exe", self_argv);
	_exit(kind == 3 ? 0 : 127);
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 20;
	pthread_t waiter;
	int status;

	if (resolve_calls())
		return 1;
	set_up();
	if (argc > 1 && !strcmp(argv[1], "child"))
		return launch_and_wait(NULL);
	if (argc > 1 && !strcmp(argv[1], "after-exec")) {
		for (int i = 0; i < 20; i++)
			if (launch_and_wait(NULL))
				return 4;
		printf("{\"children\": %s, \"calls_after_exec\": 20}\n", argv[2]);
		return 0;
	}
	pthread_create(&waiter, NULL, wait_for_ever, NULL);
	fprintf(stderr, "ready %d\n", getpid());
	for (long i = 0; i < rounds; i++) {
		until_in_call();
		if (waitpid(start_child(i % 4, argv[0]), &status, 0) < 0 || status) {
			fprintf(stderr, "child of kind %ld: status %#x\n", i % 4, status);
			return 3;
		}
	}
	{
		char children[32];
		char *const next[] = {argv[0], "after-exec", children, NULL};

		snprintf(children, sizeof(children), "%ld", rounds);
		until_in_call();
		execv("/proc/self/exe", next); /* ends the waiter inside its call */
	}
	return 5;
}
