/* Loaded into each program of a compile, so that nvcc writes the same object each time, for the recipe's GPUs.
 *
 * nvcc's front end names the local symbols of a file. Without an external function in the file, it makes the name from the
 * source's path, its time and the process id. This library replaces time and process id by constants. With `-lineinfo`, ptxas
 * writes the time of each source into its table of lines, where this library puts the same constant.
 *
 * A project may name GPUs of its own. If _ENVBUILDER_GPUS is set, such as to `8.0;9.0`, nvcc gets these instead, whoever calls
 * it. `sm_90a` stays: it is code for 9.0, with all of its features. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int steady(void) {
  const char *name = program_invocation_short_name; /* in CUDA 11.2 cicc makes the name */
  return strcmp(name, "cudafe++") == 0 || strcmp(name, "cicc") == 0;
}

pid_t getpid(void) { return steady() ? 1 : (pid_t)syscall(SYS_getpid); }

int stat(const char *path, struct stat *found) {
  int failed = (int)syscall(SYS_newfstatat, AT_FDCWD, path, found, 0);
  if (!failed && (steady() || strcmp(program_invocation_short_name, "ptxas") == 0)) found->st_mtime = 0;
  return failed;
}

/* Programs linked with a glibc before 2.33 call this. */
int __xstat(int version, const char *path, struct stat *found) { (void)version; return stat(path, found); }

static const char *const naming[] = {"-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code", "--gpu-code", NULL};
static const char *const single[] = {"-ptx", "--ptx", "-cubin", "--cubin", "-optix-ir", "--optix-ir", NULL};

static int is_one_of(const char *word, const char *const *names) {
  for (; *names; names++)
    if (strcmp(word, *names) == 0) return 1;
  return 0;
}

/* The value of an option that names GPUs, NULL for another word. `*size` is the number of its words. */
static const char *value(char **word, int *size) {
  const char *equals = strchr(*word, '=');
  char name[32] = "";
  *size = 1;
  if (equals && (size_t)(equals - *word) < sizeof name && is_one_of(memcpy(name, *word, equals - *word), naming))
    return equals + 1;
  if (!is_one_of(*word, naming)) return NULL;
  *size = word[1] ? 2 : 1;
  return word[1] ? word[1] : "";
}

__attribute__((constructor)) static void name_gpus(int argc, char **argv) {
  const char *gpus = getenv("_ENVBUILDER_GPUS");
  if (!gpus || strcmp(program_invocation_short_name, "nvcc") != 0) return;
  char **words = calloc(argc + strlen(gpus) + 1, sizeof *words), *given = calloc(1, 1), *list = strdup(gpus);
  int count = 0, size, strange = 0, compiles = 0;
  for (int at = 0; at < argc; at += size) {
    const char *named = value(argv + at, &size), *dot = strrchr(argv[at], '.');
    compiles |= named || (dot && strcmp(dot, ".cu") == 0);
    if (is_one_of(argv[at], single)) return;
    if (!named) words[count++] = argv[at];
    else if (asprintf(&given, "%s %s ", given, named) < 0) return;
  }
  for (char *gpu = strtok(list, "; "); gpu; gpu = strtok(NULL, "; ")) {
    char number[16] = "", feature[24];
    for (char *from = gpu; *from && strlen(number) < 14; from++)
      if (*from != '.') number[strlen(number)] = *from;
    for (const char *letter = "af"; *letter; letter++) {
      sprintf(feature, "_%s%c", number, *letter);
      if (strstr(given, feature)) number[strlen(number)] = *letter;
    }
    if (asprintf(&words[count], "-gencode=arch=compute_%s,code=sm_%s", number, number) < 0) return;
    strange |= !strstr(given, words[count++] + strlen("-gencode="));
  }
  if (!compiles || (!strange && argc == count)) return; /* it is for the recipe's GPUs */
  unsetenv("_ENVBUILDER_GPUS");
  execv("/proc/self/exe", words);
}
