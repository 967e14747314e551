/* SPDX-License-Identifier: Apache-2.0 */
/* faulter NAME: touches 16 MiB page by page, gives the pages back, and again: as many page faults as a CPU can take. */
#include "disturber.h"

#include <sys/mman.h>

#define AREA_BYTES (16 << 20)

int main(int argc, char **argv)
{
	char *area = mmap(NULL, AREA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (area == MAP_FAILED)
		return 1;
	madvise(area, AREA_BYTES, MADV_NOHUGEPAGE); /* one fault for each 4 KiB, not for each 2 MiB */
	begin(argc, argv);
	for (;;) {
		for (size_t i = 0; i < AREA_BYTES; i += 4096)
			*(volatile char *)(area + i) = 1;
		madvise(area, AREA_BYTES, MADV_DONTNEED);
	}
}
