/* What criu has found out about the kernel it keeps in a file criu.kdat (criu/kerndat.c). Under the
 * test switch it must neither believe that file, nor write one that others would believe. */
#define _GNU_SOURCE
#include "old_kernel.h"

#include "env.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

int cw_old_kernel(void)
{
	return getenv("CW_COW_TEST_NO_PAGEMAP_SCAN") && cw_active();
}

static int is_cache(const char *path)
{
	const char *name = strrchr(path, '/');

	return name && (!strcmp(name, "/criu.kdat") || !strcmp(name, "/criu.kdat.tmp"));
}

__attribute__((visibility("default"))) int open64(const char *path, int flags, ...)
{
	mode_t mode = 0;

	if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {
		va_list ap;
		va_start(ap, flags);
		mode = va_arg(ap, mode_t);
		va_end(ap);
	}
	if (cw_old_kernel() && is_cache(path)) {
		errno = ENOENT;
		return -1;
	}
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
