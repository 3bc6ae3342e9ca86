/* A seccomp filter under which the kernel seems to have no io_uring. */
#ifndef CW_IO_URING_FILTER_H
#define CW_IO_URING_FILTER_H

/* io_uring_setup, _enter and _register answer ENOSYS in this process and all its
 * children; libraries (libuv in torch's TCPStore) then fall back to epoll. criu cannot
 * dump an io_uring (checkpoint-restore/criu#2131) and does dump and restore this filter.
 * Returns 0, or -1 with errno. Without CAP_SYS_ADMIN it sets no_new_privs. */
int cw_deny_io_uring(void);

#endif
