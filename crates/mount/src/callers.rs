//! What /proc says of the threads whose requests the kernel sends: their signals, groups and capabilities.
//!
//! Non-goals: threads that this process cannot see, as those of another container: they have no signals and no groups.

use std::path::Path;

use fuser::Request;

/// SIGKILL, which cannot be blocked.
const KILL: u64 = 1 << (libc::SIGKILL - 1);

/// The number of a capability, as in linux/capability.h.
const CAP_FSETID: u32 = 4;

fn status(task: u32) -> Option<String> {
    let status = thalweg_io::small::read(Path::new(&format!("/proc/{task}/status")));
    (task != 0).then(|| String::from_utf8_lossy(&status.ok()?).into_owned().into())?
}

/// Whether the caller may keep set-group-ID of a file with this group: root, and members of the group.
pub(crate) fn is_in_group(request: &Request, group: u32) -> bool {
    let is_member = |status: String| {
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        groups.is_some_and(|groups| groups.split_whitespace().any(|own| own.parse() == Ok(group)))
    };
    request.uid() == 0 || request.gid() == group || status(request.pid()).is_some_and(is_member)
}

/// Whether the bits that set the user and group of programs stay when the caller writes (CAP_FSETID).
pub(crate) fn keeps_bits(request: &Request) -> bool {
    let capabilities = |status: String| {
        let found = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(found.trim(), 16).ok()
    };
    let known = status(request.pid()).and_then(capabilities);
    known.map_or(request.uid() == 0, |known| known >> CAP_FSETID & 1 == 1)
}

/// The pending signals that a thread does not block, and those of its process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Signals {
    pub(crate) own: u64,
    pub(crate) shared: u64,
    /// It is the only thread of its process.
    pub(crate) is_alone: bool,
}

impl Signals {
    /// None, if this process cannot see the thread.
    pub(crate) fn of(task: u32) -> Signals {
        status(task).map(|status| Signals::read(&status)).unwrap_or_default()
    }

    fn read(status: &str) -> Signals {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
        let signals = |name| u64::from_str_radix(field(name), 16).unwrap_or(0);
        let takes = !signals("SigBlk:") | KILL;
        Signals {
            own: signals("SigPnd:") & takes,
            shared: signals("ShdPnd:") & takes,
            is_alone: field("Threads:") == "1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_a_thread_blocks_do_not_interrupt_it() {
        let status = |own, shared, blocked, threads| {
            format!(
                "Name:\tcat\nThreads:\t{threads}\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n"
            )
        };
        let of = |own, shared, blocked, threads| Signals::read(&status(own, shared, blocked, threads));
        let signals = |own, shared, is_alone| Signals { own, shared, is_alone };
        assert_eq!(of(0, 0, 0, 1), signals(0, 0, true));
        assert_eq!(of(6, 2, 4, 3), signals(2, 2, false));
        assert_eq!(of(KILL, 8, u64::MAX, 1), signals(KILL, 0, true));
        assert_eq!(Signals::read("nothing"), signals(0, 0, false));
    }
}
