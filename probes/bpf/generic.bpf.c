// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
// Forwards the raw record of any tracepoint; user space parses it by events/*/format. No CO-RE relocation, so it
// loads without BTF (attach cookies: 5.15).
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

struct raw { u64 time; u32 tgid, tid, id; u16 cpu, size; u8 data[256]; };

struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4 << 20); } raws SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4); __type(key, u32); __type(value, u64); } lost SEC(".maps");

SEC("tp")
int any_tracepoint(void *ctx)
{
	u64 cookie = bpf_get_attach_cookie(ctx);	/* low half: tracepoint id, high half: size of its record */
	u32 size = cookie >> 32, first = 0;
	if (size == 0 || size > 256)
		size = 256;
	struct raw *e = bpf_ringbuf_reserve(&raws, sizeof(*e), 0);
	if (!e) {
		u64 *n = bpf_map_lookup_elem(&lost, &first);
		if (n)
			__sync_fetch_and_add(n, 1);
		return 1;
	}
	u64 id = bpf_get_current_pid_tgid();
	e->time = bpf_ktime_get_ns();
	e->tgid = id >> 32;
	e->tid = (u32)id;
	e->id = (u32)cookie;
	e->cpu = bpf_get_smp_processor_id();
	e->size = size;
	bpf_probe_read_kernel(e->data, size, ctx);
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 1;	/* 0 would hide the event from every other user of perf */
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
