/* Writes a file with io_submit and O_DIRECT, again and again, while threads read it through the kernel's pages, and
   prints how many completed writes were read back old, and at the end whether the last one is. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BYTES = 65536, ROUNDS = 1500, READERS = 4 };

static const char *path;
static volatile int over;

static int old_bytes(int fd, unsigned char now) {
    static __thread unsigned char bytes[BYTES];
    int old = 0;
    if (pread(fd, bytes, BYTES, 0) != BYTES) exit(3);
    for (int i = 0; i < BYTES; i++) old += bytes[i] != now;
    return old;
}

static void *reads(void *unused) {
    int fd = open(path, O_RDONLY);
    while (!over) old_bytes(fd, 0);
    return unused;
}

int main(int argc, char **argv) {
    aio_context_t context = 0;
    unsigned char *bytes;
    pthread_t readers[READERS];
    int old = 0, fd, plain;
    path = argv[argc - 1];
    fd = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
    plain = open(path, O_RDONLY);
    if (fd < 0 || plain < 0 || posix_memalign((void **)&bytes, 4096, BYTES)) return 2;
    memset(bytes, 0, BYTES);
    if (pwrite(fd, bytes, BYTES, 0) != BYTES || syscall(SYS_io_setup, 8, &context)) return 2;
    for (int i = 0; i < READERS; i++) pthread_create(&readers[i], NULL, reads, NULL);
    for (int round = 1; round <= ROUNDS; round++) {
        struct iocb write = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = fd, .aio_nbytes = BYTES};
        struct iocb *writes[] = {&write};
        struct io_event done;
        memset(bytes, round, BYTES);
        write.aio_buf = (uintptr_t)bytes;
        if (syscall(SYS_io_submit, context, 1, writes) != 1) return 4;
        if (syscall(SYS_io_getevents, context, 1, 1, &done, NULL) != 1 || done.res != BYTES) return 5;
        old += old_bytes(plain, (unsigned char)round) > 0;
    }
    over = 1;
    for (int i = 0; i < READERS; i++) pthread_join(readers[i], NULL);
    printf("%d of %d, then %d bytes\n", old, ROUNDS, old_bytes(plain, (unsigned char)ROUNDS));
    return 0;
}
