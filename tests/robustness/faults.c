/* A disk that fills up, for run.py (LD_PRELOAD): counts calls that write below a folder "out", and
 * fails with "no space left on device" from one of them on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static long *count, fail_at;

void faults_arm(long number, long *shared) { fail_at = number, count = shared; }

static int fails(const char *path) {
    if (!fail_at || !strstr(path, "out/")) return 0;
    if (__atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST) < fail_at) return 0;
    errno = ENOSPC;
    return 1;
}

static int fails_on(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = 0;
    return fails(path);
}

#define CREATES (flags & (O_CREAT | O_TRUNC))
#define NEXT(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define MODE va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list)
#define OPEN(name) int name(const char *path, int flags, ...) { \
    NEXT(name); MODE; return CREATES && fails(path) ? -1 : real(path, flags, mode); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { \
    NEXT(name); MODE; return CREATES && fails(path) ? -1 : real(at, path, flags, mode); }
#define FOPEN(name) FILE *name(const char *path, const char *mode) { \
    NEXT(name); return strpbrk(mode, "wa") && fails(path) ? NULL : real(path, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64) FOPEN(fopen) FOPEN(fopen64)

ssize_t write(int fd, const void *data, size_t n) { NEXT(write); return fails_on(fd) ? -1 : real(fd, data, n); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { NEXT(pwrite); return fails_on(fd) ? -1 : real(fd, data, n, at); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) { NEXT(pwrite64); return fails_on(fd) ? -1 : real(fd, data, n, at); }
ssize_t writev(int fd, const struct iovec *parts, int n) { NEXT(writev); return fails_on(fd) ? -1 : real(fd, parts, n); }
int fsync(int fd) { NEXT(fsync); return fails_on(fd) ? -1 : real(fd); }
int fdatasync(int fd) { NEXT(fdatasync); return fails_on(fd) ? -1 : real(fd); }
int ftruncate(int fd, off_t n) { NEXT(ftruncate); return fails_on(fd) ? -1 : real(fd, n); }
int ftruncate64(int fd, off64_t n) { NEXT(ftruncate64); return fails_on(fd) ? -1 : real(fd, n); }
int posix_fallocate(int fd, off_t at, off_t n) { NEXT(posix_fallocate); return fails_on(fd) ? errno : real(fd, at, n); }
int rename(const char *from, const char *to) { NEXT(rename); return fails(to) ? -1 : real(from, to); }
int mkdir(const char *path, mode_t mode) { NEXT(mkdir); return fails(path) ? -1 : real(path, mode); }
