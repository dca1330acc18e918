/* The functions of NVML (nvml.h) that the client calls, over two devices: an A100 of seven slices with two MIG
 * instances, and an H200. NVML_NAMES=alike makes both H200 without MIG; NVML_OLD=1 gives instances the name
 * of their device, as old drivers do. A handle is the address of a device's row. */
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

struct device { const char *name, *uuid; int major, minor, mig; struct device *parent; };

static struct device instances[2] = {
    {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG-11111111-0000", 8, 0, 0, 0},
    {"NVIDIA A100-SXM4-40GB MIG 3g.20gb", "MIG-33333333-0000", 8, 0, 0, 0},
};
static struct device devices[2] = {
    {"NVIDIA A100-SXM4-40GB", "GPU-aaaaaaaa-0000", 8, 0, 1, 0},
    {"NVIDIA H200", "GPU-hhhhhhhh-0000", 9, 0, 0, 0},
};
static int started;

static int said(const char *name, const char *value) {
    const char *found = getenv(name);
    return found && !strcmp(found, value);
}

int nvmlInitWithFlags(unsigned flags) {
    if (said("NVML_NAMES", "alike")) {
        devices[0].name = devices[1].name;
        devices[0].major = 9;
        devices[0].mig = 0;
    }
    instances[0].parent = instances[1].parent = &devices[0];
    started = 1;
    return flags ? INVALID_ARGUMENT : SUCCESS;
}
int nvmlShutdown(void) { started = 0; return SUCCESS; }
static int text(char *out, unsigned size, const char *value) {
    if (!started) return UNINITIALIZED;
    strncpy(out, value, size);
    return SUCCESS;
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text(out, size, "580.159.04"); }
int nvmlDeviceGetName(struct device *device, char *out, unsigned size) {
    return text(out, size, device->parent && said("NVML_OLD", "1") ? device->parent->name : device->name);
}
int nvmlDeviceGetUUID(struct device *device, char *out, unsigned size) { return text(out, size, device->uuid); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return started ? SUCCESS : UNINITIALIZED; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **handle) {
    if (index > 1) return INVALID_ARGUMENT;
    *handle = &devices[index];
    return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
    *major = device->major;
    *minor = device->minor;
    return SUCCESS;
}
int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
    *current = *pending = device->mig;
    return device == &devices[1] ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceIsMigDeviceHandle(struct device *device, unsigned *is) { *is = device->parent != 0; return SUCCESS; }
int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count) { (void)device; *count = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **handle) {
    if (!device->mig || index < 1 || index > 2) return NOT_FOUND; /* the first slot is free */
    *handle = &instances[index - 1];
    return SUCCESS;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *instance, struct device **handle) {
    *handle = instance->parent;
    return SUCCESS;
}
