// SPDX-License-Identifier: Apache-2.0
// The calling thread's own Python stack, read without the GIL.
//
// A thread that sits inside a native call can't change its Python frames: they, their code objects and the strings
// those hold stay as they are until the call returns. So they may be read through plain pointers. Only CPython's
// layout must be known: published by the interpreter itself since 3.13, fixed for 3.11 and 3.12.
#pragma once
#include <stdint.h>

// Finds CPython in this process. Returns its PY_VERSION_HEX, or 0 with *why saying why stacks can't be read.
uint32_t pystack_open(const char **why);

// Id of the calling thread's Python stack, 0 if it has none. A new stack is written to the spool once (records
// PYSTACK_CODE for each new code object, then PYSTACK_STACK); a known one costs a walk over its frames.
uint32_t pystack_id(void);

enum { PYSTACK_CODE = 1, PYSTACK_STACK = 2, PYSTACK_DEPTH = 512 };

struct pystack_code { // followed by filename, qualified name and line table, not terminated
	uint16_t type, reserved;
	uint32_t size, id, first_line, filename_bytes, name_bytes, linetable_bytes, reserved2;
};
struct pystack_frame {
	uint32_t code, instruction; // instruction: index in code units of 2 bytes
};
struct pystack_stack {
	uint16_t type, truncated;
	uint32_t size, id, depth;
	struct pystack_frame frames[]; // innermost first
};
