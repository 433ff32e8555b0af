//! Flags that are reserved for their meaning in GNU sort, each with what to write today.
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
        today: "today records are lines or of a fixed length, --record",
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
