//! The messages that the two ends of a transfer exchange, and the descriptions of blocks.
//!
//! Model: a message has a tag byte and little-endian fields, which have a fixed width or are preceded by their length.
//! On the control stream each message is preceded by its length. A block of a lane is followed by a description of its
//! contents ([`Tail`]), with its length and hash.
//! Invariant: a message is accepted only if all of it can be decoded, and names in it are bare: none leads out of its
//! directory. `docs/formats/pump.md` describes every byte.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use thalweg_api::{LeftOut, LeftOutKind, PumpChange, PumpChoice, PumpItem, from_json, to_json};
use thalweg_io::extended::Extended;
use thalweg_io::hidden::is_hidden;
use thalweg_io::tree::{Attributes, EntryKind};
use xxhash_rust::xxh3::xxh3_64;

/// The most bytes of a message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// The most ranges in a message, names in a request, and cells to be compared. A decoder rejects more, because an entry
/// of [`Message::There`] takes one byte in the message and 48 in memory.
pub(crate) const RANGES: usize = 4096;
pub(crate) const ASKED: usize = 64;
pub(crate) const CELLS: usize = 16;
/// The most bytes of a block's description, and the bytes of the hash and the length after it.
pub(crate) const TAIL_BYTES_MAX: usize = 64 << 10;
const TAIL_END: usize = 12;

/// A source, as the source's end sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offered {
    /// Its path, for the journal and for messages.
    pub(crate) path: PathBuf,
    /// Its own name.
    pub(crate) name: OsString,
    /// Its attributes, if it is a tree.
    pub(crate) facts: Option<Attributes>,
    /// Whether only its contents are meant, not the directory itself.
    pub(crate) contents: bool,
}

/// The sources, and the options of the transfer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Offer {
    pub(crate) hashing: bool,
    pub(crate) resume: bool,
    pub(crate) verify: bool,
    pub(crate) strict: bool,
    pub(crate) choice: PumpChoice,
    /// The lanes that the source would use.
    pub(crate) lanes: u32,
    /// The total number of bytes, or 0 if it is unknown.
    pub(crate) total: u64,
    /// The roots; none if the source is a stream.
    pub(crate) roots: Vec<Offered>,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// The first message of the source.
    Offer(Offer),
    /// The first message of the sink: the number of lanes, and the name of each root there.
    Accept(u32, Vec<OsString>),
    /// A directory: its number, its parent's number, its name, its attributes, and its index if it is a root.
    Dir(u64, u64, OsString, Attributes, Extended, Option<u32>),
    /// The number of names of a directory, all of which were sent, and whether it could be listed to its end.
    DirEnd(u64, u64, bool),
    /// Names that a directory has. Sent if others are to be deleted.
    Names(u64, Vec<OsString>),
    /// A file that is sent in pieces: its number, its directory's number, its name, and its attributes; or only a
    /// length, for a stream.
    File(u64, u64, OsString, Option<Attributes>, Extended, Option<u64>),
    /// Whether a file starts from the beginning. Pieces follow.
    Take(u64, bool),
    /// A file was sent in this many pieces, with this checksum.
    FileEnd(u64, u64, u128),
    /// A file of which this many pieces were sent is left out.
    FileLost(u64, u64),
    /// An entry that this end has left out. Either end sends these last.
    LeftOut(LeftOut),
    /// Asks which of these names of a directory exist.
    Ask(u64, Vec<OsString>),
    /// A further name of a file: the directory from the top, its attributes, the name, the first name from the top, the
    /// root, and the keys of both.
    Name(Box<Named>),
    /// Everything was sent; its checksum.
    End(u128),
    /// The ranges of a file that exist, and whether more follow.
    Ranges(Vec<(u64, u64, u128)>, bool),
    /// Cells of the file that exists, to be compared with the source.
    Cells(Vec<(u64, Vec<u8>)>),
    /// For each requested name: the attributes of what has that name.
    There(Vec<Option<Attributes>>),
    /// Asks for the checksums of these files, and their answer.
    AskSums(u64, Vec<OsString>),
    Sums(Vec<Option<u128>>),
    /// A file in a directory is complete, but gets these attributes.
    Facts(u64, OsString, Attributes, Extended),
    /// An entry that a dry run would change. Either end sends these last.
    Item(PumpItem),
}

/// A further name; see [`Message::Name`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) place: PathBuf,
    pub(crate) facts: Attributes,
    pub(crate) name: OsString,
    pub(crate) first: PathBuf,
    pub(crate) top: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) first_key: Vec<u8>,
}

/// The contents of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tail {
    /// A piece of this file, at this offset.
    Piece(u64, u64),
    /// Small files and links, one after another.
    Pack(Vec<Small>),
}

/// An entry of a pack: its directory's number, its name, its attributes, and its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Small {
    pub(crate) dir: u64,
    pub(crate) name: OsString,
    pub(crate) facts: Attributes,
    pub(crate) extended: Extended,
    /// The checksum of a file, or the target of a link.
    pub(crate) what: Result<u128, OsString>,
}

impl Offer {
    fn put(&self, to: &mut Writer<'_>) {
        let flags = [self.hashing, self.resume, self.verify, self.strict];
        to.byte(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
        to.bytes(to_json(&self.choice).as_bytes());
        to.u64(u64::from(self.lanes));
        to.u64(self.total);
        to.u64(self.roots.len() as u64);
        for root in &self.roots {
            to.bytes(root.path.as_os_str().as_bytes());
            to.bytes(root.name.as_bytes());
            to.byte(u8::from(root.contents));
            to.option(root.facts.as_ref(), Writer::facts);
        }
    }
}

impl Message {
    /// Appends the encoded message, preceded by its length.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(&[0; 4]);
        self.put(&mut Writer(into));
        let len = (into.len() - start - 4) as u32;
        into[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }

    fn put(&self, to: &mut Writer<'_>) {
        match self {
            Message::Offer(offer) => {
                to.byte(1);
                offer.put(to);
            }
            Message::Accept(lanes, names) => {
                to.byte(2);
                to.u64(u64::from(*lanes));
                to.names(names);
            }
            Message::Dir(id, parent, name, facts, extended, root) => {
                to.byte(3);
                to.numbers(&[*id, *parent]);
                to.bytes(name.as_bytes());
                to.facts(facts);
                to.extended(extended);
                to.option(root.as_ref(), |to, root| to.u64(u64::from(*root)));
            }
            Message::DirEnd(id, children, is_whole) => {
                to.byte(4);
                to.numbers(&[*id, *children]);
                to.byte(u8::from(*is_whole));
            }
            Message::Names(dir, names) => {
                to.byte(16);
                to.u64(*dir);
                to.names(names);
            }
            Message::File(id, dir, name, facts, extended, len) => {
                to.byte(5);
                to.numbers(&[*id, *dir]);
                to.bytes(name.as_bytes());
                to.option(facts.as_ref(), Writer::facts);
                to.extended(extended);
                to.option(len.as_ref(), |to, len| to.u64(*len));
            }
            Message::Take(id, anew) => {
                to.byte(6);
                to.u64(*id);
                to.byte(u8::from(*anew));
            }
            Message::FileEnd(id, pieces, sum) => {
                to.byte(7);
                to.numbers(&[*id, *pieces]);
                to.u128(*sum);
            }
            Message::Ask(dir, names) => {
                to.byte(8);
                to.u64(*dir);
                to.names(names);
            }
            Message::Name(named) => {
                to.byte(9);
                to.bytes(named.place.as_os_str().as_bytes());
                to.facts(&named.facts);
                to.bytes(named.name.as_bytes());
                to.bytes(named.first.as_os_str().as_bytes());
                to.u64(named.top);
                to.bytes(&named.key);
                to.bytes(&named.first_key);
            }
            Message::End(sum) => {
                to.byte(10);
                to.u128(*sum);
            }
            _ => self.put_later(to),
        }
    }

    /// What is encoded of the messages that deal with errors and with a choice of entries.
    fn put_later(&self, to: &mut Writer<'_>) {
        match self {
            Message::FileLost(id, pieces) => {
                to.byte(14);
                to.numbers(&[*id, *pieces]);
            }
            Message::LeftOut(LeftOut { path, kind, why }) => {
                to.byte(15);
                to.byte(match kind {
                    LeftOutKind::Unreadable => 1,
                    LeftOutKind::Vanished => 2,
                    LeftOutKind::Changed => 3,
                    LeftOutKind::Destination => 4,
                });
                to.bytes(path.as_bytes());
                to.bytes(why.as_bytes());
            }
            Message::AskSums(dir, names) => {
                to.byte(17);
                to.u64(*dir);
                to.names(names);
            }
            Message::Facts(dir, name, facts, extended) => {
                to.byte(19);
                to.u64(*dir);
                to.bytes(name.as_bytes());
                to.facts(facts);
                to.extended(extended);
            }
            Message::Item(PumpItem { change, path }) => {
                to.byte(20);
                to.byte(match change {
                    PumpChange::New => 1,
                    PumpChange::Changed => 2,
                    PumpChange::Attributes => 3,
                    PumpChange::Deleted => 4,
                });
                to.bytes(path.as_bytes());
            }
            _ => self.put_answer(to),
        }
    }

    fn put_answer(&self, to: &mut Writer<'_>) {
        match self {
            Message::Ranges(ranges, more) => {
                to.byte(11);
                to.byte(u8::from(*more));
                to.u64(ranges.len() as u64);
                for (at, len, sum) in ranges {
                    to.numbers(&[*at, *len]);
                    to.u128(*sum);
                }
            }
            Message::Cells(cells) => {
                to.byte(12);
                to.u64(cells.len() as u64);
                for (at, bytes) in cells {
                    to.u64(*at);
                    to.bytes(bytes);
                }
            }
            Message::There(there) => {
                to.byte(13);
                to.u64(there.len() as u64);
                for known in there {
                    to.option(known.as_ref(), Writer::facts);
                }
            }
            Message::Sums(sums) => {
                to.byte(18);
                to.u64(sums.len() as u64);
                sums.iter().for_each(|sum| to.option(sum.as_ref(), |to, sum| to.u128(*sum)));
            }
            _ => unreachable!("the others are no answers"),
        }
    }

    /// Decodes a message, without its length.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Message> {
        let mut from = Reader(bytes);
        let message = Message::take(&mut from)?;
        from.0.is_empty().then_some(message)
    }

    fn take(from: &mut Reader<'_>) -> Option<Message> {
        Some(match from.byte()? {
            1 => {
                let flags = from.byte()?;
                let choice = from_json(&from.text()?).ok()?;
                let (lanes, total) = (u32::try_from(from.u64()?).ok()?, from.u64()?);
                let roots = from.many(|from| {
                    Some(Offered {
                        path: from.path()?,
                        name: from.bare()?,
                        contents: from.byte()? != 0,
                        facts: from.option(Reader::facts)?,
                    })
                })?;
                let [hashing, resume, verify, strict] = [1, 2, 4, 8].map(|flag| flags & flag != 0);
                Message::Offer(Offer { hashing, resume, verify, strict, choice, lanes, total, roots })
            }
            // A directory whose contents are meant has no name at the destination.
            2 => Message::Accept(
                u32::try_from(from.u64()?).ok()?,
                from.many(|from| from.bytes().map(|name| OsString::from_vec(name.to_vec())))?,
            ),
            3 => Message::Dir(
                from.u64()?,
                from.u64()?,
                from.bytes().map(|name| OsString::from_vec(name.to_vec()))?,
                from.facts()?,
                from.extended()?,
                from.option(|from| u32::try_from(from.u64()?).ok())?,
            ),
            4 => Message::DirEnd(from.u64()?, from.u64()?, from.byte()? != 0),
            5 => Message::File(
                from.u64()?,
                from.u64()?,
                from.bare()?,
                from.option(Reader::facts)?,
                from.extended()?,
                from.option(Reader::u64)?,
            ),
            6 => Message::Take(from.u64()?, from.byte()? != 0),
            7 => Message::FileEnd(from.u64()?, from.u64()?, from.u128()?),
            8 => Message::Ask(from.u64()?, from.at_most(ASKED, Reader::bare)?),
            9 => Message::Name(Box::new(Named {
                place: from.transport()?,
                facts: from.facts()?,
                name: from.bare()?,
                first: from.transport()?,
                top: from.u64()?,
                key: from.bytes()?.to_vec(),
                first_key: from.bytes()?.to_vec(),
            })),
            10 => Message::End(from.u128()?),
            11 => {
                let more = from.byte()? != 0;
                let range = |from: &mut Reader<'_>| Some((from.u64()?, from.u64()?, from.u128()?));
                Message::Ranges(from.at_most(RANGES, range)?, more)
            }
            12 => Message::Cells(from.at_most(CELLS, |from| Some((from.u64()?, from.bytes()?.to_vec())))?),
            tag => return Message::take_later(tag, from),
        })
    }

    fn take_later(tag: u8, from: &mut Reader<'_>) -> Option<Message> {
        Some(match tag {
            13 => Message::There(from.at_most(ASKED, |from| from.option(Reader::facts))?),
            17 => Message::AskSums(from.u64()?, from.at_most(ASKED, Reader::bare)?),
            18 => Message::Sums(from.at_most(ASKED, |from| from.option(Reader::u128))?),
            19 => Message::Facts(from.u64()?, from.bare()?, from.facts()?, from.extended()?),
            20 => Message::Item(PumpItem {
                change: match from.byte()? {
                    1 => PumpChange::New,
                    2 => PumpChange::Changed,
                    3 => PumpChange::Attributes,
                    4 => PumpChange::Deleted,
                    _ => return None,
                },
                path: from.text()?,
            }),
            16 => Message::Names(from.u64()?, from.at_most(ASKED, Reader::bare)?),
            14 => Message::FileLost(from.u64()?, from.u64()?),
            15 => Message::LeftOut(LeftOut {
                kind: match from.byte()? {
                    1 => LeftOutKind::Unreadable,
                    2 => LeftOutKind::Vanished,
                    3 => LeftOutKind::Changed,
                    4 => LeftOutKind::Destination,
                    _ => return None,
                },
                path: from.text()?,
                why: from.text()?,
            }),
            _ => return None,
        })
    }
}

impl Tail {
    /// The encoded description, which follows the block's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let to = &mut Writer(&mut bytes);
        match self {
            Tail::Piece(file, at) => {
                to.byte(1);
                to.numbers(&[*file, *at]);
            }
            Tail::Pack(pack) => {
                to.byte(2);
                to.u64(pack.len() as u64);
                for small in pack {
                    to.u64(small.dir);
                    to.bytes(small.name.as_bytes());
                    to.facts(&small.facts);
                    to.extended(&small.extended);
                    match &small.what {
                        Ok(sum) => {
                            to.byte(1);
                            to.u128(*sum);
                        }
                        Err(link) => {
                            to.byte(2);
                            to.bytes(link.as_bytes());
                        }
                    }
                }
            }
        }
        assert!(bytes.len() + TAIL_END <= TAIL_BYTES_MAX, "a tail of {} bytes", bytes.len());
        let (hash, len) = (xxh3_64(&bytes), bytes.len() as u32);
        bytes.extend_from_slice(&hash.to_le_bytes());
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes
    }

    /// Decodes the description of a block, and returns how many bytes of the block precede it.
    pub(crate) fn decode(block: &[u8]) -> Option<(Tail, usize)> {
        let end = block.len().checked_sub(TAIL_END)?;
        let hash = u64::from_le_bytes(block[end..end + 8].try_into().ok()?);
        let len = u32::from_le_bytes(block[end + 8..].try_into().ok()?) as usize;
        let start = end.checked_sub(len)?;
        let mut from = Reader(&block[start..end]);
        if xxh3_64(from.0) != hash {
            return None;
        }
        let tail = match from.byte()? {
            1 => Tail::Piece(from.u64()?, from.u64()?),
            2 => Tail::Pack(from.many(|from| {
                let (dir, name, facts) = (from.u64()?, from.bare()?, from.facts()?);
                let extended = from.extended()?;
                let what = match from.byte()? {
                    1 => Ok(from.u128()?),
                    2 => Err(from.link_target()?),
                    _ => return None,
                };
                Some(Small { dir, name, facts, extended, what })
            })?),
            _ => return None,
        };
        from.0.is_empty().then_some((tail, start))
    }
}

/// Whether this is a name in a directory, but not a hidden one, under which a transfer or a sort keeps state to resume
/// from: a later run would trust it.
pub(crate) fn is_bare(name: &[u8]) -> bool {
    let is_name = !name.is_empty() && name != b"." && name != b"..";
    is_name && !name.iter().any(|b| *b == b'/' || *b == 0) && !is_hidden(name)
}

struct Writer<'v>(&'v mut Vec<u8>);

impl Writer<'_> {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn u64(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    fn u128(&mut self, n: u128) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    fn numbers(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|n| self.u64(*n));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn names(&mut self, names: &[OsString]) {
        self.u64(names.len() as u64);
        names.iter().for_each(|name| self.bytes(name.as_bytes()));
    }

    fn option<T: ?Sized>(&mut self, value: Option<&T>, put: impl Fn(&mut Self, &T)) {
        self.byte(u8::from(value.is_some()));
        if let Some(value) = value {
            put(self, value);
        }
    }

    fn extended(&mut self, extended: &Extended) {
        self.u64(extended.all().len() as u64);
        for (name, value) in extended.all() {
            self.bytes(name);
            self.bytes(value);
        }
    }

    fn facts(&mut self, facts: &Attributes) {
        let Attributes {
            kind,
            len,
            allocated,
            device,
            inode,
            links,
            mode,
            user,
            group,
            modified_ns,
            changed_ns,
        } = *facts;
        self.byte(match kind {
            EntryKind::File => 1,
            EntryKind::Directory => 2,
            EntryKind::Link => 3,
            EntryKind::Special => 4,
        });
        self.numbers(&[len, allocated, device, inode, links]);
        self.numbers(&[u64::from(mode), u64::from(user), u64::from(group)]);
        self.u128(modified_ns as u128);
        self.u128(changed_ns as u128);
    }
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn some(&mut self, len: usize) -> Option<&'b [u8]> {
        let (some, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(some)
    }

    fn byte(&mut self) -> Option<u8> {
        self.some(1).map(|b| b[0])
    }

    fn u64(&mut self) -> Option<u64> {
        self.some(8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")))
    }

    fn u128(&mut self) -> Option<u128> {
        self.some(16).map(|b| u128::from_le_bytes(b.try_into().expect("sixteen bytes")))
    }

    fn bytes(&mut self) -> Option<&'b [u8]> {
        let len = usize::try_from(self.u64()?).ok()?;
        self.some(len)
    }

    fn text(&mut self) -> Option<String> {
        self.bytes().and_then(|bytes| String::from_utf8(bytes.to_vec()).ok())
    }

    fn path(&mut self) -> Option<PathBuf> {
        self.bytes().map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)))
    }

    fn bare(&mut self) -> Option<OsString> {
        self.bytes().filter(|name| is_bare(name)).map(|name| OsString::from_vec(name.to_vec()))
    }

    /// The target of a symbolic link, as a system can store it.
    fn link_target(&mut self) -> Option<OsString> {
        let target = self.bytes().filter(|target| !target.is_empty() && !target.contains(&0))?;
        Some(OsString::from_vec(target.to_vec()))
    }

    /// A relative path that only leads downwards.
    fn transport(&mut self) -> Option<PathBuf> {
        let is_name =
            |part: Component<'_>| matches!(part, Component::Normal(name) if is_bare(name.as_bytes()));
        let is_down = |path: &Path| path.components().all(is_name);
        self.path().filter(|path| is_down(path))
    }

    /// Decodes the announced number of entries, if enough bytes follow for them.
    fn many<T>(&mut self, one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        self.at_most(usize::MAX, one)
    }

    fn at_most<T>(&mut self, max: usize, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u64().filter(|count| *count <= max as u64)?;
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(one(self)?);
        }
        Some(all)
    }

    fn option<T>(&mut self, one: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.byte()? {
            0 => Some(None),
            1 => one(self).map(Some),
            _ => None,
        }
    }

    fn extended(&mut self) -> Option<Extended> {
        Extended::of(self.many(|from| Some((from.bytes()?.to_vec(), from.bytes()?.to_vec())))?)
    }

    fn facts(&mut self) -> Option<Attributes> {
        let kind = match self.byte()? {
            1 => EntryKind::File,
            2 => EntryKind::Directory,
            3 => EntryKind::Link,
            4 => EntryKind::Special,
            _ => return None,
        };
        let (len, allocated, device, inode, links) =
            (self.u64()?, self.u64()?, self.u64()?, self.u64()?, self.u64()?);
        let mut word = || u32::try_from(self.u64()?).ok();
        let (mode, user, group) = (word()?, word()?, word()?);
        let (modified_ns, changed_ns) = (self.u128()? as i128, self.u128()? as i128);
        // A time: seconds of 64 bits.
        let fits = |ns: i128| i64::try_from(ns / 1_000_000_000).is_ok();
        (fits(modified_ns) && fits(changed_ns) && mode <= 0o7777).then_some(Attributes {
            kind,
            len,
            allocated,
            device,
            inode,
            links,
            mode,
            user,
            group,
            modified_ns,
            changed_ns,
        })
    }
}

#[cfg(test)]
#[path = "message_test.rs"]
mod tests;
