/* Interrupted system calls that are entered anew.
 *
 * SIGSTOP alone makes some calls fail with EINTR, though no handler has run (signal(7), "Interruption of
 * system calls by stop signals"): the kernel gives no ERESTART code for them. criu adds to these the calls
 * that go on through restart_syscall (compel/arch/x86/src/lib/infect.c, compel_get_task_regs). A thread
 * that still stands right behind such a call gets it back: two bytes before its rip, the number in rax.
 * The job then behaves as if the thread had been a little slower and entered the call after the pause,
 * which it must expect at any time. So it must be true of the call that it has done nothing when it fails
 * so, and that it does not count time from its beginning; and of the thread that no handler can run in it.
 */
#ifndef CW_REWIND_H
#define CW_REWIND_H

#include "journal.h"

#include <stdint.h>
#include <sys/user.h>

/* Whether a thread that was stopped with these registers may enter its call anew.
 * text: the two bytes before rip, little-endian. */
int cw_may_enter_anew(const struct user_regs_struct *regs, uint16_t text);

/* Whether a signal that may come at any time would run a handler in a thread; masks as in
 * /proc/PID/status. Such a thread gets its EINTR: a program may count on a handler to end a call, and one that
 * runs before the call is entered anew would not. */
int cw_handler_may_run(uint64_t blocked, uint64_t caught);

/* Rewind the journal's threads, all of them traced by the calling thread and in a ptrace-stop, and note
 * which. Each one is changed by one ptrace call and right before and after it, so there is nothing to put
 * back when the tracer dies. */
void cw_rewind(struct cw_journal *journal);

#endif
