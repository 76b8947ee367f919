/* A disk for a redis-server that loses what was not flushed, and that can be full (LD_PRELOAD, Linux).
 *
 * Power cut: beside each append-only file X stands X.flushed, with the length that the last fsync covered. The test kills
 * the server with -9 and cuts X back to it: what a machine without power may have lost, at worst.
 * Full disk: while the file named by DISK_SHIM_FULL exists, a write to an append-only file writes half, then nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH 4096

static int is_log(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH - 16);
    if (n < 4) return 0;
    path[n] = 0;
    return strcmp(path + n - 4, ".aof") == 0;
}

static int flush(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    char path[PATH];
    struct stat before;
    /* The length before the flush: what is written meanwhile is not covered. */
    int log = is_log(fd, path) && fstat(fd, &before) == 0;
    int done = real(fd);
    if (done == 0 && log) {
        char length[32];
        int digits = snprintf(length, sizeof length, "%020lld", (long long)before.st_size);
        strcat(path, ".flushed");
        int note = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (note >= 0) {
            (void)!pwrite(note, length, digits, 0);
            close(note);
        }
        errno = 0;
    }
    return done;
}

int fsync(int fd) { return flush("fsync", fd); }
int fdatasync(int fd) { return flush("fdatasync", fd); }

ssize_t write(int fd, const void *bytes, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    const char *full = getenv("DISK_SHIM_FULL");
    char path[PATH];
    if (full && access(full, F_OK) == 0 && is_log(fd, path)) {
        if (count > 1) return real(fd, bytes, count / 2);
        errno = ENOSPC;
        return -1;
    }
    return real(fd, bytes, count);
}
