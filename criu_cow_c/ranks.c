/* cw-ranks: starts the K ranks of a job on this node, each with its own environment.
 *
 *   cw-ranks K NODE_RANK NNODES -- CMD [ARG...]
 *
 * Every rank gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and GROUP_RANK as
 * torchrun would set them. It is part of the job and of its snapshots: linked statically,
 * no files, no threads. When a rank fails the others get SIGTERM, and SIGKILL after
 * STOP_SECONDS; the exit status is that of the rank that failed first.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STOP_SECONDS = 30, MAX_RANKS = 4096 };

static const int forwarded[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 };
static pid_t rank_pid[MAX_RANKS];
static int ranks;

static void signal_all(int signo)
{
	for (int i = 0; i < ranks; i++)
		if (rank_pid[i] > 0)
			kill(rank_pid[i], signo);
}

static void set_number(const char *name, long value)
{
	char text[24];

	snprintf(text, sizeof(text), "%ld", value);
	setenv(name, text, 1);
}

static long number(const char *text, long low, long high)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (end == text || *end || value < low || value > high) {
		fprintf(stderr, "cw-ranks: '%s' is not a number from %ld to %ld\n", text, low, high);
		exit(2);
	}
	return value;
}

static void start_rank(int local, long node_rank, long nnodes, char **command)
{
	pid_t pid = fork();

	if (pid < 0) {
		fprintf(stderr, "cw-ranks: fork of rank %d: %s\n", local, strerror(errno));
		signal_all(SIGKILL);
		exit(125);
	}
	if (pid) {
		rank_pid[local] = pid;
		return;
	}
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	set_number("RANK", node_rank * ranks + local);
	set_number("LOCAL_RANK", local);
	set_number("WORLD_SIZE", nnodes * ranks);
	set_number("LOCAL_WORLD_SIZE", ranks);
	set_number("GROUP_RANK", node_rank);
	execvp(command[0], command);
	fprintf(stderr, "cw-ranks: %s: %s\n", command[0], strerror(errno));
	_exit(127);
}

/* Reap what has ended; returns how many ranks are left, notes the first failure. */
static int reap(int left, int *first_failure)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int i = 0; i < ranks; i++)
			if (rank_pid[i] == pid) {
				int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
				rank_pid[i] = 0;
				left--;
				if (code && !*first_failure) {
					*first_failure = code;
					signal_all(SIGTERM);
					alarm(STOP_SECONDS);
				}
			}
	return left;
}

int main(int argc, char **argv)
{
	if (argc < 6 || strcmp(argv[4], "--")) {
		fprintf(stderr, "usage: cw-ranks K NODE_RANK NNODES -- CMD [ARG...]\n");
		return 2;
	}
	long nnodes = number(argv[3], 1, 1 << 20);
	long node_rank = number(argv[2], 0, nnodes - 1);
	ranks = (int)number(argv[1], 1, MAX_RANKS);

	sigset_t watched;
	sigemptyset(&watched);
	sigaddset(&watched, SIGCHLD);
	sigaddset(&watched, SIGALRM);
	for (size_t i = 0; i < sizeof(forwarded) / sizeof(*forwarded); i++)
		sigaddset(&watched, forwarded[i]);
	sigprocmask(SIG_BLOCK, &watched, NULL);

	for (int i = 0; i < ranks; i++)
		start_rank(i, node_rank, nnodes, argv + 5);

	int left = ranks, first_failure = 0;
	while ((left = reap(left, &first_failure)) > 0) {
		siginfo_t info;
		if (sigwaitinfo(&watched, &info) < 0)
			continue;
		if (info.si_signo == SIGALRM)
			signal_all(SIGKILL);
		else if (info.si_signo != SIGCHLD)
			signal_all(info.si_signo);
	}
	return first_failure;
}
