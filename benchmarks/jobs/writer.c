/* A job that dirties its memory all the time and tells every stall that it feels.
 *
 * usage: writer MIB small|huge THREADS PROCESSES
 *
 * One thread writes one word of page after page, round and round, and looks at the clock after
 * each: "stall SECONDS MICROSECONDS" for every gap above 1 ms, SECONDS being CLOCK_MONOTONIC at
 * its end. THREADS more threads sleep, and PROCESSES more processes that have written to a page of
 * each MiB. Prints "ready" when all are there.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *sleeper(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	size_t size = (size_t)atol(argv[1]) << 20;
	unsigned char *memory =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 3;
	madvise(memory, size, strcmp(argv[2], "huge") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
	/* Every page differs, so that none is stored for another. */
	for (size_t at = 0; at < size; at += 4096)
		*(volatile uint64_t *)(memory + at) = at + 1;
	for (int i = atoi(argv[4]); i > 0; i--) {
		pid_t child = fork();
		if (child < 0)
			return 5;
		if (!child) {
			for (size_t at = 0; at < size; at += 1 << 20)
				*(volatile uint64_t *)(memory + at) = at + (size_t)i + 2;
			sleeper(NULL);
		}
	}
	for (int i = atoi(argv[3]); i > 0; i--) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, sleeper, NULL))
			return 4;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready\n");
	double last = now();
	for (size_t at = 0;; at = (at + 4096) % size) {
		(*(volatile uint64_t *)(memory + at))++;
		double t = now();
		if (t - last > 0.001)
			printf("stall %.6f %.0f\n", t, (t - last) * 1e6);
		last = t;
	}
}
