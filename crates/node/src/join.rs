//! Joining: the processes that a launcher such as srun or mpirun has started make a cluster in a directory that all of
//! them see.
//!
//! Model: the directory becomes that of the cluster's owner ([`thalweg_wire::cluster`]). Each process writes its
//! address into `nodes/NAME`, which it holds locked while it runs. Whoever first gets [`LOCK`] waits for all others,
//! makes the cluster with an identity for each, and gives the lock up. A process that comes later gets the lock next:
//! it adds itself to the cluster if one of its nodes runs, in the place of the node that had its name. Otherwise it
//! begins a new cluster in the place of the old one.
//! Invariant: the directory, and what is in it when a process comes, belongs to this user alone. Two nodes of one name
//! do not run at the same time.
//! Non-goals: file systems on which a lock does not exclude other hosts; changing the number of nodes.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_io::small;
use thalweg_wire::cluster::{self, host_directory};
use thalweg_wire::{CLUSTER_FILE, is_host_name, read_cluster};

use crate::{Error, Result};

/// How long to wait for the other processes.
pub(crate) const JOIN_SECONDS: u32 = 60;
/// How long to wait for the end of a node that had this name.
const END_SECONDS: u32 = 5;
/// How often to look at the directory.
const LOOKS_PER_SECOND: u32 = 10;
pub(crate) const LOOK: Duration = Duration::from_millis(1000 / LOOKS_PER_SECOND as u64);
/// Locked by the process that makes or changes the cluster.
const LOCK: &str = "join.lock";
/// The directory of the processes' addresses.
const NODES: &str = "nodes";
/// The name of the cluster if that of the directory cannot be one.
const CLUSTER: &str = "joined";

/// What the launcher says of a process, and the directory that all of its processes share.
#[derive(Debug, Clone)]
pub struct Join {
    /// The directory.
    pub directory: PathBuf,
    /// The number of this process, from 0.
    pub rank: usize,
    /// The number of processes that were started together.
    pub processes: usize,
}

/// A process that has joined.
pub(crate) struct Joined {
    /// The directory of its identity.
    pub(crate) identity: PathBuf,
    _running: small::Locked,
}

/// Makes a cluster together with the other processes; this one listens on `address`. `wait` waits for [`LOOK`], and
/// returns whether to go on. `None` if it said no.
pub(crate) fn join(
    asked: &Join,
    address: SocketAddr,
    mut wait: impl FnMut() -> bool,
) -> Result<Option<Joined>> {
    let meeting = Meeting { directory: &asked.directory, processes: asked.processes };
    meeting.check()?;
    let name = name_of(asked.rank);
    let mut looks = 0;
    while meeting.runs(&name)? {
        if looks == END_SECONDS * LOOKS_PER_SECOND {
            return Err(Error::RunsAlready { name, directory: asked.directory.clone() });
        }
        looks += 1;
        if !wait() {
            return Ok(None);
        }
    }
    // Before the others see that it has come: this identity is of a node that has ended.
    small::remove_tree(&host_directory(&asked.directory, &name))?;
    let host = format!("{name}={}", address_for_others(address)?);
    let running = small::write_locked(&meeting.address_file(&name), host.as_bytes())?;
    let (mut looks, mut turn) = (0, None);
    while !meeting.has_identity(&name) {
        if turn.is_none() {
            turn = small::try_lock(&asked.directory.join(LOCK))?;
        }
        if turn.is_some() && meeting.make()? {
            continue;
        }
        if looks == JOIN_SECONDS * LOOKS_PER_SECOND {
            let (directory, came) = (asked.directory.clone(), meeting.came()?.len());
            return Err(Error::NotAllCame { directory, came, processes: asked.processes });
        }
        looks += 1;
        if !wait() {
            return Ok(None);
        }
    }
    Ok(Some(Joined { identity: host_directory(&asked.directory, &name), _running: running }))
}

/// The directory in which processes meet.
struct Meeting<'a> {
    directory: &'a Path,
    processes: usize,
}

impl Meeting<'_> {
    /// Makes the directory if it is not there, and checks that it and all in it belongs to this user alone.
    fn check(&self) -> Result<()> {
        small::make_directory(self.directory)?;
        small::check_own_files(self.directory)?;
        small::make_directory(&self.directory.join(NODES))?;
        small::check_own_files(&self.directory.join(NODES))?;
        let hosts = cluster::hosts_directory(self.directory);
        if hosts.is_dir() {
            small::check_own_files(&hosts)?;
            small::list(&hosts)?.iter().try_for_each(|host| small::check_own_files(host))?;
        }
        Ok(())
    }

    fn address_file(&self, name: &str) -> PathBuf {
        self.directory.join(NODES).join(name)
    }

    /// Whether a process with this name runs.
    fn runs(&self, name: &str) -> Result<bool> {
        Ok(small::is_locked(&self.address_file(name))?)
    }

    /// Whether the identity of this name is there. Its cluster file is written last.
    fn has_identity(&self, name: &str) -> bool {
        host_directory(self.directory, name).join(CLUSTER_FILE).exists()
    }

    /// The processes that run, by rank, as [`cluster::init`] takes them.
    fn came(&self) -> Result<Vec<String>> {
        let mut came = Vec::new();
        for rank in 0..self.processes {
            let name = name_of(rank);
            if self.runs(&name)? {
                let host = small::read(&self.address_file(&name))?;
                came.push(String::from_utf8_lossy(&host).into_owned());
            }
        }
        Ok(came)
    }

    /// Makes the cluster, or adds hosts to it; `false` if it has to wait for others.
    fn make(&self) -> Result<bool> {
        let came = self.came()?;
        let is_new = |host: &&String| !self.has_identity(cluster::name_of(host));
        let new: Vec<String> = came.iter().filter(is_new).cloned().collect();
        if let Some(listed) = self.living()? {
            let names = new.iter().map(|host| cluster::name_of(host).to_string());
            let old: Vec<String> = names.filter(|name| listed.contains(name)).collect();
            if !old.is_empty() {
                cluster::drop_named(self.directory, &old)?;
            }
            cluster::add(self.directory, &new)?;
            return Ok(true);
        }
        if came.len() < self.processes {
            return Ok(false);
        }
        small::remove_tree(&cluster::hosts_directory(self.directory))?;
        let old = self.directory.join(CLUSTER_FILE);
        if old.exists() {
            small::remove(&old)?;
        }
        let name = self.directory.file_name().and_then(|name| name.to_str());
        cluster::init(
            self.directory,
            name.filter(|name| is_host_name(name)).unwrap_or(CLUSTER),
            &came,
            None,
        )?;
        Ok(true)
    }

    /// The names of the hosts of the cluster, if there is one and one of its nodes runs.
    fn living(&self) -> Result<Option<Vec<String>>> {
        let Ok((file, _)) = read_cluster(self.directory) else { return Ok(None) };
        let names: Vec<String> = file.hosts.into_iter().map(|host| host.name).collect();
        for name in &names {
            if self.has_identity(name) && self.runs(name)? {
                return Ok(Some(names));
            }
        }
        Ok(None)
    }
}

/// The name of the node of this process.
fn name_of(rank: usize) -> String {
    format!("n{}", rank + 1)
}

/// Where the other nodes find this one: at the name of its host if it listens on all addresses.
fn address_for_others(address: SocketAddr) -> Result<String> {
    if !address.ip().is_unspecified() {
        return Ok(address.to_string());
    }
    let name = small::read(Path::new("/proc/sys/kernel/hostname"))?;
    let name = String::from_utf8_lossy(&name).trim().to_string();
    let is_known =
        (name.as_str(), address.port()).to_socket_addrs().is_ok_and(|mut found| found.next().is_some());
    if is_known { Ok(format!("{name}:{}", address.port())) } else { Err(Error::HostName(name)) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const HERE: ([u8; 4], u16) = ([127, 0, 0, 1], 7);

    /// A directory that goes when the test ends.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let place = std::env::temp_dir().join(format!("thalweg-join-{name}-{}", std::process::id()));
            small::make_new_directory(&place).unwrap();
            Place(place)
        }

        fn joins(&self, rank: usize, processes: usize) -> Result<Option<Joined>> {
            let asked = Join { directory: self.0.join("d"), rank, processes };
            join(&asked, SocketAddr::from((HERE.0, HERE.1 + rank as u16)), || true)
        }

        /// Why the only process of a cluster cannot join.
        fn refuses(&self) -> String {
            self.joins(0, 1).err().expect("it is refused").to_string()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            small::remove_tree(&self.0).unwrap();
        }
    }

    #[test]
    fn a_process_that_waits_in_vain_says_how_many_came() {
        let place = Place::new("alone");
        let why = place.joins(0, 2).err().unwrap().to_string();
        assert!(why.starts_with("1 of 2 processes came to /") && why.ends_with("files and locks"), "{why}");
        let asked = Join { directory: place.0.join("d"), rank: 0, processes: 2 };
        assert!(join(&asked, HERE.into(), || false).unwrap().is_none(), "it was asked to stop");
    }

    #[test]
    fn a_name_runs_once_and_a_cluster_without_nodes_is_replaced() {
        let place = Place::new("again");
        let first = place.joins(0, 1).unwrap().unwrap();
        let (before, _) = read_cluster(&first.identity).unwrap();
        assert_eq!((before.name.as_str(), before.hosts[0].address.as_str()), ("d", "127.0.0.1:7"));
        assert!(place.refuses().contains("n1 of the cluster in /"), "{}", place.refuses());
        // A node more, while the first runs.
        let second = place.joins(1, 2).unwrap().unwrap();
        let (after, _) = read_cluster(&first.identity).unwrap();
        assert_eq!((&after.id, after.epoch, after.hosts.len()), (&before.id, 2, 2));
        // The same node again, with another key.
        drop(second);
        let _second = place.joins(1, 2).unwrap().unwrap();
        let (again, _) = read_cluster(&first.identity).unwrap();
        assert_eq!((&again.id, again.epoch, again.hosts.len()), (&before.id, 4, 2));
        assert_ne!(again.hosts[1].key, after.hosts[1].key);
        drop((first, _second));
        let anew = place.joins(0, 1).unwrap().unwrap();
        let (file, _) = read_cluster(&anew.identity).unwrap();
        assert!(file.id != before.id && file.hosts.len() == 1, "{file:?}");
    }

    #[test]
    fn a_directory_that_others_could_change_is_refused() {
        let place = Place::new("planted");
        let directory = place.0.join("d");
        let mode =
            |mode| std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
        symlink(&place.0, &directory).unwrap();
        assert!(place.refuses().contains("no directory that is this user's alone"), "{}", place.refuses());
        small::remove(&directory).unwrap();
        small::make_new_directory(&directory).unwrap();
        mode(0o755);
        assert!(place.refuses().contains("chmod 700"), "{}", place.refuses());
        mode(0o700);
        let planted = directory.join("authority.key");
        symlink("/etc/passwd", &planted).unwrap();
        assert!(place.refuses().contains("authority.key: it is a link"), "{}", place.refuses());
        small::remove(&planted).unwrap();
        if thalweg_io::process::is_root() {
            small::write(&planted, b"theirs").unwrap();
            std::os::unix::fs::chown(&planted, Some(1), Some(1)).unwrap();
            assert!(place.refuses().contains("belongs to another user"), "{}", place.refuses());
            small::remove(&planted).unwrap();
        }
        place.joins(0, 1).unwrap().unwrap();
        let open = |path: &Path| small::is_open_to_others(path);
        let files = small::list(&directory).unwrap();
        assert!(files.len() > 5 && !files.iter().any(|path| open(path)), "{files:?}");
    }
}
