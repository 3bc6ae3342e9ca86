#define _GNU_SOURCE
#include "inject.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

static int wait_stop(pid_t pid, int *status)
{
	while (waitpid(pid, status, __WALL) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFSTOPPED(*status) ? 0 : -ESRCH;
}

int cw_call_start(struct cw_call *call, const struct user_regs_struct *base, uint64_t stub)
{
	struct user_regs_struct regs = *base;

	regs.rip = stub;
	regs.rax = (unsigned long long)call->nr;
	/* Not in a system call: the kernel must not apply restart rules to rax. */
	regs.orig_rax = (unsigned long long)-1;
	regs.rdi = call->arg[0];
	regs.rsi = call->arg[1];
	regs.rdx = call->arg[2];
	regs.r10 = call->arg[3];
	regs.r8 = call->arg[4];
	regs.r9 = call->arg[5];
	call->child = 0;
	call->ret = 0;
	if (ptrace(PTRACE_SETREGS, call->pid, NULL, &regs) || ptrace(PTRACE_SYSCALL, call->pid, NULL, NULL))
		return -errno;
	call->stage = 1;
	return 0;
}

/* Run the task until its next system call stop; clones on the way are noted. */
static int next_syscall_stop(struct cw_call *call)
{
	for (;;) {
		int status;
		int err = wait_stop(call->pid, &status);
		if (err)
			return err;

		int event = status >> 16;
		/* A fault cannot be blocked: the stub is not there, or can't run. */
		if (!event && (WSTOPSIG(status) == SIGSEGV || WSTOPSIG(status) == SIGBUS ||
			       WSTOPSIG(status) == SIGILL || WSTOPSIG(status) == SIGTRAP))
			return -EFAULT;
		if (event == PTRACE_EVENT_CLONE || event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK) {
			unsigned long child;
			if (ptrace(PTRACE_GETEVENTMSG, call->pid, NULL, &child))
				return -errno;
			call->child = (pid_t)child;
		} else if (!event && WSTOPSIG(status) == (SIGTRAP | 0x80)) {
			return 0;
		}
		/* Everything else is a stop signal that came with the task (criu re-sends the
		 * SIGSTOP it found; all other signals are blocked). It is swallowed: the owner of
		 * the task stops it again after us. */
		if (ptrace(PTRACE_SYSCALL, call->pid, NULL, NULL))
			return -errno;
	}
}

int cw_call_enter(struct cw_call *call)
{
	if (call->stage != 1)
		return -ECANCELED;
	call->stage = 0;
	int err = next_syscall_stop(call);
	if (err)
		return err;
	if (ptrace(PTRACE_SYSCALL, call->pid, NULL, NULL))
		return -errno;
	call->stage = 2;
	return 0;
}

int cw_call_wait(struct cw_call *call)
{
	struct user_regs_struct regs;
	int err = call->stage == 1 ? cw_call_enter(call) : 0;

	if (err)
		return err;
	if (call->stage != 2)
		return -ECANCELED;
	call->stage = 0;
	if ((err = next_syscall_stop(call)))
		return err;
	if (ptrace(PTRACE_GETREGS, call->pid, NULL, &regs))
		return -errno;
	call->ret = (long)regs.rax;
	return 0;
}

int cw_call_run(struct cw_call *call, const struct user_regs_struct *base, uint64_t stub)
{
	int err = cw_call_start(call, base, stub);
	return err ? err : cw_call_wait(call);
}

int cw_wait_attached(pid_t pid)
{
	int status;

	return wait_stop(pid, &status);
}
