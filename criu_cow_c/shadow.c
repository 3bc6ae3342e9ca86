#define _GNU_SOURCE
#include "shadow.h"

#include "inject.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1U << 1)
#endif

#define PARK_BYTES   4096ul
#define PARK_NAME_AT 16
static const union {
	unsigned char byte[32];
	uint64_t word[4];
} park_page = { .byte = {
	0xb8, SYS_pause, 0, 0, 0, /* mov eax, SYS_pause */
	0x0f, 0x05,               /* syscall */
	0xeb, 0xf7,               /* jmp to the mov */
	[PARK_NAME_AT] = 'c', 'w', '-', 's', 'h', 'a', 'd', 'o', 'w', 0,
} };

/* The work on one entry, between the steps. */
struct work {
	struct cw_journal_entry *e;
	struct cw_call call;
	uint64_t started_ns;
	uint64_t park;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(struct cw_journal_entry *e, enum cw_step step, int error)
{
	if (e->error)
		return;
	e->step = step;
	e->error = error ? error : EIO;
}

/* True when this entry is still on its way to a shadow. Injected faults fail here,
 * before the step is tried. */
static int proceed(const struct cw_journal *j, struct work *w, enum cw_step step)
{
	if (w->e->error)
		return 0;
	if (j->head->fault_step == step) {
		fail(w->e, step, j->head->fault_errno);
		return 0;
	}
	w->e->step = step;
	return 1;
}

/* A private executable mapping to put the stub in: the first one of a file, which holds a
 * program's start-up code, else any (which a fork may leave out: MADV_DONTFORK, WIPEONFORK; then the
 * shadow faults and is given up). Every thread is stopped while the stub is there. A shared mapping
 * would hand the stub to other processes and to the file. */
static uint64_t find_stub_addr(pid_t pid)
{
	char path[32], line[512];
	uint64_t found = 0, inode = 0;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	FILE *maps = fopen(path, "re");
	if (!maps)
		return 0;
	while (!inode && fgets(line, sizeof(line), maps)) {
		uint64_t start, file;
		char perms[5];
		if (sscanf(line, "%" SCNx64 "-%*x %4s %*x %*x:%*x %" SCNu64, &start, perms, &file) != 3 ||
		    perms[2] != 'x' || perms[3] != 'p')
			continue;
		if (!found || file)
			found = start;
		inode = file;
	}
	fclose(maps);
	return found;
}

static int prepare(struct cw_journal_entry *e)
{
	const uint64_t all_signals = ~0ull;

	e->stub_addr = find_stub_addr(e->pid);
	if (!e->stub_addr)
		return errno ? errno : ENOEXEC;
	if (ptrace(PTRACE_GETREGS, e->pid, NULL, &e->regs))
		return errno;
	if (ptrace(PTRACE_GETSIGMASK, e->pid, sizeof(e->sigmask), &e->sigmask))
		return errno;
	errno = 0;
	e->text_word = (uint64_t)ptrace(PTRACE_PEEKTEXT, e->pid, e->stub_addr, NULL);
	if (errno)
		return errno;
	if (ptrace(PTRACE_SETOPTIONS, e->pid, NULL, CW_INJECT_OPTIONS))
		return errno;

	/* From here on the task differs from what the job made of it. */
	__atomic_store_n(&e->state, CW_STATE_DIRTY, __ATOMIC_RELEASE);
	if (ptrace(PTRACE_SETSIGMASK, e->pid, sizeof(all_signals), &all_signals))
		return errno;
	uint64_t stub = (e->text_word & ~0xffffffffull) | CW_STUB_TEXT;
	return ptrace(PTRACE_POKETEXT, e->pid, e->stub_addr, stub) ? errno : 0;
}

static void put_back(struct cw_journal_entry *e)
{
	if (e->state == CW_STATE_DIRTY) {
		/* A task killed meanwhile needs nothing back. */
		if ((ptrace(PTRACE_POKETEXT, e->pid, e->stub_addr, e->text_word) && errno != ESRCH) ||
		    (ptrace(PTRACE_SETREGS, e->pid, NULL, &e->regs) && errno != ESRCH) ||
		    (ptrace(PTRACE_SETSIGMASK, e->pid, sizeof(e->sigmask), &e->sigmask) && errno != ESRCH)) {
			/* Stays DIRTY in the journal: GO is refused and the repair tries again. */
			fail(e, CW_STEP_RESTORE, errno);
			return;
		}
		ptrace(PTRACE_SETOPTIONS, e->pid, NULL, 0);
	}
	__atomic_store_n(&e->state, e->error ? CW_STATE_FAILED : CW_STATE_SHADOWED, __ATOMIC_RELEASE);
}

static struct cw_call clone_call(pid_t pid, unsigned long flags)
{
	/* No exit signal: the parent gets no SIGCHLD and ordinary waits don't see the
	 * child. CLONE_FILES: nothing is duplicated, so nothing is flushed or kept open. */
	return (struct cw_call){ .pid = pid, .nr = SYS_clone, .arg = { flags | CLONE_FILES } };
}

/* After a clone: 0 with the child attached and stopped, or an errno. */
static int clone_result(struct cw_call *call)
{
	int err = cw_call_wait(call);
	if (err)
		return -err;
	if (call->ret < 0)
		return (int)-call->ret;
	if (!call->child)
		return ECHILD;
	return -cw_wait_attached(call->child);
}

static int shadow_call(struct work *w, long nr, uint64_t a, uint64_t b, uint64_t c, uint64_t d, long *ret)
{
	struct cw_call call = { .pid = w->e->shadow, .nr = nr, .arg = { a, b, c, d, (uint64_t)-1, 0 } };
	int err = cw_call_run(&call, &w->e->regs, w->e->stub_addr);

	*ret = call.ret;
	if (err)
		return -err;
	return call.ret < 0 && call.ret > -4096 ? (int)-call.ret : 0;
}

static int set_oom_score(pid_t pid)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", pid);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	int err = write(fd, "1000", 4) == 4 ? 0 : errno;
	close(fd);
	return err;
}

/* Make the shadow independent of the job and harmless should it ever run. */
static int detach_from_job(struct work *w)
{
	struct cw_journal_entry *e = w->e;
	struct user_regs_struct regs = e->regs;
	long ret;
	int err;

	if (ptrace(PTRACE_SETOPTIONS, e->shadow, NULL, CW_INJECT_OPTIONS | PTRACE_O_EXITKILL))
		return errno;
	if ((err = shadow_call(w, SYS_setsid, 0, 0, 0, 0, &ret)) ||
	    (err = shadow_call(w, SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE, 0, &ret)) ||
	    (err = shadow_call(w, SYS_mmap, 0, PARK_BYTES, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, &ret)))
		return err;
	w->park = (uint64_t)ret;
	for (size_t i = 0; i < sizeof(park_page) / sizeof(uint64_t); i++)
		if (ptrace(PTRACE_POKETEXT, e->shadow, w->park + i * sizeof(uint64_t), park_page.word[i]))
			return errno;
	if ((err = shadow_call(w, SYS_prctl, PR_SET_NAME, w->park + PARK_NAME_AT, 0, 0, &ret)))
		return err;
	if ((err = set_oom_score(e->shadow)))
		return err;
	/* Its memory must be the job's, to the byte. */
	if (ptrace(PTRACE_POKETEXT, e->shadow, e->stub_addr, e->text_word))
		return errno;
	regs.rip = w->park;
	regs.orig_rax = (unsigned long long)-1;
	return ptrace(PTRACE_SETREGS, e->shadow, NULL, &regs) ? errno : 0;
}

static void kill_shadow(struct cw_journal_entry *e)
{
	if (!e->shadow)
		return;
	kill(e->shadow, SIGKILL);
	waitpid(e->shadow, NULL, __WALL);
	e->shadow = 0;
}

/* Let the middle end, so that the shadow loses its parent in the job, and reap it
 * from the task: a zombie would be dumped by the next take. */
static void end_middle(struct work *w)
{
	struct cw_journal_entry *e = w->e;
	struct cw_call end = { .pid = e->middle, .nr = SYS_exit };
	struct cw_call reap = { .pid = e->pid, .nr = SYS_wait4, .arg = { (uint64_t)e->middle, 0, __WALL, 0 } };

	if (cw_call_run(&end, &e->regs, e->stub_addr) != -ESRCH) {
		kill(e->middle, SIGKILL);
		waitpid(e->middle, NULL, __WALL);
	}
	int err = cw_call_run(&reap, &e->regs, e->stub_addr);
	if (err || reap.ret != e->middle)
		fail(e, CW_STEP_REAP, err ? -err : ECHILD);
}

unsigned cw_shadows_make(struct cw_journal *j)
{
	unsigned n = j->head->count < j->room ? j->head->count : (unsigned)j->room;
	unsigned failed = 0;
	struct work *work = calloc(n ? n : 1, sizeof(*work));

	j->head->begin_ns = now_ns();
	for (unsigned i = 0; i < n; i++) {
		if (!work) {
			fail(&j->entry[i], CW_STEP_PREPARE, ENOMEM);
			put_back(&j->entry[i]);
			failed++;
			continue;
		}
		work[i].e = &j->entry[i];
	}
	if (!work)
		goto out;

#define FOR_EACH(w) for (struct work *w = work; w < work + n; w++)
	FOR_EACH (w)
		if (proceed(j, w, CW_STEP_PREPARE)) {
			int err = prepare(w->e);
			if (err)
				fail(w->e, CW_STEP_PREPARE, err);
		}

	FOR_EACH (w)
		if (proceed(j, w, CW_STEP_MIDDLE)) {
			w->call = clone_call(w->e->pid, CLONE_VM);
			int err = cw_call_start(&w->call, &w->e->regs, w->e->stub_addr);
			if (err)
				fail(w->e, CW_STEP_MIDDLE, -err);
		}
	FOR_EACH (w)
		if (!w->e->error) {
			int err = clone_result(&w->call);
			if (err)
				fail(w->e, CW_STEP_MIDDLE, err);
			else
				w->e->middle = w->call.child;
		}

	/* The clones that copy page tables run at the same time, one processor each. */
	FOR_EACH (w)
		if (proceed(j, w, CW_STEP_SHADOW)) {
			w->started_ns = now_ns();
			w->call = clone_call(w->e->middle, 0);
			int err = cw_call_start(&w->call, &w->e->regs, w->e->stub_addr);
			if (err)
				fail(w->e, CW_STEP_SHADOW, -err);
		}
	FOR_EACH (w)
		if (!w->e->error) {
			int err = cw_call_enter(&w->call);
			if (err)
				fail(w->e, CW_STEP_SHADOW, -err);
		}
	FOR_EACH (w)
		if (!w->e->error) {
			int err = clone_result(&w->call);
			w->e->clone_ns = now_ns() - w->started_ns;
			if (err)
				fail(w->e, CW_STEP_SHADOW, err);
			else
				w->e->shadow = w->call.child;
		}

	FOR_EACH (w)
		if (proceed(j, w, CW_STEP_DETACH)) {
			int err = detach_from_job(w);
			if (err)
				fail(w->e, CW_STEP_DETACH, err);
		}

	FOR_EACH (w)
		if (w->e->middle)
			end_middle(w);

	FOR_EACH (w) {
		if (w->e->shadow && (w->e->error || ptrace(PTRACE_DETACH, w->e->shadow, NULL, SIGSTOP))) {
			fail(w->e, CW_STEP_DETACH, errno);
			kill_shadow(w->e);
		}
		put_back(w->e);
		failed += w->e->state != CW_STATE_SHADOWED;
	}
#undef FOR_EACH
	free(work);
out:
	j->head->end_ns = now_ns();
	return failed;
}
