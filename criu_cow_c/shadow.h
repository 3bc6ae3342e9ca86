/* The shadow maker: one stopped copy-on-write fork of every task in a journal. */
#ifndef CW_SHADOW_H
#define CW_SHADOW_H

#include "journal.h"

/* Make a shadow of every PENDING entry of the journal.
 *
 * Every task must be in a ptrace-stop of the calling thread, all its threads
 * stopped too. On return every living task has its own registers, signal mask and
 * text again and is still in that stop. Each entry is SHADOWED, and its shadow is
 * then: stopped (SIGSTOP), untraced, alone in its session, without descriptors, all
 * signals blocked, parked in a pause() loop on a page of its own, first in line for
 * the OOM killer, not a child of any task of the job; or FAILED with step and errno,
 * and nothing of it is left.
 *
 * Returns the number of FAILED entries. */
unsigned cw_shadows_make(struct cw_journal *journal);

#endif
