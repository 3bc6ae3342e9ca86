/* System calls run inside another, ptrace-stopped task.
 *
 * A call is started in one task and awaited later, so that slow calls (the clone
 * that copies page tables) of many tasks overlap. The task must be traced by the
 * calling thread, be in a ptrace-stop, and have CW_INJECT_OPTIONS set.
 *
 * The stub in the task is `syscall; jmp .`: a task whose tracer dies right after
 * the call spins there and never runs its own code with wrong registers
 * (research: 11 of 36 kills in mid-injection were fatal with single-stepping).
 */
#ifndef CW_INJECT_H
#define CW_INJECT_H

#include <stdint.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/user.h>

#define CW_STUB_TEXT 0xfeeb050full /* 0f 05 = syscall, eb fe = jmp . */

/* SUSPEND_SECCOMP: a filter of the job must not see (or kill for) our calls. */
#define CW_INJECT_OPTIONS                                                                              \
	(PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACESYSGOOD | \
	 PTRACE_O_SUSPEND_SECCOMP)

struct cw_call {
	pid_t pid;
	long nr;
	uint64_t arg[6];
	/* Results, valid after cw_call_wait() returned 0. */
	long ret;
	pid_t child; /* auto-attached child of a clone, 0 otherwise */
	/* 0, then 1 when started and 2 when the task has entered the call, so that a wait for a call
	 * that was never started is harmless. */
	int stage;
};

/* Registers `base` with rip at `stub` and the call's arguments, then let it run.
 * Returns 0 or a negative errno. */
int cw_call_start(struct cw_call *call, const struct user_regs_struct *base, uint64_t stub);

/* Let a started task into the kernel, where the call runs on. Without this step a call begins only
 * when it is waited for; with it, calls of many tasks run at the same time. */
int cw_call_enter(struct cw_call *call);

/* Wait until the call has returned in the task, which then is in a ptrace-stop.
 * Returns 0, -ESRCH if the task died (wanted for exit), or another negative errno. */
int cw_call_wait(struct cw_call *call);

/* Both of the above. The result of the call itself is call->ret. */
int cw_call_run(struct cw_call *call, const struct user_regs_struct *base, uint64_t stub);

/* Wait for the first stop of a task that was attached by PTRACE_O_TRACECLONE. */
int cw_wait_attached(pid_t pid);

#endif
