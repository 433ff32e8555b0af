//! A volume on the hosts of a lab, and its mounts.
//!
//! Model: every host has a store, and the first has the manager. Each reading host has a mount, whose process is in the
//! host's network; the mount itself is visible to all of this machine.
//! Invariant: mounts are gone when the value is dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use thalweg_base::clock::Stopwatch;

use crate::lab::Lab;
use thalweg_measure::process::whole_process;
use thalweg_measure::{Asked, Error, Result};

/// The name of the volume.
pub(crate) const NAME: &str = "films";
/// How long a mount may take to appear or to end, in seconds.
const MOUNTS_SECONDS: f64 = 20.0;

/// A volume with a store on each host of a lab.
pub(crate) struct Striped<'a> {
    asked: &'a Asked<'a>,
    lab: &'a Lab,
}

impl<'a> Striped<'a> {
    /// Creates the volume.
    pub(crate) fn create(asked: &'a Asked<'a>, lab: &'a Lab) -> Result<Striped<'a>> {
        let striped = Striped { asked, lab };
        let mut stores = Vec::new();
        for host in 1..=lab.hosts() {
            let dir = lab.directory(host).join("store");
            std::fs::create_dir(&dir).map_err(|e| thalweg_measure::failed("make", &dir, &e))?;
            stores.push(format!("n{host}:{}", dir.display()));
        }
        let manager = lab.directory(1).join("manager");
        std::fs::create_dir(&manager).map_err(|e| thalweg_measure::failed("make", &manager, &e))?;
        let (stores, manager) = (stores.join(","), format!("n1:{}", manager.display()));
        striped.run(&["volume", "create", NAME, "--stores", &stores, "--manager", &manager])?;
        Ok(striped)
    }

    /// Runs our command as the owner of the lab.
    pub(crate) fn run(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.asked.options.program);
        whole_process(self.of_owner(command.args(words))).map(|_| ())
    }

    /// Sets the lab's own identity, and a registry of volumes that is removed with the lab.
    fn of_owner<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let settings = self.lab.directory(1).join("settings");
        command.env("THALWEG_IDENTITY", self.lab.identity()).env("XDG_CONFIG_HOME", settings)
    }

    /// Creates a directory with this layout.
    pub(crate) fn directory(&self, name: &str, layout: &[&str]) -> Result<()> {
        let path = format!("volume:{NAME}/{name}");
        self.run(&[&["volume", "layout", &path], layout].concat())
    }

    /// Mounts the volume in each of the first hosts, with these flags.
    pub(crate) fn mount(&self, hosts: u32, flags: &[&str]) -> Result<Mounts> {
        let mut mounts = Mounts(Vec::new());
        (1..=hosts).try_for_each(|host| self.add(&mut mounts, host, flags))?;
        Ok(mounts)
    }

    /// Mounts the volume in one host, with these flags.
    pub(crate) fn mount_on(&self, host: u32, flags: &[&str]) -> Result<Mounts> {
        let mut mounts = Mounts(Vec::new());
        self.add(&mut mounts, host, flags)?;
        Ok(mounts)
    }

    fn add(&self, mounts: &mut Mounts, host: u32, flags: &[&str]) -> Result<()> {
        let at = self.lab.directory(host).join("mnt");
        std::fs::create_dir_all(&at).map_err(|e| thalweg_measure::failed("make", &at, &e))?;
        let mut command = self.lab.on_network(host, &self.asked.options.program);
        self.of_owner(command.args(["mount", NAME]).arg(&at).args(flags));
        mounts.add(at, &mut command)
    }
}

/// Mounts, each with its process.
pub(crate) struct Mounts(Vec<(PathBuf, Child)>);

impl Mounts {
    /// Starts the process of one mount.
    pub(crate) fn one(at: &Path, command: &mut Command) -> Result<Mounts> {
        let mut mounts = Mounts(Vec::new());
        mounts.add(at.to_path_buf(), command)?;
        Ok(mounts)
    }

    fn add(&mut self, at: PathBuf, command: &mut Command) -> Result<()> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let name = command.get_program().display().to_string();
        let child = command.spawn().map_err(|e| Error::Failed(format!("{name} cannot be run: {e}")))?;
        self.0.push((at, child));
        let (at, child) = self.0.last_mut().expect("it was just added");
        let watch = Stopwatch::start();
        while !is_mounted(at) {
            let ended = child.try_wait().ok().flatten();
            if ended.is_some() || watch.seconds() > MOUNTS_SECONDS {
                let mut said = String::new();
                if let (Some(_), Some(mut pipe)) = (ended, child.stderr.take()) {
                    let _ = std::io::Read::read_to_string(&mut pipe, &mut said);
                }
                let said = said.trim().lines().last().unwrap_or("nothing").to_string();
                return Err(Error::Failed(format!(
                    "{} was not mounted; its process said: {said}",
                    at.display()
                )));
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Ok(())
    }

    /// The mount of a host, the first being 1.
    pub(crate) fn at(&self, host: u32) -> &Path {
        &self.0[host as usize - 1].0
    }

    /// The processes.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|(_, child)| child.id())
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for (at, child) in &mut self.0 {
            let _ = Command::new("umount").arg(&*at).stderr(Stdio::null()).status();
            let watch = Stopwatch::start();
            while child.try_wait().is_ok_and(|ended| ended.is_none()) && watch.seconds() < MOUNTS_SECONDS {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
            let _ = Command::new("umount").arg("-l").arg(at).stderr(Stdio::null()).status();
        }
    }
}

/// Whether something is mounted at a path.
fn is_mounted(at: &Path) -> bool {
    thalweg_io::mounts_at(at).is_ok_and(|mounted| !mounted.is_empty())
}
