/* Giving criu the list of a process's mappings without walking its page tables.
 *
 * criu reads /proc/PID/smaps only for the VmFlags lines, but the kernel walks all page tables
 * to make it: 10-20 ms per GiB of 4 KiB pages, inside the pause. The controller reads the flags
 * before the stop and passes them as a table; here they are joined with /proc/PID/maps, which
 * costs no walk. Flags that changed meanwhile are put right afterwards from the shadow's smaps
 * (snapshot/vm_flags.py), so the table is a hint and never the last word.
 */
#ifndef CW_VMFLAGS_H
#define CW_VMFLAGS_H

#include <stdint.h>

#define CW_VMFLAGS_MAGIC 0x3130474c46565743ull /* "CWVFLG01" */

struct cw_vmflags_header {
	uint64_t magic;
	uint32_t version;
	uint32_t count;
};

/* Sorted by pid, then start. */
struct cw_vmflags_entry {
	int32_t pid; /* as seen in criu's pid namespace */
	uint32_t reserved;
	uint64_t start, end;
	char flags[104]; /* the text after "VmFlags: ", ends with NUL */
};

_Static_assert(sizeof(struct cw_vmflags_header) == 16, "table header layout");
_Static_assert(sizeof(struct cw_vmflags_entry) == 128, "table entry layout");

struct cw_vmflags_stats {
	uint32_t made; /* lists made here */
	uint32_t real; /* lists that criu had to read from the kernel */
};
extern struct cw_vmflags_stats cw_vmflags_stats;

/* A descriptor with the smaps of a process as far as criu needs it, or -1 when it can't be known
 * without a walk. `table` is what the controller passed. */
int cw_make_smaps(int pid, const struct cw_vmflags_header *table);

#endif
