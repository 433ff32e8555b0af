//! Locks of programs on two mounts of one volume, each in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bed::{Bed, has, sh};

/// What a lock may take to come that nothing is in the way of, on a busy machine.
const SOON: Duration = Duration::from_secs(8);

/// Python that opens `f` and has `lock(type, start, len, wait)` of fcntl(2), and `test` for what is in its way.
const FCNTL: &str = r#"
import errno, fcntl, os, signal, struct, sys
f = os.open('f', os.O_RDWR | os.O_CREAT)
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
def flock(kind, start, length):
    return struct.pack('hhqqi4x', kind, os.SEEK_SET, start, length, 0)
def lock(kind, start=0, length=0, wait=False, ofd=False, fd=f):
    command = (F_OFD_SETLKW if wait else F_OFD_SETLK) if ofd else (fcntl.F_SETLKW if wait else fcntl.F_SETLK)
    try:
        fcntl.fcntl(fd, command, flock(kind, start, length))
        return 'ok'
    except OSError as why:
        return errno.errorcode[why.errno]
def test(kind, start=0, length=0):
    return struct.unpack('hhqqi4x', fcntl.fcntl(f, fcntl.F_GETLK, flock(kind, start, length)))
R, W, U = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
def say(*words):
    print(*words, flush=True)
"#;

/// A Python program at work in a directory, which says lines and is told when to go on.
struct Program {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Program {
    fn start(at: &Path, script: &str) -> Program {
        let mut command = Command::new("python3");
        command.arg("-c").arg(format!("{FCNTL}\n{script}")).current_dir(at);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Program { child, to, from }
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    fn goes_on(&mut self) {
        writeln!(self.to.as_ref().unwrap()).unwrap();
    }

    fn ends(mut self) {
        drop(self.to.take());
        assert!(self.child.wait().unwrap().success());
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Until it waits for an answer from the mount.
    fn waits(&self) {
        let began = Instant::now();
        while !std::fs::read_to_string(format!("/proc/{}/wchan", self.child.id()))
            .unwrap()
            .contains("request_wait")
        {
            assert!(began.elapsed() < SOON, "it does not wait");
            std::thread::yield_now();
        }
    }
}

/// What another program in this directory finds.
fn found(at: &Path, script: &str) -> String {
    let mut program = Program::start(at, script);
    let said = program.says();
    program.ends();
    said
}

#[test]
fn ranges_that_one_mount_has_locked_the_other_waits_for() {
    let Some(bed) = Bed::new() else { return };
    if !has("python3") || !has("flock") {
        return;
    }
    let again = bed.again();
    let (one, other) = (bed.root(), again.at.clone());
    let mut holder = Program::start(
        &one,
        "say(lock(W, 10, 10), lock(R, 100, 50, ofd=True))\nsys.stdin.readline()\nsay(lock(U, 12, 2))\nsys.stdin.read()",
    );
    assert_eq!(holder.says(), "ok ok");
    assert_eq!(
        found(&other, "say(lock(R, 0, 10), lock(R, 0, 11), lock(W, 19, 1), lock(R, 20))"),
        "ok EAGAIN EAGAIN ok"
    );
    assert_eq!(
        found(&other, "say(lock(R, 100, 10), lock(W, 149, 1), lock(W, 150, 1, ofd=True))"),
        "ok EAGAIN ok"
    );
    // Type, start and length of what is in the way; the process is another machine's, for all that is known.
    assert_eq!(found(&other, "say(*test(W, 5, 10))"), "1 0 10 10 0");
    assert_eq!(found(&other, "say(test(R, 100, 0)[0] == U)"), "True");
    assert_eq!(found(&one, "say(test(W, 15, 1)[4] == os.getppid() or test(W, 15, 1)[4] > 0)"), "True");

    let mut waiter = Program::start(&other, "say(lock(W, 12, 2, wait=True))\nsay(lock(W, 11, 1, wait=True))");
    waiter.waits();
    holder.goes_on();
    assert_eq!((holder.says(), waiter.says()), ("ok".into(), "ok".into()));
    waiter.waits();
    holder.ends();
    assert_eq!(waiter.says(), "ok", "a process that ends has no locks");
    waiter.ends();

    sh(
        &bed.beside(""),
        "exec 3>mnt/g; flock -x 3
        ! flock -n mnt2/g true
        flock mnt2/g echo got >got & waiter=$!
        test ! -s got
        flock -u 3; wait $waiter; test $(cat got) = got
        flock -s 3; flock -n -s mnt2/g true; ! flock -n -x mnt2/g true
        exec 3>&-; flock mnt2/g true",
    );
    drop(again);
    bed.ends_sound();
}

/// The end of an open file, which the kernel reports late, once ended locks that the process had through another one: of
/// its own, or of one with the same number.
#[test]
fn a_lock_ends_when_its_file_is_closed_and_not_later() {
    let Some(bed) = Bed::new() else { return };
    if !has("python3") {
        return;
    }
    let mut holder = Program::start(
        &bed.root(),
        "r, w = os.pipe()
say(lock(W, 50, 1), lock(W, 10, 1))
if os.fork() == 0:
  os.close(w); os.read(r, 1); os._exit(0)
b = os.open('f', os.O_RDWR)
os.close(f)
say(lock(W, 50, 1, fd=b), lock(W, 10, 1, fd=b))
os.close(w); os.wait(); say('the child has ended')
sys.stdin.read()",
    );
    assert_eq!((holder.says(), holder.says(), holder.says().len()), ("ok ok".into(), "ok ok".into(), 19));
    assert_eq!(found(&bed.root(), "say(lock(W, 10, 1), lock(W, 50, 1))"), "EAGAIN EAGAIN");
    assert_eq!(found(&bed.root(), "say(test(W)[2])"), "10", "not the first in the file");
    holder.ends();

    let rounds = "def ofd(fd):
  return lock(W, ofd=True, fd=fd)
def whole(fd):
  try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return 'ok'
  except OSError as why:
    return errno.errorcode[why.errno]
def opened():
  return os.open('f', os.O_RDWR)
wrong = []
for i in range(300):
  take = ofd if i % 2 else whole
  a, b = opened(), opened()
  first = take(a)
  os.close(a)
  second = take(b)
  os.close(b)
  c = opened()
  third = take(c)
  d = opened()
  refused = take(d)
  os.close(c); os.close(d)
  if (first, second, third, refused) != ('ok', 'ok', 'ok', 'EAGAIN'):
    wrong.append((i, first, second, third, refused))
say(wrong)";
    assert_eq!(found(&bed.root(), rounds), "[]");
    bed.ends_sound();
}

#[test]
fn a_signal_ends_what_a_program_waits_for() {
    let Some(bed) = Bed::new() else { return };
    if !has("python3") {
        return;
    }
    let mut holder = Program::start(&bed.root(), "say(lock(W))\nsys.stdin.read()");
    assert_eq!(holder.says(), "ok");
    let mut killed = Program::start(&bed.root(), "lock(W, wait=True)");
    killed.waits();
    let began = Instant::now();
    killed.signal("-KILL");
    assert!(!killed.child.wait().unwrap().success());
    let mut alarmed = Program::start(
        &bed.root(),
        "class Alarm(Exception): pass\ndef handle(*_): raise Alarm\nsignal.signal(signal.SIGALRM, handle)\nsignal.setitimer(signal.ITIMER_REAL, 0.3)\ntry:\n  say(lock(W, wait=True))\nexcept Alarm:\n  say('alarmed')",
    );
    assert_eq!(alarmed.says(), "alarmed");
    alarmed.ends();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    // Who does not wait any more is in nobody's way.
    holder.ends();
    assert_eq!(found(&bed.root(), "say(lock(W))"), "ok");
    bed.ends_sound();
}

/// Runs programs side by side on two mounts, each on both. Each says `done` at its end.
fn all_are_done(mounts: [&Path; 2], scripts: [&str; 2]) {
    let on_both = |script| mounts.map(|at| Program::start(at, script));
    let mut programs = scripts.map(on_both);
    programs.iter_mut().flatten().for_each(|program| assert_eq!(program.says(), "done"));
    programs.into_iter().flatten().for_each(Program::ends);
}

#[test]
fn what_is_written_under_a_lock_is_read_under_the_next() {
    let Some(bed) = Bed::new() else { return };
    if !has("python3") {
        return;
    }
    let again = bed.again();
    let count = "for i in range(60):
  assert lock(W, wait=True) == 'ok'
  n = int(os.pread(f, 100, 0) or b'0')
  os.pwrite(f, str(n + 1).encode(), 0)
  assert lock(U) == 'ok'
say('done')";
    all_are_done([&bed.root(), &again.at], [count; 2]);
    assert_eq!(std::fs::read_to_string(again.at.join("f")).unwrap(), "240");
    drop(again);
    bed.ends_sound();
}

/// Each program reads the whole file and adds a byte; two open it anew for that, which makes the kernel ask for its size.
#[test]
fn what_grew_under_a_lock_is_read_whole_under_the_next() {
    let Some(bed) = Bed::new() else { return };
    if !has("python3") {
        return;
    }
    let again = bed.again();
    let grow = |opens: &str| {
        format!(
            "for i in range(200):
  {opens}
  assert lock(W, wait=True, fd=f) == 'ok'
  n = len(os.pread(f, 4096, 0))
  os.pwrite(f, b'x', n)
  assert lock(U, fd=f) == 'ok'
say('done')"
        )
    };
    let anew = "os.close(f); f = os.open('f', os.O_RDWR)";
    all_are_done([&bed.root(), &again.at], [&grow("pass"), &grow(anew)]);
    assert_eq!(std::fs::metadata(again.at.join("f")).unwrap().len(), 800);
    drop(again);
    bed.ends_sound();
}

/// Two programs of one mount that lock at the same time both need new pages: once only the first got them, and the
/// other wrote rows into an old table, about once in fifty runs.
#[test]
fn sqlite_writes_on_two_mounts_at_once() {
    let Some(bed) = Bed::new() else { return };
    if !has("sqlite3") {
        return;
    }
    let again = bed.again();
    sh(
        &bed.beside(""),
        "sqlite3 mnt/db 'CREATE TABLE t (n INTEGER PRIMARY KEY, x BLOB);'
        for i in 1 2 3 4; do
            at=$(test $((i % 2)) = 0 && echo mnt || echo mnt2)
            (for j in $(seq 30); do
                echo '.timeout 60000'; echo 'INSERT INTO t (x) VALUES (randomblob(5000));'
            done | sqlite3 -bail $at/db >/dev/null || { echo client $i on $at failed >&2; false; }) & jobs[i]=$!
        done
        for job in ${jobs[@]}; do wait $job || failed=yes; done
        test -z ${failed:-}",
    );
    for at in ["mnt", "mnt2"] {
        let found = sh(&bed.beside(at), "sqlite3 db 'PRAGMA integrity_check; SELECT count(*) FROM t'");
        assert_eq!(found, "ok\n120\n", "{at}");
    }
    drop(again);
    bed.ends_sound();
}

#[test]
fn a_mount_that_is_gone_has_no_locks_and_one_that_was_silent_has_lost_them() {
    let Some(mut bed) = Bed::new() else { return };
    if !has("python3") {
        return;
    }
    let mut again = bed.again();
    let other = again.at.clone();
    // The first mount serves the volume, so the second one can be stopped.
    let mut silent = Program::start(
        &other,
        "say(lock(W, 0, 1))\nsys.stdin.readline()\ntry:\n  os.pwrite(f, b'x', 0); say('written')\nexcept OSError as why:\n  say(errno.errorcode[why.errno])\nos.close(f); f = os.open('f', os.O_RDWR); say(lock(R, 5, 1, fd=f))",
    );
    assert_eq!(silent.says(), "ok");
    let mut waiter = Program::start(&bed.root(), "say(lock(W, 0, 1, wait=True))\nsys.stdin.read()");
    waiter.waits();
    let began = Instant::now();
    let stop = |signal: &str, pid: u32| {
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    };
    stop("-STOP", again.child.id());
    assert_eq!(waiter.says(), "ok");
    assert!(began.elapsed() > Duration::from_secs(6) && began.elapsed() < Duration::from_secs(10) + SOON);
    stop("-CONT", again.child.id());
    silent.goes_on();
    assert_eq!((silent.says(), silent.says()), ("EIO".into(), "ok".into()));
    silent.ends();

    // The process that serves the volume goes, with a lock of its own: the other one serves it then.
    let mut heir = Program::start(
        &other,
        "say(lock(W, 7, 1))\nsys.stdin.readline()\nsay(lock(R, 7, 2), lock(W, 0, 1, wait=True))\nsys.stdin.read()",
    );
    assert_eq!(heir.says(), "ok");
    bed.server().kill().unwrap();
    heir.goes_on();
    assert_eq!(heir.says(), "ok ok");
    drop(heir);
    let _ = waiter.child.kill();
    let _ = waiter.child.wait();
    again.child.kill().unwrap();
}
