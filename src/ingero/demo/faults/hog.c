/* SPDX-License-Identifier: Apache-2.0 */
/* hog NAME: spins on one CPU, under that name, for as long as its parent lives. */
#include "disturber.h"

int main(int argc, char **argv)
{
	volatile unsigned long spins = 0;

	begin(argc, argv);
	for (;;)
		spins++;
}
