// SPDX-License-Identifier: Apache-2.0
// What the GPU did and who asked for it: CUPTI's activity records and launch callbacks, written to a spool.
//
// The CUDA driver loads this library by CUDA_INJECTION64_PATH at its first initialisation, and NVTX by
// NVTX_INJECTION64_PATH. libcupti is opened, never linked: it has to be the one that fits the process's CUDA.
// CUPTI's records are read by the fields they share since CUDA 12.0: later versions only append.
#define _GNU_SOURCE
#include "activity.h"
#include "pystack.h"
#include "spool.h"
#include <cupti.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define CUPTI_CALLS(X)                                                                                                 \
	X(cuptiGetVersion) X(cuptiSubscribe) X(cuptiUnsubscribe) X(cuptiEnableCallback) X(cuptiGetCallbackName)        \
	X(cuptiActivityEnable) X(cuptiActivityDisable) X(cuptiActivityRegisterCallbacks) X(cuptiActivityRegisterTimestampCallback)             \
	X(cuptiActivityFlushAll) X(cuptiActivityGetNextRecord)                                                         \
	X(cuptiActivityGetNumDroppedRecords) X(cuptiGetResultString) X(cuptiSetThreadIdType)
#define DECLARE(name) static __typeof__(name) *p_##name;
CUPTI_CALLS(DECLARE)

enum { BUFFER_BYTES = 512 * 1024, FLUSH_MS = 200, API_NAMES = 2048 };
static void *libcupti;
static CUpti_SubscriberHandle subscriber;
static int forked, python;

static const struct {
	CUpti_ActivityKind kind;
	const char *name;
} kinds[] = {{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "kernels"}, {CUPTI_ACTIVITY_KIND_MEMCPY, "copies"},
	     {CUPTI_ACTIVITY_KIND_MEMSET, "sets"}, {CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, "synchronisations"},
	     {CUPTI_ACTIVITY_KIND_OVERHEAD, "overhead"}, {CUPTI_ACTIVITY_KIND_MEMORY2, "allocations"},
	     {CUPTI_ACTIVITY_KIND_MARKER, "NVTX"}};
enum { KINDS = sizeof kinds / sizeof *kinds };

// ---- names: a kernel's mangled name or an NVTX message, written once
static struct {
	uint64_t *keys;
	uint32_t mask, count;
} names;
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;

static uint64_t name_id(const char *text)
{
	uint64_t hash = 0xcbf29ce484222325u;
	size_t length = 0;
	if (!text)
		return 0;
	for (; text[length]; length++)
		hash = (hash ^ (uint8_t)text[length]) * 0x100000001b3u;
	hash |= 1;
	if (length > 16384)
		length = 16384;
	pthread_mutex_lock(&naming);
	if (!names.keys || names.count * 2 > names.mask) {
		uint32_t mask = names.keys ? names.mask * 2 + 1 : 1023;
		uint64_t *keys = calloc(mask + 1ull, sizeof *keys);
		for (uint64_t i = 0; keys && names.keys && i <= names.mask; i++)
			if (names.keys[i]) {
				uint32_t j = (uint32_t)(names.keys[i] >> 20) & mask;
				while (keys[j])
					j = (j + 1) & mask;
				keys[j] = names.keys[i];
			}
		if (keys) {
			free(names.keys);
			names.keys = keys;
			names.mask = mask;
		}
	}
	if (names.keys && names.count < names.mask) {
		uint32_t i = (uint32_t)(hash >> 20) & names.mask;
		while (names.keys[i] && names.keys[i] != hash)
			i = (i + 1) & names.mask;
		if (!names.keys[i]) {
			struct act_name *r = spool_reserve(ACT_NAME, (uint32_t)(sizeof *r + length));
			if (r) {
				r->id = hash;
				r->bytes = (uint32_t)length;
				memcpy(r + 1, text, length);
				spool_commit(r);
				names.keys[i] = hash;
				names.count++;
			}
		}
	}
	pthread_mutex_unlock(&naming);
	return hash;
}

// ---- activity records, on CUPTI's own thread
static void write_kernel(const CUpti_ActivityKernel9 *k)
{
	uint64_t name = name_id(k->name);
	struct act_kernel *r = spool_reserve(ACT_KERNEL, sizeof *r);
	if (!r)
		return;
	r->start = k->start;
	r->end = k->end;
	r->name = name;
	r->graph_node = k->graphNodeId;
	r->correlation = k->correlationId;
	r->device = k->deviceId;
	r->context = k->contextId;
	r->stream = k->streamId;
	r->graph = k->graphId;
	r->registers = k->registersPerThread;
	r->static_shared = k->staticSharedMemory;
	r->dynamic_shared = k->dynamicSharedMemory;
	r->grid[0] = k->gridX, r->grid[1] = k->gridY, r->grid[2] = k->gridZ;
	r->block[0] = k->blockX, r->block[1] = k->blockY, r->block[2] = k->blockZ;
	spool_commit(r);
}

static struct act_copy *reserve_copy(uint64_t start, uint64_t end, uint64_t bytes, uint32_t correlation, uint32_t device,
				     uint32_t stream)
{
	struct act_copy *r = spool_reserve(ACT_COPY, sizeof *r);
	if (!r)
		return NULL;
	r->start = start;
	r->end = end;
	r->bytes = bytes;
	r->correlation = correlation;
	r->device = device;
	r->stream = stream;
	return r;
}

static void write_record(const CUpti_Activity *record)
{
	switch (record->kind) {
	case CUPTI_ACTIVITY_KIND_KERNEL:
	case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
		write_kernel((const void *)record);
		break;
	case CUPTI_ACTIVITY_KIND_MEMCPY: {
		const CUpti_ActivityMemcpy5 *m = (const void *)record;
		struct act_copy *r = reserve_copy(m->start, m->end, m->bytes, m->correlationId, m->deviceId, m->streamId);
		if (r) {
			r->kind = m->copyKind;
			r->source = m->srcKind;
			r->target = m->dstKind;
			r->flags = m->flags;
			r->graph_node = m->graphNodeId;
			r->context = m->contextId;
			spool_commit(r);
		}
		break;
	}
	case CUPTI_ACTIVITY_KIND_MEMSET: {
		const CUpti_ActivityMemset4 *m = (const void *)record;
		struct act_copy *r = reserve_copy(m->start, m->end, m->bytes, m->correlationId, m->deviceId, m->streamId);
		if (r) {
			r->kind = ACT_COPY_SET;
			r->target = (uint8_t)m->memoryKind;
			r->graph_node = m->graphNodeId;
			r->context = m->contextId;
			spool_commit(r);
		}
		break;
	}
	case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: {
		const CUpti_ActivitySynchronization *s = (const void *)record;
		struct act_sync *r = spool_reserve(ACT_SYNC, sizeof *r);
		if (r) {
			r->start = s->start;
			r->end = s->end;
			r->kind = s->type;
			r->correlation = s->correlationId;
			r->context = s->contextId;
			r->stream = s->streamId;
			r->event = s->cudaEventId;
			spool_commit(r);
		}
		break;
	}
	case CUPTI_ACTIVITY_KIND_OVERHEAD: {
		const CUpti_ActivityOverhead *o = (const void *)record;
		struct act_span *r = spool_reserve(ACT_OVERHEAD, sizeof *r);
		if (r) {
			r->start = o->start;
			r->end = o->end;
			r->kind = (uint32_t)o->overheadKind;
			spool_commit(r);
		}
		break;
	}
	case CUPTI_ACTIVITY_KIND_MEMORY2: {
		const CUpti_ActivityMemory3 *m = (const void *)record;
		if (m->memoryKind == CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC || m->memoryKind == CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC)
			break; // a module's globals, tens of thousands of them: no allocation of the program's
		struct act_memory *r = spool_reserve(ACT_MEMORY, sizeof *r);
		if (r) {
			r->time = m->timestamp;
			r->address = m->address;
			r->bytes = m->bytes;
			r->operation = m->memoryOperationType;
			r->kind = m->memoryKind;
			r->device = m->deviceId;
			r->stream = m->streamId;
			r->correlation = m->correlationId;
			spool_commit(r);
		}
		break;
	}
	case CUPTI_ACTIVITY_KIND_MARKER: {
		const CUpti_ActivityMarker2 *m = (const void *)record;
		uint64_t name = name_id(m->name);
		struct act_marker *r = spool_reserve(ACT_MARKER, sizeof *r);
		if (r) {
			r->time = m->timestamp;
			r->name = name;
			r->id = m->id;
			r->flags = (uint32_t)m->flags;
			r->thread = m->objectId.pt.threadId;
			spool_commit(r);
		}
		break;
	}
	default:
		break;
	}
}

static void CUPTIAPI buffer_wanted(uint8_t **buffer, size_t *size, size_t *records)
{
	*buffer = aligned_alloc(8, BUFFER_BYTES);
	*size = *buffer ? BUFFER_BYTES : 0;
	*records = 0;
}

static void CUPTIAPI buffer_full(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	CUpti_Activity *record = NULL;
	size_t dropped = 0;
	(void)size;
	if (!forked) {
		while (valid && p_cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
			write_record(record);
		if (p_cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS && dropped)
			atomic_fetch_add(&spool_header()->cupti_lost, dropped);
	}
	free(buffer);
}

// ---- calls that launch, copy, allocate or wait, on the calling thread
static __thread struct {
	uint64_t start;
	uint32_t depth, stack;
} call;

static void CUPTIAPI on_call(void *unused, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data)
{
	const CUpti_CallbackData *d = data;
	(void)unused;
	if (forked || id >= API_NAMES)
		return;
	if (d->callbackSite == CUPTI_API_ENTER) {
		if (call.depth++)
			return; // the driver call inside a runtime call
		call.stack = python ? pystack_id() : 0;
		call.start = spool_now();
		return;
	}
	if (!call.depth || --call.depth)
		return;
	struct act_call *r = spool_reserve(ACT_CALL, sizeof *r);
	if (r) {
		r->start = call.start;
		r->end = spool_now();
		r->correlation = d->correlationId;
		r->stack = call.stack;
		r->tid = spool_tid();
		r->api = (uint32_t)id | (domain == CUPTI_CB_DOMAIN_DRIVER_API) << 16;
		r->result = d->functionReturnValue ? *(const int32_t *)d->functionReturnValue : 0;
		spool_commit(r);
	}
}

static int wanted(const char *name)
{
	static const char *const prefixes[] = {"cudaLaunch", "cudaGraphLaunch", "cudaMemcpy", "cudaMemset", "cudaMalloc",
					       "cudaFree", "cuLaunch", "cuGraphLaunch", "cuMemcpy", "cuMemset", "cuMemAlloc",
					       "cuMemFree", NULL};
	for (const char *const *p = prefixes; *p; p++)
		if (!strncmp(name, *p, strlen(*p)))
			return 1;
	return strstr(name, "Synchronize") != NULL;
}

static void enable_calls(void)
{
	for (int driver = 0; driver < 2; driver++) {
		CUpti_CallbackDomain domain = driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API;
		for (uint32_t id = 1; id < API_NAMES; id++) {
			const char *name = NULL;
			if (p_cuptiGetCallbackName(domain, id, &name) != CUPTI_SUCCESS || !name || !wanted(name))
				continue;
			if (p_cuptiEnableCallback(1, subscriber, domain, id) != CUPTI_SUCCESS)
				continue;
			size_t length = strlen(name);
			struct act_name *r = spool_reserve(ACT_API_NAME, (uint32_t)(sizeof *r + length));
			if (r) {
				r->id = id | (uint32_t)driver << 16;
				r->bytes = (uint32_t)length;
				memcpy(r + 1, name, length);
				spool_commit(r);
			}
		}
	}
}

// ---- finding libcupti
struct found {
	char cupti[4096], cudart_dir[4096];
	int major;
};

static int look(struct dl_phdr_info *info, size_t size, void *data)
{
	struct found *found = data;
	const char *name = strrchr(info->dlpi_name, '/'), *version;
	(void)size;
	if (!name)
		return 0;
	if (!strncmp(name, "/libcupti.so", 12))
		snprintf(found->cupti, sizeof found->cupti, "%s", info->dlpi_name);
	if (!strncmp(name, "/libcudart.so.", 14)) {
		version = name + 14;
		found->major = atoi(version);
		snprintf(found->cudart_dir, sizeof found->cudart_dir, "%.*s", (int)(name - info->dlpi_name), info->dlpi_name);
	}
	return 0;
}

static void *try_open(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	if (library)
		spool_note("libcupti %s", path);
	return library;
}

static void *open_cupti(void)
{
	struct found found = {.major = 0};
	char path[8300];
	void *library = NULL;
	const char *wish = getenv("PERFSCOPE_CUPTI");
	if (wish && *wish)
		return try_open(wish);
	dl_iterate_phdr(look, &found);
	if (*found.cupti && (library = try_open(found.cupti)))
		return library;
	// Next to the runtime in use (one folder, or NVIDIA's wheels of CUDA 12), then by version, then the toolkit's.
	for (int major = found.major ? found.major : 14; major >= (found.major ? found.major : 12) && !library; major--) {
		if (*found.cudart_dir) {
			snprintf(path, sizeof path, "%s/libcupti.so.%d", found.cudart_dir, major);
			library = try_open(path);
			if (!library) {
				snprintf(path, sizeof path, "%s/../../cuda_cupti/lib/libcupti.so.%d", found.cudart_dir, major);
				library = try_open(path);
			}
		}
		snprintf(path, sizeof path, "libcupti.so.%d", major);
		if (!library)
			library = try_open(path);
		snprintf(path, sizeof path, "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.%d", major);
		if (!library)
			library = try_open(path);
		snprintf(path, sizeof path, "/usr/local/cuda/lib64/libcupti.so.%d", major);
		if (!library)
			library = try_open(path);
	}
	return library;
}

static int load_cupti(void)
{
	if (libcupti)
		return 1;
	libcupti = open_cupti();
	if (!libcupti) {
		spool_note("error: no libcupti that fits this process (set PERFSCOPE_CUPTI to one, or pip install nvidia-cuda-cupti)");
		return 0;
	}
#define FIND(name)                                                                                                     \
	if (!(p_##name = (__typeof__(p_##name))dlsym(libcupti, #name)))                                                \
		spool_note("error: libcupti has no " #name);
	CUPTI_CALLS(FIND)
#define HAVE(name) &&p_##name
	return 1 CUPTI_CALLS(HAVE);
}

static int ready(void)
{
	static int state; // 0 not tried, 1 open, -1 off
	if (state)
		return state > 0;
	const char *directory = getenv("PERFSCOPE_CUDA_DIR"), *limit = getenv("PERFSCOPE_CUDA_LIMIT");
	state = -1;
	if (directory && *directory && !spool_open(directory, limit ? strtoull(limit, NULL, 10) : 4ull << 30))
		state = 1;
	return state > 0;
}

static void close_spool(void)
{
	if (forked || atomic_load(&spool_header()->closed_ns))
		return;
	p_cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
	atomic_store(&spool_header()->closed_ns, spool_now());
}

// CUPTI hands over a buffer when it is full. A process that ends by _exit or a signal would take the rest with it, so
// what is complete is asked for now and then: such an end costs at most FLUSH_MS of GPU records.
static void *flush_now_and_then(void *unused)
{
	const struct timespec pause = {FLUSH_MS / 1000, FLUSH_MS % 1000 * 1000000L};
	pthread_setname_np(pthread_self(), "perfscope-cuda");
	while (!forked && !atomic_load(&spool_header()->closed_ns)) {
		nanosleep(&pause, NULL);
		if (atomic_load(&spool_header()->stop)) {
			for (unsigned i = 0; i < KINDS; i++)
				p_cuptiActivityDisable(kinds[i].kind);
			p_cuptiUnsubscribe(subscriber);
			close_spool();
		} else
			p_cuptiActivityFlushAll(0);
	}
	return unused;
}

static void start_flusher(void)
{
	sigset_t all, before;
	pthread_t thread;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); // the program's signals go to its own threads
	if (pthread_create(&thread, NULL, flush_now_and_then, NULL) == 0)
		pthread_detach(thread);
	else
		spool_note("error: no thread to flush with: an abrupt end loses GPU records");
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void in_child(void)
{
	forked = 1; // CUDA doesn't work in a forked child; it must not write into its parent's spool either
	spool_disable();
}

static void check(const char *what, CUptiResult result)
{
	const char *text = "?";
	if (result == CUPTI_SUCCESS)
		return;
	p_cuptiGetResultString(result, &text);
	spool_note("error: %s: %s", what, text);
}

EXPORT int InitializeInjection(void)
{
	static int once;
	const char *why = NULL;
	uint32_t version = 0;
	if (once++ || !ready() || !load_cupti())
		return 1;
	p_cuptiGetVersion(&version);
	spool_header()->cupti_version = version;
	CUptiResult result = p_cuptiSubscribe(&subscriber, (CUpti_CallbackFunc)on_call, NULL);
	if (result != CUPTI_SUCCESS) {
		check("another CUPTI user holds this process (cuptiSubscribe)", result);
		return 1;
	}
	spool_header()->python_version = pystack_open(&why);
	python = !why;
	if (why)
		spool_note("no launch stacks: %s", why);
	check("thread ids", p_cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM));
	check("timestamps", p_cuptiActivityRegisterTimestampCallback(spool_now));
	check("buffers", p_cuptiActivityRegisterCallbacks(buffer_wanted, buffer_full));
	for (unsigned i = 0; i < KINDS; i++)
		check(kinds[i].name, p_cuptiActivityEnable(kinds[i].kind));
	enable_calls();
	start_flusher();
	pthread_atfork(NULL, NULL, in_child);
	atexit(close_spool);
	return 1;
}

// NVTX's own injection: handed on to libcupti, which turns ranges into marker records.
static int hand_on_nvtx(const char *entry, const void *get_export_table)
{
	int (*initialize)(const void *) = NULL;
	if (!ready() || !load_cupti())
		return 0;
	initialize = (int (*)(const void *))dlsym(libcupti, entry);
	int done = initialize ? initialize(get_export_table) : 0;
	if (!done)
		spool_note("error: no NVTX ranges: libcupti %s %s", initialize ? "refused" : "lacks", entry);
	return done;
}

EXPORT int InitializeInjectionNvtx2(const void *get_export_table)
{
	return hand_on_nvtx("InitializeInjectionNvtx2", get_export_table);
}

EXPORT int InitializeInjectionNvtx(const void *get_export_table)
{
	return hand_on_nvtx("InitializeInjectionNvtx", get_export_table);
}
