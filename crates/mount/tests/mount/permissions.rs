//! Permission bits, access control lists and extended attributes, compared with the machine's own file system.

use std::fs;
use std::path::Path;

use crate::bed::{Bed, has, sh, skipped};

/// A mount for root, and beside it a directory on a file system that has lists.
fn bed() -> Option<Bed> {
    let bed = Bed::new()?;
    if !has("setfacl") || !has("setfattr") || !has("setpriv") {
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        skipped("only root becomes other users");
        return None;
    }
    fs::create_dir(bed.beside("own")).unwrap();
    sh(&bed.beside("own"), "touch x && setfacl -m u:1:r x && rm x");
    Some(bed)
}

/// What a script prints there.
fn printed(at: &Path, script: &str) -> String {
    let helpers = "umask 077
        mode() { stat -c '%n %a' \"$@\"; }
        lists() { getfacl -cEp \"$@\"; }
        may() { setpriv --reuid nobody --regid nogroup --clear-groups \"$@\" >/dev/null 2>&1 && echo yes || echo no; }";
    sh(at, &format!("{helpers}\n{script}"))
}

#[test]
fn permissions_are_those_of_a_local_file_system() {
    let Some(bed) = bed() else { return };
    for script in [
        // Programs copy lists where they can, and then do not set the bits.
        "echo a >s; chmod 755 s; echo a >t; chmod 644 t; mkdir d; chmod 750 d; echo x >d/x; chmod 4711 d/x
        cp -p s s.p; cp -a d d.a; sed -i s/a/b/ t; install -m 640 t t.i; mode s s.p t t.i d d.a d.a/x",
        // The bits and the list change together.
        "touch f; chmod 644 f; setfacl -m u:nobody:r,g:daemon:rw f; mode f; chmod 640 f; lists f; setfacl -m m::rwx f
        mode f; setfacl -x u:nobody f; lists f; setfacl -b f; mode f; lists f; setfacl -b -k f; setfacl -m o::r f; mode f
        ! setfacl -d -m u:nobody:r f 2>/dev/null; setfattr -x system.posix_acl_access f; getfattr -d -m - f",
        // What is made in a directory inherits its default list, or else the umask applies.
        "mkdir d; setfacl -d -m u:daemon:rwx,g::r-x,o::r d; touch d/new; mkdir d/sub d/sub/deep; mkfifo d/pipe
        ln -s new d/link; (umask 0; touch d/open); mode d/*; lists -R d; chmod g-w d/new; lists d/new; setfacl -k d
        touch d/after; mode d/after; lists d/after; mkdir -m 751 e; mode e; (umask 027; touch u; mkdir v; mode u v)",
        // Only members of its group keep set-group-ID.
        "touch g; chown nobody:daemon g; chmod 2755 g
        as() { setpriv --reuid nobody --regid nogroup \"$@\" setfacl -m u:daemon:rwx g; mode g; }
        as --groups daemon; as --clear-groups",
        // Who writes takes away the bits that set the user and the group, and capabilities.
        "chmod 711 .; group() { chown root:daemon \"$@\"; }; as() { setpriv --reuid nobody --regid nogroup \"$@\"; }
        for bits in 2666 4666 6777; do for who in --clear-groups '--groups daemon'; do
        for how in 'echo x >>f' 'echo x >f' 'truncate -s 9 f' 'fallocate -l 9 f' 'dd if=/dev/zero of=f bs=4k count=1 oflag=direct'; do
        echo y >f; group f; chmod $bits f; as $who sh -c \"$how\" 2>/dev/null; echo \"$who $how\"; mode f; done; done; done
        chmod 4755 f; echo x >>f; mode f; echo x >g; for how in 'echo x >>g' 'echo x >g'; do setcap cap_net_raw+ep g
        sh -c \"$how\"; getfattr --absolute-names -m security.capability g; done",
        // The kernel enforces them.
        "chmod 711 .; echo secret >e; chmod 644 e; may cat e; setfacl -m u:nobody:--- e; may cat e
        setfacl -m u:nobody:rw e; may sh -c 'echo >>e'; chmod g-w e; may sh -c 'echo >>e'; may cat e; mkdir p; echo >p/in
        chmod 644 p/in; may cat p/in; setfacl -m u:nobody:x p; may cat p/in; may ls p; may setfacl -m u:nobody:rwx p",
    ] {
        assert_eq!(printed(&bed.root(), script), printed(&bed.beside("own"), script), "{script}");
        sh(&bed.root(), "chmod 755 . && rm -r *");
        sh(&bed.beside("own"), "chmod 755 . && rm -r *");
    }
    bed.ends_sound();
}

#[test]
fn lists_go_there_and_back_with_tar_and_rsync_and_hold_on_other_mounts() {
    let Some(mut bed) = bed() else { return };
    if !has("rsync") || !has("tar") {
        return;
    }
    let lists = "find . | sort | xargs getfacl; find . -printf '%P %m\\n' | sort";
    sh(
        &bed.beside("own"),
        "mkdir -p d/e; touch d/a d/e/b; setfacl -m u:daemon:rw,g:daemon:r d/a; setfacl -m u:nobody:--- d/e
        setfacl -d -m u:daemon:r-x,m::rwx d/e; chmod 640 d/e/b",
    );
    sh(
        &bed.beside(""),
        "cp -a own mnt/copied; mkdir mnt/tarred; tar --acls -C own -cf - . | tar --acls -C mnt/tarred -xpf -
        rsync -aA own/ mnt/rsynced; cp -a own own2; mv own2 mnt/moved",
    );
    bed.mount_again();
    sh(&bed.beside(""), "rsync -aA mnt/rsynced/ back");
    let expected = sh(&bed.beside("own"), lists);
    for there in ["mnt/copied", "mnt/tarred", "mnt/rsynced", "mnt/moved", "back"] {
        assert_eq!(sh(&bed.beside(there), lists), expected, "{there}");
    }

    let again = bed.again();
    let script =
        "umask 022; echo x >mnt/f; may cat mnt2/f; setfacl -m u:nobody:--- mnt/f; sleep 1.05; may cat mnt2/f
        setfacl -b mnt2/f; sleep 1.05; may cat mnt/f; chmod 600 mnt/f; sleep 1.05; may cat mnt2/f";
    assert_eq!(printed(&bed.beside(""), script), "yes\nno\nyes\nno\n");
    drop(again);
    bed.ends_sound();
}

#[test]
fn a_directory_that_is_open_has_attributes_after_it_was_removed() {
    let Some(bed) = bed() else { return };
    let script = r#"python3 -c "
import errno, os
def fails(f, *args, **more):
  try:
    f(*args, **more)
  except OSError as why:
    return errno.errorcode[why.errno]
open('f', 'w').close()
for how in ['removed', 'replaced']:
  os.mkdir('d', 0o750)
  fd = os.open('d', os.O_RDONLY)
  if how == 'removed':
    os.rmdir('d')
  else:
    os.mkdir('e')
    os.rename('e', 'd')
  print(os.fstat(fd).st_nlink, oct(os.fstat(fd).st_mode))
  os.fchmod(fd, 0o700)
  print(oct(os.fstat(fd).st_mode), os.listdir(fd))
  print(fails(os.symlink, 'x', 'l', dir_fd=fd), fails(os.link, 'f', 'l', dst_dir_fd=fd), fails(os.mkdir, 'l', dir_fd=fd))
  os.close(fd)
""#;
    assert_eq!(sh(&bed.root(), script), sh(&bed.beside("own"), script));
    bed.ends_sound();
}

#[test]
fn attributes_have_names_that_are_known_and_can_be_listed() {
    let Some(bed) = bed() else { return };
    let script = r#"python3 -c "
import errno, os
def fails(f, *args):
  try:
    f(*args)
  except OSError as why:
    return errno.errorcode[why.errno]
open('a', 'w').close()
for name in ['plain', 'system.other', 'os2.a', 'trusted.a', 'security.a', 'user.a']:
  print(name, fails(os.setxattr, 'a', name, b'v'), fails(os.getxattr, 'a', name), fails(os.removexattr, 'a', name))
print(fails(os.getxattr, 'a', 'user.none'), fails(os.removexattr, 'a', 'user.none'), os.listxattr('a'))
print(fails(os.setxattr, 'a', 'system.posix_acl_access', b'no list'))
""#;
    assert_eq!(sh(&bed.root(), script), sh(&bed.beside("own"), script));
    let full = r#"python3 -c "
import errno, os
open('b', 'w').close()
for n in range(256):
  os.setxattr('b', 'user.%0250d' % n, b'')
try:
  os.setxattr('b', 'user.a', b'')
except OSError as why:
  print(errno.errorcode[why.errno])
os.setxattr('b', 'user.%0250d' % 0, b'again')
print(len(os.listxattr('b')))
open('c', 'w').close()
try:
  for n in range(1000):
    os.setxattr('c', 'user.%d' % n, b'v' * 65536)
except OSError as why:
  print(errno.errorcode[why.errno])
print(n, len(os.listxattr('c')), len(os.getxattr('c', 'user.7')))
""#;
    assert_eq!(sh(&bed.root(), full), "ENOSPC\n256\nENOSPC\n128 128 65536\n");
    bed.ends_sound();
}
