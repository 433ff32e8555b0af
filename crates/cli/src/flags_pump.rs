//! Flags of `pump`, in the table of flags.

use thalweg_api::PumpCompare;

use crate::commands::Command::Pump;
use crate::flag::{At, Flag, PUMPS, Value};
use crate::values;

pub(crate) const VERIFY: Flag = Flag {
    long: "verify",
    short: None,
    value: Value::None,
    at: PUMPS,
    about: "read back what was written before it gets its name",
    doc: "\
Read back what was written, from the disk and not from the page cache, and compare its checksum with that of the \
source, before the file gets its name. For this, small files are made durable one by one, which takes time.",
    set: |args, _| {
        args.verify = true;
        Ok(())
    },
};

pub(crate) const NO_DISK: Flag = Flag {
    long: "no-disk",
    short: None,
    value: Value::Any("SIZE"),
    at: PUMPS,
    about: "move random bytes from memory to nowhere instead",
    doc: "\
Takes no SOURCE: moves SIZE random bytes from memory to nowhere, or to the DEST HOST:null:, with checksums at both \
ends. Measures what the pump itself costs.",
    set: |args, value| values::bytes(value).map(|bytes| args.no_disk = Some(bytes)),
};

pub(crate) const THERE: Flag = Flag {
    long: "there",
    short: None,
    value: Value::Any("COMMAND"),
    at: At::Commands(&[Pump]),
    about: "the command that starts thalweg at the far end of ssh",
    doc: "\
The command that the shell of the host of ssh://HOST/PATH starts, as in '~/bin/thalweg'. Without this flag, thalweg, \
where that shell finds programs.",
    set: |args, value| values::text(value).map(|text| args.there = Some(text.to_string())),
};

pub(crate) const THROUGH_SSH: Flag = Flag {
    long: "through-ssh",
    short: None,
    value: Value::None,
    at: At::Commands(&[Pump]),
    about: "send everything through ssh, and try no direct link",
    doc: "\
Send everything through ssh, as if no port of the host could be reached. This is slower: ssh handles all bytes on one \
core at either end.",
    set: |args, _| {
        args.through_ssh = true;
        Ok(())
    },
};

pub(crate) const NO_CHECKSUM: Flag = Flag {
    long: "no-checksum",
    short: None,
    value: Value::None,
    at: PUMPS,
    about: "for benchmarks: take no checksums",
    doc: "\
For benchmarks: take no checksums, to see what they cost. The receipt then does not say whether the output equals the \
input, and interrupted files are copied from their beginning.",
    set: |args, _| {
        args.no_checksum = true;
        Ok(())
    },
};

pub(crate) const STRICT: Flag = Flag {
    long: "strict",
    short: None,
    value: Value::None,
    at: PUMPS,
    about: "end with the first file that cannot be copied",
    doc: "\
End with the first file or directory that cannot be read, that vanished, or that changed while it was read, even if it \
only grew. Without this flag, it is left out and listed at the end, and the exit status is 4.",
    set: |args, _| {
        args.strict = true;
        Ok(())
    },
};

pub(crate) const EXCLUDE: Flag = Flag {
    long: "exclude",
    short: None,
    value: Value::Any("PATTERN"),
    at: PUMPS,
    about: "leave out what the pattern matches, as rsync does",
    doc: "\
Do not copy what PATTERN matches. May be given several times, and with --include and --filter: the first of them that \
matches an entry decides. The rules are rsync's: a name like '*.o' matches at any depth; a pattern with a slash in it \
is compared with the end of the path, and one that begins with a slash with all of it, from the top of the transfer; a \
slash at its end matches only directories; * and ? do not match slashes, ** does. What is in a directory that is left \
out is not looked at. With --delete, such an entry is not deleted at DEST.",
    set: |args, value| values::text(value).map(|pattern| args.choice.exclude(pattern)),
};

pub(crate) const INCLUDE: Flag = Flag {
    long: "include",
    short: None,
    value: Value::Any("PATTERN"),
    at: PUMPS,
    about: "do not leave out what the pattern matches",
    doc: "\
Copy what PATTERN matches, although a later --exclude or --filter matches it, too.",
    set: |args, value| values::text(value).map(|pattern| args.choice.include(pattern)),
};

pub(crate) const FILTER: Flag = Flag {
    long: "filter",
    short: None,
    value: Value::Any("RULE"),
    at: PUMPS,
    about: "a filter rule of rsync, as in '- *.o' or 'P cache/'",
    doc: "\
A filter rule, as rsync takes it: '- PATTERN' is --exclude, '+ PATTERN' is --include, 'H' hides from the copy only, 'S' \
is its opposite, 'P' protects from --delete only, 'R' is its opposite, and '!' removes the rules before it. The words \
exclude, include, hide, show, protect, risk and clear mean the same. Modifiers: ! (what does not match), s and r (at the \
source, or the destination), p (not in directories that are being deleted). Rules are not read from files.",
    set: |args, value| values::text(value).map(|rule| args.choice.rules.push(rule.to_string())),
};

pub(crate) const DELETE: Flag = Flag {
    long: "delete",
    short: None,
    value: Value::None,
    at: PUMPS,
    about: "delete at DEST what SOURCE does not have",
    doc: "\
Delete at DEST, in each directory that is copied, what its SOURCE does not have and no rule protects. A directory that \
could not be listed to its end deletes nothing. What any of several SOURCEs has is not deleted. The receipt counts what \
was deleted; --dry-run shows it beforehand.",
    set: |args, _| {
        args.choice.delete = true;
        Ok(())
    },
};

pub(crate) const MAX_DELETE: Flag = Flag {
    long: "max-delete",
    short: None,
    value: Value::Any("COUNT"),
    at: PUMPS,
    about: "delete at most COUNT entries",
    doc: "\
With --delete: delete at most COUNT files and directories. If there were more, the others stay, a line says how many, and \
the exit status is 4.",
    set: |args, value| values::parsed(value).map(|most| args.choice.max_delete = Some(most)),
};

pub(crate) const DRY_RUN: Flag = Flag {
    long: "dry-run",
    short: None,
    value: Value::None,
    at: PUMPS,
    about: "change nothing, and list what would be changed",
    doc: "\
Change nothing, and print a line for each entry of DEST that would be changed: new, changed, attributes (of what is \
skipped because it is equal) or deleted, and its path in the transfer. The receipt then counts what would be copied. \
What could not replace what DEST has is listed, and the exit status is 4, as without this flag.",
    set: |args, _| {
        args.choice.dry_run = true;
        Ok(())
    },
};

pub(crate) const COMPARE: Flag = Flag {
    long: "compare",
    short: None,
    value: Value::OneOf("HOW", &["time", "content"]),
    at: PUMPS,
    about: "skip files that are equal: by time, or by content",
    doc: "\
Do not copy files that DEST has already: with time, those with the same length and modification time, as --resume does; \
with content, those whose contents are the same, which are read at both ends. Only their attributes are set. Without \
this flag, every file is copied.",
    set: |args, value| {
        let choices = [("time", PumpCompare::Time), ("content", PumpCompare::Content)];
        values::choice(value, &choices).map(|how| args.choice.compare = how)
    },
};

pub(crate) const UPDATE: Flag = Flag {
    long: "update",
    short: None,
    value: Value::None,
    at: PUMPS,
    about: "skip files that are newer at DEST",
    doc: "\
Do not copy files and links whose modification time at DEST is later than at SOURCE. The receipt counts them.",
    set: |args, _| {
        args.choice.update = true;
        Ok(())
    },
};

pub(crate) const EXISTING: Flag = Flag {
    long: "existing",
    short: None,
    value: Value::None,
    at: PUMPS,
    about: "skip what DEST does not have",
    doc: "\
Do not create anything at DEST: copy only files that it has already, in directories that it has already. The receipt \
counts what was skipped.",
    set: |args, _| {
        args.choice.existing = true;
        Ok(())
    },
};

pub(crate) const FILES_FROM: Flag = Flag {
    long: "files-from",
    short: None,
    value: Value::File("FILE"),
    at: PUMPS,
    about: "copy only the paths listed in FILE, one on each line",
    doc: "\
Copy only the paths that FILE lists, one on each line, relative to SOURCE, which is a directory: files, directories with \
everything in them, and the directories above them. '-' is standard input. Empty lines, and those that begin with # or ;, \
are skipped. A path that is not there is listed, and the exit status is 4.",
    set: |args, value| {
        args.files_from = Some(value.to_os_string());
        Ok(())
    },
};

pub(crate) const NO_XATTRS: Flag = Flag {
    long: "no-xattrs",
    short: None,
    value: Value::None,
    at: PUMPS,
    about: "leave out access lists and other attributes",
    doc: "\
Do not copy extended attributes of files and directories: access control lists, file capabilities, and those that \
programs and users set. Without this flag, they are copied, and the receipt names those that DEST cannot keep.",
    set: |args, _| {
        args.choice.no_xattrs = true;
        Ok(())
    },
};
