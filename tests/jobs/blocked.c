/* A job that is blocked in every kind of system call, once in the main thread of a process of its own and
 * once in a thread of the first process, and tells each return:
 *
 *     CALL leader|thread RESULT ERRNO HANDLERS ELAPSED_MS ASKED_MS
 *
 * ERRNO is its name or 0, HANDLERS the number of handlers that have run since it was called, ASKED_MS its
 * timeout or -1. Nothing ever happens that a call waits for, and each one is called again.
 *
 * usage: blocked list                names all calls and ends
 *        blocked                     no handler is there
 *        blocked handler             one for SIGCONT
 *        blocked one CALL [child]    one call only, in the main thread, with a handler for SIGUSR1 and one
 *                                    for SIGCHLD; with a child that sleeps
 *        blocked one CALL quiet      the same without a handler
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HOUR_MS  3600000L
#define SHORT_MS 700L

static volatile sig_atomic_t handlers;
static sigset_t waited_for; /* SIGUSR2, blocked everywhere */

static void count(int number)
{
	(void)number;
	handlers++;
}

static void check(int fine, const char *what)
{
	if (fine)
		return;
	perror(what);
	exit(1);
}

static struct timespec span(long ms)
{
	return (struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
}

static struct timespec until(clockid_t clock, long ms)
{
	struct timespec now, more = span(ms);

	clock_gettime(clock, &now);
	now.tv_nsec += more.tv_nsec;
	now.tv_sec += more.tv_sec + now.tv_nsec / 1000000000;
	now.tv_nsec %= 1000000000;
	return now;
}

static long ms_since(const struct timespec *begin)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - begin->tv_sec) * 1000 + (now.tv_nsec - begin->tv_nsec) / 1000000;
}

/* -- what is waited for; every call makes its own once ------------------------------------ */

static int silent_pipe(void)
{
	int ends[2];

	check(!pipe(ends), "pipe");
	return ends[0];
}

static int silent_epoll(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	int epoll = epoll_create1(0);

	check(epoll >= 0 && !epoll_ctl(epoll, EPOLL_CTL_ADD, silent_pipe(), &event), "epoll");
	return epoll;
}

static int silent_socket(void)
{
	int ends[2];

	check(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
	return ends[0];
}

static int impatient_socket(void)
{
	struct timeval limit = { .tv_sec = HOUR_MS / 1000 };
	int end = silent_socket();

	check(!setsockopt(end, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), "SO_RCVTIMEO");
	return end;
}

static int listening_socket(void)
{
	int one = socket(AF_INET, SOCK_STREAM, 0);

	check(one >= 0 && !listen(one, 1), "listen");
	return one;
}

static int silent_inotify(void)
{
	int one = inotify_init1(0);

	/* The folder in which it runs; nobody deletes it. */
	check(one >= 0 && inotify_add_watch(one, ".", IN_DELETE_SELF) >= 0, "inotify");
	return one;
}

static int message_queue(void)
{
	return msgget(IPC_PRIVATE, 0600);
}

static int semaphores(void)
{
	return semget(IPC_PRIVATE, 1, 0600);
}

static int sleeping_child(void)
{
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return pid;
}

static int nothing(void)
{
	return 0;
}

/* -- the calls ---------------------------------------------------------------------------- */

static uint32_t word; /* of the futexes: nobody ever changes it */
static sem_t semaphore;
static struct sembuf down = { .sem_op = -1 };

#define CALL(name) static long name(int fd, long ms)
#define UNUSED	   ((void)fd, (void)ms)
#define SPAN	   struct timespec time = span(ms)

CALL(call_nanosleep)
{
	UNUSED;
	struct timespec rest = { 0 };
	SPAN;
	long result = syscall(SYS_nanosleep, &time, &rest);
	/* The rest is told, too. */
	if (result < 0 && (rest.tv_sec * 1000 > ms || (!rest.tv_sec && !rest.tv_nsec)))
		errno = ERANGE;
	return result;
}
CALL(call_nanosleep_until)
{
	UNUSED;
	struct timespec time = until(CLOCK_MONOTONIC, ms);
	return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}
CALL(call_pause) { UNUSED; return pause(); }
CALL(call_read) { UNUSED; char c; return read(fd, &c, 1); }
CALL(call_recv) { UNUSED; char c; return recv(fd, &c, 1, 0); }
CALL(call_accept) { UNUSED; return accept(fd, NULL, NULL); }
CALL(call_inotify) { UNUSED; char event[sizeof(struct inotify_event) + NAME_MAX + 1]; return read(fd, event, sizeof(event)); }
CALL(call_epoll) { struct epoll_event event; return epoll_wait(fd, &event, 1, (int)ms); }
CALL(call_epoll_mask)
{
	struct epoll_event event;
	sigset_t none;

	sigemptyset(&none);
	return epoll_pwait(fd, &event, 1, (int)ms, &none);
}
CALL(call_poll) { struct pollfd one = { .fd = fd, .events = POLLIN }; return syscall(SYS_poll, &one, 1, ms); }
CALL(call_ppoll) { struct pollfd one = { .fd = fd, .events = POLLIN }; SPAN; return ppoll(&one, 1, &time, NULL); }
CALL(call_select)
{
	struct timeval time = { .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };
	fd_set set;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	return select(fd + 1, &set, NULL, NULL, &time);
}
CALL(call_futex) { UNUSED; return syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0); }
CALL(call_futex_span) { UNUSED; SPAN; return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &time, NULL, 0); }
CALL(call_futex_until)
{
	UNUSED;
	struct timespec time = until(CLOCK_MONOTONIC, ms);
	return syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, 0, &time, NULL, FUTEX_BITSET_MATCH_ANY);
}
CALL(call_sem_until)
{
	UNUSED;
	struct timespec time = until(CLOCK_REALTIME, ms);
	return sem_timedwait(&semaphore, &time);
}
CALL(call_sigwait) { UNUSED; return sigwaitinfo(&waited_for, NULL); }
CALL(call_sigwait_span) { UNUSED; SPAN; return sigtimedwait(&waited_for, NULL, &time); }
CALL(call_msgrcv) { UNUSED; struct { long type; char c; } message; return msgrcv(fd, &message, 1, 0, 0); }
CALL(call_semop) { UNUSED; return semop(fd, &down, 1); }
CALL(call_semop_span) { UNUSED; SPAN; return semtimedop(fd, &down, 1, &time); }
CALL(call_wait) { UNUSED; return wait4(fd, NULL, 0, NULL); }

static const struct blocked {
	const char *name;
	long (*call)(int fd, long ms);
	int (*prepare)(void);
	long asked_ms;
} all[] = {
	{ "nanosleep", call_nanosleep, nothing, HOUR_MS },
	{ "nanosleep-short", call_nanosleep, nothing, SHORT_MS },
	{ "nanosleep-until", call_nanosleep_until, nothing, HOUR_MS },
	{ "pause", call_pause, nothing, -1 },
	{ "read", call_read, silent_pipe, -1 },
	{ "inotify", call_inotify, silent_inotify, -1 },
	{ "recv", call_recv, silent_socket, -1 },
	{ "recv-timed", call_recv, impatient_socket, HOUR_MS },
	{ "accept", call_accept, listening_socket, -1 },
	{ "epoll_wait", call_epoll, silent_epoll, -1 },
	{ "epoll_wait-timed", call_epoll, silent_epoll, HOUR_MS },
	{ "epoll_pwait-mask", call_epoll_mask, silent_epoll, -1 },
	{ "poll", call_poll, silent_pipe, -1 },
	{ "poll-timed", call_poll, silent_pipe, HOUR_MS },
	{ "poll-short", call_poll, silent_pipe, SHORT_MS },
	{ "ppoll-timed", call_ppoll, silent_pipe, HOUR_MS },
	{ "select-timed", call_select, silent_pipe, HOUR_MS },
	{ "select-short", call_select, silent_pipe, SHORT_MS },
	{ "futex", call_futex, nothing, -1 },
	{ "futex-timed", call_futex_span, nothing, HOUR_MS },
	{ "futex-short", call_futex_span, nothing, SHORT_MS },
	{ "futex-until", call_futex_until, nothing, HOUR_MS },
	{ "sem_timedwait", call_sem_until, nothing, HOUR_MS },
	{ "sem_timedwait-short", call_sem_until, nothing, SHORT_MS },
	{ "sigwaitinfo", call_sigwait, nothing, -1 },
	{ "sigtimedwait", call_sigwait_span, nothing, HOUR_MS },
	{ "msgrcv", call_msgrcv, message_queue, -1 },
	{ "semop", call_semop, semaphores, -1 },
	{ "semtimedop", call_semop_span, semaphores, HOUR_MS },
	{ "wait4", call_wait, sleeping_child, -1 },
};
#define COUNT (sizeof(all) / sizeof(all[0]))

static void block(const struct blocked *one, const char *who)
{
	int fd = one->prepare();

	check(fd >= 0, one->name);
	for (;;) {
		struct timespec begin;
		char line[160];
		int before = handlers;

		clock_gettime(CLOCK_MONOTONIC, &begin);
		errno = 0;
		long result = one->call(fd, one->asked_ms);
		const char *error = result < 0 ? strerrorname_np(errno) : "0";
		int n = snprintf(line, sizeof(line), "%s %s %ld %s %d %ld %ld\n", one->name, who, result, error,
				 handlers - before, ms_since(&begin), one->asked_ms);
		check(write(1, line, (size_t)n) == n, "write");
	}
}

static void *in_a_thread(void *one)
{
	block(one, "thread");
	return NULL;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = count, .sa_flags = SA_RESTART };
	pthread_t thread;

	if (argc == 2 && !strcmp(argv[1], "list")) {
		for (size_t i = 0; i < COUNT; i++)
			puts(all[i].name);
		return 0;
	}
	sigemptyset(&waited_for);
	sigaddset(&waited_for, SIGUSR2);
	sigprocmask(SIG_BLOCK, &waited_for, NULL);
	sem_init(&semaphore, 0, 0);
	if (argc == 2)
		sigaction(SIGCONT, &action, NULL);
	if (argc > 2 && (argc == 3 || strcmp(argv[3], "quiet"))) {
		sigaction(SIGUSR1, &action, NULL);
		sigaction(SIGCHLD, &action, NULL);
	}
	if (argc > 3 && !strcmp(argv[3], "child"))
		sleeping_child();
	for (size_t i = 0; argc > 2 && i < COUNT; i++)
		if (!strcmp(all[i].name, argv[2]))
			block(&all[i], "leader");
	if (argc > 2)
		return 2;
	for (size_t i = 0; i < COUNT; i++)
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			block(&all[i], "leader");
		}
	for (size_t i = 0; i < COUNT; i++)
		check(!pthread_create(&thread, NULL, in_a_thread, (void *)&all[i]), "pthread_create");
	printf("ready\n");
	fflush(stdout);
	for (;;)
		pause();
}
