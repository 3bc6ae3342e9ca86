/* The shadow journal: what the shadow maker is about to change in each task,
 * written down before it changes anything, so that whoever comes after a crash
 * can put every task back (docs/internals/shadow-journal.md).
 *
 * The file is mapped MAP_SHARED by the controller, which fills in the pids, and
 * by the plugin inside criu, which fills in the rest. Little-endian x86_64.
 */
#ifndef CW_JOURNAL_H
#define CW_JOURNAL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

#define CW_JOURNAL_MAGIC   0x31304c4e524a5743ull /* "CWJRNL01" */
#define CW_JOURNAL_VERSION 2u

/* What the controller decided before it answered criu's post-dump callback. */
enum cw_decision {
	CW_DECISION_NONE = 0, /* no shadows: the dump was refused or has failed */
	CW_DECISION_MAKE = 1,
};

/* Where the plugin stands. */
enum cw_phase {
	CW_PHASE_IDLE = 0,
	CW_PHASE_MAKING = 1,
	CW_PHASE_HOLDING = 2, /* a shadow could not be made: tasks held for direct reading */
	CW_PHASE_DONE = 3,
};

/* What has been done to one task. */
enum cw_state {
	CW_STATE_PENDING = 0,
	CW_STATE_DIRTY = 1,    /* registers, mask or text differ from the job's own */
	CW_STATE_SHADOWED = 2, /* task is clean again, shadow exists */
	CW_STATE_FAILED = 3,   /* task is clean again, no shadow */
};

/* The step at which an entry stands or failed; also names injected faults. */
enum cw_step {
	CW_STEP_NONE = 0,
	CW_STEP_PREPARE = 1, /* registers, mask and text saved, stub written */
	CW_STEP_MIDDLE = 2,  /* clone(CLONE_VM) of the middle */
	CW_STEP_SHADOW = 3,  /* clone of the shadow from the middle */
	CW_STEP_DETACH = 4,  /* setsid, descriptors closed, parked */
	CW_STEP_REAP = 5,    /* middle gone and waited for */
	CW_STEP_RESTORE = 6, /* text, mask and registers put back */
};

/* What has been done to one thread. */
enum cw_thread_state {
	CW_THREAD_LEFT = 0,
	CW_THREAD_ANEW = 1, /* it enters its system call anew (rewind.h) */
};

struct cw_journal_header {
	uint64_t magic;
	uint32_t version;
	uint32_t count; /* entries in use; the file may have room for more */
	uint32_t decision;
	uint32_t phase;
	uint32_t hold_ms;    /* longest time the plugin may hold the tasks for direct reading */
	uint32_t fault_step; /* test switch: fail at this step ... */
	int32_t fault_errno; /* ... with this errno; 0 in production */
	uint32_t room; /* entries that the file has room for; the threads are behind them */
	uint64_t begin_ns; /* CLOCK_MONOTONIC when the plugin began and ended */
	uint64_t end_ns;
	uint32_t smaps_made; /* mappings lists given to criu without a page walk ... */
	uint32_t smaps_real; /* ... and those it had to read itself */
	uint64_t scans_answered; /* page scans answered without a walk ... */
	uint64_t scans_walked;   /* ... and with one */
	char criu_run_id[40]; /* in the name of criu's nftables table; empty = not known */
	uint32_t reads_answered; /* the same for reads of the pagemap file, before Linux 6.7 */
	uint32_t reads_walked;
	uint32_t threads; /* in use */
	uint32_t reserved;
};

struct cw_journal_entry {
	int32_t pid; /* as seen in criu's pid namespace */
	int32_t state;
	int32_t step;
	int32_t error; /* errno of the step that failed */
	int32_t middle;
	int32_t shadow;
	uint64_t stub_addr;
	uint64_t text_word; /* what stood at stub_addr */
	uint64_t sigmask;
	uint64_t clone_ns; /* duration of the copying clone */
	struct user_regs_struct regs;
	uint8_t reserved[240];
};

struct cw_journal_thread {
	int32_t pid; /* its process; both as seen in criu's pid namespace */
	int32_t tid;
	int32_t state;
	uint32_t reserved;
};

_Static_assert(sizeof(struct cw_journal_header) == 136, "journal header layout");
_Static_assert(sizeof(struct cw_journal_entry) == 512, "journal entry layout");
_Static_assert(sizeof(struct cw_journal_thread) == 16, "journal thread layout");

struct cw_journal {
	struct cw_journal_header *head;
	struct cw_journal_entry *entry;
	struct cw_journal_thread *thread;
	size_t bytes;
	size_t room; /* entries and threads that the file has room for */
	size_t thread_room;
};

/* Map the journal behind fd. Returns 0, or a negative errno: -EINVAL when the file is not a
 * journal of this version. */
int cw_journal_map(int fd, struct cw_journal *journal);
void cw_journal_unmap(struct cw_journal *journal);

#endif
