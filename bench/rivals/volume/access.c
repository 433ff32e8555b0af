/* Reads or writes one file in chunks of one size, and says how long it took, for `thalweg bench volume`.
 *
 *   access read|write|random FILE CHUNK FIRST BYTES SEED
 *   access small DIRECTORY BYTES 0 COUNT SEED
 *
 * FILE is a path or, if compiled with -DNFS -lnfs, a URL nfs://HOST/PATH?version=3. With &readahead=N it has a page cache too. `read` and `write` go through BYTES
 * bytes from byte FIRST on; `write` makes the file and ends with fsync. `random` reads BYTES / CHUNK chunks, each at a random
 * multiple of CHUNK below FIRST. `small` makes COUNT files of BYTES bytes, asks for the attributes of each, reads each, and
 * removes each; the percentiles are then those of making one. Prints "ready" when the file is open, and begins when a line comes on standard
 * input. Prints {"seconds": .., "bytes": .., "p50_us": .., "p99_us": .., "made_seconds": ..}: the percentiles are those of single requests, and
 * making the files took `made_seconds`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef NFS
#include <nfsc/libnfs.h>
static struct nfs_context *nfs;
static struct nfsfh *remote;
/* Pages of 4 KiB that a client keeps which also reads ahead: 256 MiB, a power of two. */
enum { CACHED_PAGES = 65536 };
#endif

static int local = -1;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void open_file(const char *name, int writes) {
    if (strncmp(name, "nfs://", 6) != 0) {
        local = open(name, writes ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY, 0644);
        if (local < 0) fail(name, strerror(errno));
        return;
    }
#ifdef NFS
    nfs = nfs_init_context();
    struct nfs_url *url = nfs ? nfs_parse_url_full(nfs, name) : NULL;
    if (!url) fail(name, "not a URL of NFS");
    if (strstr(name, "readahead=")) nfs_set_pagecache(nfs, CACHED_PAGES);
    if (nfs_mount(nfs, url->server, url->path)) fail(name, nfs_get_error(nfs));
    int failed = writes ? nfs_creat(nfs, url->file, 0644, &remote) : nfs_open(nfs, url->file, O_RDONLY, &remote);
    if (failed) fail(name, nfs_get_error(nfs));
#else
    fail(name, "compiled without libnfs");
#endif
}

static size_t move(int writes, uint64_t at, char *chunk, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t n;
        if (local >= 0) {
            n = writes ? pwrite(local, chunk + done, bytes - done, at + done)
                       : pread(local, chunk + done, bytes - done, at + done);
            if (n < 0) fail(writes ? "write" : "read", strerror(errno));
        } else {
#ifdef NFS
            n = writes ? nfs_pwrite(nfs, remote, at + done, bytes - done, chunk + done)
                       : nfs_pread(nfs, remote, at + done, bytes - done, chunk + done);
            if (n < 0) fail(writes ? "write" : "read", nfs_get_error(nfs));
#else
            n = 0;
#endif
        }
        if (n == 0) break;
        done += n;
    }
    return done;
}

static void make_durable(void) {
    if (local >= 0) {
        if (fsync(local)) fail("fsync", strerror(errno));
        if (close(local)) fail("close", strerror(errno));
        return;
    }
#ifdef NFS
    if (nfs_fsync(nfs, remote)) fail("fsync", nfs_get_error(nfs));
#endif
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* Marsaglia, "Xorshift RNGs", 2003. */
static uint64_t next(uint64_t *x) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    return *x ^= *x << 17;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Makes, inspects, reads and removes files. */
static uint64_t small(const char *directory, char *chunk, size_t bytes, uint64_t count, uint32_t *took_us, double *made_seconds) {
    char name[4096];
    struct stat s;
    uint64_t moved = 0, begin = now_ns();
    for (int step = 0; step < 4; step++) {
        for (uint64_t i = 0; i < count; i++) {
            uint64_t before = now_ns();
            int file;
            snprintf(name, sizeof name, "%s/%06llu", directory, (unsigned long long)i);
            switch (step) {
            case 0:
            case 2:
                if ((file = open(name, step ? O_RDONLY : O_WRONLY | O_CREAT | O_EXCL, 0644)) < 0) fail(name, strerror(errno));
                local = file;
                if (move(!step, 0, chunk, bytes) != bytes) fail(name, "it is too short");
                if (close(file)) fail(name, strerror(errno));
                moved += bytes;
                break;
            case 1:
                if (stat(name, &s) || (uint64_t)s.st_size != bytes) fail(name, "its size is wrong");
                break;
            default:
                if (unlink(name)) fail(name, strerror(errno));
            }
            if (!step) took_us[i] = (now_ns() - before) / 1000;
        }
        if (!step) *made_seconds = (now_ns() - begin) / 1e9;
    }
    return moved;
}

int main(int argc, char **argv) {
    if (argc != 7) fail("usage", "access read|write|random FILE CHUNK FIRST BYTES SEED");
    int writes = !strcmp(argv[1], "write"), random = !strcmp(argv[1], "random"), files = !strcmp(argv[1], "small");
    size_t chunk_bytes = strtoull(argv[3], NULL, 10);
    uint64_t first = strtoull(argv[4], NULL, 10), bytes = strtoull(argv[5], NULL, 10);
    uint64_t seed = strtoull(argv[6], NULL, 10) * 0x9e3779b97f4a7c15ull | 1;
    if (!chunk_bytes || (random && first < chunk_bytes)) fail("usage", "chunks have bytes, and a file holds one of them");
    char *chunk = malloc(chunk_bytes);
    uint64_t requests = files ? bytes : (bytes + chunk_bytes - 1) / chunk_bytes, moved = 0;
    uint32_t *took_us = malloc((requests + 1) * sizeof *took_us);
    if (!chunk || !took_us) fail("memory", "there is too little");
    for (size_t i = 0; i < chunk_bytes; i++) chunk[i] = next(&seed) >> 32;
    if (!files) open_file(argv[2], writes);
    printf("ready\n");
    fflush(stdout);
    char line[16];
    if (!fgets(line, sizeof line, stdin)) return 1;
    uint64_t begin = now_ns(), before = begin, done = 0;
    double made_seconds = 0;
    if (files) {
        moved = small(argv[2], chunk, chunk_bytes, requests, took_us, &made_seconds);
        done = requests;
    }
    for (; done < requests; done++) {
        uint64_t at = random ? next(&seed) % (first / chunk_bytes) * chunk_bytes : first + done * chunk_bytes;
        uint64_t left = bytes - done * chunk_bytes;
        size_t n = random || left > chunk_bytes ? chunk_bytes : left;
        size_t got = move(writes, at, chunk, n);
        uint64_t now = now_ns();
        took_us[done] = (now - before) / 1000;
        before = now;
        moved += got;
        if (got < n) break;
    }
    if (writes) make_durable();
    double seconds = (now_ns() - begin) / 1e9;
    qsort(took_us, done, sizeof *took_us, by_size);
    printf("{\"seconds\": %.6f, \"bytes\": %llu, \"p50_us\": %u, \"p99_us\": %u, \"made_seconds\": %.6f}\n", seconds,
           (unsigned long long)moved, done ? took_us[done / 2] : 0, done ? took_us[done * 99 / 100] : 0, made_seconds);
    return 0;
}
