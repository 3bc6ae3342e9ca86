#define _GNU_SOURCE
#include "rewind.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SYSCALL_TEXT 0x050f
#define SYSCALL_BYTES 2
#define CS_64_BIT 0x33

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

/* Calls that have done nothing when they fail with EINTR, as long as they wait without an end or to a point
 * in time. Not those with a timeout: it would begin anew with each take, and a watchdog would never fire.
 * Not those with a signal mask of their own: a signal that it unblocks must end them. */
static int waits_without_a_clock(const struct user_regs_struct *regs)
{
	switch (regs->orig_rax) {
	case SYS_epoll_wait: /* fs/eventpoll.c, ep_poll: EINTR only with no event */
		return (int)regs->r10 < 0;
	case SYS_epoll_pwait:
		return (int)regs->r10 < 0 && !regs->r8;
	case SYS_epoll_pwait2:
		return !regs->r10 && !regs->r8;
	case SYS_poll: /* fs/select.c, do_restart_poll does the same */
		return (int)regs->rdx < 0;
	case SYS_rt_sigtimedwait: /* kernel/signal.c, do_sigtimedwait: EINTR only with no signal */
		return !regs->rdx;
	case SYS_semop: /* ipc/sem.c: EINTR only while none of the operations is done */
		return 1;
	case SYS_semtimedop:
		return !regs->r10;
	case SYS_futex: /* kernel/futex/waitwake.c, futex_wait_restart does the same; its time is absolute */
		return (regs->rsi & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
	}
	return 0;
}

int cw_may_enter_anew(const struct user_regs_struct *regs, uint16_t text)
{
	/* orig_rax is -1 when a handler has run, and outside of calls; with bit 30 it is an x32 call. */
	return (long long)regs->rax == -EINTR && regs->cs == CS_64_BIT && text == SYSCALL_TEXT &&
	       waits_without_a_clock(regs);
}

int cw_handler_may_run(uint64_t blocked, uint64_t caught)
{
	/* 32 and 33 are the C library's own: cancellation and set*id of all threads (nptl(7)). */
	return !!(caught & ~blocked & ~(3ull << 31));
}

/* The signals that a process has handlers for, from /proc/PID/status; its threads share them. */
struct process {
	pid_t pid;
	uint64_t caught;
};

static void read_process(struct process *process, pid_t pid)
{
	static const char field[] = "\nSigCgt:";
	char path[32], status[8192];

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, status, sizeof(status) - 1);
	if (fd >= 0)
		close(fd);
	status[n > 0 ? n : 0] = 0;
	const char *line = strstr(status, field);
	/* What can't be read counts as every signal. */
	*process = (struct process){ pid, line ? strtoull(line + sizeof(field) - 1, NULL, 16) : ~0ull };
}

static int handler_may_run(struct process *process, const struct cw_journal_thread *thread)
{
	uint64_t blocked;

	/* Read once for each process: it takes ten times as long as a call of ptrace. */
	if (process->pid != thread->pid)
		read_process(process, thread->pid);
	return ptrace(PTRACE_GETSIGMASK, thread->tid, sizeof(blocked), &blocked) ||
	       cw_handler_may_run(blocked, process->caught);
}

/* The two bytes before a thread's rip. */
static uint16_t text_before(pid_t tid, uint64_t rip)
{
	/* The last ones of the word that ends there: what is behind it need not exist. */
	errno = 0;
	uint64_t word = (uint64_t)ptrace(PTRACE_PEEKTEXT, tid, rip - sizeof(word), NULL);
	return errno ? 0 : (uint16_t)(word >> 48);
}

static void rewind_thread(struct process *process, struct cw_journal_thread *thread)
{
	struct user_regs_struct regs;

	if (ptrace(PTRACE_GETREGS, thread->tid, NULL, &regs) || (long long)regs.rax != -EINTR ||
	    !cw_may_enter_anew(&regs, text_before(thread->tid, regs.rip)) ||
	    handler_may_run(process, thread))
		return;
	regs.rip -= SYSCALL_BYTES;
	regs.rax = regs.orig_rax;
	if (!ptrace(PTRACE_SETREGS, thread->tid, NULL, &regs))
		thread->state = CW_THREAD_ANEW;
}

void cw_rewind(struct cw_journal *journal)
{
	size_t n = journal->head->threads;
	struct process process = { 0 };

	for (size_t i = 0; i < n && i < journal->thread_room; i++)
		rewind_thread(&process, &journal->thread[i]);
}
