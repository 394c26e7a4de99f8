// SPDX-License-Identifier: Apache-2.0
// An append-only record file that many threads write without locks and that stays readable however the process ends.
//
// The file is a header page followed by chunks. A thread owns one chunk at a time, mapped shared: what it wrote is in
// the page cache at once, so _exit, a signal or a crash loses nothing. Space is reserved before it is mapped; a full
// disk therefore costs counted records, never a SIGBUS in the profiled program.
#pragma once
#include <stdatomic.h>
#include <stdint.h>

enum { SPOOL_CHUNK = 64 * 1024, SPOOL_HEADER = 4096, SPOOL_NOTES = 3840 };

struct spool_header {
	char magic[8]; // "PSCUDA1\0"
	uint32_t chunk_bytes, pid;
	uint64_t opened_ns;         // CLOCK_MONOTONIC
	_Atomic uint64_t chunks;    // chunks handed out
	_Atomic uint64_t lost;      // records with no room (disk full or size limit)
	_Atomic uint64_t cupti_lost; // records CUPTI says it dropped
	_Atomic uint64_t closed_ns; // 0 until the process ended in an orderly way
	uint32_t cupti_version, python_version;
	_Atomic uint32_t notes_used;
	_Atomic uint32_t stop; // set by the recorder: watch no longer
	uint32_t reserved[46];
	char notes[SPOOL_NOTES]; // lines of text, for people
};
_Static_assert(sizeof(struct spool_header) == SPOOL_HEADER, "the header is one page");

struct spool_chunk {
	char magic[4]; // "CHNK"
	uint32_t tid;
	_Atomic uint32_t used; // bytes of whole records after this header
	uint32_t reserved;
};

struct spool_record {
	uint16_t type, reserved;
	uint32_t size; // with this header; a multiple of 8
};

int spool_open(const char *directory, uint64_t limit_bytes); // 0, or -errno
void spool_disable(void);                                    // this process writes no more (after fork)
struct spool_header *spool_header(void);                     // NULL before spool_open
void *spool_reserve(uint16_t type, uint32_t size);           // whole record incl. header, zeroed; NULL: counted as lost
void spool_commit(void *record);                             // makes it visible to readers
void spool_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint32_t spool_tid(void); // of the calling thread, once it has reserved a record
uint64_t spool_now(void); // ns on CLOCK_MONOTONIC
