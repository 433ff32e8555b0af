//! A command that runs for a client, in a process group of its own. Its output is sent as it appears.
//!
//! Invariant: when the job ends for any reason, no process of its group is left. The loss of the client is
//! detected within [`LOOK`]; a client that reads slowly slows the command down.
//! Non-goals: shells, terminals, running as another user.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use thalweg_api::{ExecEnd, ExecRequest, JobState, to_json};
use thalweg_block::Pool;
use thalweg_job::{Job, Jobs, begun, failed};
use thalweg_wire::threads::caught;
use thalweg_wire::{Incoming, Outgoing};

use crate::Error;
use crate::guard::GUARD;

/// The variable with the name of the host, in the environment of its commands.
const NODE: &str = "THALWEG_NODE";

/// The channel of standard output.
pub(crate) const STDOUT: u8 = 1;
/// The channel of standard error.
pub(crate) const STDERR: u8 = 2;
/// How often to check that the client is still there.
const LOOK: Duration = Duration::from_millis(100);
/// How long to wait for output from processes outside the group that still hold the pipes open.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Size of a read from a pipe.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// For tests: the thread panics if the value of this variable is an argument of the command. Release builds ignore it.
#[cfg(debug_assertions)]
const PANICS: &str = "THALWEG_TEST_PANICS";
const STACK_BYTES: usize = 256 << 10;

/// Runs a command to its end, reports the end to the client, and returns the end.
pub(crate) fn run(
    jobs: &Jobs,
    (host, by): (&str, &str),
    request: ExecRequest,
    mut out: Outgoing,
    inc: Incoming,
    pool: &Pool,
) -> ExecEnd {
    let job = match jobs.begin(request, host, by) {
        Ok(job) => job,
        Err(why) => {
            let end = failed(why);
            let _ = out.end(to_json(&end).as_bytes());
            return end;
        }
    };
    if job.request.detach {
        let _ = out.end(to_json(&begun(Ok(()))).as_bytes());
        drop((out, inc));
        let end = caught(|| carry_out(&job, None, None)).unwrap_or_else(failed);
        jobs.end(&job, end.clone());
        return end;
    }
    let mut inc = Some(inc);
    let end = caught(|| carry_out(&job, Some(&mut out), Some((&mut inc, pool)))).unwrap_or_else(failed);
    jobs.end(&job, end.clone());
    let _ = out.end(to_json(&end).as_bytes());
    // Dropping this earlier would abort the whole stream.
    drop(inc);
    end
}

/// The end of a job without a process.
pub(crate) fn nothing() -> ExecEnd {
    ExecEnd { state: JobState::Done, status: Some(0), signal: None, why: None }
}

fn carry_out(
    job: &Arc<Job>,
    out: Option<&mut Outgoing>,
    inc: Option<(&mut Option<Incoming>, &Pool)>,
) -> ExecEnd {
    let request = &job.request;
    let Some((program, args)) = request.command.split_first() else {
        return failed("there is no command");
    };
    if let Some(word) = request.command.iter().find(|word| word.contains('\0')) {
        return failed(Error::NulByte(word.clone()).to_string());
    }
    let stdin = if request.stdin { Stdio::piped() } else { Stdio::null() };
    let mut command = Command::new(program);
    command.args(args).env(NODE, job.host()).envs(request.env.iter().map(|(k, v)| (k, v))).process_group(0);
    // `env_remove` copies the whole environment, even if the variable is not set.
    if std::env::var_os(GUARD).is_some() {
        command.env_remove(GUARD);
    }
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) => return failed(format!("cannot start {program}: {e}")),
    };
    job.runs_as(child.id());
    let group = Pid::from_child(&child);
    if let (Some(stdin), Some((inc, pool))) = (child.stdin.take(), inc) {
        let inc = inc.take().expect("it is taken once");
        feed(job.clone(), stdin, inc.takes(pool, 2));
    }
    let ended = match pidfd_open(group, PidfdFlags::empty()) {
        // Whatever happens, the group is killed and the leader reaped.
        Ok(pidfd) => caught(|| attend(job, &mut child, pidfd, out)).unwrap_or_else(Some),
        Err(e) => Some(format!("it cannot be watched: {e}")),
    };
    // The leader has not been reaped, so the group's number is still its own.
    let _ = kill_process_group(group, Signal::KILL);
    match child.wait() {
        Ok(status) => end_of(status, ended),
        Err(e) => failed(format!("cannot wait for {program}: {e}")),
    }
}

fn end_of(status: ExitStatus, ended: Option<String>) -> ExecEnd {
    let state = match (&ended, status.success()) {
        (Some(_), _) => JobState::Cancelled,
        (None, true) => JobState::Done,
        (None, false) => JobState::Failed,
    };
    ExecEnd { state, status: status.code(), signal: status.signal(), why: ended }
}

/// Forwards the child's output until it ends. Returns the reason if the child must be killed.
fn attend(job: &Job, child: &mut Child, pidfd: OwnedFd, mut out: Option<&mut Outgoing>) -> Option<String> {
    let mut pipes = [
        child.stdout.take().map(|pipe| (STDOUT, std::fs::File::from(OwnedFd::from(pipe)))),
        child.stderr.take().map(|pipe| (STDERR, std::fs::File::from(OwnedFd::from(pipe)))),
    ];
    #[cfg(debug_assertions)]
    assert!(
        std::env::var_os(PANICS).is_none_or(|word| !job.request.command.iter().any(|other| word == **other)),
        "a test had this command panic"
    );
    // The memory stays untouched until there is output.
    let mut buffer = Vec::with_capacity(READ_BYTES);
    let mut last_words: Option<f64> = None;
    loop {
        if let Some(why) = should_end(job, out.as_deref()) {
            return Some(why);
        }
        if last_words.is_some_and(|until| pipes.iter().all(Option::is_none) || job.seconds() > until) {
            return None;
        }
        let mut fds = Vec::with_capacity(3);
        let mut who = Vec::with_capacity(3);
        for (i, pipe) in pipes.iter().enumerate() {
            if let Some((_, pipe)) = pipe {
                fds.push(PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN));
                who.push(Some(i));
            }
        }
        if last_words.is_none() {
            fds.push(PollFd::new(&pidfd, PollFlags::IN));
            who.push(None);
        }
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        let _ = poll(&mut fds, Some(&look));
        let ready: Vec<Option<usize>> =
            fds.iter().zip(who).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, who)| who).collect();
        drop(fds);
        for who in ready {
            let Some(i) = who else {
                // Other processes of the group would keep the pipes open.
                let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
                last_words = Some(job.seconds() + LAST_WORDS.as_secs_f64());
                continue;
            };
            let (channel, pipe) = pipes[i].as_mut().expect("it was asked");
            buffer.clear();
            match rustix::io::read(&*pipe, spare_capacity(&mut buffer)) {
                Ok(1..) => {
                    job.said(&buffer);
                    if let Some(out) = out.as_mut()
                        && out.send(*channel, &mut buffer).is_err()
                    {
                        return Some("its client has gone".into());
                    }
                }
                _ => pipes[i] = None,
            }
        }
    }
}

fn should_end(job: &Job, out: Option<&Outgoing>) -> Option<String> {
    let late = job.request.timeout_ms.filter(|ms| job.seconds() * 1e3 >= *ms as f64);
    if let Some(ms) = late {
        return Some(format!("it took longer than its timeout of {:.1} s", ms as f64 / 1e3));
    }
    if out.is_some_and(Outgoing::is_given_up) {
        return Some("its client has gone".into());
    }
    job.cancelled()
}

/// Forwards the client's input until the command or the client ends it. If the client disconnects first, the job is
/// cancelled. `attend` checks for the client too, because this thread may wait for a command that does not read.
fn feed(job: Arc<Job>, mut stdin: ChildStdin, mut inc: Incoming) {
    let told = job.clone();
    let body = move || {
        loop {
            match inc.next_on() {
                Ok(Some((_, block))) => {
                    // A command that stops reading is not an error of the client.
                    let _ = stdin.write_all(&block);
                }
                Ok(None) => return,
                Err(_) => return job.cancel("its client has gone"),
            }
        }
    };
    let builder = std::thread::Builder::new().name("stdin".into()).stack_size(STACK_BYTES);
    if let Err(e) = builder.spawn(body) {
        told.cancel(&format!("no thread for its standard input: {e}"));
    }
}
