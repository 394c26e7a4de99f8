// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
// Scheduling, futex waits, births and deaths of the recorded threads, and every block request.
// CO-RE: offsets and enumerators come from the running kernel's BTF at load. Every program is a BTF-typed tracepoint,
// so neither tracefs nor kernel headers are needed.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "event.h"

typedef __u8 u8;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef _Bool bool;
#define CORE __attribute__((preserve_access_index))

struct sched_entity { u64 sum_exec_runtime, prev_sum_exec_runtime; } CORE;
struct task_struct { int pid, tgid; char comm[16]; unsigned int __state, flags; struct sched_entity se; } CORE;
struct task_struct___old { long state; } CORE;			/* before 5.14 */
struct pt_regs___x86 { unsigned long di, si, r10, orig_ax; } CORE;
struct pt_regs___arm64 { u64 regs[31], orig_x0; s32 syscallno; } CORE;
struct gendisk { int major, first_minor; } CORE;
struct request_queue { struct gendisk *disk; } CORE;
struct request { struct request_queue *q; unsigned int cmd_flags, __data_len; u64 __sector; } CORE;
struct request___old { struct gendisk *rq_disk; } CORE;		/* before 5.17 */
struct block_device { struct gendisk *bd_disk; } CORE;
struct bvec_iter { u64 bi_sector; unsigned int bi_size; } CORE;
struct bio { struct block_device *bi_bdev; struct bvec_iter bi_iter; } CORE;
enum req_op { REQ_OP_READ = 0, REQ_OP_WRITE = 1, REQ_OP_FLUSH = 2, REQ_OP_DISCARD = 3, REQ_OP_SECURE_ERASE = 5 };

/* Set by the loader before loading. */
const volatile u32 futex_nr = 202;
const volatile u32 has_prev_state = 1;	/* sched_switch has a fourth argument (5.18) */

#define TASK_DEAD 0x80
#define PF_EXITING 4
#define NEWBORN 0x10000
#define UNKNOWN 0x20000
#define STOLEN_NS 50000	/* a run longer than the scheduler says by this is shown so; the switches' own time is below 10 us */

enum { LOST_EVENTS, LOST_BLOCK, UNTRACKED, RESTORED };
#define WAITS 0x40000000		/* in wait_op, so that it isn't 0 for futex's operation 0 */
#define NO_RESULT (-2147483647 - 1)

struct thread {
	u64 off, wake, on, ran, wait_address;
	u32 tgid, state, waker, wait_op, woken, lost, seen, pad;	/* woken: by futex(2), or by a thread's end */
};

struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __type(key, u32); __type(value, struct thread); } threads SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 16384); __type(key, u64); __type(value, struct block); } requests SEC(".maps");
struct place { u64 sector; u32 dev, pad; };
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 16384); __type(key, struct place); __type(value, struct block); } pending SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 32 << 20); } events SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 16 << 20); } blocks SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 8); __type(key, u32); __type(value, u64); } lost SEC(".maps");

static __always_inline void count_lost(u32 what)
{
	u64 *n = bpf_map_lookup_elem(&lost, &what);
	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline struct thread *find(u32 tid)
{
	return bpf_map_lookup_elem(&threads, &tid);
}

static __always_inline struct event *record(u8 kind, u64 time, u32 tgid, u32 tid)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		count_lost(LOST_EVENTS);
		return 0;
	}
	e->time = time;
	e->a = e->b = 0;
	e->tgid = tgid;
	e->tid = tid;
	e->other = e->value = e->extra = 0;
	e->cpu = bpf_get_smp_processor_id();
	e->kind = kind;
	e->pad = 0;
	return e;
}

static __always_inline void submit(struct event *e)
{
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
}

static __always_inline u32 state_of(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return task->__state;
	return ((struct task_struct___old *)task)->state;
}

/* Where its run has the length that the scheduler accounts for. The scheduler's clock is older than the event of the
 * switch: to a thread woken on an idle CPU it charges the CPU's way out of idleness as well, some 5 us each time. */
static __always_inline u64 end_of_run(struct thread *t, struct task_struct *task)
{
	return t->on + (task->se.sum_exec_runtime - t->ran);
}

/* futex(2). A wait is a sleep in the call. What it was called with is on the thread's kernel stack, where it entered the
 * kernel: so no system call needs a hook, which would slow down each one of every process. CPython's wait for the GIL
 * is many calls, each with a timeout. */
struct call { u64 nr, address, op, timeout; };

static __always_inline struct call call_of(struct task_struct *task)
{
	void *regs = (void *)bpf_task_pt_regs(task);
	struct pt_regs___x86 *x = regs;
	struct pt_regs___arm64 *a = regs;
	struct call c = {};
	if (bpf_core_field_exists(x->orig_ax)) {
		c.nr = x->orig_ax;
		c.address = x->di;
		c.op = x->si;
		c.timeout = x->r10;
	} else if (bpf_core_field_exists(a->syscallno)) {
		c.nr = (u32)a->syscallno;
		c.address = a->orig_x0;
		c.op = a->regs[1];
		c.timeout = a->regs[3];
	}
	return c;
}

static __always_inline bool waits(u64 op)
{
	u32 command = op & 0x7f;	/* wait, lock-pi, wait-bitset, wait-requeue-pi, lock-pi2 */
	return command == 0 || command == 6 || command == 9 || command == 11 || command == 13;
}

/* It goes to sleep: what for, if in futex(2). */
static __always_inline void begin_wait(struct thread *t, struct task_struct *task)
{
	struct call c = call_of(task);
	if (c.nr == futex_nr && waits(c.op)) {
		t->wait_address = c.address;
		t->wait_op = WAITS | (c.op & 0xffff) | (c.timeout ? OP_TIMED : 0);
	}
}

/* Whether the thread that runs now, which wakes a waiter, does so by futex(2) or by its end. Else it is a timer or a
 * signal that wakes it, in the name of whom it interrupted. */
static __always_inline bool releases(struct task_struct *waiter)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct call c = call_of(waker);
	bool ends = waker->flags & PF_EXITING;
	if (!ends && (c.nr != futex_nr || waits(c.op)))
		return 0;
	struct call wait = call_of(waiter);
	if (wait.nr != futex_nr || !waits(wait.op))
		return 0;
	/* Interrupted, it may be in a call for another one. Without a timeout there is no timer that could. */
	return ends || !wait.timeout || waker->tgid != waiter->tgid || c.address == wait.address;
}

static __always_inline void end_wait(struct thread *t, u32 tid, u64 now)
{
	struct event *e = record(WAIT, now, t->tgid, tid);
	if (e) {
		e->a = t->off;
		e->b = t->wait_address;
		e->other = t->woken ? t->waker : 0;
		e->value = t->woken ? 0 : NO_RESULT;
		e->extra = t->wait_op & ~WAITS;
		submit(e);
	}
	t->wait_op = 0;
}

/* It got the CPU unseen (some hosts hide the switches of threads of their own). Its run time since then, which the
 * scheduler keeps, tells when. */
static __always_inline void restore(struct thread *t, u32 tid, struct task_struct *task, u64 now)
{
	u64 ran = task->se.sum_exec_runtime - task->se.prev_sum_exec_runtime;
	u64 since = t->wake ? t->wake : t->off;
	t->on = ran < now - since ? now - ran : since;
	t->ran = task->se.sum_exec_runtime - (now - t->on);
	struct event *e = record(SCHED, t->on, t->tgid, tid);
	if (e) {
		e->a = t->off;
		e->b = t->wake;
		e->other = t->state ? t->waker : 0;
		e->value = t->state;
		e->extra = -1;
		submit(e);
		count_lost(RESTORED);
	} else {
		t->lost++;
	}
	if (t->wait_op)
		end_wait(t, tid, t->on);
	t->off = 0;
}

/* It left the CPU unseen. Who has been woken since had gone to sleep, in a state that nobody saw. */
static __always_inline void restore_end(struct thread *t, struct task_struct *task, u64 now)
{
	u64 end = end_of_run(t, task);
	t->off = end < now ? end : now;
	t->state = t->waker ? UNKNOWN : 0;
	t->wake = t->state ? 0 : t->off;
	if (t->state)
		begin_wait(t, task);
	count_lost(RESTORED);
}

/* The hypervisor, or interrupts where the kernel accounts for them, had the CPU: the thread was kept from running. */
static __always_inline void stolen(struct thread *t, u32 tid, u64 end, u64 now)
{
	struct event *e = record(SCHED, now, t->tgid, tid);
	if (e) {
		e->a = e->b = end;
		e->extra = -1;
		submit(e);
	} else {
		t->lost++;
	}
}

SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
	bool preempt = ctx[0];
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	u32 out = prev->pid, in = next->pid;
	u64 now = bpf_ktime_get_ns();
	struct thread *p = out ? find(out) : 0;	/* the idle threads, number 0, are never followed */
	if (p) {
		/* The argument is what the scheduler decided on; the field may already say "being woken". */
		u32 state = has_prev_state ? (u32)ctx[3] : state_of(prev);
		if (p->off)
			restore(p, out, prev, now);
		u64 end = p->on ? end_of_run(p, prev) : now;
		if (end + STOLEN_NS < now) {
			stolen(p, out, end, now);
			end = now;
		}
		if (state_of(prev) & TASK_DEAD) {
			struct event *e = record(DEATH, end, p->tgid, out);
			if (e) {
				e->value = p->lost;
				bpf_get_current_comm(&e->a, 16);
				submit(e);
			}
			bpf_map_delete_elem(&threads, &out);
		} else {
			p->state = preempt ? 0 : state;
			p->wake = p->state ? 0 : end;
			p->off = end;
			p->seen = 1;
			p->wait_op = 0;
			if (p->state)
				begin_wait(p, prev);
		}
	}
	struct thread *n = in ? find(in) : 0;
	if (n) {
		u64 over = 0;
		if (!n->off && n->on)
			restore_end(n, next, now);
		if (n->off >= now) {	/* the run's end, moved back, meets the next run: that one gets the rest */
			over = n->off - (now - 1);
			n->off = now - 1;
			n->wake = n->wake ? n->off : 0;
		}
		struct event *e = record(SCHED, now, n->tgid, in);
		if (e) {
			e->a = n->off;
			e->b = n->wake;
			e->other = n->state ? n->waker : 0;
			e->value = n->state;
			e->extra = out;
			submit(e);
		} else {
			n->lost++;
		}
		if (n->wait_op)
			end_wait(n, in, now);
		n->waker = 0;
		n->off = 0;
		n->on = now;
		n->ran = next->se.sum_exec_runtime - over;
		n->seen = 1;
	}
	return 0;
}

/* The waker is whoever runs now; sched_wakeup may run later, on the CPU of the woken, in someone else's name. */
SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task)
{
	struct thread *t = find(task->pid);
	if (t) {
		t->waker = (u32)bpf_get_current_pid_tgid();
		t->woken = releases(task);
	}
	return 0;
}

static __always_inline int runnable(struct task_struct *task)
{
	struct thread *t = find(task->pid);
	if (t && !t->wake && (t->off || !t->seen)) {
		u64 now = bpf_ktime_get_ns();
		t->wake = now > t->off ? now : t->off;	/* a run may end a little after its event */
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	return runnable(task);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *task)
{
	struct thread *t = find(task->pid);
	if (t)
		t->waker = (u32)bpf_get_current_pid_tgid();
	return runnable(task);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	u32 tid = child->pid;
	if (!find(parent->pid))
		return 0;
	u64 now = bpf_ktime_get_ns();
	struct thread t = { .off = now, .tgid = child->tgid, .state = NEWBORN, .seen = 1 };
	if (bpf_map_update_elem(&threads, &tid, &t, BPF_ANY))
		count_lost(UNTRACKED);
	struct event *e = record(FORK, now, t.tgid, tid);
	if (e) {
		bpf_get_current_comm(&e->a, 16);
		e->other = parent->tgid;
		e->value = parent->pid;
		submit(e);
	}
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task, int old)
{
	u32 tid = task->pid, before = old;
	struct thread *t = find(before);
	if (!t)
		return 0;
	u64 now = bpf_ktime_get_ns();
	if (before != tid) {	/* a thread that execs takes over its leader's id */
		struct thread again = { .tgid = t->tgid, .seen = 1 };
		bpf_map_update_elem(&threads, &tid, &again, BPF_ANY);
		bpf_map_delete_elem(&threads, &before);
	}
	struct event *e = record(EXEC, now, task->tgid, tid);
	if (e) {
		bpf_get_current_comm(&e->a, 16);
		e->other = before;
		submit(e);
	}
	return 0;
}

/* Block requests. Keyed by the request itself, so merging and partial completion can't confuse them. */
static __always_inline void submitter(struct block *b)
{
	u64 id = bpf_get_current_pid_tgid();
	b->tgid = id >> 32;
	b->tid = (u32)id;
	bpf_get_current_comm(b->comm, sizeof(b->comm));
}

static __always_inline u32 device(struct gendisk *disk)
{
	return disk ? BPF_CORE_READ(disk, major) << 20 | BPF_CORE_READ(disk, first_minor) : 0;
}

static __always_inline u32 device_of(struct request *rq)
{
	struct request___old *old = (void *)rq;
	if (bpf_core_field_exists(old->rq_disk))
		return device(BPF_CORE_READ(old, rq_disk));
	return device(BPF_CORE_READ(rq, q, disk));
}

#define FLAG(name) (flags >> bpf_core_enum_value(enum req_flag_bits, name) & 1)
enum req_flag_bits { __REQ_SYNC = 11, __REQ_META = 12, __REQ_FUA = 17, __REQ_PREFLUSH = 18, __REQ_RAHEAD = 19 };

/* The letters blktrace made customary and the block tracepoints print, first one in the lowest byte. */
#define LETTER(c) do { text |= (u64)(c) << shift; shift += 8; } while (0)
static __always_inline u64 letters(u32 flags)
{
	u64 text = 0;
	u32 op = flags & 0xff, shift = 0;
	if (FLAG(__REQ_PREFLUSH))
		LETTER('F');
	LETTER(op == REQ_OP_READ ? 'R' : op == REQ_OP_WRITE ? 'W' : op == REQ_OP_FLUSH ? 'F' :
	       op == REQ_OP_DISCARD || op == REQ_OP_SECURE_ERASE ? 'D' : 'N');
	if (op == REQ_OP_SECURE_ERASE)
		LETTER('E');
	if (FLAG(__REQ_FUA))
		LETTER('F');
	if (FLAG(__REQ_RAHEAD))
		LETTER('A');
	if (FLAG(__REQ_SYNC))
		LETTER('S');
	if (FLAG(__REQ_META))
		LETTER('M');
	return text;
}

static __always_inline void describe(struct block *b, struct request *rq)
{
	b->dev = device_of(rq);
	b->sector = rq->__sector;
	b->bytes = rq->__data_len;
	*(u64 *)b->rwbs = letters(rq->cmd_flags);
}

SEC("tp_btf/block_io_start")
int BPF_PROG(on_io_start, struct request *rq)
{
	u64 key = (u64)rq;
	struct block b = { .start = bpf_ktime_get_ns() };
	struct block *unseen = bpf_map_lookup_elem(&requests, &key);
	if (unseen && bpf_ringbuf_output(&blocks, unseen, sizeof(b), BPF_RB_NO_WAKEUP))	/* its completion was hidden */
		count_lost(LOST_BLOCK);
	submitter(&b);
	describe(&b, rq);
	if (bpf_map_update_elem(&requests, &key, &b, BPF_ANY))
		count_lost(LOST_BLOCK);
	return 0;
}

/* Kernels without block_io_start (before 6.5): the submitter shows here, before there is a request. */
SEC("tp_btf/block_getrq")
int BPF_PROG(on_getrq, struct bio *bio)
{
	struct place at = { .sector = bio->bi_iter.bi_sector, .dev = device(BPF_CORE_READ(bio, bi_bdev, bd_disk)) };
	struct block b = { .start = bpf_ktime_get_ns() };
	submitter(&b);
	bpf_map_update_elem(&pending, &at, &b, BPF_ANY);
	return 0;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(on_issue, struct request *rq)
{
	u64 key = (u64)rq, now = bpf_ktime_get_ns();
	struct block *b = bpf_map_lookup_elem(&requests, &key);
	if (!b) {
		struct place at = { .sector = rq->__sector, .dev = device_of(rq) };
		struct block *early = bpf_map_lookup_elem(&pending, &at), fresh = {};
		if (early) {
			fresh = *early;
			bpf_map_delete_elem(&pending, &at);
		} else {	/* the kernel's own, such as a cache flush */
			fresh.start = now;
			submitter(&fresh);
		}
		if (bpf_map_update_elem(&requests, &key, &fresh, BPF_ANY)) {
			count_lost(LOST_BLOCK);
			return 0;
		}
		b = bpf_map_lookup_elem(&requests, &key);
		if (!b)
			return 0;
	}
	b->issue = now;		/* may come again after a requeue: the last one counts */
	describe(b, rq);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(on_complete, struct request *rq, int error, unsigned int bytes)
{
	u64 key = (u64)rq;
	struct block *b = bpf_map_lookup_elem(&requests, &key);
	if (!b)
		return 0;
	if (bytes < rq->__data_len && !error)	/* a part of it; the rest follows */
		return 0;
	struct block *e = bpf_ringbuf_reserve(&blocks, sizeof(*e), 0);
	if (e) {
		*e = *b;
		e->complete = bpf_ktime_get_ns();
		e->error = error;
		bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	} else {
		count_lost(LOST_BLOCK);
	}
	bpf_map_delete_elem(&requests, &key);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
