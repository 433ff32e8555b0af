//! Why a transfer is refused: its arguments contradict each other or the destination.

use std::ffi::OsString;
use std::path::PathBuf;

use thalweg_base::units::Bytes;

/// Why a transfer is refused before it begins, or a file or tree of it later.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A file would replace this directory.
    #[error("{} is a directory; a file cannot replace it", .0.display())]
    DirectoryThere(PathBuf),
    /// A directory would replace this file.
    #[error("{} exists and is not a directory; a directory cannot replace it", .0.display())]
    FileThere(PathBuf),
    /// The name of a tree that was moved belongs to another directory now.
    #[error(
        "{} is not the directory that was made there: somebody gave the name to another meanwhile; see who may write \
         there, and choose another DEST",
        .0.display()
    )]
    Replaced(PathBuf),
    /// The source adds a name to a file that it did not send.
    #[error(
        "the source adds the name {} to a file that it has not sent; run again if somebody changed the source \
         meanwhile, and do not trust the source otherwise",
        .0.display()
    )]
    NotSent(PathBuf),
    /// A directory has the hidden name of a tree, and no journal lists it.
    #[error(
        "{} is a directory that is not empty, and no journal of this transfer lists it, so it was not touched; \
         remove it, or resume the transfer that left it",
        .0.display()
    )]
    NotListed(PathBuf),
    /// A pipe, a socket or a device in a list of files.
    #[error(
        "{} is a pipe, a socket or a device; these are passed over in a tree, and read as streams when named alone",
        .0.display()
    )]
    Special(PathBuf),
    /// The peer offers other sources than those that were requested.
    #[error(
        "{peer} was asked for {asked} and offers {offered}, so nothing was touched; name SOURCE by its own name, and \
         do not trust {peer} if you did"
    )]
    Offer {
        /// The peer.
        peer: String,
        /// The requested sources.
        asked: String,
        /// The offered sources.
        offered: String,
    },
    /// A transfer to several hosts that depends on what each of them has.
    #[error(
        "a transfer to several hosts sends the same to each, so it cannot resume, compare, or only look; name one host"
    )]
    SeveralHosts,
    /// A stream, which has no name, would go into this directory.
    #[error("{} is a directory, and a stream has no name; name a file in it", .0.display())]
    Nameless(PathBuf),
    /// This directory would go into a stream.
    #[error("{} is a directory; only a file can be written to a stream", .0.display())]
    DirectoryToStream(PathBuf),
    /// Two sources have this name at the destination.
    #[error("two sources are called '{}'; send them to different directories", .0.display())]
    SameName(OsString),
    /// Several sources would go to something that is not a directory.
    #[error("{count} sources need a directory to go to, and {} is none; make it first", .dest.display())]
    ManySources {
        /// The number of sources.
        count: usize,
        /// The destination.
        dest: PathBuf,
    },
    /// The destination was written as a directory, and does not exist.
    #[error("there is no directory {}; make it first", .0.display())]
    NoDirectory(PathBuf),
    /// The destination's directory does not exist.
    #[error("cannot write {}: there is no directory {}; make it first", .dest.display(), .directory.display())]
    NoParent {
        /// The destination.
        dest: PathBuf,
        /// Its directory.
        directory: PathBuf,
    },
    /// The destination cannot be the name of a file or a directory.
    #[error("'{}' is no name for a file or a directory", .0.display())]
    NotAName(PathBuf),
    /// The destination is inside the source.
    #[error(
        "{} lies in {} itself; choose a DEST outside of it, or exclude it",
        .dest.display(), .from.display()
    )]
    DestInSource {
        /// The destination.
        dest: PathBuf,
        /// The source.
        from: PathBuf,
    },
    /// The source is inside the destination, where what the source does not have is deleted.
    #[error(
        "{} lies in {}, where --delete would delete it; choose another DEST, or exclude it",
        .from.display(), .dest.display()
    )]
    SourceInDest {
        /// The source.
        from: PathBuf,
        /// The destination.
        dest: PathBuf,
    },
    /// The source and the destination are one file or directory.
    #[error("{} and {} are the same", .from.display(), .dest.display())]
    SameFile {
        /// The source.
        from: PathBuf,
        /// The destination.
        dest: PathBuf,
    },
    /// The source has more open directories, files and further names than fit in this many bytes of memory.
    #[error(
        "the source has more directories, files and further names open than {} of memory hold; move fewer at once",
        Bytes(*.0)
    )]
    TooManyOpen(u64),
    /// The source has more nested directories than this.
    #[error("the source's tree is more than {0} directories deep")]
    TooDeep(u32),
    /// A limit on deleting, where nothing is to be deleted.
    #[error("a limit on what is deleted needs a transfer that deletes")]
    MaxDelete,
    /// Deleting, where only some paths are moved.
    #[error("a list of paths says nothing about the others, so they cannot be deleted")]
    DeleteListed,
    /// A path in a list leads out of its source.
    #[error("'{0}' is no path below a source; list paths without '..'")]
    ListedPath(String),
    /// A choice of entries, where there are no entries.
    #[error("a stream has no entries to choose from")]
    ChoiceOfStream,
    /// Nothing is to be created, and the destination does not exist.
    #[error("{} does not exist, and nothing is to be created; make it first", .0.display())]
    NothingExists(PathBuf),
    /// The rules exclude every source.
    #[error("the rules exclude every source, so there is nothing to move")]
    AllExcluded,
    /// The filter rules do not fit in a message.
    #[error("the filter rules have {} together, and at most {} are possible; give fewer", Bytes(*.bytes), Bytes(*.max))]
    LongRules {
        /// Their length.
        bytes: u64,
        /// The most.
        max: u64,
    },
    /// This is not a filter rule.
    #[error("'{rule}' is not a filter rule: {why}")]
    Rule {
        /// The text.
        rule: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file does not fit on the destination's disk.
    #[error(
        "cannot write {}: it takes {} and {} has {} left; free some, or choose another place",
        .path.display(), Bytes(*.needed), .directory.display(), Bytes(*.available)
    )]
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
    /// A file is larger than one may be there: for the file system, or for this process.
    #[error(
        "cannot write {}: {} is more than one file may have in {}; see ulimit -f, or choose another place",
        .path.display(), Bytes(*.needed), .directory.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        needed: u64,
        /// Its directory.
        directory: PathBuf,
    },
}
