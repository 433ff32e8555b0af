//! What the kernel counts of this process: memory, CPU, disk bytes.

#![allow(unsafe_code)]

/// What the kernel has counted so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// User and system CPU seconds of all threads.
    pub cpu_seconds: f64,
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
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    // getrusage remembers the parent's peak from before exec; the status file does not.
    let peak_bytes = status_field("VmHWM:").unwrap_or(usage.ru_maxrss as u64 * 1024);
    Usage { cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime), peak_bytes }
}

/// Memory resident now, in bytes.
pub fn resident_bytes() -> u64 {
    status_field("VmRSS:").unwrap_or(0)
}

/// Anonymous memory that lies in huge pages now, in bytes.
pub fn huge_page_bytes() -> u64 {
    field(&std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default(), "AnonHugePages:")
        .unwrap_or(0)
}

/// Memory that a new job could use without pushing others out, in bytes: the kernel's estimate, or
/// what is left to the control group, whichever is less.
pub fn available_memory_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = field(&info, "MemAvailable:").unwrap_or(1 << 30);
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let number = |name: &str| read(name).and_then(|t| t.trim().parse::<u64>().ok());
    match (number("memory.max"), number("memory.current")) {
        (Some(max), Some(current)) => machine.min(max.saturating_sub(current)),
        _ => machine,
    }
}

/// Bytes that this process made disks read and write, as the kernel counts them.
pub fn disk_bytes() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let number = |name: &str| {
        text.lines().find_map(|l| l.strip_prefix(name)).and_then(|v| v.trim().parse().ok()).unwrap_or(0)
    };
    (number("read_bytes:"), number("write_bytes:"))
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
    fn the_kernel_counts_this_process() {
        let mut sum = 0u64;
        for i in 0..20_000_000u64 {
            sum = std::hint::black_box(sum ^ i);
        }
        let usage = usage();
        assert!(usage.cpu_seconds > 0.0);
        assert!(usage.peak_bytes >= resident_bytes() / 2 && resident_bytes() > 100_000);
        assert!(available_memory_bytes() > 1 << 20);
    }
}
