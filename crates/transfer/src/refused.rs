//! Why a transfer is refused: its arguments contradict each other or what is at the destination.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use thalweg_base::units::Bytes;

/// Why a transfer, or a file of it, is refused. The destination is as it was.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refused {
    /// A file would replace this directory.
    DirectoryThere(PathBuf),
    /// A directory would replace this file.
    FileThere(PathBuf),
    /// The name of a tree that was moved belongs to another directory now.
    Replaced(PathBuf),
    /// The source adds a name to a file that it did not send.
    NotSent(PathBuf),
    /// A directory has the hidden name of a tree, and no journal lists it.
    NotListed(PathBuf),
    /// A pipe, a socket or a device in a list of files.
    Special(PathBuf),
    /// The peer offers other sources than those it was asked for.
    Offer {
        /// The peer.
        peer: String,
        /// What it was asked for.
        asked: String,
        /// What it offers.
        offered: String,
    },
    /// A stream, which has no name, would go into this directory.
    Nameless(PathBuf),
    /// This directory would go into a stream.
    DirectoryToStream(PathBuf),
    /// Two sources have this name at the destination.
    SameName(OsString),
    /// Several sources would go to what is not a directory.
    ManySources {
        /// How many.
        count: usize,
        /// The destination.
        dest: PathBuf,
    },
    /// The destination was written as a directory, and there is none.
    NoDirectory(PathBuf),
    /// The destination's directory does not exist.
    NoParent {
        /// The destination.
        dest: PathBuf,
        /// Its directory.
        directory: PathBuf,
    },
    /// The destination cannot be the name of a file or a directory.
    NotAName(PathBuf),
    /// The destination is inside the source.
    DestInSource {
        /// The destination.
        dest: PathBuf,
        /// The source.
        source: PathBuf,
    },
    /// The source and the destination are one file or directory.
    SameFile {
        /// The source.
        source: PathBuf,
        /// The destination.
        dest: PathBuf,
    },
    /// The source has more open directories, files and further names than fit in so many bytes of memory.
    TooManyOpen(u64),
    /// The source has more nested directories than this.
    TooDeep(u32),
    /// A file does not fit on the destination's disk.
    Full {
        /// The file.
        path: PathBuf,
        /// Its size.
        needed: u64,
        /// Its directory.
        directory: PathBuf,
        /// The bytes that are free there.
        available: u64,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::DirectoryThere(path) => {
                write!(f, "{} is a directory; a file cannot replace it", path.display())
            }
            Refused::FileThere(path) => {
                write!(f, "{} exists and is not a directory; a directory cannot replace it", path.display())
            }
            Refused::Replaced(path) => write!(
                f,
                "{} is not the directory that was made there: somebody gave the name to another meanwhile; see who may \
                 write there, and choose another DEST",
                path.display()
            ),
            Refused::NotSent(path) => write!(
                f,
                "the source adds the name {} to a file that it has not sent; run again if somebody changed the source \
                 meanwhile, and do not trust the source otherwise",
                path.display()
            ),
            Refused::NotListed(path) => write!(
                f,
                "{} is a directory that is not empty, and no journal of this transfer lists it, so it was not touched; \
                 remove it, or resume the transfer that left it",
                path.display()
            ),
            Refused::Special(path) => write!(
                f,
                "{} is a pipe, a socket or a device; these are passed over in a tree, and read as streams when named \
                 alone",
                path.display()
            ),
            Refused::Offer { peer, asked, offered } => write!(
                f,
                "{peer} was asked for {asked} and offers {offered}, so nothing was touched; name SOURCE by its own name, \
                 and do not trust {peer} if you did"
            ),
            arguments => arguments.write_of_arguments(f),
        }
    }
}

impl Refused {
    /// Writes the messages about arguments that contradict each other, and about limits.
    fn write_of_arguments(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Nameless(path) => {
                write!(f, "{} is a directory, and a stream has no name; name a file in it", path.display())
            }
            Refused::DirectoryToStream(path) => {
                write!(f, "{} is a directory; only a file can be written to a stream", path.display())
            }
            Refused::SameName(name) => {
                write!(f, "two sources are called '{}'; send them to different directories", name.display())
            }
            Refused::ManySources { count, dest } => write!(
                f,
                "{count} sources need a directory to go to, and {} is none; make it first",
                dest.display()
            ),
            Refused::NoDirectory(path) => {
                write!(f, "there is no directory {}; make it first", path.display())
            }
            Refused::NoParent { dest, directory } => write!(
                f,
                "cannot write {}: there is no directory {}; make it first",
                dest.display(),
                directory.display()
            ),
            Refused::NotAName(path) => {
                write!(f, "'{}' is no name for a file or a directory", path.display())
            }
            Refused::DestInSource { dest, source } => write!(
                f,
                "{} lies in {} itself; choose a DEST outside of it",
                dest.display(),
                source.display()
            ),
            Refused::SameFile { source, dest } => {
                write!(f, "{} and {} are the same", source.display(), dest.display())
            }
            Refused::TooManyOpen(bytes) => write!(
                f,
                "the source has more directories, files and further names open than {} of memory hold; move fewer at once",
                Bytes(*bytes)
            ),
            Refused::TooDeep(depth) => {
                write!(f, "the source's tree is more than {depth} directories deep")
            }
            Refused::Full { path, needed, directory, available } => write!(
                f,
                "cannot write {}: it takes {} and {} has {} left; free some, or choose another place",
                path.display(),
                Bytes(*needed),
                directory.display(),
                Bytes(*available)
            ),
            _ => unreachable!("`Display` writes the messages about the destination"),
        }
    }
}
