#ifndef CW_OTHERS_H
#define CW_OTHERS_H

/* As pid 1: end the job's other processes but its shadows, and wait until nobody is left. */
void cw_end_others(void);

#endif
