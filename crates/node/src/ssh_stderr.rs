//! The standard error of ssh and of the remote shell, and what it means when no greeting arrives.
//!
//! Invariant: it stores at most [`KEPT_BYTES`], among them the last line.
//! Non-goals: the messages of the remote thalweg.

use std::io::Read;
use std::process::{ChildStderr, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_transfer::SshFault;

use crate::greeting::GREETING;

/// The bytes of standard error that are stored.
const KEPT_BYTES: usize = 4 << 10;
/// How long to wait for the end of standard error after ssh has ended. A master connection of ssh may never close it.
const LAST: Duration = Duration::from_millis(300);
/// How many characters of unexpected output are shown.
const NOISE_CHARS: usize = 60;
/// The exit statuses of a shell that finds no such program or cannot run it, and of ssh when it fails itself.
const NOT_FOUND: i32 = 127;
const NOT_RUN: i32 = 126;
const SSH_FAILED: i32 = 255;

/// The last part of ssh's standard error.
pub(crate) struct Stderr {
    bytes: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl Stderr {
    /// Starts a thread that reads it.
    pub(crate) fn collect(mut from: ChildStderr) -> Stderr {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (held, ended) = channel();
        let kept = bytes.clone();
        let _ = std::thread::Builder::new().name("stderr".into()).spawn(move || {
            let _held = held;
            let mut some = [0; 512];
            while let Ok(len @ 1..) = from.read(&mut some) {
                let mut kept: std::sync::MutexGuard<'_, Vec<u8>> = kept.lock().expect("no holder panics");
                kept.extend_from_slice(&some[..len]);
                let excess = kept.len().saturating_sub(KEPT_BYTES);
                kept.drain(..excess);
            }
        });
        Stderr { bytes, ended }
    }

    /// The last line, after ssh has ended; empty if there is none.
    pub(crate) fn last_line(&self) -> String {
        // The channel closes with the thread; nothing is ever sent on it.
        let _ = self.ended.recv_timeout(LAST);
        let bytes = self.bytes.lock().expect("no holder panics");
        let text = String::from_utf8_lossy(&bytes);
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_string()
    }
}

/// Why no greeting came, from the bytes that came instead, the way ssh ended, and its last line.
pub(crate) fn why_not(there: &str, status: Option<ExitStatus>, came: &[u8], said: String) -> SshFault {
    let program = there.to_string();
    if !came.trim_ascii().is_empty() {
        return noise(came);
    }
    match status.and_then(|status| status.code()) {
        _ if said.contains("Permission denied (") => SshFault::Denied { said },
        _ if said.contains("Host key verification failed") || said.contains("host key is known") => {
            SshFault::UnknownHostKey { said }
        }
        Some(NOT_FOUND) => SshFault::NoProgram { program, said },
        Some(NOT_RUN) => SshFault::NotExecutable { program, said },
        Some(SSH_FAILED) if !said.is_empty() => SshFault::Unreachable { said },
        Some(_) if said.to_lowercase().contains("not found") => SshFault::NoProgram { program, said },
        Some(_) if said.starts_with("thalweg: ") => SshFault::TooOld { said },
        Some(status) => SshFault::Status { status, program, said },
        None => SshFault::EarlyEnd { said },
    }
}

/// The error for text before the greeting.
pub(crate) fn noise(came: &[u8]) -> SshFault {
    let came = String::from_utf8_lossy(came);
    let before = came.split(GREETING).next().unwrap_or_default().trim();
    let first = before.lines().next().unwrap_or_default().chars().take(NOISE_CHARS);
    SshFault::Noise(first.map(|c| if c.is_control() { ' ' } else { c }).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use thalweg_transfer::SshError;

    use super::*;

    #[test]
    fn each_failure_of_ssh_has_a_message_with_a_remedy() {
        let why = |code: i32, came: &[u8], said: &str| {
            let what = why_not("thalweg", Some(ExitStatus::from_raw(code << 8)), came, said.into());
            SshError { host: "u@h".into(), what }.to_string()
        };
        for (code, came, said, holds) in [
            (255, &b""[..], "u@h: Permission denied (publickey).", ["u@h refuses ssh: u@h", "IdentityFile"]),
            (255, b"", "Host key verification failed.", ["ssh does not know u@h", "look at its key"]),
            (255, b"", "ssh: connect to host h port 1: Connection refused", ["cannot reach u@h", "refused"]),
            (127, b"", "bash: line 1: thalweg: command not found", ["no thalweg at u@h", "install it"]),
            (1, b"", "thalweg: Command not found.", ["no thalweg at u@h", "install it"]),
            (1, b"", "ksh: thalweg: not found", ["no thalweg at u@h", "install it"]),
            (126, b"", "", ["cannot run thalweg", "kind of machine"]),
            (2, b"", "thalweg: unknown flag --serve", ["does not serve", "one version"]),
            (0, b"\n\x1b[1mWelcome\n", "", ["prints ' [1mWelcome' before thalweg starts", "start-up files"]),
            (3, b"", "", ["ended with status 3", "ssh u@h thalweg -V"]),
        ] {
            let told = why(code, came, said);
            assert!(holds.iter().all(|text| told.contains(text)) && !told.contains('\n'), "{told}");
        }
    }
}
