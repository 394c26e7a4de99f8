// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
// Python stacks of chosen processes, read where they run: at a timer's tick on each CPU, and where a thread is back on
// one. Nothing is woken and nothing is stopped for it, and a stack is of one moment: its own thread is the one that is
// interrupted. Where CPython keeps what is read comes from outside, in `processes`.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "python.h"

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;
typedef _Bool bool;
#define CORE __attribute__((preserve_access_index))

struct upid { int nr; } CORE;
struct pid { unsigned int level; struct upid numbers[1]; } CORE;
struct signal_struct { struct { int counter; } live; } CORE;
struct sched_entity { u64 sum_exec_runtime; } CORE;
struct sched_info { unsigned long pcount; unsigned long long run_delay; } CORE;
struct task_struct {
	int pid, tgid;
	struct pid *thread_pid;
	struct signal_struct *signal;
	struct sched_entity se;
	struct sched_info sched_info;
} CORE;

#define FRAMES 256		/* of a stack; more are cut off at its root */
#define STATES 2048		/* threads of an interpreter that are looked through for one */
#define FIRST_AGAIN_NS 500000	/* a thread without a state of its own, a newborn or a library's, is asked again then, */
#define MOST_DOUBLED 7		/* and after twice that, and so on, up to 64 ms */
#define FULL_NS 2000000		/* of walking time may be saved up, to be spent at once */
#define MOST_NS 200000		/* that a look takes; what is longer was an interrupt's, or the hypervisor's */

/* A thread as it was last seen. The scheduler counts how often it got a CPU, and for how long it ran: so it is known,
 * without a look at its leaving, when it left. */
struct thread {
	u64 on, ran;		/* when it got the CPU, and how long it had run by then */
	u64 state, look, due;	/* due: the next look */
	u32 runs, asked, alone, inner;	/* inner: its id as its process sees it */
	u32 unseen, read;	/* unseen: ticks in a run that isn't the last one known; read: whether a stack of it was */
};

/* By the last digits of its id, whether a process may be one of them: all others are to cost next to nothing. */
u8 perhaps[PERHAPS];

struct {
	__uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 8192);
	__type(key, u32); __type(value, struct process);
} processes SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 65536); __type(key, u32); __type(value, struct thread); } threads SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 131072); __type(key, u64); __type(value, u8); } told SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 16 << 20); } looks SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 16 << 20); } words SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 8); __type(key, u32); __type(value, u64); } counters SEC(".maps");

struct scratch {
	u64 refilled;
	s64 allowance;	/* ns that looks at switches may take; below 0 after one that took more */
	u64 at, hash;	/* of a walk along frames, or threads: kept here, where the verifier need not follow it */
	u32 depth, inner;
	u8 raw[256];
	struct stack stack;
	struct code code;
};
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 2); __type(key, u32); __type(value, struct scratch); } scratches SEC(".maps");

static __always_inline void count(u32 what, u64 n)
{
	u64 *value = bpf_map_lookup_elem(&counters, &what);
	if (value)
		__sync_fetch_and_add(value, n);
}

static __always_inline u64 load(u64 address)
{
	u64 value = 0;
	bpf_probe_read_user(&value, sizeof(value), (void *)address);
	return value;
}

static __always_inline u64 mix(u64 hash, u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15;
	return hash ^ hash >> 29;
}

/* A word, half or byte of what was read in one piece. */
#define AT(type, offset) (*(type *)(s->raw + ((offset) & 127)))

struct walk { struct process *p; struct scratch *s; };

static long next_state(u32 i, struct walk *w)
{
	struct scratch *s = w->s;
	if ((u32)load(s->at + w->p->state_tid) == s->inner) {
		s->hash = s->at;
		return 1;
	}
	u64 next = load(s->at + w->p->state_next);
	u64 id = bpf_get_current_pid_tgid();
	if (!next && !i && (u32)id == id >> 32) {	/* a fork's only thread may keep the id it had before */
		s->hash = s->at;
		s->depth = 1;
	}
	s->at = next;
	return !next;
}

static __always_inline u64 find_state(struct process *p, struct scratch *s, u32 inner)
{
	struct walk w = { .p = p, .s = s };
	s->hash = s->depth = 0;
	s->inner = inner;
	s->at = load(p->interpreter + p->threads_head);
	if (s->at)
		bpf_loop(STATES, next_state, &w, 0);
	return s->hash;
}

static __always_inline u64 text(u64 object, struct process *p, u8 *out, u32 *kind)
{
	u64 length = load(object + p->text_length);
	u32 state = (u32)load(object + p->text_state);
	u32 wide = state >> p->text_shift & 7, ascii = state >> (p->text_shift + 4) & 1;
	u64 bytes = length * wide;
	*kind = ascii ? 0 : wide;
	if (bytes > TEXT)
		bytes = TEXT;
	if (bpf_probe_read_user(out, bytes & (2 * TEXT - 1), (void *)(object + (ascii ? p->text_ascii : p->text_compact))))
		return 0;
	return bytes;
}

/* What is to be known of a code object, once. */
static __noinline int tell_code(struct process *p, struct scratch *s, u64 address, u64 key)
{
	u8 yes = 1;
	u64 bytes;
	if (!p || !s || bpf_map_lookup_elem(&told, &key))
		return 0;
	struct code *c = &s->code;
	c->kind = CODE;
	c->tgid = bpf_get_current_pid_tgid() >> 32;
	c->key = key;
	c->first_line = (u32)load(address + p->code_first_line);
	c->file_bytes = text(load(address + p->code_file), p, c->file, &c->file_kind);
	c->name_bytes = text(load(address + p->code_name), p, c->name, &c->name_kind);
	u64 lines = load(address + p->code_lines);
	bytes = load(lines + p->bytes_size);
	c->lines_whole = bytes <= LINES;
	if (bytes > LINES)
		bytes = 0;
	if (bpf_probe_read_user(c->lines, bytes & (2 * LINES - 1), (void *)(lines + p->bytes_data)))
		bytes = 0;
	c->lines_bytes = bytes;
	if (bpf_ringbuf_output(&words, c, sizeof(*c) - sizeof(c->lines) + (bytes & (2 * LINES - 1)), BPF_RB_NO_WAKEUP))
		count(LOST_WORDS, 1);
	else
		bpf_map_update_elem(&told, &key, &yes, BPF_ANY);
	return 0;
}

static long tell_frame(u32 i, struct walk *w)
{
	struct frame *f = &w->s->stack.frames[i & (FRAMES - 1)];
	tell_code(w->p, w->s, f->code, f->key);
	return 0;
}

static __always_inline void tell_stack(struct walk *w)
{
	struct stack *stack = &w->s->stack;
	u64 id = stack->id;
	u8 yes = 1;
	u32 depth = w->s->depth;
	if (depth > FRAMES)
		return;
	bpf_loop(depth, tell_frame, w, 0);
	if (bpf_ringbuf_output(&words, stack, sizeof(*stack) - sizeof(stack->frames) + depth * sizeof(struct frame), BPF_RB_NO_WAKEUP))
		count(LOST_WORDS, 1);
	else
		bpf_map_update_elem(&told, &id, &yes, BPF_ANY);
}

static long next_frame(u32 i, struct walk *w)
{
	struct process *p = w->p;
	struct scratch *s = w->s;
	if (bpf_probe_read_user(s->raw, 96, (void *)s->at))
		return 1;
	u64 code = AT(u64, p->frame_code) & ~3ull, at = AT(u64, p->frame_instruction);
	u8 owner = AT(u8, p->frame_owner);
	s->at = AT(u64, p->frame_previous);
	if (owner >= OWNED_BY_INTERPRETER || !code)
		return !s->at;	/* a marker between C and Python, no function */
	if (s->depth >= FRAMES) {
		s->stack.cut = 1;
		return 1;
	}
	if (bpf_probe_read_user(s->raw, 96, (void *)(code + p->code_window))) {
		s->stack.cut = 1;
		return 1;
	}
	u64 start = code + p->code_bytes, key = mix(code, AT(u64, p->code_name - p->code_window));
	key = mix(key, AT(u64, p->code_lines - p->code_window) ^ AT(u32, p->code_first_line - p->code_window));
	struct frame *f = &s->stack.frames[s->depth & (FRAMES - 1)];
	f->code = code;
	f->key = key = mix(key, p->tgid);
	f->instruction = at >= start ? (at - start) / 2 : 0;
	f->pad = 0;
	s->hash = mix(mix(s->hash, key), f->instruction);
	s->depth++;
	return !s->at;
}

/* Reads the frames of the thread into the scratch, innermost first. Returns the stack's id, 0 for none. */
static __always_inline u64 read_stack(struct process *p, struct scratch *s, u64 frame, u32 tgid)
{
	struct walk w = { .p = p, .s = s };
	if (!frame)
		return 0;
	s->at = frame;
	s->hash = 1;
	s->depth = 0;
	s->stack.kind = STACK;
	s->stack.tgid = tgid;
	s->stack.cut = 0;
	bpf_loop(FRAMES + 64, next_frame, &w, 0);
	if (s->at)	/* what is there can't be read just now */
		s->stack.cut = 1;
	s->stack.depth = s->depth;
	u64 hash = s->stack.id = mix(s->hash, s->stack.cut);
	if (s->depth && !bpf_map_lookup_elem(&told, &hash))
		tell_stack(&w);
	return s->depth ? hash : 0;
}

static __always_inline u64 current_frame(struct process *p, u64 state)
{
	u64 frame = load(state + p->state_frame);
	return p->through_cframe && frame ? load(frame + p->cframe_frame) : frame;
}

static __always_inline struct thread *add_thread(struct task_struct *task, struct thread *fresh)
{
	u32 tid = task->pid;
	struct pid *pid = task->thread_pid;
	u32 level = BPF_CORE_READ(pid, level);
	bpf_probe_read_kernel(&fresh->inner, sizeof(fresh->inner), (void *)pid + bpf_core_field_offset(pid->numbers) +
			      level * bpf_core_type_size(struct upid) + bpf_core_field_offset(struct upid, nr));
	bpf_map_update_elem(&threads, &tid, fresh, BPF_ANY);
	return bpf_map_lookup_elem(&threads, &tid);
}

static __always_inline struct thread *thread_of(u32 tid)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &tid), fresh = {};
	return t ? t : add_thread(bpf_get_current_task_btf(), &fresh);
}

/* It has a CPU again. Returns since when it had none: now, where it had one in between that went unseen. */
static __always_inline u64 again(struct thread *t, u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 ran = task->se.sum_exec_runtime, since = now;
	u32 runs = task->sched_info.pcount;
	if (t->on && runs == t->runs + 1) {
		since = t->on + (ran - t->ran);
		if (!t->ran)	/* only born then, it had to wait first: how long of all its waiting isn't known */
			since += task->sched_info.run_delay;
		if (since > now)
			since = now;
	}
	t->on = now;
	t->ran = ran ? ran : 1;
	t->runs = runs;
	t->unseen = 0;
	return since;
}

static __always_inline int own_state(struct process *p, struct thread *t, struct scratch *s, u64 now)
{
	if (t->state && ((u32)load(t->state + p->state_tid) == t->inner || t->alone))
		return 1;
	if (now < t->due)
		return 0;
	t->due = now + (FIRST_AGAIN_NS << t->asked);
	if (t->asked < MOST_DOUBLED)
		t->asked++;
	t->state = find_state(p, s, t->inner);
	t->alone = s->depth;
	return t->state != 0;
}

static __always_inline void tell(struct thread *t, u64 now, u64 since, u64 id, u32 tgid, u32 tid, u32 flags)
{
	struct look *l = bpf_ringbuf_reserve(&looks, sizeof(*l), 0);
	t->look = id;
	if (!l) {
		count(LOST_LOOKS, 1);
		return;
	}
	l->time = now;
	l->since = since;
	l->stack = id;
	l->tgid = tgid;
	l->tid = tid;
	l->flags = flags;
	l->pad = 0;
	bpf_ringbuf_submit(l, BPF_RB_NO_WAKEUP);
}

static __always_inline int look(u32 flags)
{
	u32 tid = (u32)bpf_get_current_pid_tgid(), tgid = bpf_get_current_pid_tgid() >> 32, tick = flags & AT_TICK;
	if (!perhaps[tgid % PERHAPS])
		return 0;
	struct process *p = bpf_map_lookup_elem(&processes, &tgid);
	if (!p)
		return 0;
	u64 now = bpf_ktime_get_ns();
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tick);
	struct thread *t = thread_of(tid);
	if (!s || !t)
		return 0;
	u64 since = 0;
	if (!tick) {
		since = again(t, now);
	} else if (!t->on) {
		again(t, now);
	} else if (bpf_get_current_task_btf()->sched_info.pcount != t->runs) {
		if (!t->unseen++)	/* back just now: on_return is called next, and tells of the time that it was off as well */
			return 0;
		again(t, now);	/* it isn't: some hosts hide the switches of threads of their own */
	}
	if (!tick && now < t->due)
		return 0;
	if (!own_state(p, t, s, now))
		return 0;
	u64 frame = current_frame(p, t->state), id = 0;
	if (p->gil && (u32)load(p->gil + p->gil_locked) == 1 && load(p->gil + p->gil_holder) == t->state)
		flags |= HOLDS_GIL;
	s->allowance += (now - s->refilled) / SHARE_OF_TIME;
	if (s->allowance > FULL_NS)
		s->allowance = FULL_NS;
	s->refilled = now;
	if (tick || s->allowance > 0 || !t->read) {
		t->read = 1;
		id = read_stack(p, s, frame, tgid);
		if (frame && !id)
			flags |= FAILED;
	} else {
		flags |= UNREAD;
	}
	t->due = now + p->period_ns / 2 + bpf_get_prandom_u32() % (p->period_ns | 1) / 2;
	tell(t, now, since, id, tgid, tid, flags);
	u64 spent = bpf_ktime_get_ns() - now;
	s->allowance -= spent < MOST_NS ? spent : MOST_NS;
	count(SPENT_NS, spent);
	count(LOOKS, 1);
	return 0;
}

SEC("perf_event")
int on_tick(void *ctx)
{
	return look(AT_TICK);
}

/* A thread's stack while it was off the CPU is what it has when it is back on one: there, it is known how long that
 * was, and its memory can be read. Most come back before they are to be looked at again. */
static __always_inline int back(void)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id;
	if (!perhaps[(id >> 32) % PERHAPS])
		return 0;
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	u64 now = bpf_ktime_get_ns();
	if (!t || now >= t->due)
		return look(0);
	again(t, now);
	return 0;
}

SEC("tp_btf/sched_exit_tp")
int BPF_PROG(on_return, bool switched)
{
	return switched ? back() : 0;
}

/* Before Linux 6.16, which has the tracepoint: the function that the kernel calls in the thread that it has switched to.
 * The loader puts this kernel's own name of it there. */
SEC("kprobe/finish_task_switch")
int on_return_probe(void *ctx)
{
	return back();
}

/* Its stack is no more. */
static __always_inline void end(u32 tgid, u32 tid)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	if (!t)
		return;
	if (t->look)
		tell(t, bpf_ktime_get_ns(), 0, 0, tgid, tid, ENDED);
	bpf_map_delete_elem(&threads, &tid);
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	u32 tgid = task->tgid;
	end(tgid, task->pid);
	if (!task->signal->live.counter)	/* the last one of its process */
		bpf_map_delete_elem(&processes, &tgid);
	return 0;
}

/* A fork has its parent's memory, until it calls exec. Its first run, and that of a new thread, goes unseen. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	u32 from = parent->tgid, to = child->tgid;
	if (!perhaps[from % PERHAPS])
		return 0;
	struct process *p = bpf_map_lookup_elem(&processes, &from);
	if (!p)
		return 0;
	if (from != to) {
		struct process copy = *p;
		copy.tgid = to;
		bpf_map_update_elem(&processes, &to, &copy, BPF_NOEXIST);
		perhaps[to % PERHAPS] = 1;
	}
	struct thread born = { .on = bpf_ktime_get_ns(), .runs = 1 };
	add_thread(child, &born);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task, int old)
{
	u32 tgid = task->tgid;
	end(tgid, old);
	bpf_map_delete_elem(&processes, &tgid);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
