#include "env.h"

#include <stdlib.h>

int cw_env_fd(const char *name)
{
	const char *text = getenv(name);
	char *end;

	if (!text || !*text)
		return -1;
	long fd = strtol(text, &end, 10);
	return *end || fd < 0 || fd > 1 << 20 ? -1 : (int)fd;
}

int cw_active(void)
{
	return cw_env_fd("CW_COW_JOURNAL") >= 0;
}
