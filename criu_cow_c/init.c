/* cw-init: pid 1 of a job's tree on one node.
 *
 *   cw-init run     OPTIONS -- CMD [ARG...]     start a job
 *   cw-init restore OPTIONS -- CRIU [ARG...]    start criu, which restores the job below us
 *
 * The layout is cw-init (pid 1) -> job root (a session leader). criu dumps the job root
 * and what is below it, from inside these namespaces; cw-init itself is never dumped, so
 * that the same layout can be made anew around a restored root.
 *
 * It makes pid, mount and ipc namespaces with a fresh /proc, reaps every child (also ones
 * it never made: shadows, criu's helpers), forwards signals to the job root, and writes
 * the root's end to the status file. It then ends what is left of the job, but not the
 * shadows that are still being read: with it they would end too, and their snapshot be lost.
 *
 * Written to the ready descriptor, one line each:
 *   init PID          pid of cw-init in the caller's pid namespace
 *   started PID       pid of the job root or of criu, as seen inside
 *   error ERRNO WHAT  instead of started
 */
#define _GNU_SOURCE
#include "io_uring_filter.h"
#include "others.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_GROUPS    1024
#define OFFERED_STDIO 100

struct options {
	int restore;
	int status_dir;      /* directory of the status file */
	const char *status_name;
	int ready;
	const char *output; /* log file of the command's stdout, ... */
	const char *errors; /* ... and of its stderr; the same path gives one file */
	int allow_io_uring;
	int set_user;
	uid_t uid;
	gid_t gid;
	gid_t group[MAX_GROUPS];
	size_t groups;
	int last_pid; /* restore: pids at and below are left free for the restored tasks */
	pid_t root;   /* restore: pid of the job root, from the images */
	char **command;
};

static const int forwarded[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH };

static void tell(const struct options *o, const char *format, ...)
{
	char line[256];
	va_list ap;

	va_start(ap, format);
	int n = vsnprintf(line, sizeof(line), format, ap);
	va_end(ap);
	if (o->ready >= 0 && n > 0 && write(o->ready, line, (size_t)n) < 0)
		return; /* nobody listens any more */
}

static _Noreturn void give_up(const struct options *o, const char *what)
{
	tell(o, "error %d %s\n", errno, what);
	_exit(125);
}

static long number(const char *text, const char *option)
{
	char *end;

	errno = 0;
	long value = strtol(text, &end, 10);
	if (errno || end == text || *end || value < 0) {
		fprintf(stderr, "cw-init: %s: '%s' is not a number\n", option, text);
		_exit(2);
	}
	return value;
}

static void parse_groups(struct options *o, char *text)
{
	for (char *one = strtok(text, ","); one; one = strtok(NULL, ",")) {
		if (o->groups == MAX_GROUPS) {
			fprintf(stderr, "cw-init: more than %d groups\n", MAX_GROUPS);
			_exit(2);
		}
		o->group[o->groups++] = (gid_t)number(one, "--groups");
	}
}

static void open_status_dir(struct options *o, char *path)
{
	char *slash = strrchr(path, '/');

	if (!slash || !slash[1]) {
		fprintf(stderr, "cw-init: --status '%s' is not an absolute file name\n", path);
		_exit(2);
	}
	o->status_name = slash + 1;
	*slash = 0;
	o->status_dir = open(*path ? path : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (o->status_dir < 0) {
		fprintf(stderr, "cw-init: %s: %s\n", path, strerror(errno));
		_exit(2);
	}
}

static struct options parse(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "status", required_argument, NULL, 's' }, { "ready", required_argument, NULL, 'r' },
		{ "allow-io-uring", no_argument, NULL, 'a' }, { "uid", required_argument, NULL, 'u' },
		{ "gid", required_argument, NULL, 'g' }, { "groups", required_argument, NULL, 'G' },
		{ "stdout", required_argument, NULL, 'o' }, { "stderr", required_argument, NULL, 'e' },
		{ "last-pid", required_argument, NULL, 'l' }, { "root", required_argument, NULL, 'R' },
		{ NULL, 0, NULL, 0 },
	};
	struct options o = { .status_dir = -1, .ready = -1 };
	int c;

	if (argc < 2 || (strcmp(argv[1], "run") && strcmp(argv[1], "restore"))) {
		fprintf(stderr, "usage: cw-init run|restore OPTIONS -- CMD [ARG...]\n");
		_exit(2);
	}
	o.restore = !strcmp(argv[1], "restore");
	while ((c = getopt_long(argc - 1, argv + 1, "+", longs, NULL)) != -1) {
		switch (c) {
		case 's': open_status_dir(&o, optarg); break;
		case 'r': o.ready = (int)number(optarg, "--ready"); break;
		case 'o': o.output = optarg; break;
		case 'e': o.errors = optarg; break;
		case 'a': o.allow_io_uring = 1; break;
		case 'u': o.uid = (uid_t)number(optarg, "--uid"); o.set_user = 1; break;
		case 'g': o.gid = (gid_t)number(optarg, "--gid"); break;
		case 'G': parse_groups(&o, optarg); break;
		case 'l': o.last_pid = (int)number(optarg, "--last-pid"); break;
		case 'R': o.root = (pid_t)number(optarg, "--root"); break;
		default: _exit(2);
		}
	}
	o.command = argv + 1 + optind;
	if (!*o.command || o.status_dir < 0 || (o.restore && !o.root)) {
		fprintf(stderr, "cw-init: --status and a command are needed, and --root for restore\n");
		_exit(2);
	}
	return o;
}

/* Leave the pids of the restored tasks to them: criu and its helpers take higher ones
 * (pid_namespaces(7), ns_last_pid). */
static int reserve_pids(int last_pid)
{
	char text[16];

	int fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	int n = snprintf(text, sizeof(text), "%d", last_pid);
	int ok = write(fd, text, (size_t)n) == n;
	close(fd);
	return ok ? 0 : -1;
}

/* stdin, stdout and stderr of the command, opened here because criu refuses descriptors
 * of another mount namespace ("Can't lookup mount"). O_APPEND: after a restore the log
 * goes on behind what was written since the snapshot. */
static int open_stdio(const struct options *o)
{
	const char *path[3] = { "/dev/null", o->output ? o->output : "/dev/null",
				o->errors ? o->errors : o->output ? o->output : "/dev/null" };

	for (int fd = 0; fd < 3; fd++) {
		int same = fd == 2 && !strcmp(path[1], path[2]);
		int flags = fd ? O_WRONLY | O_CREAT | O_APPEND : O_RDONLY;
		int got = same ? dup(1) : open(path[fd], flags, 0600);
		if (got < 0 || (got != fd && (dup2(got, fd) < 0 || close(got))))
			return -1;
		if (fd && o->set_user && !same && path[fd] != path[0] && fchown(fd, o->uid, o->gid))
			return -1;
	}
	return 0;
}

/* For criu's inherit_fd: descriptors 100 to 102, because criu itself needs 0 to 2 free of
 * the job's files (libnftables writes to stderr, and a shell job's terminal goes there). */
static int offer_stdio(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (int fd = 0; fd < 3; fd++)
		if (null < 0 || dup2(fd, OFFERED_STDIO + fd) < 0 || dup2(null, fd) < 0)
			return -1;
	return 0;
}

static _Noreturn void become_command(const struct options *o, int report)
{
	sigset_t none;
	const char *what = "exec";

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (open_stdio(o) && (what = "log file"))
		goto failed;
	if (o->restore) {
		if (offer_stdio() && (what = "stdio"))
			goto failed;
	} else {
		/* A session of its own: criu can only dump a tree whose root leads its session. */
		if (setsid() < 0 && (what = "setsid"))
			goto failed;
		/* Before the user changes: root needs no no_new_privs for a filter, and so
		 * set-uid programs of the job go on working. */
		if (!o->allow_io_uring && cw_deny_io_uring() && (what = "seccomp"))
			goto failed;
		if (o->set_user && (setgroups(o->groups, o->group) || setresgid(o->gid, o->gid, o->gid) ||
				    setresuid(o->uid, o->uid, o->uid)) && (what = "setuid"))
			goto failed;
	}
	execvp(o->command[0], o->command);
failed:;
	int error = errno;
	struct { int error; char what[12]; } message = { error, "" };
	strncpy(message.what, what, sizeof(message.what) - 1);
	if (write(report, &message, sizeof(message)) < 0)
		_exit(126);
	_exit(125);
}

/* Fork the command; returns its pid once it has been executed. */
static pid_t start_command(const struct options *o)
{
	struct { int error; char what[12]; } message;
	int report[2];

	if (pipe2(report, O_CLOEXEC))
		give_up(o, "pipe");
	pid_t pid = fork();
	if (pid < 0)
		give_up(o, "fork");
	if (!pid) {
		if (o->ready >= 0)
			close(o->ready);
		close(report[0]);
		become_command(o, report[1]);
	}
	close(report[1]);
	ssize_t n = read(report[0], &message, sizeof(message));
	close(report[0]);
	if (n == (ssize_t)sizeof(message)) {
		errno = message.error;
		give_up(o, message.what);
	}
	return pid;
}

static void write_status(const struct options *o, int status)
{
	char text[160], temp[80];
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	int signo = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

	int n = snprintf(text, sizeof(text), "{\"exit_code\": %d, \"signal\": %d, \"ended\": %lld}\n", code, signo,
			 (long long)time(NULL));
	snprintf(temp, sizeof(temp), ".%.60s.tmp", o->status_name);
	int fd = openat(o->status_dir, temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	int ok = write(fd, text, (size_t)n) == n && !fsync(fd);
	close(fd);
	if (ok)
		renameat(o->status_dir, temp, o->status_dir, o->status_name);
}

/* Reap until the job root has ended; returns its wait status. */
static int tend(const struct options *o, pid_t command, const sigset_t *watched)
{
	pid_t root = o->restore ? o->root : command;

	for (;;) {
		siginfo_t info;
		int status;
		pid_t pid;

		while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0) {
			if (pid == root)
				return status;
			/* criu ended and left no root: the restore has failed. */
			if (o->restore && pid == command && kill(root, 0))
				return status ? status : 125 << 8;
		}
		if (sigwaitinfo(watched, &info) < 0)
			continue;
		if (info.si_signo != SIGCHLD)
			kill(root, info.si_signo);
	}
}

/* Log files, the ready pipe and criu's socket are the command's, not ours: held open
 * here, they would hide its end from whoever reads them. */
static void close_inherited(const struct options *o)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (int fd = 0; null >= 0 && fd < 3; fd++)
		dup2(null, fd);
	if (o->status_dir > 3)
		close_range(3, (unsigned)o->status_dir - 1, 0);
	close_range((unsigned)o->status_dir + 1, ~0u, 0);
}

static _Noreturn void be_init(const struct options *o)
{
	sigset_t watched;

	sigemptyset(&watched);
	sigaddset(&watched, SIGCHLD);
	for (size_t i = 0; i < sizeof(forwarded) / sizeof(*forwarded); i++)
		sigaddset(&watched, forwarded[i]);
	sigprocmask(SIG_BLOCK, &watched, NULL);
	prctl(PR_SET_NAME, "cw-init");
	if (setsid() < 0)
		give_up(o, "setsid");
	/* Mounts made on the node later still arrive; ours stay here. */
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
		give_up(o, "mount propagation");
	if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
		give_up(o, "mount /proc");
	if (o->restore && reserve_pids(o->last_pid))
		give_up(o, "ns_last_pid");

	pid_t command = start_command(o);
	tell(o, "started %d\n", command);
	close_inherited(o);
	write_status(o, tend(o, command, &watched));
	cw_end_others();
	_exit(0);
}

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv);

	if (unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC))
		give_up(&o, "unshare");
	pid_t init = fork();
	if (init < 0)
		give_up(&o, "fork");
	if (!init)
		be_init(&o);
	tell(&o, "init %d\n", init);
	return 0;
}
