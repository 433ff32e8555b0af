/* Reads or writes one file in chunks of one size, and says how long it took, for `thalweg bench volume`.
 *
 *   access read|write|random FILE CHUNK FIRST BYTES SEED
 *   access small|make|get|remove DIRECTORY BYTES 0 COUNT SEED
 *   access answer|ask ADDRESS BYTES PORT COUNT SEED
 *
 * FILE is a path or, if compiled with -DNFS -lnfs, a URL nfs://HOST/PATH?version=3. With &readahead=N it has a page cache too. `read` and `write` go through BYTES
 * bytes from byte FIRST on; `write` makes the file and ends with fsync. `random` reads BYTES / CHUNK chunks, each at a random
 * multiple of CHUNK below FIRST. `small` makes COUNT files of BYTES bytes, asks for the attributes of each, reads each, and
 * removes each; the percentiles are then those of making one. `make`, `get` and `remove` do only that. Prints "ready" when the
 * file is open, and begins when a line comes on standard input. Prints {"seconds": .., "bytes": .., "p50_us": .., "p99_us": ..,
 * "made_seconds": ..}: the percentiles are those of single requests, and making the files took `made_seconds`. `ask` sends
 * COUNT messages over TCP, each after the answer to the one before, and `answer` sends each back.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
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
static uint64_t small(const char *directory, int only, char *chunk, size_t bytes, uint64_t count, uint32_t *took_us,
                      double *made_seconds) {
    char name[4096];
    struct stat s;
    uint64_t moved = 0, begin = now_ns();
    for (int step = 0; step < 4; step++) {
        if (only >= 0 && only != step) continue;
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
            if (!step || only >= 0) took_us[i] = (now_ns() - before) / 1000;
        }
        if (!step) *made_seconds = (now_ns() - begin) / 1e9;
    }
    return moved;
}

/* A socket that listens, or is connected. */
static int tcp(const char *address, uint16_t port, int listens) {
    int on = 1, s = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = inet_addr(address)};
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int failed = listens ? bind(s, (void *)&at, sizeof at) || listen(s, 1) : connect(s, (void *)&at, sizeof at);
    if (failed) fail(address, strerror(errno));
    return s;
}

/* Moves messages one at a time: receives and returns each, or sends each and waits for it. */
static uint64_t talk(int s, int answers, char *chunk, size_t bytes, uint64_t count, uint32_t *took_us) {
    for (uint64_t i = 0; i < count; i++) {
        uint64_t before = now_ns();
        if (!answers && send(s, chunk, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) fail("send", strerror(errno));
        if (recv(s, chunk, bytes, MSG_WAITALL) != (ssize_t)bytes) fail("receive", strerror(errno));
        if (answers && send(s, chunk, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) fail("send", strerror(errno));
        took_us[i] = (now_ns() - before) / 1000;
    }
    return count * bytes;
}

int main(int argc, char **argv) {
    if (argc != 7) fail("usage", "access read|write|random|small|ask|answer FILE CHUNK FIRST BYTES SEED");
    int writes = !strcmp(argv[1], "write"), random = !strcmp(argv[1], "random"), files, only = -1;
    const char *steps[] = {"make", "", "get", "remove"};
    for (int step = 0; step < 4; step++) if (!strcmp(argv[1], steps[step])) only = step;
    files = only >= 0 || !strcmp(argv[1], "small");
    int asks = !strcmp(argv[1], "ask"), answers = !strcmp(argv[1], "answer");
    size_t chunk_bytes = strtoull(argv[3], NULL, 10);
    uint64_t first = strtoull(argv[4], NULL, 10), bytes = strtoull(argv[5], NULL, 10);
    uint64_t seed = strtoull(argv[6], NULL, 10) * 0x9e3779b97f4a7c15ull | 1;
    if (!chunk_bytes || (random && first < chunk_bytes)) fail("usage", "chunks have bytes, and a file holds one of them");
    char *chunk = malloc(chunk_bytes);
    uint64_t requests = files || asks || answers ? bytes : (bytes + chunk_bytes - 1) / chunk_bytes, moved = 0;
    uint32_t *took_us = malloc((requests + 1) * sizeof *took_us);
    if (!chunk || !took_us) fail("memory", "there is too little");
    for (size_t i = 0; i < chunk_bytes; i++) chunk[i] = next(&seed) >> 32;
    int listens = answers ? tcp(argv[2], first, 1) : -1;
    if (!files && !asks && !answers) open_file(argv[2], writes);
    printf("ready\n");
    fflush(stdout);
    char line[16];
    if (!fgets(line, sizeof line, stdin)) return 1;
    uint64_t begin = now_ns(), before = begin, done = 0;
    double made_seconds = 0;
    if (files) {
        moved = small(argv[2], only, chunk, chunk_bytes, requests, took_us, &made_seconds);
        done = requests;
    }
    if (asks || answers) {
        int s = answers ? accept(listens, NULL, NULL) : tcp(argv[2], first, 0);
        moved = talk(s, answers, chunk, chunk_bytes, requests, took_us);
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
