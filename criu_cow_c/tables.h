/* nftables over netlink: deleting the table with which criu locks connections. */
#ifndef CW_TABLES_H
#define CW_TABLES_H

/* Delete table `inet NAME` in the network namespace of this process. Returns 0, -ENOENT when there
 * is none, or another negative errno. */
int cw_table_delete(const char *name);

#endif
