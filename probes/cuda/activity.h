// SPDX-License-Identifier: Apache-2.0
// Records of the spool that tell what the GPU did. All times in ns on CLOCK_MONOTONIC; host order; 8-byte aligned.
#pragma once
#include <stdint.h>

enum {
	ACT_NAME = 16, // id -> text; text follows, not terminated
	ACT_API_NAME,  // the same for API calls: id is act_call.api
	ACT_KERNEL,
	ACT_COPY,
	ACT_SYNC,
	ACT_OVERHEAD,
	ACT_MEMORY,
	ACT_MARKER,
	ACT_CALL,
};
enum { ACT_COPY_SET = 255 };

#define ACT_RECORD uint16_t type, reserved; uint32_t size
struct act_name { ACT_RECORD; uint64_t id; uint32_t bytes, reserved2; };
struct act_kernel {
	ACT_RECORD;
	uint64_t start, end, name, graph_node;
	uint32_t correlation, device, context, stream, graph, registers, static_shared, dynamic_shared;
	uint32_t grid[3], block[3];
};
struct act_copy {
	ACT_RECORD;
	uint64_t start, end, bytes, graph_node;
	uint32_t correlation, device, context, stream;
	uint8_t kind, source, target, flags, reserved2[4]; // CUPTI's copy and memory kinds; kind ACT_COPY_SET: a memset
};
struct act_sync { ACT_RECORD; uint64_t start, end; uint32_t kind, correlation, context, stream, event, reserved2; };
struct act_span { ACT_RECORD; uint64_t start, end; uint32_t kind, reserved2; };
struct act_memory {
	ACT_RECORD;
	uint64_t time, address, bytes;
	uint32_t operation, kind, device, stream, correlation, reserved2;
};
struct act_marker { ACT_RECORD; uint64_t time, name; uint32_t id, flags, thread, reserved2; };
struct act_call { ACT_RECORD; uint64_t start, end; uint32_t correlation, stack, tid, api; int32_t result; uint32_t reserved2; };
