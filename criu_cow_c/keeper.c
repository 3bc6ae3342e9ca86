/* cw-keeper: keeps shadows stopped, and makes sure that none outlives its reader.
 *
 *   cw-keeper PID...       pids of shadows in the caller's pid namespace
 *
 * It traces every shadow with PTRACE_O_EXITKILL: no SIGCONT can set a shadow running, and
 * when this process dies the kernel kills them all. When its own reader dies it sees the
 * end of stdin and does the same.
 *
 * stdin, one line each:   drop PID      kill and reap one shadow
 *                         end of file   kill and reap all, exit 0
 * stdout, one line each:  kept          every shadow that is alive is traced
 *                         dropped PID   killed because it was asked for
 *                         dead PID      died otherwise: its pages can't be trusted
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

struct shadow {
	pid_t pid; /* 0 once reaped */
	int dropped;
};

static struct shadow *shadow;
static int shadows;

static void gone(struct shadow *s)
{
	printf("%s %d\n", s->dropped ? "dropped" : "dead", s->pid);
	s->pid = 0;
}

/* Every stop is left as it is: a trapped shadow is what we want. */
static void reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, __WALL | WNOHANG)) > 0)
		for (int i = 0; i < shadows; i++)
			if (shadow[i].pid == pid && !WIFSTOPPED(status))
				gone(&shadow[i]);
}

static void drop(struct shadow *s)
{
	int status = 0;
	pid_t pid;

	if (!s->pid)
		return;
	s->dropped = 1;
	kill(s->pid, SIGKILL);
	/* Reaped at once: the init of its pid namespace can't end before. */
	do
		pid = waitpid(s->pid, &status, __WALL);
	while (pid < 0 ? errno == EINTR : WIFSTOPPED(status));
	gone(s);
}

static void obey(char *line)
{
	int pid;

	if (sscanf(line, "drop %d", &pid) == 1)
		for (int i = 0; i < shadows; i++)
			if (shadow[i].pid == pid)
				drop(&shadow[i]);
}

/* Read commands; returns 0 at the end of stdin. */
static int read_commands(void)
{
	static char text[4096];
	static size_t used;
	char *line = text, *end;

	ssize_t n = read(STDIN_FILENO, text + used, sizeof(text) - 1 - used);
	if (n < 0 && errno == EINTR)
		return 1;
	if (n <= 0)
		return 0;
	used += (size_t)n;
	text[used] = 0;
	while ((end = strchr(line, '\n'))) {
		*end = 0;
		obey(line);
		line = end + 1;
	}
	used -= (size_t)(line - text);
	if (used == sizeof(text) - 1)
		return 0; /* no command is that long */
	memmove(text, line, used);
	return 1;
}

int main(int argc, char **argv)
{
	sigset_t chld;

	shadow = calloc((size_t)argc, sizeof(*shadow));
	if (!shadow)
		return 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, NULL);
	int events = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
	if (events < 0)
		return 1;

	for (int i = 1; i < argc; i++) {
		struct shadow *s = &shadow[shadows++];
		s->pid = (pid_t)atoi(argv[i]);
		if (s->pid <= 0 || ptrace(PTRACE_SEIZE, s->pid, NULL, PTRACE_O_EXITKILL))
			gone(s);
	}
	printf("kept\n");

	struct pollfd wait[2] = { { .fd = STDIN_FILENO, .events = POLLIN }, { .fd = events, .events = POLLIN } };
	for (;;) {
		struct signalfd_siginfo info;
		if (poll(wait, 2, -1) < 0 && errno != EINTR)
			break;
		while (read(events, &info, sizeof(info)) > 0)
			;
		reap();
		if (wait[0].revents && !read_commands())
			break;
	}
	for (int i = 0; i < shadows; i++)
		drop(&shadow[i]);
	free(shadow);
	return 0;
}
