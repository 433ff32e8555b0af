//! A lab with a mirrored volume, and a mount of it in the network of a host of its own.
//!
//! ```text
//! n1 manager   n2 store   n3 store   n4 two stores   n5 mount
//! ```

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use thalweg_api::{VolumeCheck, from_json};
use thalweg_io::process;

use crate::support::lab::Lab;
use crate::support::{Outcome, Place, skipped, until_within};
use crate::work::{READ_BYTES, Work, block, write_some};
use crate::{Fault, MIRROR, RETURN_SECONDS_MAX, Whom};

/// A file that is there before anything happens.
pub(crate) const BASE: &str = "base";
const BASE_BYTES: u64 = 16 << 20;
const STRIPE: &str = "64KiB";
/// The size of a disk that is to be filled.
const DISK: &str = "size=128m";

/// The lab. What is first is dropped first.
pub(crate) struct Bed {
    mount: Option<Mount>,
    lab: Lab,
    _disks: Vec<Disk>,
    place: Place,
}

/// A mount, and its process.
struct Mount {
    process: Child,
    at: PathBuf,
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.at).stderr(Stdio::null()).status();
    }
}

/// A small file system in memory, until it is dropped.
pub(crate) struct Disk(PathBuf);

impl Disk {
    pub(crate) fn mounted(at: PathBuf) -> Disk {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", DISK, "tmpfs"]).arg(&at).status();
        assert!(mount.unwrap().success());
        // What is unmounted in it is then unmounted in the namespaces of all hosts too, and not in use there any more.
        assert!(Command::new("mount").arg("--make-shared").arg(&at).status().unwrap().success());
        Disk(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Nodes that are gone may have had it open a moment ago.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Fills the file system of a directory.
pub(crate) fn fill(dir: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(dir.join("fill")).unwrap();
    for bytes in [vec![1; 1 << 20], vec![1; 4096]] {
        while file.write_all(&bytes).is_ok() {}
    }
}

/// Whether volumes can be mounted here; if not, that is why something is skipped.
pub(crate) fn may_mount() -> bool {
    let may = Path::new("/dev/fuse").exists() && process::is_root();
    if !may {
        skipped("mounting needs /dev/fuse, and here to be root");
    }
    may
}

impl Bed {
    /// A lab for this; `None` where that cannot be, which is said.
    pub(crate) fn new(whom: Whom, fault: Fault) -> Option<Bed> {
        if !may_mount() {
            return None;
        }
        let place = Place::new();
        let dir = |name: &str| place.0.join(name);
        ["n1", "n2", "n3", "n4", "n5"].iter().for_each(|name| std::fs::create_dir(dir(name)).unwrap());
        // Before the lab begins, so that its nodes see them.
        let full = (fault == Fault::DiskFull).then_some(whom.host());
        let disks = ["n5"].into_iter().chain(full).map(|host| Disk::mounted(dir(host))).collect();
        ["n5/mnt", "n1/meta", "n2/s", "n3/s", "n4/s", "n4/t"]
            .iter()
            .for_each(|name| std::fs::create_dir(dir(name)).unwrap());
        let lab = Lab::up(&["5"])?;
        let bed = Bed { mount: None, lab, _disks: disks, place };
        let on = |host: &str, name: &str| format!("{host}:{}/{host}/{name}", bed.place.0.display());
        let stores = [on("n2", "s"), on("n4", "s"), on("n3", "s"), on("n4", "t")].join(",");
        let words = [
            "volume",
            "create",
            "films",
            "--stripe",
            STRIPE,
            "--copies",
            "2",
            "--manager",
            &on("n1", "meta"),
        ];
        bed.run(&[&words[..], &["--stores", &stores]].concat()).is_done();
        bed.place.write(BASE, &(0..BASE_BYTES).step_by(READ_BYTES).flat_map(block).collect::<Vec<_>>());
        bed.run(&["pump", "-q", BASE, &format!("volume:films/{BASE}")]).is_done();
        Some(bed)
    }

    fn prepared(&self, mut command: Command) -> Command {
        command.current_dir(&self.place.0).env("XDG_CONFIG_HOME", self.place.0.join("settings"));
        command
    }

    /// Runs the command as the lab's owner, with settings of its own.
    pub(crate) fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(self.prepared(self.lab.command(args)).output().unwrap())
    }

    /// The same, ready to run in the network of a host.
    pub(crate) fn in_network_of(&self, host: &str, args: &[&str]) -> Command {
        let ours = self.prepared(self.lab.command(args));
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/th{}-{host}", self.lab.id));
        command.arg(ours.get_program()).args(ours.get_args());
        command.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(&self.place.0).stdin(Stdio::null());
        command
    }

    /// A file or directory of the test.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        self.place.0.join(name)
    }

    /// Where the volume is mounted.
    pub(crate) fn at(&self) -> PathBuf {
        self.place.0.join("n5/mnt")
    }

    /// Mounts the volume in the network of n5, seen by all of this machine.
    pub(crate) fn mount(&mut self) {
        let at = self.at();
        let mut command = self.in_network_of("n5", &["mount", "films", "n5/mnt", "--cache", "0"]);
        let errors =
            std::fs::File::options().create(true).append(true).open(self.place.0.join("errors")).unwrap();
        let mut process = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.mount = Some(Mount { process, at });
        assert!(line.starts_with("films is mounted on "), "it says {line}");
    }

    /// Unmounts it; its process ends well.
    pub(crate) fn unmount(&mut self) {
        let mut mount = self.mount.take().expect("it is mounted");
        // A process that is being started elsewhere has this one's files open until its program runs.
        let unmounts = || Command::new("umount").arg(&mount.at).status().unwrap().success();
        until_within(10.0, "the end of the mount", unmounts);
        assert!(mount.process.wait().unwrap().success());
    }

    /// Kills the process of the mount, and unmounts what it leaves. If programs hang, that goes when they have ended.
    pub(crate) fn kill_mount(&mut self, hangs: bool) {
        let mut mount = self.mount.take().expect("it is mounted");
        mount.process.kill().unwrap();
        mount.process.wait().unwrap();
        if !hangs {
            // A process that is being started elsewhere has this one's files open until its program runs.
            let unmounts = || Command::new("umount").arg(&mount.at).status().unwrap().success();
            until_within(10.0, "the end of the mount", unmounts);
        }
    }

    /// Lets files of a directory have one strip each, and waits until the mount sends writes to the store of the first
    /// slot only, which forwards them. Returns that slot.
    pub(crate) fn forwards(&self, name: &str) -> u64 {
        let slot = 0;
        self.run(&["volume", "layout", &format!("volume:films/{name}"), "--width", "1", "--copies", "2"])
            .is_done();
        let probe = self.at().join(name).join("probe");
        until_within(RETURN_SECONDS_MAX, "writes are forwarded", || {
            let before = self.sent_bytes();
            let written = write_some(&probe, slot).unwrap();
            self.sent_bytes() - before < written * 3 / 2
        });
        std::fs::remove_file(probe).unwrap();
        slot
    }

    /// The bytes that the host of the mount has sent.
    fn sent_bytes(&self) -> u64 {
        let network = format!("--net=/run/netns/th{}-{}", self.lab.id, Whom::Client.host());
        let told = Command::new("nsenter").args([&network, "cat", "/proc/net/dev"]).output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        // `NAME: ` and 16 numbers, of which the ninth counts the bytes sent.
        let rows =
            told.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
        rows.map(|(_, row)| row.split_whitespace().nth(8).unwrap().parse::<u64>().unwrap()).sum()
    }

    /// Sends a signal without a new process: that would close, before it runs, the files that this one has open on
    /// mounts, and wait for a mount that is frozen.
    fn signal_mount(&self, signal: Signal) {
        let process = &self.mount.as_ref().expect("it is mounted").process;
        kill_process(Pid::from_child(process), signal).unwrap();
    }

    /// Has something happen.
    pub(crate) fn does(&self, whom: Whom, fault: Fault) {
        match (whom, fault) {
            (Whom::Client, Fault::Kill) => self.signal_mount(Signal::KILL),
            (Whom::Client, Fault::Freeze) => self.signal_mount(Signal::STOP),
            (_, Fault::Kill) => self.lab.call("kill", &[whom.host()]),
            (_, Fault::Freeze) => self.lab.call("freeze", &[whom.host()]),
            (_, Fault::Cut) => self.lab.call("cut", &[whom.host()]),
            (_, Fault::CutOneWay) => self.lab.call("cut", &["--one-way", whom.host()]),
            (_, Fault::CutFromMirror) => self.lab.call("cut", &[whom.host(), MIRROR]),
            (_, Fault::DiskFull) => fill(&self.place.0.join(whom.host())),
        }
    }

    /// Ends it.
    pub(crate) fn heal(&self, whom: Whom, fault: Fault) {
        match (whom, fault) {
            (Whom::Client, Fault::Kill) => {}
            (Whom::Client, Fault::Freeze) => self.signal_mount(Signal::CONT),
            (_, Fault::Kill) => self.lab.call("revive", &[whom.host()]),
            (_, Fault::Freeze | Fault::Cut | Fault::CutOneWay | Fault::CutFromMirror) => {
                self.lab.call("heal", &[]);
            }
            (_, Fault::DiskFull) => {
                std::fs::remove_file(self.place.0.join(whom.host()).join("fill")).unwrap()
            }
        }
    }

    /// What of acknowledged steps in a directory of the volume another client does not find.
    pub(crate) fn lost(&self, name: &str, work: Work, steps: usize) -> Option<String> {
        let copied = self.run(&["pump", "-q", &format!("volume:films/{name}/"), name]);
        match copied.status {
            Some(0) => work.lost(&self.place.0.join(name), steps),
            _ => Some(copied.err),
        }
    }

    /// Reads everything: how many copies missed a write, or all other problems.
    pub(crate) fn check(&self) -> Result<usize, Vec<String>> {
        let checked = self.run(&["volume", "check", "films", "--json"]);
        let found: VolumeCheck = from_json(&checked.out).map_err(|_| vec![checked.err])?;
        let is_stale = |problem: &String| problem.ends_with("missed a write, so only the other copy is read");
        let (stale, other): (Vec<String>, Vec<String>) = found.problems.into_iter().partition(is_stale);
        if other.is_empty() { Ok(stale.len()) } else { Err(other) }
    }
}
