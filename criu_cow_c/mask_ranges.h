/* Which memory of the process that is being dumped is masked. */
#ifndef CW_MASK_RANGES_H
#define CW_MASK_RANGES_H

#include <stdint.h>

/* Look at the process whose pagemap is behind fd. Returns 0, or -1 when fd is not another process's
 * pagemap, or its mappings can't be known: then nothing is masked, which costs time and never a
 * page. errno is left alone. */
int cw_mask_look(int fd);

/* Whether no page from start to end is criu's to see. */
int cw_mask_covers(uint64_t start, uint64_t end);

/* Where the mapping that holds `at` ends, `end` at most; `masked` says whether it is masked. */
uint64_t cw_mask_next(uint64_t at, uint64_t end, int *masked);

#endif
