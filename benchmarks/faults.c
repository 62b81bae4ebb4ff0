/* Count, log and fail system calls that write, for benchmarks/robustness_faults.py (LD_PRELOAD).
 *
 * FAULTS_CONTROL names a file that holds `struct control`, shared by all processes: the harness
 * changes it between commands. FAULTS_FOLDERS are the folders below which calls are counted, separated
 * by colons. FAULTS_LOG gets a line per counted call ("12 write PATH"), per file that is opened for
 * writing anywhere ("open PATH"), and per connection ("connect FAMILY ADDRESS").
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct control {
    long count;       /* calls so far */
    long fail_at;     /* the number of the call that fails; 0: none */
    long fail_all;    /* whether all later ones fail, too */
    long error;       /* the errno of a failing call */
    long clock_shift; /* seconds that are added to the time of day */
    long log;         /* whether lines are written */
};

static struct control *control;
static char folders[8][4096];
static int n_folders, log_fd = -1;

__attribute__((constructor)) static void start(void) {
    const char *place = getenv("FAULTS_CONTROL"), *given = getenv("FAULTS_FOLDERS"), *log = getenv("FAULTS_LOG");
    if (place) {
        int fd = syscall(SYS_openat, AT_FDCWD, place, O_RDWR | O_CLOEXEC, 0);
        if (fd >= 0) {
            void *map = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (map != MAP_FAILED) control = map;
            syscall(SYS_close, fd);
        }
    }
    if (log) log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (log_fd >= 0) { /* far from the numbers that programs close or use */
        int high = syscall(SYS_fcntl, log_fd, F_DUPFD_CLOEXEC, 900);
        if (high >= 0) { syscall(SYS_close, log_fd); log_fd = high; }
    }
    while (given && *given && n_folders < 8) {
        size_t n = strcspn(given, ":");
        snprintf(folders[n_folders++], 4096, "%.*s", (int)n, given);
        given += n + (given[n] == ':');
    }
}

static void say(const char *form, ...) {
    char line[8300];
    va_list list;
    va_start(list, form);
    int n = vsnprintf(line, sizeof line, form, list);
    va_end(list);
    if (n >= (int)sizeof line) n = sizeof line - 1;
    if (log_fd >= 0 && control && control->log) (void)!syscall(SYS_write, log_fd, line, n);
}

/* The path as the kernel sees it: absolute, though links in it are not resolved. */
static void whole(int folder, const char *path, char *out) {
    char base[4096] = "", link[64];
    if (path[0] != '/') {
        if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
        base[n < 0 ? 0 : n] = 0;
        snprintf(out, 8192, "%s/%s", base, path);
    } else snprintf(out, 8192, "%s", path);
}

static void of_file(int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, out, 4095);
    out[n < 0 ? 0 : n] = 0;
}

/* Count a call; return whether it is to fail. */
static int fails(const char *what, const char *path) {
    if (!control) return 0;
    int ours = 0;
    for (int i = 0; i < n_folders; i++) {
        size_t n = strlen(folders[i]);
        ours |= !strncmp(path, folders[i], n) && (path[n] == '/' || !path[n]);
    }
    if (!ours) return 0;
    long number = __atomic_add_fetch(&control->count, 1, __ATOMIC_SEQ_CST);
    say("%ld %s %s\n", number, what, path);
    if (!control->fail_at || number < control->fail_at) return 0;
    if (number > control->fail_at && !control->fail_all) return 0;
    errno = (int)control->error;
    return 1;
}

static int fails_at(const char *what, int folder, const char *path) {
    int before = errno;
    char place[8192];
    whole(folder, path, place);
    errno = before;
    if (!strcmp(what, "mkdir")) say("open %s/\n", place);
    return fails(what, place);
}

static int fails_on(const char *what, int fd) {
    int before = errno;
    char place[4096];
    of_file(fd, place);
    errno = before;
    return place[0] == '/' && fails(what, place);
}

#define NEXT(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int opens(int folder, const char *path, int flags) {
    char place[8192];
    int writes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
    if (!writes) return 0;
    whole(folder, path, place);
    say("open %s\n", place);
    return (flags & (O_CREAT | O_TRUNC)) && fails("open", place);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        NEXT(name); va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        return opens(AT_FDCWD, path, flags) ? -1 : real(path, flags, mode); }
#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        NEXT(name); va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        return opens(folder, path, flags) ? -1 : real(folder, path, flags, mode); }
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        NEXT(name); int flags = strpbrk(mode, "wa") ? O_WRONLY | O_CREAT : strchr(mode, '+') ? O_RDWR : O_RDONLY; \
        return opens(AT_FDCWD, path, flags) ? NULL : real(path, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64) FOPEN(fopen) FOPEN(fopen64)

ssize_t write(int fd, const void *data, size_t n) { NEXT(write); return fails_on("write", fd) ? -1 : real(fd, data, n); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { NEXT(pwrite); return fails_on("pwrite", fd) ? -1 : real(fd, data, n, at); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) { NEXT(pwrite64); return fails_on("pwrite", fd) ? -1 : real(fd, data, n, at); }
ssize_t writev(int fd, const struct iovec *parts, int n) { NEXT(writev); return fails_on("writev", fd) ? -1 : real(fd, parts, n); }
ssize_t sendfile(int out, int in, off_t *at, size_t n);
ssize_t sendfile64(int out, int in, off64_t *at, size_t n);
ssize_t sendfile(int out, int in, off_t *at, size_t n) { NEXT(sendfile); return fails_on("sendfile", out) ? -1 : real(out, in, at, n); }
ssize_t sendfile64(int out, int in, off64_t *at, size_t n) { NEXT(sendfile64); return fails_on("sendfile", out) ? -1 : real(out, in, at, n); }
int fsync(int fd) { NEXT(fsync); return fails_on("fsync", fd) ? -1 : real(fd); }
int fdatasync(int fd) { NEXT(fdatasync); return fails_on("fdatasync", fd) ? -1 : real(fd); }
int ftruncate(int fd, off_t n) { NEXT(ftruncate); return fails_on("ftruncate", fd) ? -1 : real(fd, n); }
int ftruncate64(int fd, off64_t n) { NEXT(ftruncate64); return fails_on("ftruncate", fd) ? -1 : real(fd, n); }
int fallocate(int fd, int mode, off_t at, off_t n) { NEXT(fallocate); return fails_on("fallocate", fd) ? -1 : real(fd, mode, at, n); }
int fallocate64(int fd, int mode, off64_t at, off64_t n) { NEXT(fallocate64); return fails_on("fallocate", fd) ? -1 : real(fd, mode, at, n); }
int posix_fallocate(int fd, off_t at, off_t n) { NEXT(posix_fallocate); return fails_on("posix_fallocate", fd) ? errno : real(fd, at, n); }
int posix_fallocate64(int fd, off64_t at, off64_t n) { NEXT(posix_fallocate64); return fails_on("posix_fallocate", fd) ? errno : real(fd, at, n); }
int rename(const char *from, const char *to) { NEXT(rename); return fails_at("rename", AT_FDCWD, to) ? -1 : real(from, to); }
int renameat(int a, const char *from, int b, const char *to) { NEXT(renameat); return fails_at("rename", b, to) ? -1 : real(a, from, b, to); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { NEXT(renameat2); return fails_at("rename", b, to) ? -1 : real(a, from, b, to, flags); }
int mkdir(const char *path, mode_t mode) { NEXT(mkdir); return fails_at("mkdir", AT_FDCWD, path) ? -1 : real(path, mode); }
int mkdirat(int folder, const char *path, mode_t mode) { NEXT(mkdirat); return fails_at("mkdir", folder, path) ? -1 : real(folder, path, mode); }
int link(const char *from, const char *to) { NEXT(link); return fails_at("link", AT_FDCWD, to) ? -1 : real(from, to); }
int symlink(const char *from, const char *to) { NEXT(symlink); return fails_at("symlink", AT_FDCWD, to) ? -1 : real(from, to); }

int connect(int fd, const struct sockaddr *to, socklen_t n) {
    NEXT(connect);
    char host[INET6_ADDRSTRLEN] = "";
    if (to->sa_family == AF_INET) inet_ntop(AF_INET, &((struct sockaddr_in *)to)->sin_addr, host, sizeof host);
    if (to->sa_family == AF_INET6) inet_ntop(AF_INET6, &((struct sockaddr_in6 *)to)->sin6_addr, host, sizeof host);
    if (to->sa_family == AF_UNIX) say("connect unix %s\n", ((struct sockaddr_un *)to)->sun_path);
    else say("connect %d %s\n", to->sa_family, host);
    return real(fd, to, n);
}

ssize_t sendto(int fd, const void *data, size_t n, int flags, const struct sockaddr *to, socklen_t size) {
    NEXT(sendto);
    if (to && (to->sa_family == AF_INET || to->sa_family == AF_INET6)) say("connect %d sendto\n", to->sa_family);
    return real(fd, data, n, flags, to, size);
}

/* The clock: set back or forward for whoever asks for the time of day. */
int clock_gettime(clockid_t which, struct timespec *now) {
    NEXT(clock_gettime);
    int failed = real(which, now);
    if (!failed && control && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += control->clock_shift;
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec own;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &own);
    now->tv_sec = own.tv_sec;
    now->tv_usec = own.tv_nsec / 1000;
    return 0;
}
