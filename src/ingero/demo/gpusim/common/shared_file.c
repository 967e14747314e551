// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "shared_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_file(const char *path)
{
	if (!path)
		return memfd_create("gpusim", MFD_CLOEXEC);
	return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
}

static void *map_locked(int fd, size_t size, void (*prepare)(void *))
{
	struct stat st;
	void *memory;

	if (fstat(fd, &st) || (st.st_size < (off_t)size && ftruncate(fd, size)))
		return MAP_FAILED;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory != MAP_FAILED && prepare)
		prepare(memory);
	return memory;
}

void *gpusim_map_file(const char *path, size_t size, void (*prepare)(void *memory), int *fd_out)
{
	void *memory = MAP_FAILED;
	int fd = open_file(path);

	if (fd >= 0 && !flock(fd, LOCK_EX)) {
		memory = map_locked(fd, size, prepare);
		flock(fd, LOCK_UN);
	}
	if (memory == MAP_FAILED)
		fprintf(stderr, "gpusim: cannot map %s: %s\n", path ? path : "a memfd", strerror(errno));
	if (fd >= 0 && (!fd_out || memory == MAP_FAILED))
		close(fd);
	else if (fd_out)
		*fd_out = fd;
	return memory == MAP_FAILED ? NULL : memory;
}

const char *gpusim_env_path(const char *variable, char *buffer, size_t size)
{
	const char *pattern = getenv(variable);
	const char *mark;

	if (!pattern || !*pattern)
		return NULL;
	mark = strstr(pattern, "%p");
	if (!mark)
		snprintf(buffer, size, "%s", pattern);
	else
		snprintf(buffer, size, "%.*s%d%s", (int)(mark - pattern), pattern, getpid(), mark + 2);
	return buffer;
}
