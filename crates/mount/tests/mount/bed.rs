//! A new volume, mounted.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mount::UnmountFlags;
use thalweg_mount::{KernelFlags, Options, mount};
use thalweg_volume::{CACHE_BYTES_MIN, Hint, OpenVolume, Registry, check, create, layout::Policy, open};

/// Names the place of a bed to the process that is to mount it, and the directory there.
const SERVES: &str = "THALWEG_TEST_MOUNTS";
const MOUNT_POINT: &str = "THALWEG_TEST_MOUNT_POINT";
const OPTIONS: &str = "THALWEG_TEST_MOUNT_OPTIONS";
const CACHE: &str = "THALWEG_TEST_CACHE";
const READY: &str = "it is mounted";

/// A volume of three stores in directories of its own, and where it is mounted. All of it goes at the end.
pub(crate) struct Bed {
    place: PathBuf,
    mounted: Option<Serving>,
}

/// A process that serves a mount, and what it says.
pub(crate) type Serving = (Child, BufReader<ChildStdout>);

/// It has ended well, and told of nothing.
pub(crate) fn ended((mut child, mut said): Serving) {
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
    assert!(child.wait().unwrap().success() && !rest.contains("EIO"), "{rest}");
}

impl Bed {
    /// `None` if this machine has no FUSE, and then it is told that the test was skipped.
    pub(crate) fn new() -> Option<Bed> {
        let mut bed = Bed::unmounted(None)?;
        bed.mount();
        Some(bed)
    }

    /// A bed whose stores together have this much room. `None` also if this user may not mount a small file system.
    pub(crate) fn small(room: &str) -> Option<Bed> {
        let mut bed = Bed::unmounted(Some(room))?;
        bed.mount();
        Some(bed)
    }

    /// A new volume, whose stores are on a file system of this size if one is given.
    pub(crate) fn unmounted(room: Option<&str>) -> Option<Bed> {
        static BEDS: AtomicU32 = AtomicU32::new(0);
        let number = BEDS.fetch_add(1, Ordering::Relaxed);
        if let Err(why) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            skipped(&format!("/dev/fuse: {why}"));
            return None;
        }
        let place = std::env::temp_dir().join(format!("thalweg-mount-{}-{number}", std::process::id()));
        let disk = place.join("disk");
        std::fs::create_dir_all(&disk).unwrap();
        let bed = Bed { place, mounted: None };
        if let Some(room) = room {
            let mounted = sh_output(&disk, &format!("mount -t tmpfs -o size={room} none $PWD"));
            if !mounted.status.success() {
                skipped(&format!("tmpfs: {}", String::from_utf8_lossy(&mounted.stderr)));
                return None;
            }
        }
        let place = &bed.place;
        let stores: Vec<PathBuf> = ["s0", "s1", "s2"].iter().map(|name| disk.join(name)).collect();
        stores.iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
        std::fs::create_dir(place.join("mnt")).unwrap();
        // Small stripes, so that small files have several.
        let policy = Policy { stripe_bytes: 64 << 10, ..Policy::default() };
        let meta = place.join("meta");
        std::fs::create_dir(&meta).unwrap();
        create(&registry(place), "v", &stores, Some(&meta), &policy).unwrap();
        Some(bed)
    }

    /// Mounts it in a process of its own: one that used its own mount could not be killed when it hangs.
    pub(crate) fn mount(&mut self) {
        self.mount_with("rw");
    }

    /// Mounts it with options of mount(8).
    pub(crate) fn mount_with(&mut self, options: &str) {
        self.mounted = Some(self.mount_on("mnt", options, CACHE_BYTES_MIN));
    }

    fn mount_on(&self, at: &str, options: &str, cache_bytes: u64) -> Serving {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["bed::serve", "--exact", "--nocapture"]).env(SERVES, &self.place).env(MOUNT_POINT, at);
        command.env(OPTIONS, options).env(CACHE, cache_bytes.to_string()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.ends_with(&format!("{READY}\n")) {
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "it was not mounted: {line}");
        }
        (child, said)
    }

    /// Mounts it a second time, in another process and another place.
    pub(crate) fn again(&self) -> Again {
        self.mounted_as("mnt2", CACHE_BYTES_MIN)
    }

    /// Mounts it once more, with a cache of this size.
    pub(crate) fn with_cache(&self, cache_bytes: u64) -> Again {
        self.mounted_as("mnt3", cache_bytes)
    }

    fn mounted_as(&self, name: &str, cache_bytes: u64) -> Again {
        let at = self.place.join(name);
        std::fs::create_dir(&at).unwrap();
        let (child, said) = self.mount_on(name, "rw", cache_bytes);
        Again { at, child, said }
    }

    /// The process that serves the mount.
    pub(crate) fn server(&mut self) -> &mut Child {
        &mut self.mounted.as_mut().unwrap().0
    }

    pub(crate) fn unmount(&mut self) {
        // Processes that other tests start may have copies of descriptors for a moment.
        rustix::mount::unmount(self.root(), UnmountFlags::DETACH).unwrap();
        self.ended();
    }

    /// The process that served the mount has ended well, and told of nothing.
    pub(crate) fn ended(&mut self) {
        ended(self.left());
    }

    /// The process that served the mount, which someone else unmounted.
    pub(crate) fn left(&mut self) -> Serving {
        self.mounted.take().unwrap()
    }

    /// The kernel has no pages of it any more.
    pub(crate) fn mount_again(&mut self) {
        self.unmount();
        self.mount();
    }

    /// Opens the volume in this process.
    pub(crate) fn open(&self) -> OpenVolume {
        open(&registry(&self.place), "v").unwrap()
    }

    /// The bytes that are free on the file system of its stores.
    pub(crate) fn free_bytes(&self) -> u64 {
        let found = rustix::fs::statvfs(self.place.join("disk")).unwrap();
        found.f_bavail * found.f_frsize
    }

    /// Where it is mounted.
    pub(crate) fn root(&self) -> PathBuf {
        self.place.join("mnt")
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// A path beside it, on the machine's own file system.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// Unmounts it, and checks that every byte is what was written and that no strip is left over.
    pub(crate) fn ends_sound(mut self) {
        self.unmount();
        let open = open(&registry(&self.place), "v").unwrap();
        assert_eq!(check(&open).unwrap().problems, Vec::<String>::new());
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.mounted.take() {
            let _ = rustix::mount::unmount(self.root(), UnmountFlags::DETACH);
            let _ = child.kill();
            let _ = child.wait();
        }
        // If it has a file system of its own.
        let _ = rustix::mount::unmount(self.place.join("disk"), UnmountFlags::DETACH);
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

/// A second mount of a volume. It goes at the end.
pub(crate) struct Again {
    pub(crate) at: PathBuf,
    pub(crate) child: Child,
    said: BufReader<ChildStdout>,
}

impl Drop for Again {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
        let mut rest = String::new();
        let _ = std::io::Read::read_to_string(&mut self.said, &mut rest);
        let _ = self.child.wait();
    }
}

fn registry(place: &Path) -> Registry {
    Registry::at(place.join("volumes.json"))
}

/// Why the volume of a bed cannot be mounted there.
pub(crate) fn refusal(bed: &Bed, at: &Path) -> String {
    let options = Options { flags: KernelFlags::default(), complain: Arc::new(|_: &str| ()) };
    match mount(open(&registry(&bed.place), "v").unwrap(), at, options) {
        Ok(_) => panic!("it is mounted on {}", at.display()),
        Err(why) => why.to_string(),
    }
}

/// No test: what a bed starts in a process of its own.
#[test]
fn serve() {
    let Some(place) = std::env::var_os(SERVES).map(PathBuf::from) else { return };
    thalweg_io::process::one_heap();
    let complain = Arc::new(|why: &str| println!("EIO: {why}"));
    let mut flags = KernelFlags::default();
    for option in std::env::var(OPTIONS).unwrap().split(',') {
        assert!(flags.set(option), "{option}");
    }
    let options = Options { flags, complain };
    let at = place.join(std::env::var_os(MOUNT_POINT).unwrap());
    let open = open(&registry(&place), "v").unwrap();
    let cache_bytes = std::env::var(CACHE).unwrap().parse().unwrap();
    open.volume.set_cache(cache_bytes, Hint::Normal).unwrap();
    let mounted = mount(open, &at, options).unwrap();
    println!("{READY}");
    mounted.wait().unwrap();
}

/// Says that this test cannot run on this machine, and why. `./test` counts it: it names a file in `THALWEG_SKIPPED`.
pub(crate) fn skipped(why: &str) {
    println!("skipped: {why}");
    let Some(file) = std::env::var_os("THALWEG_SKIPPED") else { return };
    let thread = std::thread::current();
    let line = format!("{}::{} {why}\n", env!("CARGO_CRATE_NAME"), thread.name().unwrap_or("?"));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file can be written");
}

/// Whether a program can be started; if not, that is why something is skipped.
pub(crate) fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v '{program}'")]).output().unwrap();
    if !found.status.success() {
        skipped(&format!("there is no {program}"));
    }
    found.status.success()
}

/// What a shell script prints, which must succeed.
pub(crate) fn sh(at: &Path, script: &str) -> String {
    let output = sh_output(at, script);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}\n{out}{err}");
    out.into_owned()
}

pub(crate) fn sh_output(at: &Path, script: &str) -> Output {
    Command::new("bash").args(["-euo", "pipefail", "-c", script]).current_dir(at).output().unwrap()
}
