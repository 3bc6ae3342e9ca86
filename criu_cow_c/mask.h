/* The page mask: keeps private memory out of criu's images (docs/internals/page-mask.md). */
#ifndef CW_MASK_H
#define CW_MASK_H

#include <stdint.h>

/* linux/fs.h (6.7+), restated because the build machine's headers may be older. */
struct cw_pm_scan_arg {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
struct cw_page_region {
	uint64_t start, end, categories;
};
#define CW_PAGEMAP_SCAN  0xc0606610ul /* _IOWR('f', 16, struct pm_scan_arg) */
#define CW_PAGE_IS_GUARD (1ull << 8)

/* What the mask has done, for tests and for the journal. */
struct cw_mask_stats {
	uint64_t answered; /* scans answered without a walk */
	uint64_t walked;   /* scans that the kernel did, masked afterwards */
	uint64_t passed;   /* scans that are not ours to mask */
	uint64_t dropped;  /* regions left out of the kernel's answers */
	uint64_t reads_answered; /* reads of the pagemap file answered without a walk */
	uint64_t reads_walked;   /* reads that the kernel did, masked afterwards */
};
extern struct cw_mask_stats cw_mask_stats;

#endif
