/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program whose frames are left in every way but by return: exceptions through
 * several frames whose destructors make calls themselves, longjmp, and (when
 * asked for) a signal that jumps out of a blocking call, and a cancelled thread.
 * None of it may behave differently because the calls are traced.
 *
 * usage: unwinding [ITERATIONS [MODE...]], modes throw longjmp escape cancel;
 * default 1000 throw longjmp. escape and cancel want a device that blocks
 * (GPUSIM_SCHED=block): the signal must not hit while the library holds a lock.
 */
#include "cuda_calls.h"

#include <csetjmp>
#include <csignal>
#include <cstring>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <time.h>
#include <unistd.h>

namespace {

char short_kernel[8], long_kernel[8];
void *stream, *event;
long destructors_run, caught, jumped, escaped, cancelled;

void launch(const char *kernel)
{
	dim3 one = {1, 1, 1};

	if (cudaLaunchKernel(kernel, one, one, nullptr, 0, stream))
		throw std::logic_error("launch failed");
}

/* Makes calls while the stack is being unwound past it. */
struct Guard {
	~Guard()
	{
		cudaEventRecord(event, stream);
		cudaStreamWaitEvent(stream, event, 0);
		destructors_run++;
	}
};

__attribute__((noinline)) void throw_at(int depth)
{
	Guard guard;

	launch(short_kernel);
	if (depth == 0)
		throw std::runtime_error("out of patience");
	throw_at(depth - 1);
	cudaStreamSynchronize(stream); /* never reached: keeps the frame */
}

bool throws_and_catches(long iterations)
{
	long expected = 0;

	for (long i = 0; i < iterations; i++) {
		int depth = static_cast<int>(i % 7);

		try {
			try {
				throw_at(depth);
			} catch (const std::runtime_error &) {
				launch(short_kernel);
				throw;
			}
		} catch (const std::exception &error) {
			caught += std::string(error.what()) == "out of patience";
		}
		expected += depth + 1;
		cudaStreamSynchronize(stream);
	}
	return caught == iterations && destructors_run == expected;
}

jmp_buf landing;

__attribute__((noinline)) void jump_from(int depth)
{
	volatile char frame[128];

	frame[0] = static_cast<char>(depth);
	launch(short_kernel);
	if (depth == 0)
		std::longjmp(landing, 1);
	jump_from(depth - 1);
	cudaStreamSynchronize(stream); /* never reached: keeps the frame */
}

bool jumps(long iterations)
{
	for (volatile long i = 0; i < iterations; i = i + 1) {
		if (setjmp(landing))
			jumped++;
		else
			jump_from(static_cast<int>(i % 13));
		cudaStreamSynchronize(stream);
	}
	return jumped == iterations;
}

sigjmp_buf outside;

void leave(int)
{
	siglongjmp(outside, 1);
}

/* The worst case for a return probe: the call never returns, and its frame is reused at once. */
bool escapes(long iterations)
{
	struct sigaction action = {};
	struct sigevent when = {};
	timer_t timer;

	action.sa_handler = leave;
	sigaction(SIGUSR1, &action, nullptr);
	when.sigev_notify = SIGEV_SIGNAL;
	when.sigev_signo = SIGUSR1;
	timer_create(CLOCK_MONOTONIC, &when, &timer);
	for (volatile long i = 0; i < iterations; i = i + 1) {
		itimerspec in_two_ms = {{0, 0}, {0, 2000000}};

		cudaStreamSynchronize(stream);
		launch(long_kernel);
		if (!sigsetjmp(outside, 1)) {
			timer_settime(timer, 0, &in_two_ms, nullptr);
			cudaStreamSynchronize(stream);
		} else {
			escaped++;
		}
		launch(short_kernel);
	}
	cudaStreamSynchronize(stream);
	return escaped == iterations;
}

void *wait_for_long_kernel(void *)
{
	launch(long_kernel);
	cudaStreamSynchronize(stream);
	return nullptr;
}

bool cancels(long iterations)
{
	for (long i = 0; i < iterations; i++) {
		timespec two_ms = {0, 2000000};
		pthread_t thread;
		void *result;

		pthread_create(&thread, nullptr, wait_for_long_kernel, nullptr);
		nanosleep(&two_ms, nullptr);
		pthread_cancel(thread);
		pthread_join(thread, &result);
		cancelled += result == PTHREAD_CANCELED;
		cudaStreamSynchronize(stream);
	}
	return cancelled == iterations;
}

} // namespace

int main(int argc, char **argv)
{
	long iterations = argc > 1 ? atol(argv[1]) : 1000;
	std::string modes;
	bool good = true;

	for (int i = 2; i < argc; i++)
		modes += std::string(argv[i]) + " ";
	if (modes.empty())
		modes = "throw longjmp ";
	if (resolve_calls())
		return 1;
	register_kernel(short_kernel, "short_kernel#ns=1000");
	register_kernel(long_kernel, "long_kernel#ns=20000000");
	cudaSetDevice(0);
	cudaStreamCreateWithFlags(&stream, 1);
	cudaEventCreateWithFlags(&event, 2);
	fprintf(stderr, "ready %d\n", getpid());
	if (modes.find("throw ") != std::string::npos)
		good &= throws_and_catches(iterations);
	if (modes.find("longjmp ") != std::string::npos)
		good &= jumps(iterations);
	if (modes.find("escape ") != std::string::npos)
		good &= escapes(iterations);
	if (modes.find("cancel ") != std::string::npos)
		good &= cancels(iterations);
	printf("{\"caught\": %ld, \"destructors\": %ld, \"longjmps\": %ld, \"escaped\": %ld, \"cancelled\": %ld}\n",
	       caught, destructors_run, jumped, escaped, cancelled);
	return good ? 0 : 3;
}
