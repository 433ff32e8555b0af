//! What the machine offers: the I/O back end, memory, cores.

use std::sync::Arc;

use thalweg_base::units::Size;
use thalweg_io::threads::Threads;
use thalweg_io::uring::Uring;
use thalweg_io::{Io, process};

use crate::{Error, IoChoice, Result};

/// The back end that was chosen, and why it is not the best one if it is not.
pub(crate) fn io(choice: IoChoice) -> Result<(Arc<dyn Io>, Option<String>)> {
    let threads = || Arc::new(Threads::new(threads_for_io())) as Arc<dyn Io>;
    match choice {
        IoChoice::Threads => Ok((threads(), None)),
        IoChoice::Uring => match Uring::new() {
            Ok(uring) => Ok((Arc::new(uring), None)),
            Err(e) => Err(Error::CouldNot(format!(
                "io_uring is not to be had: {e}; use --io threads, or allow it with sysctl kernel.io_uring_disabled=0"
            ))),
        },
        IoChoice::Auto => match Uring::new() {
            Ok(uring) => Ok((Arc::new(uring), None)),
            Err(e) => Ok((threads(), Some(format!("io_uring is not to be had: {e}")))),
        },
    }
}

/// Enough to keep a disk busy from a few lanes.
fn threads_for_io() -> usize {
    (cores() * 4).clamp(4, 16)
}

/// Cores that this process may run on.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Where the kernel does not say how much memory there is, no more than this is used.
const UNTOLD_MEMORY_BYTES_MAX: u64 = 1 << 40;

/// The memory that a size means: what is available is 100 %, and more than the machine has is what it has.
pub(crate) fn memory_bytes(size: Size) -> u64 {
    let most = match process::machine_memory_bytes() {
        0 => UNTOLD_MEMORY_BYTES_MAX,
        bytes => bytes,
    };
    size.of(process::available_memory_bytes()).min(most)
}

/// Half of the memory that is available, for who did not say.
pub(crate) fn default_memory_bytes() -> u64 {
    process::available_memory_bytes() / 2
}
