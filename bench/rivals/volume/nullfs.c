/* nullfs MOUNTPOINT: a FUSE file system with one file, `file`, of 1 TiB. Reads give zeros, and what is written is forgotten.
 * It is the floor of a mount: what the kernel's side of FUSE costs. Ends when it is unmounted.
 * Needs -lfuse3 -I/usr/include/fuse3.
 */
#define FUSE_USE_VERSION 35
#include <errno.h>
#include <fuse_lowlevel.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum { FILE_INODE = 2, REQUEST_BYTES = 1 << 20 };
static char zeros[REQUEST_BYTES];

static void attributes(fuse_ino_t inode, struct stat *s) {
    memset(s, 0, sizeof *s);
    s->st_ino = inode;
    s->st_mode = inode == FILE_INODE ? S_IFREG | 0666 : S_IFDIR | 0755;
    s->st_nlink = 1;
    s->st_size = inode == FILE_INODE ? 1ll << 40 : 0;
}

static void init(void *data, struct fuse_conn_info *conn) {
    (void)data;
    conn->max_read = conn->max_write = conn->max_readahead = REQUEST_BYTES;
}

static void lookup(fuse_req_t req, fuse_ino_t parent, const char *name) {
    struct fuse_entry_param e = {.ino = FILE_INODE, .attr_timeout = 60, .entry_timeout = 60};
    attributes(FILE_INODE, &e.attr);
    if (parent != FUSE_ROOT_ID || strcmp(name, "file")) fuse_reply_err(req, ENOENT);
    else fuse_reply_entry(req, &e);
}

static void getattr(fuse_req_t req, fuse_ino_t inode, struct fuse_file_info *info) {
    (void)info;
    struct stat s;
    attributes(inode, &s);
    fuse_reply_attr(req, &s, 60);
}

static void setattr(fuse_req_t req, fuse_ino_t inode, struct stat *to, int set, struct fuse_file_info *info) {
    (void)to, (void)set;
    getattr(req, inode, info);
}

static void read_file(fuse_req_t req, fuse_ino_t inode, size_t bytes, off_t at, struct fuse_file_info *info) {
    (void)inode, (void)at, (void)info;
    fuse_reply_buf(req, zeros, bytes < sizeof zeros ? bytes : sizeof zeros);
}

static void write_file(fuse_req_t req, fuse_ino_t inode, const char *from, size_t bytes, off_t at, struct fuse_file_info *info) {
    (void)inode, (void)from, (void)at, (void)info;
    fuse_reply_write(req, bytes);
}

static void sync_file(fuse_req_t req, fuse_ino_t inode, int data, struct fuse_file_info *info) {
    (void)inode, (void)data, (void)info;
    fuse_reply_err(req, 0);
}

int main(int argc, char **argv) {
    static const struct fuse_lowlevel_ops ops = {.init = init, .lookup = lookup, .getattr = getattr, .setattr = setattr,
                                                 .read = read_file, .write = write_file, .fsync = sync_file};
    if (argc != 2) return 2;
    char *words[] = {argv[0], "-omax_read=1048576"};
    struct fuse_args args = FUSE_ARGS_INIT(2, words);
    struct fuse_session *session = fuse_session_new(&args, &ops, sizeof ops, NULL);
    if (!session || fuse_session_mount(session, argv[1])) return 1;
    struct fuse_loop_config threads = {.clone_fd = 1, .max_idle_threads = 4};
    int ended = fuse_session_loop_mt(session, &threads);
    fuse_session_unmount(session);
    return ended != 0;
}
