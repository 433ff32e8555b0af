//! Why a transfer over ssh could not begin, or what ended it.

use std::fmt;

use thalweg_wire::Versions;

/// What went wrong with the other end of a transfer over ssh.
#[derive(Debug)]
pub struct SshError {
    /// The host as it was passed to ssh: `USER@HOST:PORT`.
    pub host: String,
    /// What went wrong.
    pub what: SshFault,
}

/// What went wrong with the other end of a transfer over ssh. `said` is the last line that ssh or the remote shell
/// wrote to standard error.
#[derive(Debug)]
#[non_exhaustive]
pub enum SshFault {
    /// The command that should run ssh is empty.
    NoCommand,
    /// The program that should be ssh cannot be started.
    Start {
        /// The program.
        program: String,
        /// The system's error.
        why: std::io::Error,
    },
    /// The pipes to ssh cannot be used.
    Channel(std::io::Error),
    /// The remote program sent nothing for this many seconds.
    Silent(f64),
    /// The remote program's greeting cannot be understood.
    Greeting(String),
    /// The remote program speaks other versions of the protocol.
    Versions {
        /// Its versions.
        theirs: Versions,
        /// The versions of this program.
        ours: Versions,
    },
    /// The remote shell printed this before the program started.
    Noise(String),
    /// The remote host accepted no key.
    Denied {
        /// The message of ssh.
        said: String,
    },
    /// ssh does not know the key of the remote host.
    UnknownHostKey {
        /// The message of ssh.
        said: String,
    },
    /// The remote shell does not find the program.
    NoProgram {
        /// The program.
        program: String,
        /// The message of the shell.
        said: String,
    },
    /// The remote shell cannot run the program.
    NotExecutable {
        /// The program.
        program: String,
        /// The message of the shell.
        said: String,
    },
    /// ssh cannot reach the host.
    Unreachable {
        /// The message of ssh.
        said: String,
    },
    /// The remote program is a thalweg that does not support such transfers.
    TooOld {
        /// Its message.
        said: String,
    },
    /// ssh ended with another status, before the remote program sent anything.
    Status {
        /// The status.
        status: i32,
        /// The remote program.
        program: String,
        /// The message of ssh or the remote shell.
        said: String,
    },
    /// ssh was ended by a signal, or closed its output, before the remote program sent anything.
    EarlyEnd {
        /// The message of ssh.
        said: String,
    },
    /// ssh ended during the transfer.
    Ended {
        /// The status, or the signal that ended it.
        how: SshEnd,
        /// The message of ssh or the remote program.
        said: String,
        /// How the transfer failed because of it.
        then: String,
    },
}

/// How ssh ended.
#[derive(Debug, Clone, Copy)]
pub enum SshEnd {
    /// With this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

impl std::error::Error for SshError {}

impl fmt::Display for SshError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.host;
        let quoted = |said: &str| if said.is_empty() { String::new() } else { format!(": {said}") };
        match &self.what {
            SshFault::NoCommand => f.write_str("the command for ssh names no program"),
            SshFault::Start { program, why } => write!(f, "cannot start {program}: {why}; install OpenSSH"),
            SshFault::Channel(why) => write!(f, "cannot talk to ssh: {why}"),
            SshFault::Silent(seconds) => write!(
                f,
                "{host}: thalweg there has sent nothing within {seconds} s; see what ssh {host} does"
            ),
            SshFault::Greeting(why) => write!(f, "{host}: its greeting cannot be understood: {why}"),
            SshFault::Versions { theirs, ours } => write!(
                f,
                "{host} speaks protocol {theirs}, and this program speaks {ours}; bring both sides to one version of \
                 thalweg"
            ),
            SshFault::Noise(text) => write!(
                f,
                "the shell of {host} prints '{text}' before thalweg starts; its start-up files must print nothing \
                 where there is no terminal"
            ),
            SshFault::Denied { said } => write!(
                f,
                "{host} refuses ssh{}; see that ssh {host} works, with the key of its IdentityFile or of an agent",
                quoted(said)
            ),
            SshFault::UnknownHostKey { said } => write!(
                f,
                "ssh does not know {host}{}; look at its key with ssh {host}, and accept it if it is right",
                quoted(said)
            ),
            SshFault::NoProgram { program, said } => write!(
                f,
                "there is no {program} at {host}{}; install it where the shell finds it",
                quoted(said)
            ),
            SshFault::NotExecutable { program, said } => write!(
                f,
                "{host} cannot run {program}{}; install a thalweg that was built for its kind of machine",
                quoted(said)
            ),
            SshFault::Unreachable { said } => {
                write!(f, "ssh cannot reach {host}{}; see that ssh {host} works", quoted(said))
            }
            SshFault::TooOld { said } => write!(
                f,
                "{host} does not serve transfers{}; bring both sides to one version of thalweg",
                quoted(said)
            ),
            SshFault::Status { status, program, said } => write!(
                f,
                "ssh to {host} ended with status {status}{}; see that ssh {host} {program} -V works",
                quoted(said)
            ),
            SshFault::EarlyEnd { said } => write!(
                f,
                "ssh to {host} ended before thalweg started there{}; see that ssh {host} works",
                quoted(said)
            ),
            SshFault::Ended { how, said, then } => {
                match how {
                    SshEnd::Status(status) => write!(f, "ssh to {host} ended with status {status}")?,
                    SshEnd::Signal(signal) => write!(f, "ssh to {host} was ended by signal {signal}")?,
                }
                let said = if said.is_empty() { String::new() } else { format!(", {said}") };
                write!(f, "{said}: {then}")
            }
        }
    }
}
