/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/* The records every backend writes; collectors/ebpf/records.py declares the same ones for numpy. */

enum kind {
	SCHED = 1,	/* time: on a CPU again, a: off, b: runnable; other: waker, value: state, extra: previous tid, ~0: unknown */
	WAIT,		/* a sleep in futex(2). time: on a CPU again, a: off, b: address; other: waker, value: 0: woken, lowest int: not known, extra: op */
	FORK,		/* a, b: name; tgid, tid: the new thread; other: parent's tgid, value: parent's tid */
	EXEC,		/* a, b: new name; other: tid before it took its leader's */
	DEATH,		/* last time off the CPU; a, b: name; value: records lost of this thread */
	/* Unpaired, from backends that do not keep state in the kernel: */
	SWITCH,		/* tgid, tid: leaves the CPU; other: gets it, value: state as sched_switch reports it */
	WAKING,		/* tid: being woken; other: by whom */
	WAKE,		/* tid: now runnable */
	FUTEX_IN,	/* a: op, b: address */
	FUTEX_OUT,	/* value: result */
};

struct event {
	unsigned long long time, a, b;
	unsigned int tgid, tid, other;
	int value;
	unsigned int extra;
	unsigned short cpu;
	unsigned char kind, pad;
};

struct block {		/* times are 0 where not (yet) known; an unpaired backend fills only its own */
	unsigned long long start, issue, complete, sector;
	unsigned int dev, bytes;
	int error;
	unsigned int tgid, tid, pad;
	char rwbs[16];
	char comm[16];
};

#define OP_TIMED 0x80000000u	/* in WAIT.extra and FUTEX_IN.a: the wait had a timeout */
