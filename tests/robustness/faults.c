/* A disk that fills up, for attacks.py (LD_PRELOAD): counts calls that write below a folder, and
 * fails with "no space left on device" from one of them on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[4096];
static long *count, fail_at;

/* A counter that processes forked from now on share with this one. */
void faults_start(void) {
    count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void faults_arm(const char *place, long number) {
    if (!count) faults_start();
    snprintf(folder, sizeof folder, "%s", place);
    fail_at = number;
    *count = 0;
}

long faults_count(void) { return *count; }

static int fails(const char *path) {
    size_t n = strlen(folder);
    if (!n || strncmp(path, folder, n) || (path[n] != '/' && path[n])) return 0;
    long number = __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
    if (!fail_at || number < fail_at) return 0;
    errno = ENOSPC;
    return 1;
}

/* Where a link of /proc leads to. */
static void of_link(const char *form, int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, form, fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, out, 4095);
    out[n < 0 ? 0 : n] = 0;
}

static int fails_at(int at, const char *path) {
    int before = errno;
    char base[4096] = "", whole[8200];
    if (path[0] != '/') of_link(at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at, base);
    snprintf(whole, sizeof whole, path[0] == '/' ? "%s%s" : "%s/%s", base, path);
    errno = before;
    return fails(whole);
}

static int fails_on(int fd) {
    int before = errno;
    char place[4096];
    of_link("/proc/self/fd/%d", fd, place);
    errno = before;
    return fails(place);
}

#define CREATES(flags) ((flags) & (O_CREAT | O_TRUNC))
#define NEXT(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        NEXT(name); va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        return CREATES(flags) && fails_at(AT_FDCWD, path) ? -1 : real(path, flags, mode); }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        NEXT(name); va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        return CREATES(flags) && fails_at(at, path) ? -1 : real(at, path, flags, mode); }
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        NEXT(name); return strpbrk(mode, "wa") && fails_at(AT_FDCWD, path) ? NULL : real(path, mode); }
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
int rename(const char *from, const char *to) { NEXT(rename); return fails_at(AT_FDCWD, to) ? -1 : real(from, to); }
int mkdir(const char *path, mode_t mode) { NEXT(mkdir); return fails_at(AT_FDCWD, path) ? -1 : real(path, mode); }
