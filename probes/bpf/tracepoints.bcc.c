/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/* For bcc, which compiles it on the recorded host, event.h put before it. Only fields of tracepoints are read: those
 * bcc takes from tracefs, so they are right even where the headers it compiles against are another kernel's. */

BPF_HASH(followed, u32, u32, 65536);
BPF_RINGBUF_OUTPUT(events, 8192);
BPF_RINGBUF_OUTPUT(blocks, 1024);
BPF_ARRAY(lost, u64, 4);

static inline int is_followed(u32 tid)
{
	return followed.lookup(&tid) != 0;
}

static inline void fill(struct event *e, u8 kind)
{
	u64 id = bpf_get_current_pid_tgid();
	__builtin_memset(e, 0, sizeof(*e));
	e->time = bpf_ktime_get_ns();
	e->tgid = id >> 32;
	e->tid = (u32)id;
	e->cpu = bpf_get_smp_processor_id();
	e->kind = kind;
}

static inline void put(struct event *e)
{
	if (events.ringbuf_output(e, sizeof(*e), 1 /* BPF_RB_NO_WAKEUP */))
		lost.increment(0);
}

TRACEPOINT_PROBE(sched, sched_switch)
{
	if (!is_followed(args->prev_pid) && !is_followed(args->next_pid))
		return 1;
	struct event e;
	fill(&e, SWITCH);
	e.tid = args->prev_pid;
	e.other = args->next_pid;
	e.value = args->prev_state;
	bpf_get_current_comm(&e.a, 16);
	put(&e);
	return 1;
}

static inline void woken(u32 tid, u8 kind)
{
	if (!is_followed(tid))
		return;
	struct event e;
	fill(&e, kind);
	e.other = e.tid;
	e.tid = tid;
	put(&e);
}

TRACEPOINT_PROBE(sched, sched_waking) { woken(args->pid, WAKING); return 1; }
TRACEPOINT_PROBE(sched, sched_wakeup) { woken(args->pid, WAKE); return 1; }
TRACEPOINT_PROBE(sched, sched_wakeup_new)
{
	woken(args->pid, WAKING);
	woken(args->pid, WAKE);
	return 1;
}

TRACEPOINT_PROBE(task, task_newtask)
{
	struct event e;
	fill(&e, FORK);
	if (!is_followed(e.tid))
		return 1;
	u32 tid = args->pid, one = 1;
	followed.update(&tid, &one);
	e.value = e.tid;
	e.other = e.tgid;
	e.tid = tid;
	if (!(args->clone_flags & 0x10000))	/* CLONE_THREAD */
		e.tgid = tid;
	bpf_get_current_comm(&e.a, 16);
	put(&e);
	return 1;
}

TRACEPOINT_PROBE(sched, sched_process_exec)
{
	if (!is_followed(args->old_pid))
		return 1;
	u32 tid = args->pid, one = 1;
	followed.update(&tid, &one);
	struct event e;
	fill(&e, EXEC);
	e.other = args->old_pid;
	bpf_get_current_comm(&e.a, 16);
	put(&e);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_enter_futex)
{
	struct event e;
	fill(&e, FUTEX_IN);
	u32 command = args->op & 0x7f;
	if (!is_followed(e.tid) || (command != 0 && command != 6 && command != 9 && command != 11 && command != 13))
		return 1;
	e.a = (u32)args->op | (args->utime ? OP_TIMED : 0);
	e.b = (u64)args->uaddr;
	put(&e);
	return 1;
}

TRACEPOINT_PROBE(syscalls, sys_exit_futex)
{
	struct event e;
	fill(&e, FUTEX_OUT);
	if (!is_followed(e.tid))
		return 1;
	e.value = args->ret;
	put(&e);
	return 1;
}

static inline void put_block(struct block *b)
{
	if (blocks.ringbuf_output(b, sizeof(*b), 1))
		lost.increment(1);
}

#define BLOCK_PROBE(name, when, more)						\
TRACEPOINT_PROBE(block, name)							\
{										\
	u64 id = bpf_get_current_pid_tgid();					\
	struct block b = {};							\
	b.when = bpf_ktime_get_ns();						\
	b.tgid = id >> 32;							\
	b.tid = (u32)id;							\
	b.dev = args->dev;							\
	b.sector = args->sector;						\
	bpf_probe_read_kernel_str(b.rwbs, 8, (void *)args->rwbs);		\
	bpf_get_current_comm(b.comm, 16);					\
	more;									\
	put_block(&b);								\
	return 1;								\
}
BLOCK_PROBE(BLOCK_START, start, )
BLOCK_PROBE(block_rq_issue, issue, b.bytes = args->bytes)
BLOCK_PROBE(block_rq_complete, complete, b.error = args->error)
