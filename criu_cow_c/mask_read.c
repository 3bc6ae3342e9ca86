/* Preloaded into criu: where the kernel has no PAGEMAP_SCAN (before 6.7) criu reads the entries of
 * /proc/PID/pagemap (criu/pagemap-cache.c, pmc_fill). Those of private mappings read as absent, and a
 * range that has no others is not read at all: the walk through the page tables is what costs.
 *
 * An absent entry is 0. That has no soft-dirty bit either, which criu looks at only in an incremental
 * dump (criu/mem.c, page_in_parent), and ours have no parent. criu reads other entries of other
 * processes only to find a [vdso] whose name the kernel forgot (criu/vdso.c, VDSO_CHECK_PFN), which no
 * kernel has done since 3.16.
 */
#define _GNU_SOURCE
#include "env.h"
#include "mask.h"
#include "mask_ranges.h"

#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, ENTRY_BYTES = 8 };

static uint64_t address_of(uint64_t offset)
{
	return offset / ENTRY_BYTES * PAGE_BYTES;
}

static ssize_t masked_read(int fd, char *entries, size_t size, off_t offset)
{
	uint64_t start = address_of((uint64_t)offset);

	if (cw_mask_covers(start, start + address_of(size))) {
		cw_mask_stats.reads_answered++;
		memset(entries, 0, size);
		return (ssize_t)size;
	}
	cw_mask_stats.reads_walked++;
	ssize_t n = syscall(SYS_pread64, fd, entries, size, offset);
	if (n <= 0)
		return n;
	uint64_t end = start + address_of((uint64_t)n);
	for (uint64_t at = start, next; at < end; at = next) {
		int masked;
		next = cw_mask_next(at, end, &masked);
		if (masked)
			memset(entries + (at - start) / PAGE_BYTES * ENTRY_BYTES, 0, (next - at) / PAGE_BYTES * ENTRY_BYTES);
	}
	return n;
}

/* The kernel gives whole entries only (fs/proc/task_mmu.c, pagemap_read). */
__attribute__((visibility("default"))) ssize_t pread64(int fd, void *buffer, size_t size, off_t offset)
{
	int whole = offset >= 0 && offset % ENTRY_BYTES == 0 && size % ENTRY_BYTES == 0;

	if (whole && cw_active() && !cw_mask_look(fd))
		return masked_read(fd, buffer, size, offset);
	return syscall(SYS_pread64, fd, buffer, size, offset);
}
