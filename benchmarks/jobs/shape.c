/* A job of a given shape, which then sleeps: what a pause is made of, part by part.
 *
 * usage: shape MIB small|loose|huge|mixed THREADS DESCRIPTORS SHARED_MIB MAPPINGS PROCESSES own|forked
 *
 * Each of PROCESSES processes has MIB of private memory (its own, or what it shares with its parent
 * since the fork), THREADS threads, DESCRIPTORS descriptors and MAPPINGS mappings of one page.
 * SHARED_MIB of shared memory is mapped by all of them. Prints "ready" when all of it is there.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *anonymous(size_t size, int kind)
{
	void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
	if (found == MAP_FAILED)
		exit(3);
	return found;
}

/* Equal pages are stored quickly, and their content is of no matter for a pause. */
static void fill(unsigned char *memory, size_t size)
{
	for (size_t at = 0; at < size; at += 4096)
		*(volatile uint64_t *)(memory + at) = 1;
}

static void private_memory(size_t size, const char *pages)
{
	unsigned char *memory = anonymous(size ? size : 4096, MAP_PRIVATE);
	size_t huge = !strcmp(pages, "huge") ? size : !strcmp(pages, "mixed") ? size / 2 : 0;

	madvise(memory, size, MADV_NOHUGEPAGE);
	madvise(memory, huge, MADV_HUGEPAGE);
	fill(memory, size);
	/* Small pages that may become huge ones. */
	if (!strcmp(pages, "loose"))
		madvise(memory, size, MADV_HUGEPAGE);
}

static void *sleeper(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return NULL;
}

static void own_things(int threads, int descriptors, int mappings)
{
	for (int i = 1; i < threads; i++) {
		pthread_t thread;
		pthread_attr_t small;
		pthread_attr_init(&small);
		pthread_attr_setstacksize(&small, 64 << 10);
		if (pthread_create(&thread, &small, sleeper, NULL))
			exit(4);
	}
	for (int i = 0; i < descriptors; i++) {
		int ends[2];
		int bad = i % 4 == 0 ? eventfd(0, 0) < 0 : i % 4 == 1 ? open("/dev/null", O_RDWR) < 0 :
								       i % 4 == 2 && pipe(ends);
		if (bad)
			exit(5);
	}
	/* Every other one read-only, so that the kernel does not join them. */
	for (int i = 0; i < mappings; i++) {
		unsigned char *page = anonymous(4096, MAP_PRIVATE);
		*page = 1;
		if (i % 2)
			mprotect(page, 4096, PROT_READ);
	}
}

int main(int argc, char **argv)
{
	if (argc != 9)
		return 2;
	size_t size = (size_t)atol(argv[1]) << 20, shared = (size_t)atol(argv[5]) << 20;
	int threads = atoi(argv[3]), descriptors = atoi(argv[4]), mappings = atoi(argv[6]);
	int processes = atoi(argv[7]), forked = !strcmp(argv[8], "forked");
	unsigned char *common = anonymous(shared ? shared : 4096, MAP_SHARED);
	int ready[2];

	if (pipe(ready))
		return 6;
	fill(common, shared);
	if (forked)
		private_memory(size, argv[2]);
	for (int i = 1; i < processes; i++) {
		pid_t child = fork();
		if (child < 0)
			return 7;
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (!forked)
				private_memory(size, argv[2]);
			for (size_t at = 0; at < shared; at += 4096)
				(void)*(volatile unsigned char *)(common + at);
			own_things(threads, descriptors, mappings);
			if (write(ready[1], "r", 1) != 1)
				return 8;
			sleeper(NULL);
		}
	}
	if (!forked)
		private_memory(size, argv[2]);
	own_things(threads, descriptors, mappings);
	for (int i = 1; i < processes; i++) {
		char one;
		if (read(ready[0], &one, 1) != 1)
			return 9;
	}
	puts("ready");
	fflush(stdout);
	sleeper(NULL);
}
