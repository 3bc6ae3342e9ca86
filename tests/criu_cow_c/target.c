/* A task with known memory, two threads and a counter: what shadows are made of.
 *
 * Prints "ready ADDRESS", the address of 64 pages; page N holds N + 1 in its first word, and the
 * first word of page 63 counts up all the time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile uint64_t *page(unsigned char *base, int n)
{
	return (volatile uint64_t *)(base + n * 4096l);
}

static void *other(void *unused)
{
	(void)unused;
	for (;;)
		usleep(1000);
	return NULL;
}

int main(void)
{
	pthread_t thread;
	unsigned char *base = mmap(NULL, 64 * 4096l, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (int n = 0; n < 64; n++)
		*page(base, n) = (uint64_t)n + 1;
	pthread_create(&thread, NULL, other, NULL);
	printf("ready %p\n", (void *)base);
	fflush(stdout);
	for (uint64_t n = 0;; n++) {
		*page(base, 63) = n;
		if (n % 1000 == 0)
			usleep(1000);
	}
}
