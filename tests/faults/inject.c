/* Fails calls on files below given folders, with an errno: preloaded into a program and all that it starts.

   FAULT_BELOW: the folders, each ended by a colon. FAULT: "FUNCTIONS ERRNO FIRST COUNT", read at each call, so that a
   program sets it at the moment that it chooses. FUNCTIONS are words of the table below, joined by commas. The
   calls FIRST to FIRST + COUNT - 1 fail, of those that each process makes; COUNT 0: all from FIRST on. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static int calls;

static int below(const char *path) {
    const char *folders = getenv("FAULT_BELOW");
    while (folders && *folders) {
        const char *end = strchr(folders, ':');
        size_t length = end ? (size_t)(end - folders) : strlen(folders);
        if (length && !strncmp(path, folders, length) && (path[length] == '/' || !path[length])) return 1;
        folders += length + (end != NULL);
    }
    return 0;
}

/* Whether this call is to fail; errno is set then. */
static int fails(const char *function, int folder, const char *path) {
    const char *fault = getenv("FAULT");
    char functions[256], full[2 * PATH_MAX], link[64];
    int number, first, count, saved = errno;
    if (!fault || !*fault || sscanf(fault, "%255s %d %d %d", functions, &number, &first, &count) != 4) return 0;
    char *at = strstr(functions, function), after = at ? at[strlen(function)] : 'x';
    if (!at || (after && after != ',') || (at != functions && at[-1] != ',')) return 0;
    full[0] = 0;
    if (path && path[0] == '/') {
        strncat(full, path, sizeof full - 1);
    } else {
        if (folder == AT_FDCWD) strcpy(link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        long size = syscall(SYS_readlinkat, AT_FDCWD, link, full, PATH_MAX);
        if (size <= 0) { errno = saved; return 0; }
        full[size] = 0;
        if (path && *path) { strcat(full, "/"); strncat(full, path, PATH_MAX - 1); }
    }
    if (!below(full)) { errno = saved; return 0; }
    int call = __sync_add_and_fetch(&calls, 1);
    if (call < first || (count && call >= first + count)) { errno = saved; return 0; }
    const char *log = getenv("FAULT_LOG");
    if (log) {
        int file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT, 0600);
        dprintf(file, "%s %s\n", function, full);
        syscall(SYS_close, file);
    }
    errno = number;
    return 1;
}

#define REAL(name) ((__typeof__(&name))({ static void *p; if (!p) p = dlsym(RTLD_NEXT, #name); p; }))

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        const char *what = flags & (O_CREAT | O_WRONLY | O_RDWR) ? "create" : "open"; \
        return fails(what, AT_FDCWD, path) ? -1 : REAL(name)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        const char *what = flags & (O_CREAT | O_WRONLY | O_RDWR) ? "create" : "open"; \
        return fails(what, folder, path) ? -1 : REAL(name)(folder, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        return fails(strpbrk(mode, "wa+") ? "create" : "open", AT_FDCWD, path) ? NULL : REAL(name)(path, mode); \
    }
FOPEN(fopen)
FOPEN(fopen64)

#define ONE(result, name, word, path) \
    result name(const char *path) { return fails(word, AT_FDCWD, path) ? -1 : REAL(name)(path); }
ONE(int, unlink, "unlink", path)
ONE(int, rmdir, "unlink", path)
ONE(int, chdir, "exec", path)

#define WITH(name, word, ...) return fails(word, __VA_ARGS__) ? -1 : REAL(name)
int mkdir(const char *path, mode_t mode) { WITH(mkdir, "mkdir", AT_FDCWD, path)(path, mode); }
int mkdirat(int folder, const char *path, mode_t mode) { WITH(mkdirat, "mkdir", folder, path)(folder, path, mode); }
int unlinkat(int folder, const char *path, int f) { WITH(unlinkat, "unlink", folder, path)(folder, path, f); }
int chmod(const char *path, mode_t mode) { WITH(chmod, "chmod", AT_FDCWD, path)(path, mode); }
int fchmod(int file, mode_t mode) { WITH(fchmod, "chmod", file, NULL)(file, mode); }
int rename(const char *a, const char *b) { WITH(rename, "rename", AT_FDCWD, b)(a, b); }
int renameat(int x, const char *a, int y, const char *b) { WITH(renameat, "rename", y, b)(x, a, y, b); }
int link(const char *a, const char *b) { WITH(link, "link", AT_FDCWD, b)(a, b); }
int linkat(int x, const char *a, int y, const char *b, int f) { WITH(linkat, "link", y, b)(x, a, y, b, f); }
int symlink(const char *a, const char *b) { WITH(symlink, "link", AT_FDCWD, b)(a, b); }
int flock(int file, int how) { WITH(flock, "flock", file, NULL)(file, how); }
int fsync(int file) { WITH(fsync, "fsync", file, NULL)(file); }
int fdatasync(int file) { WITH(fdatasync, "fsync", file, NULL)(file); }
int ftruncate(int file, off_t size) { WITH(ftruncate, "write", file, NULL)(file, size); }
int ftruncate64(int file, off64_t size) { WITH(ftruncate64, "write", file, NULL)(file, size); }
int futimens(int file, const struct timespec t[2]) { WITH(futimens, "utime", file, NULL)(file, t); }
int utimensat(int folder, const char *path, const struct timespec t[2], int f) {
    WITH(utimensat, "utime", folder, path)(folder, path, t, f);
}
ssize_t write(int file, const void *data, size_t size) { WITH(write, "write", file, NULL)(file, data, size); }
ssize_t pwrite(int file, const void *d, size_t s, off_t o) { WITH(pwrite, "write", file, NULL)(file, d, s, o); }
ssize_t pwrite64(int file, const void *d, size_t s, off64_t o) { WITH(pwrite64, "write", file, NULL)(file, d, s, o); }
ssize_t read(int file, void *data, size_t size) { WITH(read, "read", file, NULL)(file, data, size); }
ssize_t pread(int file, void *d, size_t s, off_t o) { WITH(pread, "read", file, NULL)(file, d, s, o); }
ssize_t pread64(int file, void *d, size_t s, off64_t o) { WITH(pread64, "read", file, NULL)(file, d, s, o); }
ssize_t sendfile(int out, int in, off_t *o, size_t s) { WITH(sendfile, "write", out, NULL)(out, in, o, s); }
ssize_t sendfile64(int out, int in, off64_t *o, size_t s) { WITH(sendfile64, "write", out, NULL)(out, in, o, s); }
int statvfs(const char *path, struct statvfs *s) { WITH(statvfs, "statfs", AT_FDCWD, path)(path, s); }
int statvfs64(const char *path, struct statvfs64 *s) { WITH(statvfs64, "statfs", AT_FDCWD, path)(path, s); }
int stat(const char *path, struct stat *s) { WITH(stat, "stat", AT_FDCWD, path)(path, s); }
int stat64(const char *path, struct stat64 *s) { WITH(stat64, "stat", AT_FDCWD, path)(path, s); }
int lstat(const char *path, struct stat *s) { WITH(lstat, "stat", AT_FDCWD, path)(path, s); }
int lstat64(const char *path, struct stat64 *s) { WITH(lstat64, "stat", AT_FDCWD, path)(path, s); }
int fstat(int file, struct stat *s) { WITH(fstat, "stat", file, NULL)(file, s); }
int fstat64(int file, struct stat64 *s) { WITH(fstat64, "stat", file, NULL)(file, s); }
int fstatat(int folder, const char *path, struct stat *s, int f) {
    WITH(fstatat, "stat", folder, path)(folder, path, s, f);
}
int fstatat64(int folder, const char *path, struct stat64 *s, int f) {
    WITH(fstatat64, "stat", folder, path)(folder, path, s, f);
}
int execve(const char *path, char *const arguments[], char *const variables[]) {
    WITH(execve, "exec", AT_FDCWD, "")(path, arguments, variables);
}
int execv(const char *path, char *const arguments[]) { WITH(execv, "exec", AT_FDCWD, "")(path, arguments); }

DIR *opendir(const char *path) { return fails("list", AT_FDCWD, path) ? NULL : REAL(opendir)(path); }
DIR *fdopendir(int file) { return fails("list", file, NULL) ? NULL : REAL(fdopendir)(file); }

#define MMAP(name, offset) \
    void *name(void *at, size_t size, int protection, int flags, int file, offset from) { \
        if (file >= 0 && fails(protection & PROT_EXEC ? "mmapexec" : "mmap", file, NULL)) return MAP_FAILED; \
        return REAL(name)(at, size, protection, flags, file, from); \
    }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

/* The loader calls no function that can be replaced, so what it says stands in for its mmap. */
static __thread char load_error[2 * PATH_MAX];

void *dlopen(const char *path, int how) {
    if (path && path[0] == '/' && fails("mmapexec", AT_FDCWD, path)) {
        snprintf(load_error, sizeof load_error, "%s: failed to map segment from shared object", path);
        return NULL;
    }
    return REAL(dlopen)(path, how);
}

char *dlerror(void) {
    static __thread char told[2 * PATH_MAX];
    if (!load_error[0]) return REAL(dlerror)();
    strcpy(told, load_error);
    load_error[0] = 0;
    return told;
}
