//! Maps errors of Rust to exceptions of Python. No other file names both.
//!
//! Model: each enum is a class of `thalweg.errors`, and a variant with evidence is a class below it, with the evidence
//! as attributes. The message is that of the error.

use std::io::ErrorKind;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use thalweg::nodes::{ClusterError, Error as NodeError, IdentityError};
use thalweg::table::Error as TableError;
use thalweg::volume::Error as VolumeError;
use thalweg::{Asked, BadPath, Error, JobFault, TransferError};
use thalweg_merge::Error as MergeError;
use thalweg_pump::InputsError;
use thalweg_record::KeyError;
use thalweg_river::Error as RiverError;
use thalweg_sort::Error as SortError;
use thalweg_verbs::{CallError, advice, in_python, node_advice};

/// The name of a class and the evidence for its instance.
type Class<'py> = PyResult<(&'static str, Bound<'py, PyDict>)>;

/// A class with evidence, by the names of its attributes.
macro_rules! class {
    ($py:expr, $class:literal $(, $name:ident = $value:expr)*) => {
        {
            let evidence = PyDict::new($py);
            let set: PyResult<()> = Ok(())$(.and_then(|()| evidence.set_item(stringify!($name), $value)))*;
            set.map(|()| ($class, evidence))
        }
    };
}

/// The exception for an error of a verb.
pub(crate) fn raised(py: Python<'_>, why: &Error) -> PyErr {
    exception(py, of_verb(py, why), &format!("{why}{}", in_python(advice(why))))
}

/// The exception for a call that did not succeed.
pub(crate) fn of_call(py: Python<'_>, why: &CallError) -> PyErr {
    match why {
        CallError::Verb(why) => raised(py, why),
        CallError::Node(why) => of_node(py, why),
        why => usage(py, &why.to_string()),
    }
}

/// The exception for an error of an operation on a table.
pub(crate) fn of_operation(py: Python<'_>, why: &TableError) -> PyErr {
    exception(py, of_table(py, why), &why.to_string())
}

/// The exception for an error of a river.
pub(crate) fn of_inlet_or_outlet(py: Python<'_>, why: &RiverError) -> PyErr {
    // What the library calls a lane and a partitioner is an outlet and the function of `pick` here.
    let message = match why {
        RiverError::NoLane(picked, outlets) => {
            format!("pick chose outlet {picked}, and there are {outlets}, from 0 on")
        }
        why => why.to_string(),
    };
    exception(py, of_river(py, why), &message)
}

/// The exception for a wrong use of a function.
pub(crate) fn usage(py: Python<'_>, why: &str) -> PyErr {
    exception(py, class!(py, "UsageError"), why)
}

/// The exception for the use of something after it was closed.
pub(crate) fn closed(py: Python<'_>, what: &str) -> PyErr {
    usage(py, &format!("this {what} was closed or has been used up; make a new one"))
}

/// The exception for a call in a forked child of the process that has used the package.
pub(crate) fn forked(py: Python<'_>, parent: u32, child: u32) -> PyErr {
    let why = format!(
        "thalweg was used by process {parent} and does not work in its fork {child}: the threads behind it are not \
         there; use it first after the fork, or start processes by spawn, as multiprocessing.get_context(\"spawn\") does"
    );
    exception(py, class!(py, "ForkedError", parent = parent, child = child), &why)
}

/// The exception for a wait at an end of a river that nothing could end.
pub(crate) fn waits_for_ever(py: Python<'_>, why: &str) -> PyErr {
    exception(py, class!(py, "RiverError"), why)
}

/// The exception for an error of nodes.
pub(crate) fn of_node(py: Python<'_>, why: &NodeError) -> PyErr {
    let class = match why {
        NodeError::Cluster(why) => of_cluster(py, why),
        NodeError::UnknownJob(job) => class!(py, "UnknownJob", job = job),
        _ => class!(py, "NodeError"),
    };
    exception(py, class, &format!("{why}{}", in_python(node_advice(why))))
}

fn exception(py: Python<'_>, class: Class<'_>, message: &str) -> PyErr {
    let made = class.and_then(|(name, evidence)| {
        let made = py.import("thalweg.errors")?.getattr(name)?.call1((message,))?;
        if let Some(errno) = evidence.get_item("errno")?.filter(|errno| !errno.is_none()) {
            made.setattr("strerror", py.import("os")?.call_method1("strerror", (errno,))?)?;
        }
        for (attribute, value) in evidence {
            made.setattr(attribute.cast::<pyo3::types::PyString>()?, value)?;
        }
        Ok(made)
    });
    made.map_or_else(|why| why, PyErr::from_value)
}

fn of_verb<'py>(py: Python<'py>, why: &Error) -> Class<'py> {
    match why {
        Error::Asked(why) => of_asked(py, why),
        Error::Memory(why) => class!(py, "TooLittleMemory", given = why.given, needed = why.needed),
        Error::Io(why) => of_io(py, why),
        Error::Input(why) | Error::Merge(MergeError::Input(why)) => of_input(py, why),
        Error::Key(KeyError::Outside { part, record_bytes }) => {
            class!(py, "KeyOutside", offset = part.offset, length = part.length, record_bytes = record_bytes)
        }
        Error::Sort(why) => of_sort(py, why),
        Error::Merge(MergeError::Unordered { path, record }) => {
            class!(py, "Unordered", path = path, record = record)
        }
        Error::Merge(_) => class!(py, "MergeError"),
        Error::River(why) => of_river(py, why),
        Error::Transfer(why) => match why {
            TransferError::Mismatch { path, read, written, read_back } => {
                class!(py, "Corrupted", path = path, read = read, written = written, read_back = read_back)
            }
            TransferError::Changed(path) => class!(py, "Changed", path = path),
            TransferError::Peer { peer, why, .. } => class!(py, "PeerFailed", host = peer, why = why),
            _ => class!(py, "TransferError"),
        },
        Error::Volume(why) => of_volume(py, why),
        Error::Table(why) => of_table(py, why),
        Error::Cluster(why) => of_cluster(py, why),
        Error::Link(_) => class!(py, "LinkError"),
        Error::Job(why) => of_job(py, why),
        Error::Interrupted(signal) => class!(py, "Interrupted", signal = signal),
        Error::Node { .. } | Error::Gone(..) => class!(py, "NodeError"),
        why => of_output(py, why),
    }
}

/// Variants of the errors of verbs themselves.
fn of_output<'py>(py: Python<'py>, why: &Error) -> Class<'py> {
    match why {
        Error::RecordTooLong { path, at, limit, .. } => {
            class!(py, "RecordTooLong", path = path, at = at, limit = limit)
        }
        Error::CutShort { path, bytes } => class!(py, "CutShort", path = path, bytes = bytes),
        Error::OutputFull { path, needed, available, .. } => {
            class!(py, "OutputFull", path = path, needed = needed, available = available)
        }
        Error::SomeParts { first, last, named, all, .. } => {
            class!(py, "SomeParts", first = first, last = last, named = named, all = all)
        }
        Error::OpenFiles { parts, needed, limit } => {
            class!(py, "OpenFiles", parts = parts, needed = needed, limit = limit)
        }
        Error::SameOutput(path) => class!(py, "SameOutput", path = path),
        Error::MergeMismatch { read, written, dropped, unordered } => {
            class!(
                py,
                "MergeMismatch",
                read = read,
                written = written,
                dropped = dropped,
                unordered = unordered
            )
        }
        Error::JoinMismatch { promised, came, records } => {
            class!(py, "JoinMismatch", promised = promised, came = came, records = records)
        }
        Error::BadSummary { path, at, .. } => class!(py, "BadSummary", path = path, at = at),
        _ => class!(py, "Error"),
    }
}

fn of_asked<'py>(py: Python<'py>, why: &Asked) -> Class<'py> {
    use BadPath::*;
    match why {
        Asked::Path(
            InputDirectory(path)
            | OutputDirectory(path)
            | ReadOnly(path)
            | NoFileName(path)
            | NotInDirectory { output: path, .. }
            | NoDirectory { output: path, .. }
            | ScratchNotDirectory(path)
            | RangesOfStream(path)
            | PartPattern(path)
            | PartNotFile(path)
            | SamePart(path)
            | PlanOfStream(path),
        ) => class!(py, "BadPath", path = path),
        _ => class!(py, "UsageError"),
    }
}

fn of_io<'py>(py: Python<'py>, why: &thalweg_io::Error) -> Class<'py> {
    let (errno, filename) = (why.errno(), &why.path);
    let (_, evidence) = class!(
        py,
        "FileError",
        errno = errno,
        filename = filename,
        action = why.action.to_string(),
        offset = why.offset
    )?;
    // As for the open function of Python, whose callers expect these classes.
    let class = match why.source.kind() {
        ErrorKind::NotFound => "FileNotFound",
        ErrorKind::PermissionDenied => "PermissionDenied",
        _ => "FileError",
    };
    Ok((class, evidence))
}

fn of_input<'py>(py: Python<'py>, why: &InputsError) -> Class<'py> {
    match why {
        InputsError::Ragged { path, len, record_bytes } => {
            class!(py, "Ragged", path = path, bytes = len, record_bytes = record_bytes)
        }
        InputsError::CutOff { path, at, bytes } => {
            class!(py, "CutOff", path = path, at = at, bytes = bytes)
        }
        _ => class!(py, "InputError"),
    }
}

fn of_sort<'py>(py: Python<'py>, why: &SortError) -> Class<'py> {
    match why {
        SortError::Input(why) => of_input(py, why),
        SortError::RecordTooLong { path, at, limit, .. } => {
            class!(py, "RecordTooLong", path = path, at = at, limit = limit)
        }
        SortError::ScratchFull { needed, available, limit, directories, resumable, .. } => class!(
            py,
            "ScratchFull",
            needed = needed,
            available = available,
            limit = limit,
            directories = directories,
            resumable = resumable
        ),
        SortError::OutputFull { output, needed, available, .. } => {
            class!(py, "OutputFull", path = output, needed = needed, available = available)
        }
        SortError::Damaged { path, offset, len } => {
            class!(py, "ScratchDamaged", path = path, at = offset, bytes = len)
        }
        SortError::Mismatch(receipt) => {
            class!(py, "SortMismatch", read = receipt.input.records, written = receipt.output.records)
        }
        SortError::Busy { partial } => class!(py, "OutputBusy", path = partial),
        SortError::CutShort { bytes, record_bytes } => {
            class!(py, "PutCutShort", bytes = bytes, record_bytes = record_bytes)
        }
        SortError::BlocksHeld => class!(py, "BlocksHeld"),
        _ => class!(py, "SortError"),
    }
}

fn of_river<'py>(py: Python<'py>, why: &RiverError) -> Class<'py> {
    match why {
        RiverError::Gone(outlet) => class!(py, "OutletGone", outlet = outlet),
        RiverError::NoLane(picked, outlets) => class!(py, "NoOutlet", picked = picked, outlets = outlets),
        RiverError::TooLong(at, limit) => {
            class!(py, "RecordTooLong", path = None::<&str>, at = at, limit = limit)
        }
        _ => class!(py, "RiverError"),
    }
}

fn of_volume<'py>(py: Python<'py>, why: &VolumeError) -> Class<'py> {
    match why {
        VolumeError::NoVolume(_) => class!(py, "VolumeNotFound", errno = why.errno()),
        why if why.is_not_found() => class!(py, "VolumeNotFound", errno = why.errno()),
        why if why.exists_already() => class!(py, "VolumeExists", errno = why.errno()),
        VolumeError::At { file, at, .. } => {
            class!(py, "VolumeFailed", errno = why.errno(), path = file, at = at)
        }
        why => class!(py, "VolumeError", errno = why.errno()),
    }
}

fn of_table<'py>(py: Python<'py>, why: &TableError) -> Class<'py> {
    match why {
        TableError::Full(_) | TableError::MemoryFull(_) => class!(py, "TableFull"),
        TableError::Uncertain(_) => class!(py, "UncertainChange"),
        TableError::Duplicate(key) => class!(py, "DuplicateKey", key = key),
        _ => class!(py, "TableError"),
    }
}

fn of_cluster<'py>(py: Python<'py>, why: &ClusterError) -> Class<'py> {
    match why {
        ClusterError::Identity(IdentityError::None(path)) => class!(py, "NoIdentity", path = path),
        ClusterError::UnknownHost { host, cluster, hosts } => {
            class!(py, "UnknownHost", host = host, cluster = cluster, hosts = hosts)
        }
        ClusterError::Link(_) => class!(py, "LinkError"),
        _ => class!(py, "ClusterError"),
    }
}

fn of_job<'py>(py: Python<'py>, why: &JobFault) -> Class<'py> {
    match why {
        JobFault::DifferentInputs(first, second) => {
            class!(py, "DifferentInputs", first = first, second = second)
        }
        JobFault::Unreached(lines) => class!(py, "Unreached", lines = lines),
        JobFault::Attempts { last, max } => class!(py, "AttemptsFailed", last = last, max = max),
        JobFault::NotNamed { name, hidden, .. } => class!(py, "NotNamed", path = name, hidden = hidden),
        _ => class!(py, "JobError"),
    }
}
