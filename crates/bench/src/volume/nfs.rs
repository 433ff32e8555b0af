//! NFS in a host of a lab: nfs-ganesha, version 3.
//!
//! Non-goals: a client; `access.c` reads its files with libnfs.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use thalweg_base::clock::Stopwatch;

use crate::lab::Lab;
use crate::launchers::is_here;

const PORT: u16 = 2049;
const MOUNT_PORT: u16 = 20048;
/// How long the server may take to listen, in seconds: it first waits for the lock of an earlier server.
const LISTENS_SECONDS: f64 = 60.0;
/// The read-ahead of a client with a cache.
const AHEAD_BYTES: u64 = 1 << 20;
/// Directories that the servers need.
const DIRECTORIES: [&str; 3] = ["/run/ganesha", "/run/rpcbind", "/var/lib/nfs/ganesha"];

/// A server, ended when this is dropped.
pub(crate) struct Nfs {
    processes: Vec<Child>,
    address: String,
    exported: PathBuf,
}

impl Nfs {
    /// Starts the server in a host, or says why it is left out.
    pub(crate) fn start(lab: &Lab, host: u32) -> Result<Nfs, String> {
        for (program, package) in [("ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs"), ("rpcbind", "rpcbind")] {
            if !is_here(program) {
                return Err(format!("NFS: {program} is not installed (apt-get install {package})"));
            }
        }
        let own = lab.directory(host);
        let (exported, settings, log) =
            (own.join("exported"), own.join("ganesha.conf"), own.join("ganesha.log"));
        let address = lab.address(host);
        let path = exported.display();
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {PORT}; MNT_Port = {MOUNT_PORT}; Bind_addr = {address}; \
             Enable_NLM = false; Enable_RQUOTA = false; }}\n\
             EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /exported; Protocols = 3; Transports = TCP; \
             Access_Type = RW; Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }} }}\n"
        );
        let made = |e: std::io::Error| format!("NFS: {e}");
        for dir in DIRECTORIES {
            std::fs::create_dir_all(dir).map_err(made)?;
        }
        std::fs::create_dir(&exported).map_err(made)?;
        std::fs::write(&settings, text).map_err(made)?;
        let mut nfs = Nfs { processes: Vec::new(), address, exported };
        nfs.run(lab.inside(host, "rpcbind").args(["-w", "-f", "-i"]))?;
        let mut ganesha = lab.inside(host, "ganesha.nfsd");
        ganesha.args(["-F", "-N", "NIV_EVENT", "-L"]).arg(&log).arg("-f").arg(&settings);
        nfs.run(ganesha.arg("-p").arg(own.join("ganesha.pid")))?;
        let watch = Stopwatch::start();
        while TcpStream::connect((nfs.address.as_str(), PORT)).is_err() {
            if watch.seconds() > LISTENS_SECONDS {
                return Err(format!("NFS: ganesha.nfsd does not listen; see {}", log.display()));
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Ok(nfs)
    }

    fn run(&mut self, command: &mut Command) -> Result<(), String> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.processes.push(child.map_err(|e| format!("NFS: {e}"))?);
        Ok(())
    }

    /// The local path of a file that it exports.
    pub(crate) fn local(&self, name: &str) -> PathBuf {
        self.exported.join(name)
    }

    /// The URL of such a file for clients.
    pub(crate) fn url(&self, name: &str, cache: bool) -> String {
        let path = self.local(name);
        let ahead = if cache { format!("&readahead={AHEAD_BYTES}") } else { String::new() };
        format!(
            "nfs://{}{}?version=3&nfsport={PORT}&mountport={MOUNT_PORT}{ahead}",
            self.address,
            path.display()
        )
    }
}

impl Drop for Nfs {
    fn drop(&mut self) {
        for child in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
