/* Stands in for the presence of NVIDIA's driver: an H200 with driver 580.159.04. It runs nothing. */
#include <stddef.h>
#include <string.h>

int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return number == 0 ? 0 : 101; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "NVIDIA H200", (size_t)size); return device; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)143771 << 20; return device; }
int cuDeviceGetUuid_v2(unsigned char *identity, int device) { memset(identity, 0x11, 16); return device; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : 0; /* the major number of the compute capability */
    return device;
}
