/* Writes copies of its own stack, taken in places that are hard to unwind, with what libgcc's unwinder says of each. */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unwind.h>

#define MAX_FRAMES 1024
#define MAX_STACK (256 << 10)
#define NOINLINE __attribute__((noinline, noclone))

struct copy {
	char name[32];
	uint64_t registers[33];
	uint64_t stack_vaddr, stack_bytes, frames;
	uint64_t addresses[MAX_FRAMES];
};

static FILE *out;
static const char *volatile taken_in; /* volatile: the compiler believes that raise() calls nothing of ours */
static uint64_t stack_limit[2]; /* of the stack we are on, where it is not the main thread's */
volatile int sink;

static _Unwind_Reason_Code add_frame(struct _Unwind_Context *context, void *argument)
{
	struct copy *copy = argument;
	int is_exact = 0;
	uintptr_t ip = _Unwind_GetIPInfo(context, &is_exact);

	if (copy->frames < MAX_FRAMES)
		copy->addresses[copy->frames++] = ip;
	return _URC_NO_REASON;
}

static uint64_t main_stack_end(void)
{
	char line[256];
	uint64_t start, end;
	static uint64_t found;
	FILE *maps = fopen("/proc/self/maps", "r");

	while (fgets(line, sizeof line, maps))
		if (strstr(line, "[stack]") && sscanf(line, "%lx-%lx", &start, &end) == 2)
			found = end;
	fclose(maps);
	return found;
}

/* getcontext() may return twice as far as the compiler knows: nothing here is kept in a register across it */
NOINLINE void take(void)
{
	static struct copy copy;
	static char stack[MAX_STACK];
	ucontext_t context;
	uint64_t end = stack_limit[1] ? stack_limit[1] : main_stack_end();

	memset(&copy, 0, sizeof copy);
	strncpy(copy.name, taken_in, sizeof copy.name - 1);
	getcontext(&context);
#if defined(__x86_64__)
	static const int order[17] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
				      REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
	for (int i = 0; i < 17; i++)
		copy.registers[i] = context.uc_mcontext.gregs[order[i]];
	copy.stack_vaddr = copy.registers[7];
#else
	for (int i = 0; i < 31; i++)
		copy.registers[i] = context.uc_mcontext.regs[i];
	copy.registers[31] = copy.stack_vaddr = context.uc_mcontext.sp;
	copy.registers[32] = context.uc_mcontext.pc;
#endif
	copy.stack_bytes = end - copy.stack_vaddr;
	if (copy.stack_bytes > MAX_STACK)
		copy.stack_bytes = MAX_STACK;
	memcpy(stack, (void *)copy.stack_vaddr, copy.stack_bytes);
	_Unwind_Backtrace(add_frame, &copy);
	fwrite(&copy, sizeof copy, 1, out);
	fwrite(stack, copy.stack_bytes, 1, out);
	fflush(out);
	sink++;
}

NOINLINE void leaf_call(void)
{
	take();
	sink++;
}

NOINLINE int recurse(int depth)
{
	if (depth)
		return recurse(depth - 1) + sink;
	take();
	return sink;
}

NOINLINE void with_alloca(int bytes)
{
	char *block = alloca(bytes);

	memset(block, 1, bytes);
	leaf_call();
	sink += block[bytes / 2];
}

NOINLINE void realigned(int bytes)
{
	char block[64] __attribute__((aligned(64)));
	char *more = alloca(bytes); /* both: the frame is found through an expression */

	memset(block, 1, sizeof block);
	memset(more, 1, bytes);
	leaf_call();
	sink += block[3] + more[bytes - 1] + (int)((uintptr_t)block & 63);
}

static int compare(const void *one, const void *other)
{
	static int was_taken;

	if (!was_taken) {
		was_taken = 1;
		take();
	}
	return *(const int *)one - *(const int *)other;
}

NOINLINE void through_libc(void)
{
	int numbers[] = {3, 1, 2};

	qsort(numbers, 3, sizeof *numbers, compare);
	sink += numbers[0];
}

static void on_signal(int number)
{
	(void)number;
	leaf_call();
}

NOINLINE void in_signal(void)
{
	signal(SIGUSR1, on_signal);
	raise(SIGUSR1);
	sink++;
}

NOINLINE void on_fault(int number, siginfo_t *info, void *context)
{
	ucontext_t *at = context;

	(void)number, (void)info;
	leaf_call();
#if defined(__x86_64__)
	at->uc_mcontext.gregs[REG_RIP] += 2; /* ud2 */
#else
	at->uc_mcontext.pc += 4;
#endif
}

/* the interrupted instruction is the function's first: a lookup at pc - 1 would find its neighbor */
__attribute__((naked, noinline)) void faults_at_once(void)
{
#if defined(__x86_64__)
	__asm__("ud2\n ret");
#else
	__asm__("udf #0\n ret");
#endif
}

NOINLINE void in_fault(void)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};

	sigaction(SIGILL, &action, NULL);
	faults_at_once();
	sink++;
}

static void *thread_main(void *unused)
{
	pthread_attr_t attributes;
	void *start;
	size_t size;

	pthread_getattr_np(pthread_self(), &attributes);
	pthread_attr_getstack(&attributes, &start, &size);
	stack_limit[1] = (uint64_t)start + size;
	leaf_call();
	stack_limit[1] = 0;
	return unused;
}

NOINLINE void in_thread(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, thread_main, NULL);
	pthread_join(thread, NULL);
}

NOINLINE int many_arguments(int a, int b, int c, int d, int e, int f, int g, int h, int i)
{
	leaf_call();
	return a + b + c + d + e + f + g + h + i + sink;
}

#define TAKE(name, call)                                                                                               \
	do {                                                                                                           \
		taken_in = name;                                                                                       \
		call;                                                                                                  \
	} while (0)

int main(int argc, char **argv)
{
	char line[4096];
	FILE *maps, *copied;

	if (argc != 3)
		return 2;
	out = fopen(argv[1], "w");
	TAKE("plain", leaf_call());
	TAKE("recursion", recurse(30));
	TAKE("too deep", recurse(700));
	TAKE("alloca", with_alloca(1000 + argc));
	TAKE("realigned", realigned(100 + argc));
	TAKE("libc callback", through_libc());
	TAKE("signal", in_signal());
	TAKE("fault", in_fault());
	TAKE("thread", in_thread());
	TAKE("arguments", sink += many_arguments(1, 2, 3, 4, 5, 6, 7, 8, 9));
	fclose(out);
	maps = fopen("/proc/self/maps", "r");
	copied = fopen(argv[2], "w");
	while (fgets(line, sizeof line, maps))
		fputs(line, copied);
	fclose(copied);
	return 0;
}
