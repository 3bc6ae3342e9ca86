/* What the controller passes to the library inside criu. */
#ifndef CW_ENV_H
#define CW_ENV_H

/* The descriptor whose number is in an environment variable, or -1. */
int cw_env_fd(const char *name);

/* Whether this criu works for us: without a journal nobody carries the pages, and the library
 * must change nothing of what criu does. */
int cw_active(void);

#endif
