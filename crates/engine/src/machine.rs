//! What the machine offers: the I/O back end, memory, cores.

use std::sync::{Arc, OnceLock};

use thalweg_base::units::{MIB, Size};
use thalweg_io::either::Either;
use thalweg_io::threads::Threads;
use thalweg_io::uring::Uring;
use thalweg_io::{Backends, FileSystem, ReadFiles, host, process};
use thalweg_pump::Inputs;
use thalweg_volume::VolumeFs;

use crate::volumes::Volumes;
use crate::{Asked, Endpoint, Error, IoChoice, Result, WorkOptions};

/// A lane of a sort has one ring for its input and one for its output.
const RINGS_OF_LANE: u64 = 2;
/// Files that a sort has open beside its inputs and scratch: the manifest, the output, and one that is open briefly.
const FILES_BESIDE: u64 = 3;

/// Opens the chosen back end. Also returns the reason if the best one cannot be used at all. A back end that falls back
/// to another later reports that itself.
pub(crate) fn io(choice: IoChoice) -> Result<(Arc<dyn FileSystem>, Option<String>)> {
    let threads = || Threads::new(threads_for_io());
    match choice {
        IoChoice::Threads => Ok((Arc::new(threads()), None)),
        IoChoice::Uring => match Uring::new() {
            Ok(uring) => Ok((Arc::new(uring), None)),
            Err(why) => Err(Error::NoUring(why)),
        },
        IoChoice::Auto => match Uring::new() {
            Ok(uring) => Ok((Arc::new(Either::new(uring, threads())), None)),
            Err(e) => Ok((Arc::new(threads()), Some(format!("io_uring is not to be had: {e}")))),
        },
    }
}

/// The file systems of a verb: those that hold its inputs, its output and its scratch.
pub(crate) struct Disks {
    /// The file system of inputs that are not in a volume.
    inputs: Arc<dyn ReadFiles>,
    pub(crate) output: Arc<dyn FileSystem>,
    pub(crate) scratch: Arc<dyn FileSystem>,
    volumes: Volumes,
    /// Why the best back end could not be used from the start; `None` if it could.
    fallback: Option<String>,
}

impl Disks {
    /// The file systems of inputs and an output; files that are not in a volume are on this machine.
    pub(crate) fn of<'a>(
        choice: IoChoice,
        inputs: impl IntoIterator<Item = &'a Endpoint>,
        output: Option<&'a Endpoint>,
    ) -> Result<Disks> {
        Disks::with(io(choice)?, inputs, output)
    }

    /// The file systems of inputs in an open volume.
    pub(crate) fn of_volume(choice: IoChoice, volume: VolumeFs) -> Result<Disks> {
        Ok(Disks { volumes: Volumes::of_open(volume), ..Disks::of(choice, [], None)? })
    }

    /// The file systems that these options name.
    pub(crate) fn of_work(options: &WorkOptions) -> Result<Disks> {
        Disks::of_local(io(options.io)?, options)
    }

    /// The file systems of a sort. With [`IoChoice::Auto`], uses threads instead of io_uring if the rings, inputs and
    /// scratch directories together would need more open files than are allowed.
    pub(crate) fn of_sort(options: &WorkOptions) -> Result<Disks> {
        Disks::of_local(io_of_sort(options)?, options)
    }

    fn of_local(local: (Arc<dyn FileSystem>, Option<String>), options: &WorkOptions) -> Result<Disks> {
        let right = options.right.iter().flat_map(|right| &right.inputs);
        let scratch = Arc::clone(&local.0);
        let disks = Disks::with(local, options.inputs.iter().chain(right), Some(&options.output))?;
        // Scratch directories that the user names are on this machine, never in a volume.
        Ok(if options.scratch.is_empty() { disks } else { Disks { scratch, ..disks } })
    }

    fn with<'a>(
        (local, fallback): (Arc<dyn FileSystem>, Option<String>),
        inputs: impl IntoIterator<Item = &'a Endpoint>,
        output: Option<&'a Endpoint>,
    ) -> Result<Disks> {
        let volumes = Volumes::open(inputs.into_iter().chain(output))?;
        let of_output = output.and_then(|end| volumes.of(end));
        let output = of_output.map_or_else(|| Arc::clone(&local), |volume| volume as _);
        let scratch = Arc::clone(&output);
        Ok(Disks { inputs: local, output, scratch, volumes, fallback })
    }

    /// Separate file systems for inputs, output and scratch.
    #[cfg(test)]
    pub(crate) fn apart(
        inputs: Arc<dyn FileSystem>,
        output: Arc<dyn FileSystem>,
        scratch: Arc<dyn FileSystem>,
    ) -> Disks {
        Disks { inputs, output, scratch, volumes: Volumes::default(), fallback: None }
    }

    /// The same, but for inputs on this file system.
    pub(crate) fn reading(self, inputs: Arc<dyn ReadFiles>) -> Disks {
        Disks { inputs, ..self }
    }

    /// The file system of an input.
    pub(crate) fn of_input(&self, end: &Endpoint) -> Arc<dyn ReadFiles> {
        self.volumes.of(end).map_or_else(|| Arc::clone(&self.inputs), |volume| volume as _)
    }

    fn backends(&self) -> Backends {
        let own = [&self.output, &self.scratch].map(|fs| Arc::clone(fs) as _);
        own.into_iter().chain([Arc::clone(&self.inputs) as _]).chain(self.volumes.backends()).collect()
    }

    /// The name of their back ends in the receipt.
    pub(crate) fn name(&self) -> String {
        self.backends().name()
    }

    /// Why other back ends than the best were used, if any were.
    pub(crate) fn fallback(&self) -> Option<String> {
        self.fallback.clone().or_else(|| self.backends().fallback())
    }
}

fn io_of_sort(options: &WorkOptions) -> Result<(Arc<dyn FileSystem>, Option<String>)> {
    let rings = RINGS_OF_LANE * lanes(options.threads) as u64;
    let files = Inputs::open_at_once(options.inputs.len().max(1)) + options.scratch.len().max(1) as u64;
    let needed = process::open_files() + files + FILES_BESIDE + rings;
    let limit = host::allow_open_files(needed);
    if limit < needed && options.io == IoChoice::Auto {
        let why = format!("io_uring would take {needed} open files of {limit}; raise ulimit -n");
        return Ok((io(IoChoice::Threads)?.0, Some(why)));
    }
    io(options.io)
}

/// The number of lanes: as requested, else one for each core.
pub(crate) fn lanes(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(cores).max(1)
}

/// The number of I/O threads: enough for a few lanes to keep a disk busy.
fn threads_for_io() -> usize {
    (cores() * 4).clamp(4, 16)
}

/// The number of cores that this process may run on. It is read only once, because reading it opens several files of
/// the kernel.
pub(crate) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The most memory to use if the kernel does not say how much there is.
const UNTOLD_MEMORY_BYTES_MAX: u64 = 1 << 40;

/// The memory that can be promised where a control group has this much left. The peak may exceed a promise (see
/// `--memory`), and the kernel counts page tables, file structures and buffers of sockets too.
fn promised_within(left: u64) -> u64 {
    const OF_KERNEL: u64 = 4 * MIB;
    const SLACK_MIN: u64 = 2 * MIB;
    let room = left.saturating_sub(left / 64 + OF_KERNEL);
    (room / 21 * 20).min(room.saturating_sub(SLACK_MIN))
}

/// The bytes that a size means: 100 % is the available memory, which a control group may bound, and the result is at
/// most the machine's memory. An error if a control group does not allow it: the kernel would kill the process.
pub(crate) fn memory_bytes(size: Size) -> Result<u64> {
    let most = match process::machine_memory_bytes() {
        0 => UNTOLD_MEMORY_BYTES_MAX,
        bytes => bytes,
    };
    // Only for a percentage: reading the available memory takes longer than a small sort.
    let bytes = match size {
        Size::Bytes(bytes) => bytes,
        percent => {
            let available = process::available_memory_bytes();
            let of_group = process::group_memory_left_bytes().map(promised_within);
            percent.of(of_group.map_or(available, |bytes| bytes.min(available)))
        }
    };
    let limit = process::group_memory_bytes();
    match limit.map(|limit| (limit, promised_within(limit))) {
        Some((limit, allowed)) if bytes > allowed => {
            Err(Asked::BeyondGroup { given: bytes, limit, allowed }.into())
        }
        _ => Ok(bytes.min(most)),
    }
}

/// The memory to use if none is given: half of what is available.
fn default_memory_bytes() -> u64 {
    process::available_memory_bytes() / 2
}

/// The memory that a verb was given, or the default.
pub(crate) fn memory_of(asked: Option<Size>) -> Result<u64> {
    asked.map_or_else(|| Ok(default_memory_bytes()), memory_bytes)
}
