// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "spool.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int fd = -1;
static uint64_t limit_chunks;
static struct spool_header *header;
static _Atomic int disabled;
static pthread_mutex_t growth = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t thread_end;
static __thread struct spool_chunk *chunk;

uint64_t spool_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void release(void *mapped)
{
	if (mapped)
		munmap(mapped, SPOOL_CHUNK);
	chunk = NULL;
}

int spool_open(const char *directory, uint64_t limit_bytes)
{
	char path[4096];
	uint64_t now = spool_now();
	if (snprintf(path, sizeof path, "%s/%d-%llu.spool", directory, getpid(), (unsigned long long)now) >= (int)sizeof path)
		return -ENAMETOOLONG;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	int failed = posix_fallocate(fd, 0, SPOOL_HEADER);
	if (!failed) {
		header = mmap(NULL, SPOOL_HEADER, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		failed = header == MAP_FAILED ? errno : 0;
	}
	if (failed) {
		header = NULL;
		close(fd);
		fd = -1;
		unlink(path);
		return -failed;
	}
	header->chunk_bytes = SPOOL_CHUNK;
	header->pid = (uint32_t)getpid();
	header->opened_ns = now;
	limit_chunks = limit_bytes / SPOOL_CHUNK;
	pthread_key_create(&thread_end, release);
	memcpy(header->magic, "PSCUDA1", 8); // last: a reader takes the header as whole from now on
	return 0;
}

void spool_disable(void) { atomic_store(&disabled, 1); }

struct spool_header *spool_header(void) { return header; }

static struct spool_chunk *next_chunk(void)
{
	struct spool_chunk *fresh = NULL;
	if (chunk)
		release(chunk);
	pthread_mutex_lock(&growth);
	uint64_t count = atomic_load(&header->chunks);
	off_t at = SPOOL_HEADER + (off_t)count * SPOOL_CHUNK;
	if (count < limit_chunks && posix_fallocate(fd, at, SPOOL_CHUNK) == 0) {
		fresh = mmap(NULL, SPOOL_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
		if (fresh == MAP_FAILED)
			fresh = NULL;
		else
			atomic_store(&header->chunks, count + 1);
	}
	pthread_mutex_unlock(&growth);
	if (fresh) {
		fresh->tid = (uint32_t)syscall(SYS_gettid);
		memcpy(fresh->magic, "CHNK", 4);
		pthread_setspecific(thread_end, fresh);
	}
	return fresh;
}

void *spool_reserve(uint16_t type, uint32_t size)
{
	if (!header || atomic_load_explicit(&disabled, memory_order_relaxed))
		return NULL;
	size = (size + 7) & ~7u;
	uint32_t room = SPOOL_CHUNK - sizeof(struct spool_chunk);
	if (size <= room && (!chunk || atomic_load_explicit(&chunk->used, memory_order_relaxed) + size > room))
		chunk = next_chunk();
	if (size > room || !chunk) {
		atomic_fetch_add(&header->lost, 1);
		return NULL;
	}
	struct spool_record *record = (void *)((char *)(chunk + 1) + atomic_load_explicit(&chunk->used, memory_order_relaxed));
	record->type = type;
	record->size = size;
	return record;
}

uint32_t spool_tid(void) { return chunk->tid; }

void spool_commit(void *record)
{
	uint32_t size = ((struct spool_record *)record)->size;
	uint32_t used = atomic_load_explicit(&chunk->used, memory_order_relaxed);
	atomic_store_explicit(&chunk->used, used + size, memory_order_release);
}

void spool_note(const char *format, ...)
{
	char line[512];
	va_list arguments;
	if (!header)
		return;
	va_start(arguments, format);
	int length = vsnprintf(line, sizeof line - 1, format, arguments);
	va_end(arguments);
	if (length <= 0)
		return;
	if (length > (int)sizeof line - 2)
		length = sizeof line - 2;
	line[length++] = '\n';
	uint32_t at = atomic_fetch_add(&header->notes_used, (uint32_t)length);
	if (at + (uint32_t)length <= SPOOL_NOTES)
		memcpy(header->notes + at, line, (size_t)length);
}
