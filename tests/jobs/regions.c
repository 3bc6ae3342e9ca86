/* A job that has every kind of mapping and checks every byte of them, again and again.
 *
 * usage: regions FILE [guards] [hugetlb]     FILE is created and mapped privately
 *
 * One line a round: "N ok", or "N" and BAD(name:count) for every region that lost words.
 * With `guards` a region has guard pages, and "guard=LOST" means that they no longer trap.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#define MADV_GUARD_INSTALL_NR 102
#define SIZE  (64 * 4096ul)
#define HUGE_ (4ul << 20)

struct region {
	const char *name;
	unsigned char *start;
	size_t size;
	uint64_t pattern; /* 0: must read as zeros */
	int protection;   /* what to give it back after reading, or -1 */
	uint64_t pattern_shift; /* what it has not been counted up */
};
static struct region region[64];
static int regions;
static int guard_region = -1;
static uint64_t generation;

static uint64_t word(const struct region *r, size_t i)
{
	return r->pattern ? r->pattern * 0x100000001000193ull + i + generation + r->pattern_shift : 0;
}

static void fill(struct region *r)
{
	for (size_t i = 0; i < r->size / 8; i++)
		((uint64_t *)r->start)[i] = word(r, i);
}

/* Count up every word. A page that came from another instant stays wrong for ever. */
static void count_up(struct region *r)
{
	if (r->pattern)
		for (size_t i = 0; i < r->size / 8; i++)
			((volatile uint64_t *)r->start)[i]++;
}

static void add(const char *name, void *start, size_t size)
{
	if (start == MAP_FAILED) {
		printf("cannot map %s: %s\n", name, strerror(errno));
		exit(3);
	}
	region[regions] = (struct region){ name, start, size, (uint64_t)regions + 1, -1, 0 };
	fill(&region[regions++]);
}

static void *map(size_t size, int flags)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
}

static void protect(int protection)
{
	struct region *r = &region[regions - 1];

	r->protection = protection;
	mprotect(r->start, r->size, protection);
}

static void advise(int advice, const char *name)
{
	struct region *r = &region[regions - 1];

	if (madvise(r->start, r->size, advice))
		printf("note: madvise for %s: %s\n", name, strerror(errno));
}

static size_t check(struct region *r)
{
	size_t bad = 0;

	if (r->protection == PROT_NONE)
		mprotect(r->start, r->size, PROT_READ);
	for (size_t i = 0; i < r->size / 8; i++)
		bad += ((volatile uint64_t *)r->start)[i] != word(r, i);
	if (r->protection == PROT_NONE)
		mprotect(r->start, r->size, PROT_NONE);
	return bad;
}

static void trapped(int signo)
{
	(void)signo;
	_exit(77);
}

static int guards_trap(void)
{
	struct region *r = &region[guard_region];
	int status;
	pid_t pid = fork();

	if (!pid) {
		signal(SIGSEGV, trapped);
		*(volatile char *)(r->start + r->size + 8192) = 1;
		_exit(0);
	}
	waitpid(pid, &status, 0);
	return WEXITSTATUS(status) == 77;
}

static void map_files(const char *path)
{
	static unsigned char block[SIZE];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	memset(block, 0xab, sizeof(block));
	if (fd < 0 || write(fd, block, sizeof(block)) != (ssize_t)sizeof(block))
		exit(3);
	add("file-private", mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0), SIZE);
	/* Zeros over the file's bytes: a restore that drops zero pages shows the file again. */
	add("file-private-zeroed", mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0), SIZE);
	region[regions - 1].pattern = 0;
	fill(&region[regions - 1]);
	void *clean = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
	if (memcmp(clean, block, SIZE))
		exit(3);
	int memfd = memfd_create("regions", 0);
	if (ftruncate(memfd, SIZE))
		exit(3);
	add("memfd-private", mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, memfd, 0), SIZE);
	add("memfd-shared", mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0), SIZE);
	int zero = open("/dev/zero", O_RDWR);
	add("dev-zero", mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0), SIZE);
	close(zero);
}

static void map_anonymous(void)
{
	add("plain", map(SIZE, MAP_PRIVATE | MAP_ANONYMOUS), SIZE);
	add("dontfork", map(SIZE, MAP_PRIVATE | MAP_ANONYMOUS), SIZE);
	advise(MADV_DONTFORK, "dontfork");
	add("wipeonfork", map(SIZE, MAP_PRIVATE | MAP_ANONYMOUS), SIZE);
	advise(MADV_WIPEONFORK, "wipeonfork");
	add("no-access", map(SIZE, MAP_PRIVATE | MAP_ANONYMOUS), SIZE);
	protect(PROT_NONE);
	add("read-only", map(SIZE, MAP_PRIVATE | MAP_ANONYMOUS), SIZE);
	protect(PROT_READ);
	add("locked", map(SIZE, MAP_PRIVATE | MAP_ANONYMOUS), SIZE);
	if (mlock(region[regions - 1].start, SIZE))
		printf("note: mlock: %s\n", strerror(errno));
	add("mergeable", map(SIZE, MAP_PRIVATE | MAP_ANONYMOUS), SIZE);
	advise(MADV_MERGEABLE, "mergeable");
	add("thp", map(2 * HUGE_, MAP_PRIVATE | MAP_ANONYMOUS), 2 * HUGE_);
	madvise(region[regions - 1].start, 2 * HUGE_, MADV_HUGEPAGE);
	fill(&region[regions - 1]);
	add("shared", map(SIZE, MAP_SHARED | MAP_ANONYMOUS), SIZE);

	unsigned char *brk_start = sbrk((intptr_t)SIZE);
	add("brk", (void *)(((uintptr_t)brk_start + 4095) & ~4095ul), SIZE - 8192);

	/* Private, shared, private without a gap: one scan sees all three. */
	unsigned char *three = map(3 * SIZE, MAP_PRIVATE | MAP_ANONYMOUS);
	mmap(three + SIZE, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	add("beside-low", three, SIZE);
	add("beside-shared", three + SIZE, SIZE);
	add("beside-high", three + 2 * SIZE, SIZE);

	unsigned char *room = mmap(NULL, 16 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(room, 16 * SIZE);
	add("growsdown",
	    mmap(room + 12 * SIZE, SIZE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0),
	    SIZE);

	/* Every second page present, so that runs are short. */
	unsigned char *sparse = map(SIZE, MAP_PRIVATE | MAP_ANONYMOUS);
	for (size_t at = 0; at < SIZE; at += 2 * 4096) {
		char *name = malloc(16);
		snprintf(name, 16, "sparse");
		if (at == 0 || at == SIZE - 2 * 4096)
			add(name, sparse + at, 4096);
		else
			memset(sparse + at, 1, 4096);
	}
}

/* Take the huge pages that nobody has, but for one: criu looks with it how such mappings are named. The
 * second copy-on-write fault then finds none, and the kernel takes the page away from the child
 * (mm/hugetlb.c, unmap_ref_private). */
static void exhaust_huge_pages(void)
{
	char *last = NULL;

	for (int n = 0; n < 64; n++) {
		char *page = map(HUGE_ / 2, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB);
		if (page == MAP_FAILED)
			break;
		memset(page, 1, HUGE_ / 2);
		last = page;
	}
	if (last)
		munmap(last, HUGE_ / 2);
}

static void *thread_with_stack(void *unused)
{
	uint64_t stack[4096];
	(void)unused;
	volatile uint64_t *own = stack;

	for (uint64_t round = 0;; round++) {
		for (size_t i = 0; i < 4096; i++) {
			if (round && own[i] != i + round)
				printf("BAD(thread-stack:%zu)\n", i);
			own[i] = i + round + 1;
		}
		usleep(5000);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	uint64_t stack[4096];
	struct region main_stack = { "main-stack", (unsigned char *)stack, sizeof(stack), 778, -1, 0 };
	pthread_t thread;

	if (argc < 2)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	fill(&main_stack);
	map_anonymous();
	map_files(argv[1]);
	for (int i = 2; i < argc; i++) {
		if (!strcmp(argv[i], "hugetlb")) {
			add("hugetlb", map(HUGE_, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB), HUGE_);
			exhaust_huge_pages();
		}
		if (!strcmp(argv[i], "guards")) {
			add("guarded", map(2 * SIZE, MAP_PRIVATE | MAP_ANONYMOUS), SIZE);
			guard_region = regions - 1;
			if (madvise(region[guard_region].start + SIZE, SIZE, MADV_GUARD_INSTALL_NR))
				return 4;
			/* And in a mapping that is read while the job is stopped. */
			add("guarded-dontfork", map(2 * SIZE, MAP_PRIVATE | MAP_ANONYMOUS), SIZE);
			if (madvise(region[regions - 1].start, 2 * SIZE, MADV_DONTFORK) ||
			    madvise(region[regions - 1].start + SIZE, SIZE, MADV_GUARD_INSTALL_NR))
				return 4;
		}
	}
	pthread_create(&thread, NULL, thread_with_stack, NULL);
	for (int round = 0;; round++) {
		size_t all = check(&main_stack);
		printf("%d", round);
		for (int i = 0; i < regions; i++) {
			size_t bad = check(&region[i]);
			if (bad)
				printf(" BAD(%s:%zu)", region[i].name, bad);
			all += bad;
		}
		if (guard_region >= 0 && !guards_trap()) {
			printf(" guard=LOST");
			all++;
		}
		printf(all ? " broken\n" : " ok\n");
		usleep(20000);
		/* Change what a living shadow must not see. Fixed regions take part by their pattern. */
		for (int i = 0; i < regions; i++)
			if (region[i].protection == -1)
				count_up(&region[i]);
			else
				region[i].pattern_shift--;
		count_up(&main_stack);
		generation++;
	}
}
