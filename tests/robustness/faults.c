/* For run.py (LD_PRELOAD). A disk that fills up: counts calls that write below a folder "out", and
 * fails with "no space left on device" from one of them on. And a list of all names that a process
 * opens to write, makes or moves to, also from C and C++.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static long *count, fail_at;
static int listed_in = -1;

void faults_arm(long number, long *shared) { fail_at = number, count = shared; }
void faults_list(int fd) { listed_in = fd; }

/* Write the whole path as a line: `path` from the folder `at`. */
static void list(int at, const char *path) {
    char link[64], line[8192];
    ssize_t n = 0;
    if (listed_in < 0) return;
    if (path[0] != '/') {
        snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
        n = syscall(SYS_readlinkat, AT_FDCWD, link, line, 4096);
        if (n < 0) return;
        line[n++] = '/';
    }
    n += snprintf(line + n, 4000, "%s\n", path);
    syscall(SYS_write, listed_in, line, n);
}

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
#define WRITES (flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR))
#define NEXT(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define MODE va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more)
#define OPEN(name) int name(const char *path, int flags, ...) { \
    NEXT(name); MODE; if (WRITES) list(AT_FDCWD, path); return CREATES && fails(path) ? -1 : real(path, flags, mode); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { \
    NEXT(name); MODE; if (WRITES) list(at, path); return CREATES && fails(path) ? -1 : real(at, path, flags, mode); }
#define FOPEN(name) FILE *name(const char *path, const char *mode) { \
    NEXT(name); if (strpbrk(mode, "wa+")) list(AT_FDCWD, path); return strpbrk(mode, "wa") && fails(path) ? NULL : real(path, mode); }
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
int rename(const char *from, const char *to) { NEXT(rename); list(AT_FDCWD, to); return fails(to) ? -1 : real(from, to); }
int renameat(int at, const char *from, int into, const char *to) { NEXT(renameat); list(into, to); return fails(to) ? -1 : real(at, from, into, to); }
int renameat2(int at, const char *from, int into, const char *to, unsigned flags) { NEXT(renameat2); list(into, to); return fails(to) ? -1 : real(at, from, into, to, flags); }
int mkdir(const char *path, mode_t mode) { NEXT(mkdir); list(AT_FDCWD, path); return fails(path) ? -1 : real(path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { NEXT(mkdirat); list(at, path); return fails(path) ? -1 : real(at, path, mode); }
int link(const char *from, const char *to) { NEXT(link); list(AT_FDCWD, to); return real(from, to); }
int linkat(int at, const char *from, int into, const char *to, int flags) { NEXT(linkat); list(into, to); return real(at, from, into, to, flags); }
int symlink(const char *text, const char *path) { NEXT(symlink); list(AT_FDCWD, path); return real(text, path); }
int symlinkat(const char *text, int at, const char *path) { NEXT(symlinkat); list(at, path); return real(text, at, path); }
int truncate(const char *path, off_t n) { NEXT(truncate); list(AT_FDCWD, path); return fails(path) ? -1 : real(path, n); }
int chmod(const char *path, mode_t mode) { NEXT(chmod); list(AT_FDCWD, path); return real(path, mode); }
