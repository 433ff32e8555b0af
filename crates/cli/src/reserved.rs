//! Flags that are reserved for their meaning in GNU sort, or in rsync for `pump`, each with what to write today.
//!
//! Invariant: none of them is a flag of this program, so a script that uses them gets an error instead of a surprise.
//! Non-goals: implementing them.

/// A flag of GNU sort whose name is reserved here.
pub(crate) struct Reserved {
    pub(crate) short: Option<char>,
    pub(crate) long: &'static str,
    /// What to write instead today, as the end of a sentence.
    pub(crate) today: &'static str,
}

const BYTES: &str = "today keys compare as bytes";
const NUMBERS: &str = "today only numbers of equal width sort, as bytes";

/// The reserved flags, and what to write instead today.
pub(crate) const RESERVED: &[Reserved] = &[
    Reserved { short: Some('k'), long: "key", today: "today write --by OFFSET:LENGTH" },
    Reserved {
        short: Some('t'),
        long: "field-separator",
        today: "today keys are bytes: write --by OFFSET:LENGTH",
    },
    Reserved { short: Some('n'), long: "numeric-sort", today: NUMBERS },
    Reserved { short: Some('S'), long: "buffer-size", today: "today write --memory SIZE" },
    Reserved { short: Some('T'), long: "temporary-directory", today: "today write --scratch DIR" },
    Reserved { short: Some('u'), long: "unique", today: "today write --unique" },
    Reserved {
        short: Some('r'),
        long: "reverse",
        today: "today write --by 0:4294967295:desc for whole lines, --by OFFSET:LENGTH:desc for a part",
    },
    Reserved { short: Some('s'), long: "stable", today: "every sort is stable" },
    Reserved { short: Some('c'), long: "check", today: "today write thalweg check" },
    Reserved {
        short: Some('z'),
        long: "zero-terminated",
        today: "today records are lines, prefixed by their length, --prefixed, or of a fixed length, --record",
    },
    Reserved { short: Some('f'), long: "ignore-case", today: BYTES },
    Reserved { short: Some('b'), long: "ignore-leading-blanks", today: BYTES },
    Reserved { short: Some('d'), long: "dictionary-order", today: BYTES },
    Reserved { short: Some('i'), long: "ignore-nonprinting", today: BYTES },
    Reserved { short: Some('g'), long: "general-numeric-sort", today: NUMBERS },
    // -h and -V stand for help and version here, as in most programs.
    Reserved { short: None, long: "human-numeric-sort", today: NUMBERS },
    Reserved { short: Some('M'), long: "month-sort", today: BYTES },
    Reserved { short: None, long: "version-sort", today: BYTES },
    Reserved { short: Some('R'), long: "random-sort", today: "today write thalweg shuffle --seed N" },
    Reserved { short: None, long: "random-source", today: "today write thalweg shuffle --seed N" },
    Reserved { short: None, long: "sort", today: "today there is no order but that of bytes" },
    Reserved { short: Some('C'), long: "check", today: "today write thalweg check -q" },
    Reserved { short: None, long: "files0-from", today: "today name the inputs, or write cat and a pipe" },
    Reserved { short: None, long: "compress-program", today: "today scratch is not compressed" },
    Reserved { short: None, long: "batch-size", today: "today the plan chooses; thalweg plan sort shows it" },
    Reserved { short: None, long: "debug", today: "today thalweg plan sort says what would be done" },
    Reserved { short: Some('m'), long: "merge", today: "today write thalweg merge" },
    Reserved { short: None, long: "parallel", today: "today write --threads N" },
];

/// Flags of rsync that `pump` has under another name, or does without.
pub(crate) const OF_RSYNC: &[Reserved] = &[
    of_rsync("checksum", Some('c'), "--compare content skips files whose contents are the same"),
    of_rsync("dry-run", Some('n'), "write --dry-run"),
    of_rsync("update", Some('u'), "write --update"),
    of_rsync(
        "archive",
        Some('a'),
        "leave it out: permissions, times, owners, links and holes are always kept",
    ),
    of_rsync("acls", Some('A'), "leave it out: access control lists are kept, unless you write --no-xattrs"),
    of_rsync("xattrs", Some('X'), "leave it out: extended attributes are kept, unless you write --no-xattrs"),
    of_rsync("recursive", Some('r'), "leave it out: a directory is always copied with everything in it"),
    of_rsync("hard-links", Some('H'), "leave it out: hard links are always kept"),
    of_rsync("sparse", Some('S'), "leave it out: holes are always kept"),
    of_rsync(
        "verbose",
        Some('v'),
        "--dry-run lists what would be changed, and the receipt counts what was copied",
    ),
    of_rsync("itemize-changes", Some('i'), "--dry-run lists what would be changed"),
    of_rsync("partial", Some('P'), "leave it out: --resume continues what was interrupted"),
    of_rsync("append", None, "--resume continues what was interrupted"),
    of_rsync("bwlimit", None, "--limit RATE is the most bytes in a second, as in 50MB"),
    of_rsync("size-only", None, "--compare time or content says which files are equal"),
    of_rsync("delete-after", None, "--delete deletes in each directory when it is complete"),
    of_rsync("delete-during", None, "--delete deletes in each directory when it is complete"),
    of_rsync("delete-before", None, "--delete deletes in each directory when it is complete"),
    of_rsync("rsh", Some('e'), "--ssh COMMAND names another ssh"),
    of_rsync("rsync-path", None, "--there COMMAND names the program at the far end of ssh"),
    of_rsync("compress", Some('z'), "leave it out: links are not compressed"),
    of_rsync(
        "one-file-system",
        Some('x'),
        "it is not there: --exclude /DIR leaves out what is mounted at DIR, from the top of SOURCE",
    ),
    of_rsync(
        "copy-links",
        Some('L'),
        "it is not there: a SOURCE that is a link is followed, and links in a tree are copied as links",
    ),
    of_rsync("exclude-from", None, "it is not there: write --exclude PATTERN for each line of the file"),
    of_rsync("include-from", None, "it is not there: write --include PATTERN for each line of the file"),
    of_rsync(
        "delete-excluded",
        None,
        "it is not there: with --delete, --filter 'H PATTERN' leaves out what it matches, and deletes it at DEST",
    ),
    of_rsync(
        "ignore-existing",
        None,
        "it is not there: --update skips what is newer at DEST, and --compare time what is equal",
    ),
    of_rsync(
        "chown",
        None,
        "it is not there: owners are kept where that is allowed; chown -R DEST changes them",
    ),
    of_rsync("max-size", None, "it is not there: find can list smaller files for --files-from"),
    of_rsync("min-size", None, "it is not there: find can list larger files for --files-from"),
    of_rsync(
        "remove-source-files",
        None,
        "it is not there: a source is never changed; remove it yourself when the receipt says that the proof holds",
    ),
    of_rsync("numeric-ids", None, "leave it out: owners and groups are always kept by their numbers"),
    of_rsync("stats", None, "leave it out: the receipt has them, and --json has all of them"),
    of_rsync("from0", Some('0'), "it is not there: --files-from takes one path on each line"),
    of_rsync(
        "inplace",
        None,
        "it is not there: a file gets its name when it is complete; --resume continues what was interrupted",
    ),
];

const fn of_rsync(long: &'static str, short: Option<char>, today: &'static str) -> Reserved {
    Reserved { short, long, today }
}
