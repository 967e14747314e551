// SPDX-License-Identifier: Apache-2.0
/* A thread that Python did not make: it works while its caller sleeps on a condition, as torch's autograd threads do. */
#include <pthread.h>
#include <unistd.h>

typedef int (*memset_async)(void *, int, size_t, void *);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static memset_async call;
static int work, calls, pause_us;

static void *engine(void *unused)
{
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!work)
			pthread_cond_wait(&begun, &lock);
		pthread_mutex_unlock(&lock);
		for (int i = 0; i < calls; i++) {
			call(0, 0, 4096, 0);
			usleep(pause_us);
		}
		pthread_mutex_lock(&lock);
		work = 0;
		pthread_cond_signal(&done);
	}
	return unused;
}

void engine_start(void *function, int between_calls_us)
{
	pthread_t thread;

	pause_us = between_calls_us;
	call = (memset_async)function;
	pthread_create(&thread, NULL, engine, NULL);
}

void engine_run(int count)
{
	pthread_mutex_lock(&lock);
	calls = count;
	work = 1;
	pthread_cond_signal(&begun);
	while (work)
		pthread_cond_wait(&done, &lock);
	pthread_mutex_unlock(&lock);
}
