//! `doctor`: what this machine offers and lacks.
//!
//! Model: one small function for each thing looked at, from what the kernel says to a [`Finding`]: the
//! number that was seen and, where it is weak, one remedy. Properties of a directory (direct I/O,
//! queue depth, free space) are examined for each directory given and for the current one.
//! Invariant: changes nothing; the file that direct I/O is tried on is gone when it returns.
//! Non-goals: measuring rates (`bench` does), remedying.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_api::{DoctorReport, Finding, Verdict};
use thalweg_base::units::{Bytes, GIB, KIB, MIB};
use thalweg_block::Pool;
use thalweg_io::threads::Threads;
use thalweg_io::uring::Uring;
use thalweg_io::{Access, Action, File, FileSystem, Kind, Op, hidden, process};

use crate::{Result, machine};

/// Fewer requests also keep a disk busy, but then lanes wait for each other in the kernel.
const QUEUE_REQUESTS_MIN: u64 = 32;
/// An eighth of a gigabyte of `--memory`, the window that may be registered with the ring.
const LOCKED_BYTES_MIN: u64 = 128 * MIB;
/// A sort needs only 64; many inputs, and links to many nodes, need more.
const OPEN_FILES_MIN: u64 = 1024;
/// The bandwidth-delay product of a link of 10 Gbit/s and 1 ms, rounded up.
const SOCKET_BYTES_MIN: u64 = 4 * MIB;
/// Entries of the neighbour table for a cluster; the kernel's 128 forgets some on each all-to-all exchange.
const NEIGHBOURS_MIN: [u64; 3] = [1024, 4096, 8192];
/// With less free space than this, a disk is soon full.
const FREE_BYTES_MIN: u64 = 10 * GIB;
/// Below this, passes multiply.
const MEMORY_BYTES_MIN: u64 = GIB;
/// The bit of a virtio balloon that tells free pages to the host (virtio 1.2, section 5.5.3).
const BALLOON_REPORTING: usize = 5;
const DIRECT_BYTES: usize = 4 * KIB as usize;

/// Reports what this machine, the directories given and the current directory offer and lack.
pub fn doctor(scratch: &[PathBuf]) -> Result<DoctorReport> {
    let io: Arc<dyn FileSystem> = Arc::new(Threads::new(1));
    let mut findings = vec![io_uring()];
    let mut directories = scratch.to_vec();
    if !directories.iter().any(|directory| directory == Path::new(".")) {
        directories.push(PathBuf::from("."));
    }
    for directory in &directories {
        findings.extend([direct_io(&io, directory), queue_depth(&io, directory), free_space(&io, directory)]);
    }
    findings.extend([cores(), memory(), free_memory(), huge_pages(), locked_memory(), open_files()]);
    findings.extend([socket_buffers(), neighbours(), multicast()]);
    assert!(findings.iter().all(|f| (f.verdict == Verdict::Good) == f.remedy.is_empty()));
    Ok(DoctorReport { findings })
}

fn good(name: impl Into<String>, seen: String) -> Finding {
    Finding { name: name.into(), verdict: Verdict::Good, seen, remedy: String::new() }
}

fn weak(name: impl Into<String>, seen: String, remedy: String) -> Finding {
    Finding { name: name.into(), verdict: Verdict::Weak, seen, remedy }
}

fn missing(name: impl Into<String>, seen: String, remedy: String) -> Finding {
    Finding { name: name.into(), verdict: Verdict::Missing, seen, remedy }
}

/// Good if `number` is at least `enough`, else weak.
fn at_least(name: &str, number: u64, enough: u64, seen: String, remedy: &str) -> Finding {
    if number >= enough { good(name, seen) } else { weak(name, seen, remedy.to_string()) }
}

/// The text of one of the kernel's files, without its newline.
fn kernel_says(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim_end().to_string())
}

fn kernel_number(path: &str) -> Option<u64> {
    kernel_says(path)?.parse().ok()
}

fn io_uring() -> Finding {
    let setting = kernel_number("/proc/sys/kernel/io_uring_disabled");
    let said = match setting {
        Some(value) => format!("kernel.io_uring_disabled = {value}"),
        None => "the kernel has no setting that disables it".to_string(),
    };
    match Uring::new() {
        Ok(_) => good("io_uring", format!("a ring was set up and answered; {said}")),
        Err(e) => {
            let remedy = match setting {
                Some(1..) => "sysctl -w kernel.io_uring_disabled=0; until then threads do its work",
                _ => {
                    "allow io_uring_setup in the container's seccomp profile, or use Linux 5.6 or later; until then threads do its work"
                }
            };
            missing("io_uring", format!("{}; {said}", e.source), remedy.to_string())
        }
    }
}

/// Opens a file there as a sort does, writes a page and reads it back.
fn direct_io(io: &Arc<dyn FileSystem>, directory: &Path) -> Finding {
    let name = format!("direct I/O in {}", directory.display());
    let path = directory.join(hidden::unique("doctor"));
    let tried = try_direct(io, &path);
    let _ = io.remove(&path);
    match tried {
        Ok(true) => {
            good(name, format!("a page of {} went out and came back past the page cache", Bytes(4096)))
        }
        Ok(false) => weak(
            name,
            format!("{} refuses O_DIRECT, so bytes go through the page cache", file_system_of(io, directory)),
            "give a scratch directory and an output on ext4, xfs or btrfs on a local disk".to_string(),
        ),
        Err(why) => missing(
            name,
            why.to_string(),
            "make the directory, allow writing to it with chmod, or give another scratch directory"
                .to_string(),
        ),
    }
}

/// Whether direct access works; an error if no file can be made at all.
fn try_direct(io: &Arc<dyn FileSystem>, path: &Path) -> Result<bool> {
    let file = File::open(io, path, Access::CreateDirect)?;
    let pool = Pool::new(DIRECT_BYTES, 1)?;
    let mut queue = io.queue(1)?;
    let mut block = pool.take();
    block.set_len(DIRECT_BYTES);
    block.fill(0x5a);
    for kind in [Kind::Write, Kind::Read] {
        queue.submit(Op { kind, file: file.handle().clone(), at: 0, block, tag: 0 });
        let done = queue.reap(true).expect("one operation is in flight");
        done.result?;
        block = done.block;
    }
    if block.len() != DIRECT_BYTES || block.iter().any(|&byte| byte != 0x5a) {
        let why = std::io::Error::other("what was written did not come back");
        return Err(thalweg_io::Error::new(Action::Read, path, why).into());
    }
    Ok(file.is_direct())
}

fn queue_depth(io: &Arc<dyn FileSystem>, directory: &Path) -> Finding {
    let name = format!("queue depth of {}", directory.display());
    let Ok(about) = io.stat(directory) else {
        return missing(
            name,
            "there is no such directory".to_string(),
            "make it, or give another scratch directory".to_string(),
        );
    };
    let Some(device) = block_device(about.device) else {
        let file_system = file_system_of(io, directory);
        return good(name, format!("{file_system} lies on no block device, so there is no queue"));
    };
    match kernel_number(&format!("/sys/block/{device}/queue/nr_requests")) {
        Some(requests) if requests < QUEUE_REQUESTS_MIN => weak(
            name,
            format!("{device} takes {requests} requests at once"),
            format!("echo 256 > /sys/block/{device}/queue/nr_requests"),
        ),
        Some(requests) => good(name, format!("{device} takes {requests} requests at once")),
        None => good(name, format!("{device} has a queue that the kernel does not tell about")),
    }
}

/// The name of the whole disk that holds the files of a device number.
fn block_device(device: u64) -> Option<String> {
    let (major, minor) = numbers_of(device);
    let link = match std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) {
        Ok(link) => link,
        // File systems over several disks have device numbers of their own; the mount table names one disk.
        Err(_) => {
            let (_, source) = mount_of(&kernel_says("/proc/self/mountinfo")?, device)?;
            let name = std::fs::canonicalize(source).ok()?.file_name()?.to_owned();
            std::fs::canonicalize(Path::new("/sys/class/block").join(name)).ok()?
        }
    };
    let disk = if link.join("partition").exists() { link.parent()?.to_path_buf() } else { link };
    Some(disk.file_name()?.to_string_lossy().into_owned())
}

/// Major and minor, as the C library packs them.
fn numbers_of(device: u64) -> (u64, u64) {
    ((device >> 8 & 0xfff) | (device >> 32 & !0xfff), (device & 0xff) | (device >> 12 & 0xf_ff00))
}

/// Type and source of the file system of a device number, from the kernel's table of mounts.
fn mount_of(table: &str, device: u64) -> Option<(String, String)> {
    let (major, minor) = numbers_of(device);
    let wanted = format!("{major}:{minor}");
    let line = table.lines().find(|line| line.split(' ').nth(2) == Some(wanted.as_str()))?;
    let mut after = line.split_once(" - ")?.1.split(' ');
    Some((after.next()?.to_string(), after.next()?.to_string()))
}

fn file_system_of(io: &Arc<dyn FileSystem>, directory: &Path) -> String {
    let table = kernel_says("/proc/self/mountinfo").unwrap_or_default();
    let found = io.stat(directory).ok().and_then(|about| mount_of(&table, about.device));
    found.map_or_else(|| "the file system".to_string(), |(kind, _)| kind)
}

fn free_space(io: &Arc<dyn FileSystem>, directory: &Path) -> Finding {
    let name = format!("free space in {}", directory.display());
    match io.space(directory) {
        Ok(space) => {
            let seen = format!("{} of {}", Bytes(space.available), Bytes(space.total));
            at_least(
                &name,
                space.available,
                FREE_BYTES_MIN,
                seen,
                "remove something there, or add a scratch directory",
            )
        }
        Err(e) => missing(name, e.to_string(), "make it, or give another scratch directory".to_string()),
    }
}

fn cores() -> Finding {
    let count = machine::cores() as u64;
    let seen = format!("{count} that this process may run on");
    at_least(
        "cores",
        count,
        2,
        seen,
        "give the machine or the container a second one: one reads while one sorts",
    )
}

fn memory() -> Finding {
    let available = process::available_memory_bytes();
    let machine = Bytes(process::machine_memory_bytes());
    let group = match process::group_memory_bytes() {
        Some(limit) => format!("its control group allows {}", Bytes(limit)),
        None => "no control group bounds it".to_string(),
    };
    let seen = format!("{} available of {machine}; {group}", Bytes(available));
    let remedy = "end what else takes memory, or raise memory.max of the control group";
    at_least("memory", available, MEMORY_BYTES_MIN, seen, remedy)
}

fn free_memory() -> Finding {
    const BALLOONS: &str = "/sys/bus/virtio/drivers/virtio_balloon";
    let devices = std::fs::read_dir(BALLOONS).into_iter().flatten().flatten();
    let features =
        devices.filter_map(|device| kernel_says(&device.path().join("features").to_string_lossy()));
    match features.into_iter().any(|features| tells_free_pages(&features)) {
        false => good("free memory", "stays with this machine".to_string()),
        true => weak(
            "free memory",
            "the host takes back what nobody used for seconds: touching it again costs up to 2 s of a core for a GiB"
                .to_string(),
            "have the host leave it: free-page-reporting=off for the virtual machine's balloon".to_string(),
        ),
    }
}

/// Whether a balloon, whose features are given as digits, reports free pages to its host.
fn tells_free_pages(features: &str) -> bool {
    features.as_bytes().get(BALLOON_REPORTING) == Some(&b'1')
}

fn huge_pages() -> Finding {
    const FILE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    let Some(said) = kernel_says(FILE) else {
        return missing(
            "huge pages",
            "the kernel has no transparent huge pages".to_string(),
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE; a first touch costs a sixth with them"
                .to_string(),
        );
    };
    let seen = format!("transparent_hugepage/enabled: {said}");
    if said.contains("[never]") {
        weak("huge pages", seen, format!("echo madvise > {FILE}"))
    } else {
        good("huge pages", seen)
    }
}

fn locked_memory() -> Finding {
    let Some(limit) = process::limit("Max locked memory") else {
        return good("locked memory", "the kernel tells no limit".to_string());
    };
    let seen = match limit {
        u64::MAX => "unlimited".to_string(),
        bytes => format!("{} may be locked", Bytes(bytes)),
    };
    let remedy = "ulimit -l 131072, after a line 'memlock' in /etc/security/limits.conf or LimitMEMLOCK= in the service";
    at_least("locked memory", limit, LOCKED_BYTES_MIN, seen, remedy)
}

fn open_files() -> Finding {
    let Some(limit) = process::limit("Max open files") else {
        return good("open files", "the kernel tells no limit".to_string());
    };
    let seen = if limit == u64::MAX { "unlimited".to_string() } else { format!("{limit} at once") };
    at_least("open files", limit, OPEN_FILES_MIN, seen, "ulimit -n 4096, or LimitNOFILE= in the service")
}

fn socket_buffers() -> Finding {
    let largest = |name: &str| kernel_number(&format!("/proc/sys/net/core/{name}"));
    let (Some(receive), Some(send)) = (largest("rmem_max"), largest("wmem_max")) else {
        return good("socket buffers", "the kernel tells no limit here".to_string());
    };
    let seen =
        format!("net.core.rmem_max = {receive}, net.core.wmem_max = {send}; for links between machines");
    let remedy = format!("sysctl -w net.core.rmem_max={0} net.core.wmem_max={0}", 4 * SOCKET_BYTES_MIN);
    at_least("socket buffers", receive.min(send), SOCKET_BYTES_MIN, seen, &remedy)
}

fn neighbours() -> Finding {
    let file = |i: usize| format!("/proc/sys/net/ipv4/neigh/default/gc_thresh{i}");
    let seen: Vec<Option<u64>> = (1..=3).map(|i| kernel_number(&file(i))).collect();
    let [Some(first), Some(second), Some(third)] = seen[..] else {
        return good("neighbour table", "the kernel tells no limits here".to_string());
    };
    let text = format!("gc_thresh1..3 = {first}, {second}, {third} hosts; for clusters");
    let enough = [first, second, third].iter().zip(NEIGHBOURS_MIN).all(|(&seen, least)| seen >= least);
    if enough {
        return good("neighbour table", text);
    }
    let settings: Vec<String> =
        (1..=3).map(|i| format!("net.ipv4.neigh.default.gc_thresh{i}={}", NEIGHBOURS_MIN[i - 1])).collect();
    weak("neighbour table", text, format!("sysctl -w {}", settings.join(" ")))
}

fn multicast() -> Finding {
    // Flags of the kernel: up, loopback and multicast.
    let [up, loopback, multicast] = [1, 8, 0x1000];
    let flags = |name: &str| {
        let text = kernel_says(&format!("/sys/class/net/{name}/flags"))?;
        u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    };
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| flags(name).is_some_and(|flags| flags & (up | loopback) == up));
    names.sort();
    let (can, cannot): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| flags(name).is_some_and(|flags| flags & multicast != 0));
    match (can.is_empty(), cannot.first()) {
        (false, _) => good("multicast", format!("{} can; switches may still drop it", can.join(", "))),
        (true, None) => good("multicast", "this machine has no network".to_string()),
        (true, Some(name)) => weak(
            "multicast",
            format!("{} cannot", cannot.join(", ")),
            format!(
                "ip link set dev {name} multicast on; until then tables with --variant n or c send to each node"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(report: &'a DoctorReport, name: &str) -> &'a Finding {
        report.findings.iter().find(|f| f.name.starts_with(name)).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn everything_is_looked_at_and_what_is_not_good_has_a_remedy() {
        let report = doctor(&[]).unwrap();
        for name in [
            "io_uring",
            "direct I/O in .",
            "queue depth of .",
            "free space in .",
            "cores",
            "memory",
            "free memory",
            "huge pages",
            "locked memory",
            "open files",
            "socket buffers",
            "neighbour table",
            "multicast",
        ] {
            let finding = found(&report, name);
            assert!(!finding.seen.is_empty(), "{name}");
            assert_eq!(finding.verdict == Verdict::Good, finding.remedy.is_empty(), "{finding:?}");
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_missing_and_nothing_is_left_in_one_that_is() {
        let here = std::env::temp_dir().join(format!("thalweg-doctor-test-{}", std::process::id()));
        std::fs::create_dir(&here).unwrap();
        let report = doctor(&[here.clone(), here.join("nowhere")]).unwrap();
        let nowhere = here.join("nowhere").display().to_string();
        for what in ["direct I/O in", "queue depth of", "free space in"] {
            assert_eq!(found(&report, &format!("{what} {nowhere}")).verdict, Verdict::Missing);
        }
        assert_ne!(found(&report, &format!("direct I/O in {}", here.display())).verdict, Verdict::Missing);
        assert_eq!(std::fs::read_dir(&here).unwrap().count(), 0, "the trial file is gone");
        std::fs::remove_dir(&here).unwrap();
    }

    #[test]
    fn a_balloon_tells_free_pages_by_its_sixth_bit() {
        assert!(tells_free_pages("0110010100000000") && tells_free_pages("000001"));
        assert!(!tells_free_pages("0110100100000000") && !tells_free_pages("00000") && !tells_free_pages(""));
    }

    #[test]
    fn mounts_are_found_by_device_number() {
        let table = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,discard
";
        assert_eq!(numbers_of(254 << 8 | 1), (254, 1));
        assert_eq!(numbers_of(0x1_0000_0000_0000 | 259 << 8 | 0x10_0000 | 3), (0x1_0000 | 259, 0x103));
        assert_eq!(mount_of(table, 254 << 8 | 1), Some(("ext4".into(), "/dev/vda1".into())));
        assert_eq!(mount_of(table, 21), Some(("proc".into(), "proc".into())));
        assert_eq!(mount_of(table, 22), None);
    }
}
