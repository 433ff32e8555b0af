//! An ssh server for a test, with its own keys and settings.
//!
//! Invariant: the test starts and ends it; it listens on this machine only, and accepts only the test's key.
#![allow(dead_code)] // Each program of tests uses its part.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{Outcome, Place, free_ports, until};

/// A server that accepts one key. Its users have the home directory `home` and find this program by its name.
pub(crate) struct Sshd {
    server: Child,
    /// The ssh command for the hosts n1 and n2, and for this machine's address, which are all this machine. Nobody
    /// answers for n3, n4 gets a key that is not accepted, and n5 has never been seen.
    pub(crate) ssh: String,
    pub(crate) port: u16,
}

impl Sshd {
    /// Starts it in a place; `None`, with a note, where the program does not exist.
    pub(crate) fn start(place: &Place) -> Option<Sshd> {
        let program = ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|path| Path::new(path).exists());
        let Some(program) = program else {
            super::skipped("there is no sshd; install openssh-server");
            return None;
        };
        let (dir, port) = (place.0.display().to_string(), free_ports(1)[0]);
        let keys = "for k in host user wrong; do ssh-keygen -q -t ed25519 -N '' -f $k; done";
        place.shell(&format!("mkdir home path; ln -s $T path/thalweg; {keys}")).is_done();
        // The directory for its privilege separation, if it runs as root.
        let _ = std::fs::create_dir_all("/run/sshd");
        place.write(
            "sshd_config",
            format!(
                "Port {port}\nListenAddress 127.0.0.1\nHostKey {dir}/host\nAuthorizedKeysFile {dir}/user.pub\n\
                 StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\n\
                 SetEnv HOME={dir}/home PATH={dir}/path:/usr/bin:/bin\n"
            )
            .as_bytes(),
        );
        place.write(
            "ssh_config",
            format!(
                "Host n3\n Port 1\nHost n4\n IdentityFile {dir}/wrong\nHost * !n4\n IdentityFile {dir}/user\n\
                 Host n5\n StrictHostKeyChecking yes\nHost *\n HostName 127.0.0.1\n Port {port}\n IdentitiesOnly yes\n \
                 IdentityAgent none\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
            )
            .as_bytes(),
        );
        let mut command = Command::new(program);
        command.args(["-D", "-e", "-f"]).arg(place.0.join("sshd_config"));
        let server = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("sshd listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Sshd { server, ssh: format!("ssh -F {dir}/ssh_config"), port })
    }

    /// Runs `thalweg cluster` with these words, for the identity `own`, over this server.
    pub(crate) fn cluster(&self, place: &Place, words: &[&str]) -> Outcome {
        let mut command = Command::new(place.without_debug_information());
        command.arg("cluster").args(words).args(["--ssh", &self.ssh, "--identity", "own"]);
        Outcome::of(command.current_dir(&place.0).stdin(Stdio::null()).output().expect("the copy starts"))
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
