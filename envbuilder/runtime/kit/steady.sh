#!/bin/sh
# Runs a compile so that nvcc writes the same object each time:
#
#   steady.sh COMMAND [ARGUMENT…]
#
# nvcc's front end names the local symbols of a file. Without an external function in the file, it makes the name from the source's
# path, its time and the process id. This program replaces time and process id by constants.
# Without CUDA, it only runs the command. /space is the build directory.
set -eu
[ -e /usr/local/cuda/bin/cudafe++ ] || exec "$@"
gcc -shared -fPIC -O2 -o /space/steady.so -x c - <<'SOURCE'
#define _GNU_SOURCE
#include <errno.h>
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
  int failed = (int)syscall(SYS_stat, path, found);
  if (!failed && steady()) found->st_mtime = 0;
  return failed;
}

/* Programs linked with a glibc before 2.33 call this. */
int __xstat(int version, const char *path, struct stat *found) { (void)version; return stat(path, found); }
SOURCE
LD_PRELOAD=/space/steady.so exec "$@"
