//! A place to run the command in, and its outcome as a shell sees it. For all test programs of the command.
//!
//! Invariant: a test starts the built binary in an empty directory of its own, which is removed when the test ends. The
//! output of a line of shell goes through files beside that directory, so that the kernel's count of the child can be
//! read.
#![allow(dead_code)] // Each program of tests uses its part.

pub(crate) mod lab;
pub(crate) mod nodes;
pub(crate) mod resp;
pub(crate) mod sshd;
pub(crate) mod tables;

use std::io::Write;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use thalweg_base::clock::Stopwatch;
use thalweg_io::process;

/// The longest wait for what should happen soon.
const SOON_SECONDS: f64 = 20.0;

/// A directory that is removed when the test ends.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    /// Makes a new, empty one.
    pub(crate) fn new() -> Place {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let program = env!("CARGO_CRATE_NAME");
        let name = format!("{program}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("the target directory can be written");
        Place(path)
    }

    /// The name of the scratch file of an output here.
    pub(crate) fn scratch(&self, output: &str) -> String {
        thalweg_io::hidden::elsewhere(&self.0.join(output), "scratch").to_string_lossy().into_owned()
    }

    /// The command, to be started here.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.program(env!("CARGO_BIN_EXE_thalweg"), args)
    }

    /// A program, to be started here, with settings of this place and not those of whoever runs the tests.
    fn program(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.0).env("XDG_CONFIG_HOME", self.0.join("settings"));
        command.stdin(Stdio::null());
        command
    }

    /// A copy of the command for what is sent to hosts: its debug information would be five sixths of it.
    pub(crate) fn without_debug_information(&self) -> PathBuf {
        let copy = self.0.join("small/thalweg");
        if !copy.exists() {
            self.shell("mkdir small && { strip -o small/thalweg $T || cp $T small/thalweg; }").is_done();
        }
        copy
    }

    /// Runs the command here to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(self.command(args).output().expect("the binary starts"))
    }

    /// Runs a line of shell, in which `$T` is the command. If it ends with `exec $T`, the outcome has its peak memory.
    #[track_caller]
    pub(crate) fn shell(&self, line: &str) -> Outcome {
        let (out, err) = (self.0.with_extension("out"), self.0.with_extension("err"));
        let file = |path: &Path| std::fs::File::create(path).expect("the target directory can be written");
        let mut bash = self.program("bash", &["-c", line]);
        bash.env("T", env!("CARGO_BIN_EXE_thalweg")).stdout(file(&out)).stderr(file(&err));
        let bash = bash.spawn().expect("bash starts");
        // The peak memory that the kernel reports for an ended process may be that of its parent, which is this
        // process.
        let (pid, peak_bytes, ended) = (bash.id(), AtomicU64::new(0), AtomicBool::new(false));
        let status = std::thread::scope(|scope| {
            scope.spawn(|| {
                while line.contains("exec $T") && !ended.load(Ordering::Relaxed) {
                    peak_bytes.fetch_max(peak_of(pid), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            let waited = process::wait(bash).expect("it ends");
            ended.store(true, Ordering::Relaxed);
            waited.0
        });
        let text = |path: &Path| {
            let bytes = std::fs::read(path).expect("it was written");
            std::fs::remove_file(path).expect("it is ours");
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let peak_bytes = peak_bytes.into_inner();
        Outcome { status: status.code(), out: text(&out), err: text(&err), peak_bytes }
    }

    /// A file with these bytes.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.join(name), bytes).expect("the place can be written");
    }

    /// The bytes of a file.
    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).expect("the file is there")
    }

    /// The names of all entries, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = self.0.read_dir().expect("the place can be read");
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Prints that this test, or a part of it, cannot run on this machine, and why. `./test` counts it as skipped: it names
/// a file in `THALWEG_SKIPPED`, to which a line is added.
pub(crate) fn skipped(why: &str) {
    println!("skipped: {why}");
    let Some(file) = std::env::var_os("THALWEG_SKIPPED") else { return };
    let thread = std::thread::current();
    let (program, test) = (env!("CARGO_CRATE_NAME"), thread.name().unwrap_or("?"));
    let line = format!("{program}::{test} {}\n", why.lines().collect::<Vec<_>>().join(" "));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file can be written");
}

/// Whether files can be given to another user; if not, notes that as the reason for skipping something.
pub(crate) fn may_give_away() -> bool {
    let may = process::is_root();
    if !may {
        skipped("only root may give files away");
    }
    may
}

/// Ports that nobody listens on. This process keeps them: no other program of tests gets one before it ends. They lie below
/// those that the kernel gives to connections.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    static KEPT: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let is_ours = |port: &u16| {
        // Who holds the socket of this name, which is no file, has the port.
        let name = SocketAddr::from_abstract_name(format!("thalweg-test-port-{port}")).expect("it is short");
        let Ok(kept) = UnixListener::bind_addr(&name) else { return false };
        let is_free = TcpListener::bind(("127.0.0.1", *port)).is_ok();
        KEPT.lock().expect("no holder panics").push(kept);
        is_free
    };
    let ports: Vec<u16> = (20_000..32_000).filter(is_ours).take(count).collect();
    assert_eq!(ports.len(), count, "ports are free");
    ports
}

/// Waits until the condition holds, which should be soon.
#[track_caller]
pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    until_within(SOON_SECONDS, what, holds);
}

/// Waits for at most this many seconds until the condition holds.
#[track_caller]
pub(crate) fn until_within(seconds: f64, what: &str, mut holds: impl FnMut() -> bool) {
    let watch = Stopwatch::start();
    while !holds() {
        assert!(watch.seconds() < seconds, "{what} did not come about in {seconds} s: {}", processes());
        // What is waited for may not last.
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// What the processes of this machine do that belong to tests: state, CPU time, and where each waits in the kernel. It
/// tells a machine that is busy from a process that waits for ever.
fn processes() -> String {
    let mut ps = Command::new("ps");
    let listed = ps.args(["-eo", "pid,ppid,stat,time,wchan:24,args", "--forest"]).output();
    let lines = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let own = lines.lines().filter(|line| line.contains("target/") || line.contains("thalweg"));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load {load}{}", own.take(100).collect::<Vec<_>>().join("\n"))
}

/// A running command, which has no input and whose output nobody has read yet. It is killed when the test ends.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> Running {
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts"))
    }

    /// The contents of a file of the process in /proc.
    pub(crate) fn told(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.0.id())).expect("it is not reaped yet")
    }

    /// Waits until the verb handles signals.
    #[track_caller]
    pub(crate) fn handles_signals(&self) {
        const SIGINT: u32 = 2;
        until("handling signals", || {
            let status = self.told("status");
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("Linux says so");
            u64::from_str_radix(mask.trim(), 16).expect("a number") >> (SIGINT - 1) & 1 == 1
        });
    }

    /// Waits until it has been idle for a while, so that it must be waiting for something.
    #[track_caller]
    pub(crate) fn waits(&self) {
        // It may wake up ten times a second, which does not count as work.
        let spent =
            || -> Vec<String> { self.told("stat").split(' ').skip(13).take(2).map(String::from).collect() };
        let (mut last, mut since) = (spent(), Stopwatch::start());
        until("waiting", || {
            let now = spent();
            if now != last {
                (last, since) = (now, Stopwatch::start());
            }
            since.seconds() > 0.1
        });
    }

    /// Sends a signal. Not every system has a program `kill`, but every shell has one built in.
    pub(crate) fn signal(&self, signal: &str) {
        let line = format!("kill {signal} {}", self.0.id());
        assert!(Command::new("bash").args(["-c", &line]).status().expect("bash starts").success());
    }

    /// Waits for its end, which should come soon.
    #[track_caller]
    pub(crate) fn ends(self) -> Outcome {
        self.ends_within(SOON_SECONDS, "it")
    }

    /// Waits for its end for at most this many seconds.
    #[track_caller]
    pub(crate) fn ends_within(mut self, seconds: f64, what: &str) -> Outcome {
        let what = format!("the end of {what}");
        until_within(seconds, &what, || self.0.try_wait().expect("it is ours").is_some());
        let text = |pipe: Option<&mut dyn std::io::Read>| {
            let mut bytes = Vec::new();
            pipe.map(|pipe| pipe.read_to_end(&mut bytes).expect("a pipe can be read"));
            String::from_utf8_lossy(&bytes).into_owned()
        };
        // The pipes hold all output: no process that a test starts prints more.
        let out = text(self.0.stdout.as_mut().map(|pipe| pipe as _));
        let err = text(self.0.stderr.as_mut().map(|pipe| pipe as _));
        let status = self.0.wait().expect("it has ended").code();
        Outcome { status, out, err, peak_bytes: 0 }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The outcome of a command as a shell sees it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit status; `None` if a signal ended it.
    pub(crate) status: Option<i32>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
    /// The peak resident memory, if it was a line of shell.
    pub(crate) peak_bytes: u64,
}

impl Outcome {
    /// The outcome of an ended program.
    pub(crate) fn of(output: Output) -> Outcome {
        Outcome {
            status: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            peak_bytes: 0,
        }
    }

    /// Checks that it was refused with one line that contains all of these.
    #[track_caller]
    pub(crate) fn is_refused(&self, holds: &[&str]) {
        assert_eq!(self.status, Some(2), "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        assert!(self.err.starts_with("thalweg: ") && self.err.ends_with('\n'), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        for text in holds {
            assert!(self.err.contains(text), "no '{text}' in {self:?}");
        }
    }

    /// Checks that it succeeded, and printed nothing on standard error.
    #[track_caller]
    pub(crate) fn is_done(&self) -> &str {
        assert_eq!(self.status, Some(0), "{self:?}");
        assert_eq!(self.err, "", "{self:?}");
        &self.out
    }
}

/// Runs the command in a place of its own.
pub(crate) fn run(args: &[&str]) -> Outcome {
    Place::new().run(args)
}

/// The peak memory of a process so far, as the kernel counts it; 0 if it has ended.
pub(crate) fn peak_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}
