/* Putting a stopped tree right after the process that stopped it, or criu, has died.
 *
 * Every function returns how much it found to do, or a negative errno; each thing done is one line
 * on stdout, for the log. */
#ifndef CW_REPAIR_H
#define CW_REPAIR_H

#include "journal.h"
#include "tasks.h"

/* Kill what the shadow maker has left in the pid namespace `space` (an inode): shadows, and middles
 * that share a task's memory. They must be gone before a task gets its text back. `tree` is empty when
 * the job has ended. */
int cw_kill_shadows(struct cw_journal *journal, uint64_t space, const struct cw_pids *tree);

/* Give every dirty task of the journal its registers, signal mask and text back. */
int cw_repair_tasks(struct cw_journal *journal, const struct cw_pids *tree);

/* Take the tree's TCP sockets out of repair mode, in which they give the job EPERM. */
int cw_clear_tcp_repair(const struct cw_pids *tree);

/* Remove the links that criu gives to deleted files for the time of a dump (link_remap.N). */
int cw_remove_link_remaps(const struct cw_pids *tree);

#endif
