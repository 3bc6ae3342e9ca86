/* What the rest of the library asks the plugin. */
#ifndef CW_PLUGIN_H
#define CW_PLUGIN_H

/* Whether the controller has accepted the dump: what is left for criu is to let the job go. */
int cw_dump_accepted(void);

#endif
