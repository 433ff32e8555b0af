//! The options of transfers, in the table of flags.

use thalweg_api::PumpCompare;

use crate::Value::{Any, File, OneOf, Switch};
use crate::ask::Ask;
use crate::flag::{At, Flag, flag};
use crate::{Command, on, values};

const PUMPS: At = At::Commands(&[Command::Pump]);

/// The options of transfers alone.
#[rustfmt::skip] // The rows of a table.
pub(crate) const FLAGS: &[Flag<Ask>] = &[
    flag("verify", Switch, PUMPS, "read back what was written before it gets its name", "\
Read back what was written, from the disk and not from the page cache, and compare its checksum with that of the \
source, before the file gets its name. For this, small files are made durable one by one, which takes time.",
        on!(pump.verify)),
    flag("no-disk", Any("SIZE"), PUMPS, "move random bytes from memory to nowhere instead", "\
Takes no SOURCE: moves SIZE random bytes from memory to nowhere, or to the DEST HOST:null:, with checksums at both \
ends. Measures what the pump itself costs.",
        |ask, value| values::bytes(value).map(|bytes| ask.pump.no_disk = Some(bytes))),
    flag("there", Any("COMMAND"), PUMPS, "the command that starts thalweg at the far end of ssh", "\
The command that the shell of the host of ssh://HOST/PATH starts, as in '~/bin/thalweg'. Without this flag, thalweg, \
where that shell finds programs.",
        |ask, value| values::text(value).map(|text| ask.there = Some(text.to_string()))),
    flag("through-ssh", Switch, PUMPS, "send everything through ssh, and try no direct link", "\
Send everything through ssh, as if no port of the host could be reached. This is slower: ssh handles all bytes on one \
core at either end.",
        on!(through_ssh)),
    flag("no-checksum", Switch, PUMPS, "for benchmarks: take no checksums", "\
For benchmarks: take no checksums, to see what they cost. The receipt then does not say whether the output equals the \
input, and interrupted files are copied from their beginning.",
        on!(pump.no_checksum)),
    flag("strict", Switch, PUMPS, "end with the first file that cannot be copied", "\
End with the first file or directory that cannot be read, that vanished, or that changed while it was read, even if it \
only grew. Without this flag, it is left out and listed at the end, and the exit status is 4.",
        on!(pump.strict)),
    flag::<Ask>("exclude", Any("PATTERN"), PUMPS, "leave out what the pattern matches, as rsync does", "\
Do not copy what PATTERN matches. May be given several times, and with --include and --filter: the first of them that \
matches an entry decides. The rules are rsync's: a name like '*.o' matches at any depth; a pattern with a slash in it \
is compared with the end of the path, and one that begins with a slash with all of it, from the top of the transfer; a \
slash at its end matches only directories; * and ? do not match slashes, ** does. What is in a directory that is left \
out is not looked at. With --delete, such an entry is not deleted at DEST.",
        |ask, value| values::text(value).map(|pattern| ask.pump.choice.exclude(pattern))).many(),
    flag::<Ask>("include", Any("PATTERN"), PUMPS, "do not leave out what the pattern matches", "\
Copy what PATTERN matches, although a later --exclude or --filter matches it, too.",
        |ask, value| values::text(value).map(|pattern| ask.pump.choice.include(pattern))).many(),
    flag::<Ask>("filter", Any("RULE"), PUMPS, "a filter rule of rsync, as in '- *.o' or 'P cache/'", "\
A filter rule, as rsync takes it: '- PATTERN' is --exclude, '+ PATTERN' is --include, 'H' hides from the copy only, 'S' \
is its opposite, 'P' protects from --delete only, 'R' is its opposite, and '!' removes the rules before it. The words \
exclude, include, hide, show, protect, risk and clear mean the same. Modifiers: ! (what does not match), s and r (at the \
source, or the destination), p (not in directories that are being deleted). Rules are not read from files.",
        |ask, value| values::text(value).map(|rule| ask.pump.choice.rules.push(rule.to_string()))).many(),
    flag("delete", Switch, PUMPS, "delete at DEST what SOURCE does not have", "\
Delete at DEST, in each directory that is copied, what its SOURCE does not have and no rule protects. A directory that \
could not be listed to its end deletes nothing. What any of several SOURCEs has is not deleted. The receipt counts what \
was deleted; --dry-run shows it beforehand.",
        on!(pump.choice.delete)),
    flag("max-delete", Any("COUNT"), PUMPS, "delete at most COUNT entries", "\
With --delete: delete at most COUNT files and directories. If there were more, the others stay, a line says how many, and \
the exit status is 4.",
        |ask, value| values::parsed(value).map(|most| ask.pump.choice.max_delete = Some(most))),
    flag("dry-run", Switch, PUMPS, "change nothing, and list what would be changed", "\
Change nothing, and print a line for each entry of DEST that would be changed: new, changed, attributes (of what is \
skipped because it is equal) or deleted, and its path in the transfer. The receipt then counts what would be copied. \
What could not replace what DEST has is listed, and the exit status is 4, as without this flag.",
        on!(pump.choice.dry_run)),
    flag("compare", OneOf("HOW", &["time", "content"]), PUMPS, "skip files that are equal: by time, or by content", "\
Do not copy files that DEST has already: with time, those with the same length and modification time, as --resume does; \
with content, those whose contents are the same, which are read at both ends. Only their attributes are set. Without \
this flag, every file is copied.",
        |ask, value| {
        let choices = [("time", PumpCompare::Time), ("content", PumpCompare::Content)];
        values::choice(value, &choices).map(|how| ask.pump.choice.compare = how)
    }),
    flag("update", Switch, PUMPS, "skip files that are newer at DEST", "\
Do not copy files and links whose modification time at DEST is later than at SOURCE. The receipt counts them.",
        on!(pump.choice.update)),
    flag("existing", Switch, PUMPS, "skip what DEST does not have", "\
Do not create anything at DEST: copy only files that it has already, in directories that it has already. The receipt \
counts what was skipped.",
        on!(pump.choice.existing)),
    flag("no-xattrs", Switch, PUMPS, "leave out access lists and other attributes", "\
Do not copy extended attributes of files and directories: access control lists, file capabilities, and those that \
programs and users set. Without this flag, they are copied, and the receipt names those that DEST cannot keep.",
        on!(pump.choice.no_xattrs)),
    flag("files-from", File("FILE"), PUMPS, "copy only the paths listed in FILE, one on each line", "\
Copy only the paths that FILE lists, one on each line, relative to SOURCE, which is a directory: files, directories with \
everything in them, and the directories above them. '-' is standard input. Empty lines, and those that begin with # or ;, \
are skipped. A path that is not there is listed, and the exit status is 4.",
        |ask, value| {
        ask.files_from = Some(value.to_os_string());
        Ok(())
    }),
];
