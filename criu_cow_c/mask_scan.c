/* Preloaded into criu: PAGEMAP_SCAN of another process reports no page of a private
 * mapping, so criu writes none of them; the pages are carried by the shadow.
 *
 * Scans that ask for guard regions (criu 4.2+) pass unchanged: criu alone can restore those. It asks
 * for them by the category mask (criu/mem.c, collect_madv_guards); that the return mask of its other
 * scans names them too (criu/pagemap-cache.c, pmc_fill) means nothing here.
 */
#define _GNU_SOURCE
#include "env.h"
#include "mask.h"
#include "mask_ranges.h"
#include "old_kernel.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct cw_mask_stats cw_mask_stats;

/* Drop what lies in masked mappings from n regions. The kernel joins equal pages of
 * neighbouring mappings into one region, so regions are split at mapping borders; if
 * the pieces outgrow the caller's vector the scan ends early, as the kernel's would. */
static long drop_masked(struct cw_pm_scan_arg *arg, const struct cw_page_region *region, long n)
{
	struct cw_page_region *out = (struct cw_page_region *)(uintptr_t)arg->vec;
	uint64_t kept = 0;

	for (long i = 0; i < n; i++) {
		uint64_t at = region[i].start;
		while (at < region[i].end) {
			int masked;
			uint64_t end = cw_mask_next(at, region[i].end, &masked);
			if (masked) {
				cw_mask_stats.dropped++;
			} else if (kept && out[kept - 1].end == at && out[kept - 1].categories == region[i].categories) {
				out[kept - 1].end = end;
			} else if (kept == arg->vec_len) {
				arg->walk_end = at;
				return (long)kept;
			} else {
				out[kept++] = (struct cw_page_region){ at, end, region[i].categories };
			}
			at = end;
		}
	}
	return (long)kept;
}

static int masked_scan(int fd, struct cw_pm_scan_arg *arg)
{
	if (cw_mask_covers(arg->start, arg->end)) {
		cw_mask_stats.answered++;
		arg->walk_end = arg->end;
		return 0;
	}
	cw_mask_stats.walked++;
	long n = syscall(SYS_ioctl, fd, CW_PAGEMAP_SCAN, arg);
	if (n <= 0 || !arg->vec)
		return (int)n;
	size_t bytes = (size_t)n * sizeof(struct cw_page_region);
	struct cw_page_region *found = malloc(bytes);
	if (!found) {
		errno = ENOMEM;
		return -1;
	}
	memcpy(found, (void *)(uintptr_t)arg->vec, bytes);
	n = drop_masked(arg, found, n);
	free(found);
	return (int)n;
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	va_list ap;

	va_start(ap, request);
	void *arg = va_arg(ap, void *);
	va_end(ap);
	if ((uint32_t)request == (uint32_t)CW_PAGEMAP_SCAN && cw_active()) {
		struct cw_pm_scan_arg *scan = arg;
		int guards = ((scan->category_mask | scan->category_anyof_mask) & CW_PAGE_IS_GUARD) != 0;
		if (cw_old_kernel()) {
			errno = ENOTTY;
			return -1;
		}
		if (!guards && !cw_mask_look(fd))
			return masked_scan(fd, scan);
		cw_mask_stats.passed++;
	}
	return (int)syscall(SYS_ioctl, fd, request, arg);
}
