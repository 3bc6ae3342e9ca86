/* Test switch: to criu this is a kernel without PAGEMAP_SCAN, as before Linux 6.7. */
#ifndef CW_OLD_KERNEL_H
#define CW_OLD_KERNEL_H

/* Whether CW_COW_TEST_NO_PAGEMAP_SCAN is set. The ioctl then answers ENOTTY. */
int cw_old_kernel(void);

#endif
