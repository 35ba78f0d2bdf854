/* Stands in for NVML where there is no GPU: one H200, or in CAPABILITIES two digits for each GPU. */
#include <stdlib.h>
#include <string.h>

static const char *all(void) { const char *given = getenv("CAPABILITIES"); return given ? given : "90"; }

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { strncpy(version, "580.159.04", size); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = strlen(all()) / 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, const char **device) { *device = all() + 2 * index; return 0; }
int nvmlDeviceGetCudaComputeCapability(const char *device, int *major, int *minor) {
    *major = device[0] - '0';
    *minor = device[1] - '0';
    return 0;
}
int nvmlDeviceGetName(const char *device, char *name, unsigned size) {
    strncpy(name, getenv("CAPABILITIES") ? "GPU " : "NVIDIA H200", size);
    if (getenv("CAPABILITIES"))
        strncat(name, device, 2);
    return 0;
}
int nvmlDeviceGetUUID(const char *device, char *name, unsigned size) { return nvmlDeviceGetName(device, name, size); }
