/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/* What python.bpf.c is told and what it tells; collectors/pyspy/kernel.py declares the same. */

/* Where an interpreter keeps what is read: addresses, and offsets in bytes. */
struct process {
	unsigned long long interpreter, gil;	/* gil: 0, not known */
	unsigned long long period_ns;
	unsigned int tgid;
	unsigned int threads_head, state_next, state_tid, state_frame, through_cframe, cframe_frame;
	unsigned int frame_code, frame_instruction, frame_previous, frame_owner;
	unsigned int code_window, code_first_line, code_file, code_name, code_lines, code_bytes;
	unsigned int text_state, text_shift, text_length, text_ascii, text_compact, bytes_size, bytes_data;
	unsigned int gil_holder, gil_locked;
};

#define PERHAPS 4096

enum { LOST_LOOKS, LOST_WORDS, SPENT_NS, LOOKS };	/* counters */
enum { AT_TICK = 1, HOLDS_GIL = 2, UNREAD = 4, ENDED = 8, FAILED = 16 };
enum { OWNED_BY_INTERPRETER = 3 };
#define SHARE_OF_TIME 50	/* of a CPU's time that reading stacks at its switches may take: a fiftieth */

struct look {
	unsigned long long time, since, stack;	/* since: off the CPU from then until time; 0: at a tick */
	unsigned int tgid, tid, flags, pad;
};

enum { STACK = 1, CODE };
struct frame { unsigned long long code, key; unsigned int instruction, pad; };
struct stack {
	unsigned int kind, tgid;
	unsigned long long id;
	unsigned int depth, cut;	/* cut: it is deeper */
	struct frame frames[256];
};

#define TEXT 512
#define LINES 8192
struct code {
	unsigned int kind, tgid;
	unsigned long long key;
	unsigned int first_line, file_bytes, file_kind, name_bytes, name_kind, lines_bytes, lines_whole, pad;
	unsigned char file[2 * TEXT], name[2 * TEXT], lines[2 * LINES];
};
