// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "pystack.h"
#include "spool.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// Offsets in bytes. Sources: CPython's headers of 3.11 and 3.12 (both are fixed within a minor version); _Py_DebugOffsets
// from 3.13 on. frame_in_cframe: 3.11 and 3.12 reach the frame through PyThreadState.cframe.
struct layout {
	uint64_t tstate_frame, frame_in_cframe, frame_code, frame_instruction, frame_previous, frame_owner;
	uint64_t code_file, code_name, code_lines, code_first_line, code_bytes;
	uint64_t text_state, text_length, text_ascii, text_compact, bytes_size, bytes_data;
	int through_cframe;
};
static const struct layout layout_311 = {56, 8, 32, 56, 48, 69, 112, 128, 136, 72, 184, 32, 16, 48, 72, 16, 32, 1};
static const struct layout layout_312 = {56, 0, 0, 56, 8, 70, 112, 128, 136, 68, 192, 32, 16, 40, 56, 16, 32, 1};
static struct layout at;
static void *(*this_thread_state)(void);

enum { OWNED_BY_GENERATOR = 1, OWNED_BY_FRAME_OBJECT = 2, OWNED_BY_INTERPRETER = 3 };

#define LOAD(type, base, offset) (*(type *)((char *)(base) + (offset)))

static int from_debug_offsets(const uint64_t *table, uint32_t minor)
{
	// 64-bit words: cookie, version, free_threaded, then groups of words that each start with a size (the headers' own
	// pycore_debug_offsets.h says where).
	int new = minor >= 14;
	const uint64_t *thread = table + (new ? 22 : 19), *frame = table + (new ? 31 : 28), *code = table + (new ? 39 : 34);
	const uint64_t *bytes = table + (new ? 74 : 64), *text = table + (new ? 77 : 67);
	at = (struct layout){.tstate_frame = thread[4], .frame_previous = frame[1], .frame_code = frame[2],
			     .frame_instruction = frame[3], .frame_owner = frame[5], .code_file = code[1],
			     .code_name = code[3], .code_lines = code[4], .code_first_line = code[5], .code_bytes = code[9],
			     .bytes_size = bytes[1], .bytes_data = bytes[2], .text_state = text[1], .text_length = text[2],
			     .text_ascii = text[3], .text_compact = text[3] + 16};
	// A layout that isn't what we take it for shows in absurd offsets.
	return thread[0] < 65536 && at.tstate_frame < thread[0] && at.frame_owner < frame[0] && at.code_bytes <= code[0] &&
	       at.text_ascii < 256 && at.bytes_data < 256;
}

uint32_t pystack_open(const char **why)
{
	const unsigned long *version_symbol = dlsym(RTLD_DEFAULT, "Py_Version");
	this_thread_state = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
	*why = "no CPython 3.11 or newer in this process";
	if (!version_symbol || !this_thread_state)
		return 0;
	uint32_t version = (uint32_t)*version_symbol, minor = version >> 16 & 0xff;
	if (version >> 24 != 3)
		return 0;
	if (minor == 11)
		at = layout_311;
	else if (minor == 12)
		at = layout_312;
	else if (minor == 13 || minor == 14) {
		const uint64_t *table = dlsym(RTLD_DEFAULT, "_PyRuntime");
		*why = "this CPython doesn't publish its frame layout in the form known here";
		if (!table || memcmp(table, "xdebugpy", 8) || !from_debug_offsets(table, minor))
			return 0;
		*why = "free-threaded CPython keeps per-thread bytecode, which isn't read";
		if (table[2])
			return 0;
	} else {
		*why = "this CPython is newer than the frame layouts known here (3.11 to 3.14)";
		return 0;
	}
	at.through_cframe = minor < 13;
	*why = NULL;
	return version;
}

// ---- code objects and stacks already written: open-addressed tables, keyed by 64-bit hashes
struct table {
	uint64_t *keys;
	uint32_t *ids, mask, count;
};
static struct table codes, stacks;
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
	return hash ^ hash >> 29;
}

static uint32_t *slot(struct table *table, uint64_t key)
{
	if (!table->keys || table->count * 2 > table->mask) {
		struct table bigger = {.mask = table->keys ? table->mask * 2 + 1 : 4095};
		bigger.keys = calloc(bigger.mask + 1ull, sizeof *bigger.keys);
		bigger.ids = calloc(bigger.mask + 1ull, sizeof *bigger.ids);
		if (!bigger.keys || !bigger.ids) {
			free(bigger.keys);
			free(bigger.ids);
			return NULL;
		}
		for (uint64_t i = 0; table->keys && i <= table->mask; i++)
			if (table->keys[i])
				*slot(&bigger, table->keys[i]) = table->ids[i];
		free(table->keys);
		free(table->ids);
		*table = bigger;
	}
	uint32_t i = (uint32_t)(key ^ key >> 32) & table->mask;
	while (table->keys[i] && table->keys[i] != key)
		i = (i + 1) & table->mask;
	if (!table->keys[i]) {
		table->keys[i] = key;
		table->count++;
	}
	return &table->ids[i];
}

static uint32_t utf8(const void *text, char *out, uint32_t room)
{
	if (!text)
		return 0;
	uint32_t state = LOAD(uint32_t, text, at.text_state), used = 0;
	uint64_t length = LOAD(uint64_t, text, at.text_length);
	// 3.14 widened the interned field in front of kind from 2 to 16 bits.
	uint32_t shift = at.text_compact && at.through_cframe == 0 && (state & 0xffff) <= 3 && state >> 16 ? 16 : 2;
	uint32_t kind = state >> shift & 7, ascii = state >> (shift + 4) & 1;
	const char *data = (const char *)text + (ascii ? at.text_ascii : at.text_compact);
	for (uint64_t i = 0; i < length && used + 4 <= room; i++) {
		uint32_t c = kind == 1 ? ((const uint8_t *)data)[i] : kind == 2 ? ((const uint16_t *)data)[i] : ((const uint32_t *)data)[i];
		if (c < 0x80)
			out[used++] = (char)c;
		else if (c < 0x800) {
			out[used++] = (char)(0xc0 | c >> 6);
			out[used++] = (char)(0x80 | (c & 0x3f));
		} else if (c < 0x10000) {
			out[used++] = (char)(0xe0 | c >> 12);
			out[used++] = (char)(0x80 | (c >> 6 & 0x3f));
			out[used++] = (char)(0x80 | (c & 0x3f));
		} else {
			out[used++] = (char)(0xf0 | c >> 18);
			out[used++] = (char)(0x80 | (c >> 12 & 0x3f));
			out[used++] = (char)(0x80 | (c >> 6 & 0x3f));
			out[used++] = (char)(0x80 | (c & 0x3f));
		}
	}
	return used;
}

static uint64_t content(uint64_t hash, const char *bytes, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		hash = (hash ^ (uint8_t)bytes[i]) * 0x100000001b3u;
	return hash;
}

// A code object's address can be a new object's where an old one was freed, and so can its parts' addresses: what a
// stack is remembered by has to be what it shows. Tells by a few bytes, on every launch.
static uint64_t glance(const void *code)
{
	const char *lines = LOAD(char *, code, at.code_lines), *file = LOAD(char *, code, at.code_file);
	uint64_t length = file ? LOAD(uint64_t, file, at.text_length) : 0;
	uint64_t hash = mix((uint64_t)code, LOAD(uint64_t, code, at.code_name) ^ LOAD(uint32_t, code, at.code_first_line));
	if (lines) // 16 bytes are there for the shortest of bytes objects
		hash = mix(hash, LOAD(uint64_t, lines, at.bytes_size) ^ LOAD(uint64_t, lines, at.bytes_data));
	if (length >= 8) // a path ends in the name that tells files apart; of a wider text this is some middle part
		hash = mix(hash, LOAD(uint64_t, file, at.text_ascii + length - 8));
	return mix(hash, (uint64_t)file ^ length);
}

static uint32_t code_id(const void *code)
{
	static char file[4096], name[1024]; // under the lock
	uint32_t files = utf8(LOAD(void *, code, at.code_file), file, sizeof file);
	uint32_t names = utf8(LOAD(void *, code, at.code_name), name, sizeof name);
	const char *lines = LOAD(char *, code, at.code_lines);
	uint64_t line_bytes = lines ? LOAD(uint64_t, lines, at.bytes_size) : 0;
	if (line_bytes > 32768)
		line_bytes = 0; // such a function keeps its first line only
	uint64_t key = content(content(LOAD(uint32_t, code, at.code_first_line), file, files), name, names);
	uint32_t *id = slot(&codes, content(key, lines + at.bytes_data, line_bytes) | 1);
	if (!id || *id)
		return id ? *id : 0;
	struct pystack_code *record = spool_reserve(PYSTACK_CODE, (uint32_t)(sizeof *record + files + names + line_bytes));
	if (!record)
		return 0;
	record->id = *id = codes.count;
	record->first_line = LOAD(uint32_t, code, at.code_first_line);
	record->filename_bytes = files;
	record->name_bytes = names;
	record->linetable_bytes = (uint32_t)line_bytes;
	char *out = (char *)(record + 1);
	memcpy(out, file, files);
	memcpy(out + files, name, names);
	if (line_bytes)
		memcpy(out + files + names, lines + at.bytes_data, line_bytes);
	spool_commit(record);
	return *id;
}

struct raw_frame {
	void *code;
	uint32_t instruction;
};

static uint32_t walk(struct raw_frame *out, uint64_t *hash)
{
	void *state = this_thread_state(), *frame = NULL;
	uint32_t depth = 0;
	if (!state)
		return 0;
	frame = LOAD(void *, state, at.tstate_frame);
	if (at.through_cframe && frame)
		frame = LOAD(void *, frame, at.frame_in_cframe);
	for (; frame && depth < PYSTACK_DEPTH; frame = LOAD(void *, frame, at.frame_previous)) {
		if (LOAD(uint8_t, frame, at.frame_owner) >= OWNED_BY_INTERPRETER)
			continue; // a marker between C and Python, no function
		uint64_t code = LOAD(uint64_t, frame, at.frame_code) & ~(uint64_t)3; // 3.14 tags references in the low bits
		if (!code)
			continue;
		uint64_t start = code + at.code_bytes, now = LOAD(uint64_t, frame, at.frame_instruction);
		out[depth].code = (void *)code;
		out[depth].instruction = now > start ? (uint32_t)((now - start) / 2) : 0;
		*hash = mix(mix(*hash, glance((void *)code)), out[depth].instruction);
		depth++;
	}
	return depth;
}

// The last stacks of this thread: a decode loop launches from the same few hundred places again and again.
enum { RECENT = 1024 };
static __thread struct {
	uint64_t hash;
	uint32_t id;
} recent[RECENT];

static uint32_t write_stack(const struct raw_frame *frames, uint32_t depth)
{
	uint32_t ids[PYSTACK_DEPTH], found = 0;
	uint64_t key = depth;
	pthread_mutex_lock(&writing);
	for (uint32_t i = 0; i < depth; i++) {
		ids[i] = code_id(frames[i].code);
		key = mix(mix(key, ids[i]), frames[i].instruction);
	}
	uint32_t *id = slot(&stacks, key | 1);
	if (id && !*id) {
		struct pystack_stack *record = spool_reserve(PYSTACK_STACK, (uint32_t)(sizeof *record + depth * sizeof *record->frames));
		if (record) {
			record->id = *id = stacks.count;
			record->depth = depth;
			record->truncated = depth == PYSTACK_DEPTH;
			for (uint32_t i = 0; i < depth; i++)
				record->frames[i] = (struct pystack_frame){ids[i], frames[i].instruction};
			spool_commit(record);
		}
	}
	if (id)
		found = *id;
	pthread_mutex_unlock(&writing);
	return found;
}

uint32_t pystack_id(void)
{
	static __thread struct raw_frame frames[PYSTACK_DEPTH];
	uint64_t hash = 1;
	uint32_t depth = walk(frames, &hash);
	if (!depth)
		return 0;
	uint32_t place = (uint32_t)(hash >> 40) % RECENT;
	if (recent[place].hash == hash)
		return recent[place].id;
	uint32_t id = write_stack(frames, depth);
	if (id) {
		recent[place].hash = hash;
		recent[place].id = id;
	}
	return id;
}
