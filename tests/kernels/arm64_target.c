/*
 * What the arm64 checks probe: a library with a few calls of the CUDA driver, and a program that makes each call once
 * for every line it reads. The arguments are numbers that a test can recognize; nine and ten lie on the stack.
 */
#include <stdio.h>
#include <unistd.h>

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		   unsigned shared_bytes, void *stream, void **parameters, void **extra);
int cuMemcpyAsync(void *to, const void *from, unsigned long bytes, void *stream);
int cuMemAlloc_v2(void **to, unsigned long bytes);

#ifdef LIBRARY
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		   unsigned shared_bytes, void *stream, void **parameters, void **extra)
{
	getppid(); /* a function that calls another signs its return address first */
	return gx + gy + gz + bx + by + bz + shared_bytes == 0 && function && stream && parameters && extra;
}

int cuMemcpyAsync(void *to, const void *from, unsigned long bytes, void *stream)
{
	getppid();
	return to == from && bytes && stream ? 0 : 35;
}

int cuMemAlloc_v2(void **to, unsigned long bytes)
{
	getppid();
	*to = (void *)0xdead0000beef;
	return bytes == 0;
}
#else
int main(void)
{
	char line[80];
	void *memory;

	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		cuLaunchKernel((void *)0x1111, 1, 2, 3, 4, 5, 6, 7, (void *)0x9999, 0, 0);
		cuMemcpyAsync(0, &memory, 12345, (void *)0x4444);
		cuMemAlloc_v2(&memory, 4096);
		puts("done");
		fflush(stdout);
	}
	return 0;
}
#endif
