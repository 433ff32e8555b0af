//! What ssh, and the shell that it starts there, say when there is no transfer: read, and told in one line.
//!
//! Invariant: the last line of what was said is kept, never more than [`SAID_BYTES`] of it.
//! Non-goals: what thalweg says there itself.

use std::io::Read;
use std::process::{ChildStderr, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_transfer::SshFault;

use crate::greeting::GREETING;

/// What is kept of what was said.
const SAID_BYTES: usize = 4 << 10;
/// How long the last of it may take when who says it has ended. Who keeps connections for others may never close it.
const LAST: Duration = Duration::from_millis(300);
/// How much of a shell's noise is shown.
const NOISE_CHARS: usize = 60;
/// The statuses by which a shell says that it found no such program, or cannot run it, and ssh that it failed itself.
const NOT_FOUND: i32 = 127;
const NOT_RUN: i32 = 126;
const SSH_FAILED: i32 = 255;

/// The end of what ssh has said on its standard error.
pub(crate) struct Said {
    bytes: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl Said {
    /// Keeps what is said from now on.
    pub(crate) fn collect(mut from: ChildStderr) -> Said {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (held, ended) = channel();
        let kept = bytes.clone();
        let _ = std::thread::Builder::new().name("said".into()).spawn(move || {
            let _held = held;
            let mut some = [0; 512];
            while let Ok(len @ 1..) = from.read(&mut some) {
                let mut kept: std::sync::MutexGuard<'_, Vec<u8>> = kept.lock().expect("no holder panics");
                kept.extend_from_slice(&some[..len]);
                let excess = kept.len().saturating_sub(SAID_BYTES);
                kept.drain(..excess);
            }
        });
        Said { bytes, ended }
    }

    /// The last line, when ssh has ended; empty if it said nothing.
    pub(crate) fn last_line(&self) -> String {
        // It ends with who says it, and nothing is ever sent.
        let _ = self.ended.recv_timeout(LAST);
        let bytes = self.bytes.lock().expect("no holder panics");
        let text = String::from_utf8_lossy(&bytes);
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_string()
    }
}

/// Why no greeting came: by the bytes that came instead, by how ssh ended and by its last line.
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

/// The text that came before the greeting, where nothing may come.
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
    fn what_was_said_instead_is_told_with_its_remedy() {
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
