/* A libnvidia-ml.so.1 for tests: a double of the hardware, whose answers are known and can be made to fail.

   FAKE_NVML names a text file that is read again at every call:
     gpus N | gpm 0/1 | mig N (instances of each GPU) | clock_events MASK
     pid DEVICE PID BYTES          a process on a device (DEVICE: index; of a MIG instance 100 * (GPU + 1) + slot)
     xid DEVICE NUMBER             an Xid error, told once a line
     fail FUNCTION DEVICE CODE     FUNCTION gives CODE for DEVICE (-1: for all); with CODE -1 it never returns
   FAKE_NVML_LOG names a file that gets a line `FUNCTION DEVICE` for every call. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct { int number; } Device;
static Device gpus[8], instances[8][8];
static int xids_told, events_asked[8];
static const char event_set = 'e';

static Device *gpu(int index) { gpus[index].number = index; return &gpus[index]; }
static Device *instance(int index, int slot) {
    instances[index][slot].number = 100 * index + slot + 1000;
    return &instances[index][slot];
}
/* The number under which the file knows a device: of an instance 100 * (GPU + 1) + slot. */
static int number(const Device *d) { return !d ? -1 : d->number >= 1000 ? d->number - 1000 + 100 : d->number; }

static FILE *settings(void) { const char *path = getenv("FAKE_NVML"); return path ? fopen(path, "r") : NULL; }

static unsigned long long setting(const char *name, unsigned long long fallback) {
    char line[256], key[64];
    FILE *file = settings();
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long value;
        if (sscanf(line, "%63s %llu", key, &value) == 2 && !strcmp(key, name)) fallback = value;
    }
    if (file) fclose(file);
    return fallback;
}

/* Logs the call and gives its status. */
static int called(const char *function, const Device *d) {
    char line[256], name[128];
    int device, code, status = 0;
    const char *log = getenv("FAKE_NVML_LOG");
    FILE *file = log ? fopen(log, "a") : NULL;
    if (file) { fprintf(file, "%s %d\n", function, number(d)); fclose(file); }
    file = settings();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "fail %127s %d %d", name, &device, &code) == 3 && !strcmp(name, function) &&
            (device == -1 || device == number(d)))
            status = code;
    if (file) fclose(file);
    if (status == -1) {
        file = log ? fopen(log, "a") : NULL;
        if (file) { fprintf(file, "HANGS %d\n", number(d)); fclose(file); }
        for (;;) pause();
    }
    return status;
}
#define CALLED(device) do { int status_ = called(__func__, device); if (status_) return status_; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; CALLED(NULL); return 0; }
int nvmlShutdown(void) { CALLED(NULL); return 0; }
const char *nvmlErrorString(int code) {
    return code == 3 ? "Not Supported" : code == 4 ? "Insufficient Permissions" : code == 15 ? "GPU is lost" : "error";
}
int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "999.1"); return 0; }
int nvmlSystemGetNVMLVersion(char *text, unsigned length) { snprintf(text, length, "13.999.1"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { CALLED(NULL); *count = setting("gpus", 1); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **d) { CALLED(gpu(index)); *d = gpu(index); return 0; }
int nvmlDeviceGetMinorNumber(Device *d, unsigned *minor) { CALLED(d); *minor = d->number; return 0; }
int nvmlDeviceGetMigMode(Device *d, unsigned *now, unsigned *later) {
    CALLED(d);
    if (!setting("mig", 0)) return 3;
    *now = *later = 1;
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *count) { CALLED(d); *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned slot, Device **found) {
    CALLED(d);
    if (slot >= setting("mig", 0)) return 6;
    *found = instance(d->number, slot);
    return 0;
}
int nvmlDeviceGetGpuInstanceId(Device *d, unsigned *id) { CALLED(d); *id = 5 + number(d) % 100; return 0; }
int nvmlDeviceGetName(Device *d, char *text, unsigned n) { CALLED(d); snprintf(text, n, "NVIDIA Fake"); return 0; }
int nvmlDeviceGetUUID(Device *d, char *text, unsigned n) {
    CALLED(d);
    snprintf(text, n, "%s-%04d", d->number >= 1000 ? "MIG" : "GPU", number(d));
    return 0;
}
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(Device *d, Pci *pci) {
    CALLED(d);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x1b + d->number);
    return 0;
}
int nvmlDeviceGetNumaNodeId(Device *d, int *node) { CALLED(d); *node = 1; return 0; }
int nvmlDeviceGetCpuAffinity(Device *d, unsigned words, uint64_t *mask) {
    CALLED(d);
    memset(mask, 0, words * sizeof *mask);
    mask[0] = 0x10f;
    mask[1] = 1;
    return 0;
}
int nvmlDeviceGetMaxClockInfo(Device *d, int type, unsigned *mhz) { CALLED(d); *mhz = type == 1 ? 1980 : 3201; return 0; }
int nvmlDeviceGetClockInfo(Device *d, int type, unsigned *mhz) { CALLED(d); *mhz = type == 1 ? 1500 : 3200; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(Device *d, unsigned *value) { CALLED(d); *value = 5; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(Device *d, unsigned *value) { CALLED(d); *value = 16; return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(Device *d, unsigned *value) { CALLED(d); *value = 4; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(Device *d, unsigned *value) { CALLED(d); *value = 8; return 0; }
int nvmlDeviceGetPowerUsage(Device *d, unsigned *mw) { CALLED(d); *mw = 345678; return 0; }
int nvmlDeviceGetPowerManagementDefaultLimit(Device *d, unsigned *mw) { CALLED(d); *mw = 650000; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *mw) { CALLED(d); *mw = 700000; return 0; }
int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned *c) { (void)sensor; CALLED(d); *c = 61; return 0; }
int nvmlDeviceGetTotalEccErrors(Device *d, int kind, int counter, unsigned long long *n) {
    (void)counter;
    CALLED(d);
    *n = kind ? 2 : 7; /* 0 corrected, 1 uncorrected */
    return 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(Device *d, unsigned long long *mask) {
    CALLED(d);
    *mask = setting("clock_events", 0x24); /* power cap, software thermal slowdown */
    return 0;
}
typedef struct { unsigned long long total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(Device *d, Memory *memory) {
    CALLED(d);
    *memory = (Memory){80000, 79000 - number(d), 1000 + number(d)};
    return 0;
}
typedef struct { unsigned gpu, memory; } Rates;
int nvmlDeviceGetUtilizationRates(Device *d, Rates *rates) { CALLED(d); *rates = (Rates){37, 12}; return 0; }
int nvmlDeviceGetPcieThroughput(Device *d, int counter, unsigned *kb) { CALLED(d); *kb = counter ? 222 : 111; return 0; }

typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } Process;
static unsigned processes(Device *d, Process *found, unsigned room) {
    char line[256];
    int device;
    unsigned pid, count = 0;
    unsigned long long bytes;
    FILE *file = settings();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "pid %d %u %llu", &device, &pid, &bytes) == 3 && device == number(d)) {
            if (count < room) found[count] = (Process){pid, bytes, 0, 0};
            count++;
        }
    if (file) fclose(file);
    return count;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *found) {
    if (!found) CALLED(d);
    unsigned room = found ? *count : 0;
    *count = processes(d, found, room);
    return *count > room ? 7 : 0;
}
typedef struct { unsigned pid; unsigned long long stamp; unsigned sm, memory, encoder, decoder; } Used;
int nvmlDeviceGetProcessUtilization(Device *d, Used *found, unsigned *count, unsigned long long since) {
    static unsigned long long stamp = 1000000;
    Process listed[16];
    if (!found) CALLED(d);
    unsigned n = processes(d, listed, 16);
    if (!n) return 6;
    if (!found) { *count = n; stamp += 1000; return 7; }
    for (unsigned i = 0; i < n; i++) found[i] = (Used){listed[i].pid, stamp > since ? stamp : since, 42, 24, 0, 0};
    return 0;
}

typedef struct { Device *device; unsigned long long type, data; unsigned gi, ci; } Event;
int nvmlEventSetCreate(const char **set) { CALLED(NULL); *set = &event_set; return 0; }
int nvmlEventSetFree(const char *set) { (void)set; CALLED(NULL); return 0; }
int nvmlDeviceRegisterEvents(Device *d, unsigned long long types, const char *set) {
    (void)set;
    CALLED(d);
    events_asked[d->number] = types == 8;
    return types == 8 ? 0 : 2;
}
int nvmlEventSetWait_v2(const char *set, Event *event, unsigned timeout) {
    char line[256];
    int device, line_number = 0;
    unsigned long long data;
    if (set != &event_set || timeout) return 2;
    CALLED(NULL);
    FILE *file = settings();
    int status = 10;
    while (file && status && fgets(line, sizeof line, file))
        if (sscanf(line, "xid %d %llu", &device, &data) == 2 && line_number++ == xids_told && events_asked[device]) {
            *event = (Event){gpu(device), 8, data, 0, 0};
            xids_told++;
            status = 0;
        }
    if (file) fclose(file);
    return status;
}

typedef struct { unsigned version, supported; } Support;
typedef struct { struct timespec time; int taken; unsigned gi; } Sample;
typedef struct { unsigned id; int status; double value; const char *names[3]; } Metric;
typedef struct { unsigned version, count; Sample *first, *second; Metric metrics[]; } Request;
int nvmlGpmQueryDeviceSupport(Device *d, Support *support) {
    CALLED(d);
    support->supported = setting("gpm", 1);
    return support->version == 1 ? 0 : 25;
}
int nvmlGpmSampleAlloc(Sample **sample) { CALLED(NULL); *sample = calloc(1, sizeof **sample); return 0; }
int nvmlGpmSampleFree(Sample *sample) { CALLED(NULL); free(sample); return 0; }
static int take(Sample *sample, unsigned gi) {
    sample->taken = 1;
    sample->gi = gi;
    return clock_gettime(CLOCK_MONOTONIC, &sample->time);
}
int nvmlGpmSampleGet(Device *d, Sample *sample) { CALLED(d); return setting("mig", 0) ? 3 : take(sample, 0); }
int nvmlGpmMigSampleGet(Device *d, unsigned gi, Sample *sample) { CALLED(d); return take(sample, gi); }
/* Every metric is 1.5 times its id; NVLink isn't there. Samples in the wrong order or too close are refused. */
int nvmlGpmMetricsGet(Request *r) {
    CALLED(NULL);
    if (r->version != 1) return 25;
    if (!r->first->taken || !r->second->taken || r->first->gi != r->second->gi) return 2;
    double apart = (r->second->time.tv_sec - r->first->time.tv_sec) * 1e9 + r->second->time.tv_nsec - r->first->time.tv_nsec;
    if (apart <= 100e6) { called(apart <= 0 ? "WRONG_ORDER" : "TOO_CLOSE", NULL); return 2; }
    for (unsigned i = 0; i < r->count; i++) {
        r->metrics[i].status = r->metrics[i].id >= 60 ? 3 : 0;
        r->metrics[i].value = r->metrics[i].id >= 60 ? 0 : 1.5 * r->metrics[i].id;
    }
    return 0;
}
