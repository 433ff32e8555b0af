//! What the kernel reports about this process, and the limits it sets: memory, CPU, open files.

#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// What the kernel has counted so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// User and system CPU seconds of all threads.
    pub cpu_seconds: f64,
    /// System CPU seconds alone.
    pub kernel_seconds: f64,
    /// The most memory that was resident at once, in bytes.
    pub peak_bytes: u64,
}

/// CPU time and peak memory of this process so far.
pub fn usage() -> Usage {
    // SAFETY: rusage is plain data, for which zeros are valid, and getrusage fills it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live rusage; RUSAGE_SELF needs no permission.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) } != 0;
    if failed {
        return Usage::default();
    }
    // getrusage remembers the parent's peak from before exec; the status file does not.
    let peak_bytes = status_field("VmHWM:").unwrap_or(usage.ru_maxrss as u64 * 1024);
    counted(&usage, peak_bytes)
}

/// Resets the peak of memory, where the kernel allows it, so that a process can measure each of several tasks.
pub fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// CPU seconds of the calling thread so far.
pub fn thread_cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Clock cycles of a core per second, if the kernel reports them.
pub fn clock_hz() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("cpu MHz"))?;
    Some(line.trim_start_matches(['\t', ' ', ':']).trim().parse::<f64>().ok()? * 1e6)
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The user and the group of files that this process creates.
pub fn user_and_group() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// The id of the current boot of the machine; empty if the system does not report it.
pub fn boot() -> String {
    let id = crate::small::read(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    String::from_utf8_lossy(&id).trim().into()
}

/// Waits for a child to end. Returns its status, and the usage of it and of the children that it waited for.
pub fn wait(child: Child) -> io::Result<(ExitStatus, Usage)> {
    // SAFETY: as in `usage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    loop {
        // SAFETY: the child is ours and was not waited for, since that takes the `Child`; both pointers are to live
        // values of the types that the call fills.
        let ended = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage) };
        if ended >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let peak_bytes = usage.ru_maxrss as u64 * 1024;
    Ok((ExitStatus::from_raw(status), counted(&usage, peak_bytes)))
}

/// The processes whose parent is this one.
pub fn children() -> Vec<u32> {
    let own = std::process::id();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|process| parent_of(*process) == Some(own)).collect()
}

fn parent_of(process: u32) -> Option<u32> {
    field_behind_state(process, 1)
}

/// A field of `/proc/PID/stat`, counted from the state, which is field 0.
fn field_behind_state(process: u32, place: usize) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the process is in brackets and may contain brackets.
    stat.rsplit_once(')')?.1.split_whitespace().nth(place)?.parse().ok()
}

/// Whether a process with this id, of any user, exists and is ending: killed, or a zombie.
pub fn is_ending(process: u32) -> bool {
    const PF_EXITING: u32 = 4;
    field_behind_state(process, 6).is_some_and(|flags| flags & PF_EXITING != 0)
}

/// Whether there is a process with this id, of any user.
pub fn is_alive(process: u32) -> bool {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM)))
}

fn counted(usage: &libc::rusage, peak_bytes: u64) -> Usage {
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    let kernel_seconds = seconds(usage.ru_stime);
    Usage { cpu_seconds: seconds(usage.ru_utime) + kernel_seconds, kernel_seconds, peak_bytes }
}

/// Binds this thread, and those that it starts from now on, to one of the cores that it may use.
pub fn stay_on_one_core() -> io::Result<()> {
    let set = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|core| set.is_set(*core)).expect("it runs on some core");
    let mut one = CpuSet::new();
    one.set(first);
    Ok(sched_setaffinity(None, &one)?)
}

/// The soft limit on this process that the kernel calls `name`, such as `Max open files` or `Max locked memory`, in its
/// own unit. `u64::MAX` if there is none.
pub fn limit(name: &str) -> Option<u64> {
    limit_in(&std::fs::read_to_string("/proc/self/limits").ok()?, name)
}

fn limit_in(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|l| l.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// The soft limit on the stack of the first thread, in bytes; `u64::MAX` if there is none.
pub fn stack_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Stack).current.unwrap_or(u64::MAX)
}

/// The number of open files of this process, including pipes and sockets.
pub fn open_files() -> u64 {
    // The listing itself is one of them.
    std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64).saturating_sub(1)
}

/// Raises the soft limit on open files to `files`, or to the hard limit if that is less. Returns the resulting limit.
pub fn allow_open_files(files: u64) -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX).min(files);
    let now = limit.current.unwrap_or(u64::MAX);
    limit.current = Some(most);
    if now < most && setrlimit(Resource::Nofile, limit).is_ok() { most } else { now }
}

/// Bytes of the program and its libraries that stay mapped while it sorts or moves data.
const CODE_BYTES: u64 = 4480 << 10;
/// The allocator's own default, until something larger is freed.
const LARGE_BYTES: libc::c_int = 128 << 10;

/// What this process is taken to occupy where there is no /proc: its heap, and all of its code, which cannot be unmapped.
const BLIND_BYTES: u64 = 16 << 20;

/// Resident memory in bytes. Mapped files, which are the program itself, always count as [`CODE_BYTES`]: how much is
/// mapped depends on their place in the page cache, and [`prepare_allocator`] unmaps the rest.
pub fn resident_bytes() -> u64 {
    match ["RssAnon:", "RssShmem:"].map(status_field) {
        [Some(anonymous), shared] => anonymous + shared.unwrap_or(0) + CODE_BYTES,
        // The peak that getrusage knows may be that of the parent before exec.
        _ => status_field("VmRSS:").unwrap_or(BLIND_BYTES),
    }
}

/// To be called before memory is divided. Unmaps the startup code, and gives allocations of at least [`LARGE_BYTES`]
/// their own mappings, which grow without a copy and return to the kernel when freed. By default the allocator moves
/// them to its heap once one was freed: sorts in 16 MiB with lines of 2 MB held 3 MiB more.
pub fn prepare_allocator() {
    shed_code();
    #[cfg(target_env = "gnu")]
    set_allocator(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
}

/// To be called at the start of a long-running process with many threads: all threads then allocate from one heap. By
/// default each has its own, which keeps freed memory: 12 MB after a node's part in 90 sorts, now 2.
pub fn one_heap() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, LARGE_BYTES)] {
        set_allocator(parameter, value);
    }
}

#[cfg(target_env = "gnu")]
fn set_allocator(parameter: libc::c_int, value: libc::c_int) {
    // SAFETY: it only sets a parameter.
    unsafe { libc::mallopt(parameter, value) };
}

/// Returns the free memory of the allocator to the kernel.
pub fn trim() {
    // SAFETY: it touches only memory that is not allocated.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Unmaps the code and constants that are mapped so far, mostly those of the startup. Pages that are needed later are
/// mapped again from the page cache. Code with a debugger's breakpoint stays, and so do constants that were relocated
/// at startup; if the kernel does not show which these are, everything stays.
fn shed_code() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Ok(pages) = std::fs::File::open("/proc/self/pagemap") else { return };
    for constant in maps.lines().filter_map(constant_of) {
        if is_all_of_a_file(&pages, &constant) {
            // SAFETY: these pages were never written, so mapping them again restores what was there.
            unsafe {
                libc::madvise(constant.start as *mut libc::c_void, constant.len(), libc::MADV_DONTNEED)
            };
        }
    }
}

/// The address range in a line of the kernel's table of mappings, if it maps a file's code or constants.
fn constant_of(line: &str) -> Option<Range<usize>> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let is_constant = (rest.starts_with("r-xp ") || rest.starts_with("r--p ")) && rest.contains(" /");
    let address = |text| usize::from_str_radix(text, 16).ok();
    is_constant.then_some(address(start)?..address(end)?)
}

/// Whether all pages in this range are still those of the file, and none is a private copy.
fn is_all_of_a_file(pages: &std::fs::File, addresses: &Range<usize>) -> bool {
    const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
    const OF_A_FILE: u64 = 1 << 61;
    // SAFETY: the call only returns a constant of the system.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let mut entries = vec![0; addresses.len() / page_bytes * size_of::<u64>()];
    let at = (addresses.start / page_bytes * size_of::<u64>()) as u64;
    let is_of_a_file = |entry: &[u8]| {
        let entry = u64::from_ne_bytes(entry.try_into().expect("a page has 8 bytes"));
        entry & PRESENT_OR_SWAPPED == 0 || entry & OF_A_FILE != 0
    };
    pages.read_exact_at(&mut entries, at).is_ok() && entries.chunks_exact(size_of::<u64>()).all(is_of_a_file)
}

/// Bytes of anonymous memory in huge pages. Since Linux 6.7 a scan of the page tables counts them; before, a sum over
/// all pages, which takes five times as long.
pub fn huge_page_bytes() -> u64 {
    let summed = || {
        let sums = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        field(&sums, "AnonHugePages:").unwrap_or(0)
    };
    scanned_huge_bytes().unwrap_or_else(summed)
}

/// Bytes of anonymous huge pages according to `PAGEMAP_SCAN`, if the kernel has it. Only for x86-64, whose end of user
/// space is known here.
fn scanned_huge_bytes() -> Option<u64> {
    const IS_FILE: u64 = 1 << 2;
    const IS_PRESENT: u64 = 1 << 3;
    const IS_HUGE: u64 = 1 << 6;
    const REGIONS: usize = 64;
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Region {
        start: u64,
        end: u64,
        categories: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Scan {
        size: u64,
        flags: u64,
        start: u64,
        end: u64,
        walk_end: u64,
        regions: u64,
        regions_max: u64,
        pages_max: u64,
        category_inverted: u64,
        category_mask: u64,
        category_anyof_mask: u64,
        return_mask: u64,
    }
    const PAGEMAP_SCAN: libc::Ioctl = libc::_IOWR::<Scan>(b'f' as u32, 16);
    /// The end of user space.
    const END: u64 = (1 << 47) - (1 << 12);
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let pages = std::fs::File::open("/proc/self/pagemap").ok()?;
    let mut regions = [Region::default(); REGIONS];
    let (mut start, mut bytes) = (0, 0);
    while start < END {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start,
            end: END,
            regions: regions.as_mut_ptr() as u64,
            regions_max: REGIONS as u64,
            category_inverted: IS_FILE,
            category_mask: IS_FILE | IS_PRESENT | IS_HUGE,
            return_mask: IS_HUGE,
            ..Scan::default()
        };
        // SAFETY: the kernel writes only to `scan` and to the regions whose number it gets, and both are alive.
        let found = unsafe { libc::ioctl(pages.as_raw_fd(), PAGEMAP_SCAN, &mut scan) };
        let found = regions.get(..usize::try_from(found).ok()?)?;
        bytes += found.iter().map(|region| region.end - region.start).sum::<u64>();
        start = scan.walk_end.max(start + 1);
    }
    Some(bytes)
}

/// Memory that a new job could use without displacing other processes, in bytes: the kernel's estimate, or what the
/// control groups have left, whichever is less.
pub fn available_memory_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = field(&info, "MemAvailable:").unwrap_or(1 << 30);
    group_memory_left_bytes().map_or(machine, |left| left.min(machine))
}

/// Memory of the machine, in bytes.
pub fn machine_memory_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        field(&info, "MemTotal:").unwrap_or(0)
    })
}

/// The smallest limit of a control group of this process, in bytes, if it is less than the memory of the machine.
pub fn group_memory_bytes() -> Option<u64> {
    memory_groups().iter().map(|group| group.limit_bytes).min()
}

/// The least that a control group of this process has left, in bytes; `None` if no group bounds its memory.
pub fn group_memory_left_bytes() -> Option<u64> {
    memory_groups().iter().map(Group::left_bytes).min()
}

/// A control group that bounds this process's memory.
struct Group {
    limit_bytes: u64,
    /// Excludes pages that the page cache could free.
    used_bytes: u64,
}

impl Group {
    fn left_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// The control groups of this process, of version 1 or 2, from the innermost outwards.
fn memory_groups() -> Vec<Group> {
    let machine_bytes = machine_memory_bytes();
    let lines = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut groups = Vec::new();
    for line in lines.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, limit, used, cached) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current", ["inactive_file ", "active_file "]),
            "memory" => (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ["total_inactive_file ", "total_active_file "],
            ),
            _ => continue,
        };
        // In a container this may be the path outside of it; then only the root is visible.
        for path in Path::new(path).ancestors() {
            let folder: PathBuf = Path::new(root).join(path.strip_prefix("/").unwrap_or(path));
            let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
            let number = |name: &str| read(name).and_then(|text| text.trim().parse::<u64>().ok());
            // Above its high mark a group of version 2 is slowed down almost to a stop.
            let limits = [number(limit), number("memory.high")];
            let limit_bytes = limits.into_iter().flatten().min();
            let (Some(limit_bytes), Some(used_bytes)) = (limit_bytes, number(used)) else { continue };
            let stat = read("memory.stat").unwrap_or_default();
            let pages =
                |name: &&str| stat.lines().find_map(|l| l.strip_prefix(*name)?.trim().parse::<u64>().ok());
            let cached_bytes: u64 = cached.iter().filter_map(pages).sum();
            if limit_bytes < machine_bytes {
                groups.push(Group { limit_bytes, used_bytes: used_bytes.saturating_sub(cached_bytes) });
            }
        }
    }
    groups
}

fn status_field(name: &str) -> Option<u64> {
    field(&std::fs::read_to_string("/proc/self/status").ok()?, name)
}

/// A `Name:   123 kB` line of one of the kernel's tables, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_found_by_a_scan_as_by_the_sum() {
        const BYTES: usize = 64 << 20;
        let mut memory = vec![0u8; BYTES];
        let at = memory.as_mut_ptr().align_offset(2 << 20);
        // SAFETY: this only gives advice about memory of this function.
        unsafe { libc::madvise(memory[at..].as_mut_ptr().cast(), 60 << 20, libc::MADV_HUGEPAGE) };
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        let sums = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let summed = field(&sums, "AnonHugePages:").unwrap();
        // Older kernels have no such scan.
        let Some(scanned) = scanned_huge_bytes() else { return };
        // Other tests use memory at the same time.
        assert!(scanned.abs_diff(summed) <= 8 << 20, "{scanned} by a scan, {summed} by the sum");
        drop(std::hint::black_box(memory));
    }

    #[test]
    fn the_kernel_counts_this_process() {
        let mut sum = 0u64;
        for i in 0..20_000_000u64 {
            sum = std::hint::black_box(sum ^ i);
        }
        let usage = usage();
        assert!(usage.cpu_seconds > 0.0);
        // The code counts as what a command uses, which is more than this process has mapped.
        let own = resident_bytes() - CODE_BYTES;
        assert!(usage.peak_bytes >= own && own > 100_000, "{own} of {}", usage.peak_bytes);
        assert!(available_memory_bytes() > 1 << 20);
    }

    #[test]
    fn code_is_given_back_unless_it_was_written_to() {
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
        let pages = || std::fs::File::open("/proc/self/pagemap").unwrap();
        let here = code_is_given_back_unless_it_was_written_to as *const () as usize;
        let code = maps().lines().filter_map(constant_of).find(|code| code.contains(&here)).expect("it runs");
        assert!(is_all_of_a_file(&pages(), &code));
        let page = (here & !4095) as *mut libc::c_void;
        let allow = |what| {
            // SAFETY: the page stays readable and executable; the byte written is the one that is there.
            assert_eq!(unsafe { libc::mprotect(page, 4096, what) }, 0);
        };
        let mapped = || status_field("RssFile:").unwrap();
        let before = mapped();
        shed_code();
        assert!(mapped() < before, "{} of {before} are mapped", mapped());
        allow(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        // SAFETY: as above.
        unsafe { page.cast::<u8>().write_volatile(page.cast::<u8>().read_volatile()) };
        allow(libc::PROT_READ | libc::PROT_EXEC);
        let code = maps().lines().filter_map(constant_of).find(|code| code.contains(&here)).expect("it runs");
        assert!(!is_all_of_a_file(&pages(), &code));
    }

    #[test]
    fn limits_are_read_by_name() {
        let table = "\
Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 524288               files
Max locked memory         unlimited            unlimited            bytes
";
        assert_eq!(limit_in(table, "Max open files"), Some(1024));
        assert_eq!(limit_in(table, "Max locked memory"), Some(u64::MAX));
        assert_eq!(limit_in(table, "Max patience"), None);
        assert!(limit("Max open files").is_some_and(|files| files >= 3));
    }

    #[test]
    fn open_files_are_counted() {
        // Other tests open files at the same time.
        let (before, held) = (open_files(), 1000);
        let files: Vec<_> = (0..held).filter_map(|_| std::fs::File::open("/proc/self/fd").ok()).collect();
        assert!(before >= 3 && open_files() >= files.len() as u64);
    }

    #[test]
    fn a_thread_on_one_core_starts_others_there_and_leaves_the_process_alone() {
        let cores = || std::thread::available_parallelism().unwrap().get();
        let before = cores();
        let there = std::thread::spawn(move || {
            stay_on_one_core().unwrap();
            (cores(), std::thread::spawn(cores).join().unwrap())
        });
        assert_eq!(there.join().unwrap(), (1, 1));
        assert_eq!(cores(), before);
    }

    #[test]
    fn processes_are_alive_until_they_have_been_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(is_alive(child.id()) && is_alive(std::process::id()) && is_alive(1));
        assert!(!is_ending(child.id()) && !is_ending(std::process::id()));
        child.kill().unwrap();
        while !is_ending(child.id()) {
            std::thread::yield_now();
        }
        assert!(is_alive(child.id()));
        child.wait().unwrap();
        assert!(!is_ending(child.id()));
        assert!(!is_alive(child.id()) && !is_alive(0) && !is_alive(u32::MAX));
    }

    #[test]
    fn children_are_found_by_their_parent() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(children().contains(&child.id()) && !children().contains(&1));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children().contains(&child.id()));
    }

    #[test]
    fn what_a_child_has_used_is_told_when_it_ends() {
        let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 3";
        let child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let (status, usage) = wait(child).unwrap();
        assert_eq!(status.code(), Some(3));
        assert!(usage.cpu_seconds > 0.0 && usage.peak_bytes > 100_000, "{usage:?}");
    }
}
