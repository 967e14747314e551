// SPDX-License-Identifier: Apache-2.0
/*
 * Threads that do one thing each, for tests that know what their accounts must say.
 *
 * usage: workload MODE [COUNT [ARGUMENT]]
 * Prints "ready" when every thread of the mode runs, then works until SIGTERM, prints what it counted, and exits.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 64 << 10, DISK_BYTES = 16 << 20, STORM_AFFECTED = 4, SHORT_THREADS = 8 };

static volatile int is_over;
static unsigned long work_done;
static int started;
static const char *argument = "";

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void count_work(void)
{
	__atomic_fetch_add(&work_done, 1, __ATOMIC_RELAXED);
}

/* Nobody works before all are born: 2,000 threads would otherwise keep each other from being created. */
static pthread_rwlock_t gate = PTHREAD_RWLOCK_INITIALIZER;

struct job {
	void (*run)(void *);
	void *data;
	const char *name;
};

static void *run_job(void *data)
{
	struct job job = *(struct job *)data;

	free(data);
	pthread_setname_np(pthread_self(), job.name);
	__atomic_fetch_add(&started, 1, __ATOMIC_RELEASE);
	pthread_rwlock_rdlock(&gate);
	pthread_rwlock_unlock(&gate);
	job.run(job.data);
	return NULL;
}

static pthread_t begin(const char *name, void (*run)(void *), void *data)
{
	struct job *job = malloc(sizeof(*job));
	pthread_attr_t attributes;
	pthread_t thread;

	*job = (struct job){run, data, name};
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 64 << 10);
	errno = pthread_create(&thread, &attributes, run_job, job);
	if (errno)
		fail("pthread_create");
	return thread;
}

static void pause_ns(long ns)
{
	nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
}

static void burn(int rounds)
{
	for (volatile int i = 0; i < rounds; i++)
		;
}

static void spin(void *data)
{
	(void)data;
	while (!is_over)
		burn(1000);
}

static void yield(void *data)
{
	(void)data;
	while (!is_over) {
		burn(300);
		sched_yield();
	}
}

static void sleep_for_ever(void *data)
{
	(void)data;
	while (!is_over)
		pause();
}

static void sleep_shortly(void *data)
{
	(void)data;
	while (!is_over) {
		pause_ns(1000000);
		count_work();
	}
}

static void write_file(void)
{
	int file = open(argument, O_RDWR | O_CREAT | O_DIRECT, 0600);
	char *buffer = mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (file < 0)
		fail(argument);
	for (off_t at = 0; at < DISK_BYTES; at += READ_BYTES)
		if (pwrite(file, buffer, READ_BYTES, at) != READ_BYTES)
			fail("pwrite");
	fsync(file);
	close(file);
}

static void read_disk(void *data)
{
	int file = open(argument, O_RDONLY | O_DIRECT);
	char *buffer = mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)data;
	if (file < 0)
		fail(argument);
	for (off_t at = 0; !is_over; at = (at + READ_BYTES) % DISK_BYTES) {
		if (pread(file, buffer, READ_BYTES, at) != READ_BYTES)
			fail("pread");
		count_work();
	}
}

/* vfork() blocks its caller uninterruptibly until the child is gone: a wait for the kernel, not for a disk. */
static void wait_in_vfork(void *data)
{
	(void)data;
	while (!is_over) {
		pid_t child = vfork();

		if (!child) {
			pause_ns(20000000);
			_exit(0);
		}
		waitpid(child, NULL, 0);
		count_work();
	}
}

struct pair {
	int forth[2], back[2];
	int turn;
};

static struct pair *new_pair(void)
{
	struct pair *pair = calloc(1, sizeof(*pair));

	if (pipe(pair->forth) || pipe(pair->back))
		fail("pipe");
	return pair;
}

static void pipe_a(void *data)
{
	struct pair *pair = data;
	char byte = 0;

	while (!is_over) {
		if (write(pair->forth[1], &byte, 1) < 1 || read(pair->back[0], &byte, 1) < 1)
			break;
		count_work();
	}
}

static void pipe_b(void *data)
{
	struct pair *pair = data;
	char byte = 0;

	while (read(pair->forth[0], &byte, 1) == 1 && write(pair->back[1], &byte, 1) == 1)
		;
}

static void take_turns(int *turn, int me)
{
	while (!is_over) {
		int now = __atomic_load_n(turn, __ATOMIC_ACQUIRE);

		if ((now & 1) == me) {
			__atomic_store_n(turn, now + 1, __ATOMIC_RELEASE);
			syscall(SYS_futex, turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		} else {
			syscall(SYS_futex, turn, FUTEX_WAIT_PRIVATE, now, &(struct timespec){1, 0}, NULL, 0);
		}
	}
}

static void futex_a(void *data)
{
	take_turns(&((struct pair *)data)->turn, 0);
}

static void futex_b(void *data)
{
	take_turns(&((struct pair *)data)->turn, 1);
}

static void ignore(int signal_number)
{
	(void)signal_number;
}

static void be_interrupted(void *data)
{
	int never[2];
	char byte;

	(void)data;
	if (pipe(never))
		fail("pipe");
	for (int i = 0; !is_over; i++) {
		if (i % 3 == 0)
			pause_ns(200000);
		else if (i % 3 == 1)
			(void)!read(never[0], &byte, 1);
		else
			burn(2000);
	}
}

static void storm(void *data)
{
	while (!is_over) {
		for (int i = 0; i < STORM_AFFECTED; i++)
			pthread_kill(((pthread_t *)data)[i], SIGUSR1);
		burn(500);
	}
}

static void pin(pid_t tid, int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(tid, sizeof(set), &set);
}

static pid_t wanderers[8];

static void migrate(void *data)
{
	int cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);

	(void)data;
	for (int round = 0; !is_over; round++) {
		for (int i = 0; wanderers[i]; i++)
			pin(wanderers[i], (round + i) % cpus);
		count_work();
		pause_ns(1000000);
	}
}

static void wander(void *data)
{
	static int registered;

	wanderers[__atomic_fetch_add(&registered, 1, __ATOMIC_RELAXED)] = gettid();
	if (data)
		pipe_a(data);
	else
		spin(NULL);
}

static void wander_b(void *data)
{
	pipe_b(data);
}

static void live_shortly(void *data)
{
	(void)data;
	burn(20000);
	pause_ns(100000);
}

/* Waits until somebody watches. */
static void wait_for_go(void)
{
	char line[16];

	if (read(STDIN_FILENO, line, sizeof(line)) < 1)
		exit(1);
}

static void make_short_threads(void *data)
{
	pthread_t threads[SHORT_THREADS];

	(void)data;
	wait_for_go();
	while (!is_over) {
		for (int i = 0; i < SHORT_THREADS; i++)
			threads[i] = begin("short", live_shortly, NULL);
		for (int i = 0; i < SHORT_THREADS; i++) {
			pthread_join(threads[i], NULL);
			count_work();
		}
	}
}

static int new_socket(void)
{
	int one = 1, made = socket(AF_INET, SOCK_STREAM, 0);

	setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return made;
}

static struct sockaddr_in address_of(const char *host, int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};

	inet_pton(AF_INET, host, &address.sin_addr);
	return address;
}

static int listener = -1;

static void listen_at(const char *host, int port)
{
	struct sockaddr_in address = address_of(host, port);

	listener = new_socket();
	if (bind(listener, (void *)&address, sizeof(address)) || listen(listener, 1))
		fail("listen");
}

/* Answers each message, so that it sleeps for the peer's packets only. */
static void serve_tcp(void *data)
{
	int peer = accept(listener, NULL, NULL);
	char buffer[64];

	(void)data;
	while (!is_over && recv(peer, buffer, sizeof(buffer), 0) > 0) {
		count_work();
		if (send(peer, buffer, sizeof(buffer), 0) < 0)
			break;
	}
}

static void ask_tcp(void *data)
{
	struct sockaddr_in address = *(struct sockaddr_in *)data;
	char buffer[64] = "";
	int peer = new_socket();

	while (connect(peer, (void *)&address, sizeof(address)))
		pause_ns(1000000);
	while (!is_over && send(peer, buffer, sizeof(buffer), 0) > 0 && recv(peer, buffer, sizeof(buffer), 0) > 0)
		pause_ns(200000);
}

enum { CHILD_EXIT_CODE = 7 };

/* Children one after the other: each exits at once, or becomes another program. */
static void raise_children(void *data)
{
	(void)data;
	wait_for_go();
	while (!is_over) {
		pid_t child = fork();

		if (!child) {
			if (*argument)
				execl(argument, argument, NULL);
			_exit(CHILD_EXIT_CODE);
		}
		waitpid(child, NULL, 0);
		count_work();
		pause_ns(20000000);
	}
}

static int terminal_master, terminal_slave;

static void open_terminal(void)
{
	struct termios raw;

	terminal_master = posix_openpt(O_RDWR | O_NOCTTY);
	if (terminal_master < 0 || grantpt(terminal_master) || unlockpt(terminal_master))
		fail("posix_openpt");
	terminal_slave = open(ptsname(terminal_master), O_RDWR | O_NOCTTY);
	tcgetattr(terminal_slave, &raw);
	cfmakeraw(&raw);
	tcsetattr(terminal_slave, TCSANOW, &raw);
}

/* What is typed reaches the reader through a kernel worker. */
static void type_keys(void *data)
{
	(void)data;
	while (!is_over && write(terminal_master, "x", 1) == 1)
		pause_ns(1000000);
}

static void read_keys(void *data)
{
	char key;

	(void)data;
	while (!is_over && read(terminal_slave, &key, 1) == 1)
		count_work();
}

/* A process each. */
static void fork_spinners(void *data)
{
	wait_for_go();
	for (long i = 0; i < (long)data; i++) {
		if (fork())
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			burn(1000);
	}
	sleep_for_ever(NULL);
}

static pthread_t last_to_end;

static int start_mode(const char *mode, int count)
{
	static struct sockaddr_in peer;
	static pthread_t affected[STORM_AFFECTED];
	int threads = 0;

	for (int i = 0; i < count; i++) {
		struct pair *pair;

		if (!strcmp(mode, "spin"))
			threads++, begin("spin", spin, NULL);
		else if (!strcmp(mode, "yield"))
			threads++, begin("yield", yield, NULL);
		else if (!strcmp(mode, "sleep"))
			threads++, begin("sleep", sleep_shortly, NULL);
		else if (!strcmp(mode, "pause"))
			threads++, begin("pause", sleep_for_ever, NULL);
		else if (!strcmp(mode, "disk"))
			threads++, write_file(), begin("disk", read_disk, NULL);
		else if (!strcmp(mode, "vfork"))
			threads++, begin("vfork", wait_in_vfork, NULL);
		else if (!strcmp(mode, "pipe") || (!strcmp(mode, "many") && i % 2))
			threads += 2, pair = new_pair(), begin("pipe_a", pipe_a, pair), begin("pipe_b", pipe_b, pair);
		else if (!strcmp(mode, "futex") || !strcmp(mode, "many"))
			threads += 2, pair = calloc(1, sizeof(*pair)), begin("futex_a", futex_a, pair),
				      begin("futex_b", futex_b, pair);
	}
	if (!strcmp(mode, "storm")) {
		for (int i = 0; i < STORM_AFFECTED; i++)
			threads++, affected[i] = begin("affected", be_interrupted, NULL);
		threads++, begin("storm", storm, affected);
	} else if (!strcmp(mode, "migrate")) {
		struct pair *pair = new_pair();

		for (int i = 0; i < 3; i++)
			threads++, begin("wanderer", wander, NULL);
		threads += 3, begin("wanderer", wander, pair), begin("partner", wander_b, pair),
			      begin("migrator", migrate, NULL);
	} else if (!strcmp(mode, "loopback")) {
		listen_at("127.0.0.1", count);
		peer = address_of("127.0.0.1", count);
		threads += 2, begin("server", serve_tcp, NULL), begin("client", ask_tcp, &peer);
	} else if (!strcmp(mode, "serve")) {
		listen_at("0.0.0.0", count);
		threads++, begin("server", serve_tcp, NULL);
	} else if (!strcmp(mode, "ask")) {
		peer = address_of(argument, count);
		threads++, begin("client", ask_tcp, &peer);
	} else if (!strcmp(mode, "short_threads")) {
		threads++, last_to_end = begin("maker", make_short_threads, NULL);
	} else if (!strcmp(mode, "children")) {
		threads++, last_to_end = begin("parent", raise_children, NULL);
	} else if (!strcmp(mode, "terminal")) {
		open_terminal();
		threads += 2, begin("reader", read_keys, NULL), begin("typist", type_keys, NULL);
	} else if (!strcmp(mode, "spinners")) {
		pin(0, atoi(argument));
		threads++, begin("parent", fork_spinners, (void *)(long)count);
	}
	return threads;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int count = argc > 2 ? atoi(argv[2]) : 1, threads, signal_number;
	struct timespec used;
	sigset_t term;

	argument = argc > 3 ? argv[3] : "";
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){1 << 14, 1 << 14}); /* 1,000 pairs of pipes */
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, NULL);
	sigaction(SIGUSR1, &(struct sigaction){.sa_handler = ignore}, NULL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pthread_rwlock_wrlock(&gate);
	threads = start_mode(mode, count);
	while (__atomic_load_n(&started, __ATOMIC_ACQUIRE) < threads)
		pause_ns(1000000);
	pthread_rwlock_unlock(&gate);
	puts("ready");
	fflush(stdout);
	sigwait(&term, &signal_number);
	is_over = 1;
	if (last_to_end)
		pthread_join(last_to_end, NULL);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	printf("%lu %lld\n", work_done, used.tv_sec * 1000000000ll + used.tv_nsec);
	fflush(stdout);
	_exit(0);
}
