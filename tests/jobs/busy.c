/* A job that never rests and finds out by itself when anything of it is not what it was.
 *
 * usage: busy LOG FORKS_PER_SECOND MIB_PER_SECOND    run
 *        busy chain ROUNDS                           print the chain's value after so many rounds
 *
 * chain    a hash chain through a table in memory; each 50 rounds "ROUND HASH FORKS TICKS" on stdout.
 *          Nothing but the number of the round decides the hash, so it can be calculated again.
 * forks    children that hash memory which they inherited, and exit with the result
 * mapper   maps, fills, moves, protects, reads back and unmaps memory
 * writer   appends numbered blocks to LOG; at 64 MiB it reads all of them back and begins anew
 * timers   1 ms, by setitimer and timer_create; they must not stand still
 *
 * Whatever is wrong ends it with status 3 after "broken: ..." on stdout.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TABLE = 1 << 19, STEPS = 2000, TELL_ROUNDS = 50, INHERITED = 1 << 13 };
enum { SLOTS = 16, MOST_PAGES = 256, PAGE_WORDS = 512 };
enum { BLOCK_WORDS = 1 << 13, LOG_BLOCKS = 1024 }; /* 64 KiB, 64 MiB */

static atomic_ulong forks, alarms, ticks;

static void broken(const char *format, ...)
{
	char line[256] = "broken: ";
	va_list rest;

	va_start(rest, format);
	vsnprintf(line + 8, sizeof(line) - 9, format, rest);
	va_end(rest);
	strcat(line, "\n");
	if (write(1, line, strlen(line)) < 0)
		_exit(4);
	_exit(3);
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 31;
	x *= 0x9E3779B97F4A7C15ull;
	return x ^ (x >> 29);
}

static void rest(long microseconds)
{
	struct timespec left = { microseconds / 1000000, microseconds % 1000000 * 1000 };

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

/* -- chain */

static uint64_t *table;
static uint64_t chain = 1;

static void chain_round(uint64_t round)
{
	for (uint64_t step = 0; step < STEPS; step++) {
		uint64_t at = chain % TABLE;
		table[at] = mix(table[at] ^ chain ^ round);
		chain = mix(chain + table[at]);
	}
}

static void *run_chain(void *unused)
{
	(void)unused;
	for (uint64_t round = 1;; round++) {
		chain_round(round);
		if (round % TELL_ROUNDS == 0) {
			char line[128];
			int n = snprintf(line, sizeof(line), "%lu %016lx %lu %lu\n", round, chain, forks, ticks);
			if (write(1, line, (size_t)n) != n)
				broken("stdout: %s", strerror(errno));
		}
		rest(1000);
	}
	return NULL;
}

/* -- forks */

static uint64_t inherited[INHERITED];

static int hash_of_inherited(void)
{
	uint64_t hash = 0;

	for (int i = 0; i < INHERITED; i++)
		hash = mix(hash ^ inherited[i]);
	return (int)(hash & 127);
}

static void run_forks(long each_us)
{
	unsigned long alarms_before = 0, ticks_before = 0;

	for (uint64_t n = 1;; n++) {
		inherited[n % INHERITED] = mix(n);
		int expected = hash_of_inherited(), status;
		pid_t child = fork();
		if (child < 0)
			broken("fork: %s", strerror(errno));
		if (!child) {
			rest(each_us / 4);
			_exit(hash_of_inherited());
		}
		rest(each_us / 2);
		pid_t got;
		while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR)
			;
		if (got != child)
			broken("waitpid: %s", got < 0 ? strerror(errno) : "another child");
		if (!WIFEXITED(status) || WEXITSTATUS(status) != expected)
			broken("child %d ended with %x and not with %x", child, status, expected << 8);
		forks++;
		if (n % 256)
			continue;
		/* This thread takes the signals, and has run 256 times: they must have come. */
		if (alarms == alarms_before || ticks == ticks_before)
			broken("a timer stands still: %lu alarms, %lu ticks", alarms, ticks);
		alarms_before = alarms;
		ticks_before = ticks;
	}
}

/* -- mapper */

struct mapped {
	uint64_t *at, pages, seed;
};

static void check_mapped(const struct mapped *m)
{
	for (uint64_t i = 0; i < m->pages; i++)
		for (uint64_t word = 0; word < PAGE_WORDS; word += 73)
			if (m->at[i * PAGE_WORDS + word] != mix(m->seed + i * PAGE_WORDS + word))
				broken("page %lu of the mapping at %p", i, (void *)m->at);
}

static void *run_mapper(void *unused)
{
	struct mapped slots[SLOTS] = { 0 };

	(void)unused;
	for (uint64_t seed = 1;; seed = mix(seed + 1)) {
		struct mapped *m = &slots[seed % SLOTS];
		if (m->at) {
			check_mapped(m);
			if (munmap(m->at, m->pages * 4096))
				broken("munmap: %s", strerror(errno));
		}
		m->seed = seed;
		m->pages = 1 + seed / SLOTS % MOST_PAGES;
		m->at = mmap(NULL, m->pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (m->at == MAP_FAILED)
			broken("mmap: %s", strerror(errno));
		for (uint64_t i = 0; i < m->pages * PAGE_WORDS; i++) {
			if (m->at[i])
				broken("a new mapping is not empty at word %lu", i);
			m->at[i] = mix(seed + i);
		}
		if (seed & 1 << 20)
			m->at = mremap(m->at, m->pages * 4096, 2 * m->pages * 4096, MREMAP_MAYMOVE);
		if (m->at == MAP_FAILED || ((seed & 1 << 20) && munmap(m->at + m->pages * PAGE_WORDS, m->pages * 4096)))
			broken("mremap: %s", strerror(errno));
		if ((seed & 1 << 21) && mprotect(m->at, m->pages * 4096, PROT_READ))
			broken("mprotect: %s", strerror(errno));
		check_mapped(m);
		rest(300);
	}
	return NULL;
}

/* -- writer */

static int log_fd;
static long writes_per_second;

static void check_log(uint64_t first)
{
	static uint64_t block[BLOCK_WORDS];

	for (uint64_t i = 0; i < LOG_BLOCKS; i++) {
		if (pread(log_fd, block, sizeof(block), (off_t)(i * sizeof(block))) != sizeof(block))
			broken("block %lu of the log: %s", i, strerror(errno));
		if (block[0] != first + i || block[BLOCK_WORDS - 1] != mix(first + i))
			broken("block %lu of the log is %lu and not %lu", i, block[0], first + i);
	}
}

static void *run_writer(void *unused)
{
	static uint64_t block[BLOCK_WORDS];

	(void)unused;
	for (uint64_t n = 0;; n++) {
		if (n % LOG_BLOCKS == 0 && n) {
			check_log(n - LOG_BLOCKS);
			if (ftruncate(log_fd, 0))
				broken("ftruncate: %s", strerror(errno));
		}
		block[0] = n;
		for (int i = 1; i < BLOCK_WORDS; i += 512)
			block[i] = n ^ (uint64_t)i;
		block[BLOCK_WORDS - 1] = mix(n);
		for (size_t done = 0; done < sizeof(block);) {
			ssize_t wrote = write(log_fd, (char *)block + done, sizeof(block) - done);
			if (wrote < 0 && errno != EINTR)
				broken("write: %s", strerror(errno));
			done += wrote > 0 ? (size_t)wrote : 0;
		}
		if (n % 16 == 0)
			rest(16 * 1000000 / writes_per_second);
	}
	return NULL;
}

/* -- timers */

static void on_alarm(int signal)
{
	(void)signal;
	alarms++;
}

static void on_tick(int signal)
{
	(void)signal;
	ticks++;
}

static void start_timers(void)
{
	struct sigaction alarm_action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct sigaction tick_action = { .sa_handler = on_tick, .sa_flags = SA_RESTART };
	struct itimerval each_ms = { { 0, 1000 }, { 0, 1000 } };
	struct itimerspec spec = { { 0, 1000000 }, { 0, 1000000 } };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN };
	timer_t timer;

	if (sigaction(SIGALRM, &alarm_action, NULL) || sigaction(SIGRTMIN, &tick_action, NULL) ||
	    setitimer(ITIMER_REAL, &each_ms, NULL) || timer_create(CLOCK_MONOTONIC, &event, &timer) ||
	    timer_settime(timer, 0, &spec, NULL))
		broken("timers: %s", strerror(errno));
}

static void start(void *(*run)(void *))
{
	pthread_t thread;
	sigset_t all, before;

	/* The main thread takes the signals. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	if (pthread_create(&thread, NULL, run, NULL))
		broken("pthread_create");
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int main(int argc, char **argv)
{
	table = calloc(TABLE, sizeof(*table));
	if (!table)
		return 2;
	if (argc == 3 && !strcmp(argv[1], "chain")) {
		for (uint64_t round = 1; round <= strtoull(argv[2], NULL, 10); round++)
			chain_round(round);
		printf("%016lx\n", chain);
		return 0;
	}
	if (argc != 4)
		return 2;
	log_fd = open(argv[1], O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log_fd < 0)
		broken("%s: %s", argv[1], strerror(errno));
	writes_per_second = atol(argv[3]) * 16;
	start(run_chain);
	start(run_mapper);
	start(run_writer);
	start_timers();
	run_forks(1000000 / atol(argv[2]));
}
