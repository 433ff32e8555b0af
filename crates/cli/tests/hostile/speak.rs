//! The messages of a transfer, written from `docs/formats/pump.md` and without the program's own code, so that a test
//! can send what no honest end would send; and an end that sends them.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::{SshGreeting, to_json};
use thalweg_block::Pool;
use thalweg_wire::{
    Heard, Incoming, Link, Outgoing, Pipes, Role, TemporaryIdentity, Terms, VERSIONS, new_id,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::support::{Outcome, Place, Running, peak_of};

/// A frame holds a block of 1 MiB and its description.
const FRAME_BYTES: usize = (1 << 20) + (64 << 10);

/// A field of a message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Field {
    /// A byte.
    B(u8),
    /// A number.
    N(u64),
    /// A sum or a time.
    W(u128),
    /// A name or a path.
    S(Vec<u8>),
}

/// A message, or the description after the bytes of a block: its tag and its fields.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) tag: u8,
    pub(crate) fields: Vec<Field>,
}

/// A message of these fields.
pub(crate) fn said(tag: u8, fields: impl IntoIterator<Item = Field>) -> Said {
    Said { tag, fields: fields.into_iter().collect() }
}

pub(crate) fn name(name: &str) -> Field {
    Field::S(name.as_bytes().to_vec())
}

/// The attributes of a file (1), a directory (2) or a link (3) of `len` bytes.
pub(crate) fn facts(kind: u8, len: u64) -> Vec<Field> {
    let mode = if kind == 2 { 0o755 } else { 0o644 };
    let numbers = [len, len, 1, 2, 1, mode, 0, 0].map(Field::N);
    [vec![Field::B(kind)], numbers.to_vec(), vec![Field::W(1_000_000_000); 2]].concat()
}

/// No extended attributes.
fn no_more() -> Vec<Field> {
    vec![Field::N(0)]
}

/// An offer: flags (2 means resume), and each root with its name and kind.
pub(crate) fn offer(flags: u8, roots: &[(&str, u8)]) -> Said {
    let root = |(root, kind): &(&str, u8)| {
        let tree = *kind == 2;
        let known = if tree { facts(2, 0) } else { Vec::new() };
        [vec![name("/src"), name(root), Field::B(0), Field::B(u8::from(tree))], known].concat()
    };
    let first = vec![Field::B(flags), name("{}"), Field::N(1), Field::N(0), Field::N(roots.len() as u64)];
    said(1, first.into_iter().chain(roots.iter().flat_map(root)))
}

/// The same offer, with this choice of entries.
pub(crate) fn choosing(choice: &str, mut offer: Said) -> Said {
    offer.fields[1] = name(choice);
    offer
}

/// A directory: its number, its parent's number, its name, and its number among the roots if it is one.
pub(crate) fn dir(id: u64, parent: u64, called: &str, root: Option<u64>) -> Said {
    let root = root.map_or(vec![Field::B(0)], |root| vec![Field::B(1), Field::N(root)]);
    said(3, [vec![Field::N(id), Field::N(parent), name(called)], facts(2, 0), no_more(), root].concat())
}

pub(crate) fn dir_end(id: u64, names: u64) -> Said {
    said(4, [Field::N(id), Field::N(names), Field::B(1)])
}

/// A file that is sent in pieces.
pub(crate) fn file(id: u64, dir: u64, called: &str, len: u64) -> Said {
    let known = [vec![Field::B(1)], facts(1, len), no_more(), vec![Field::B(0)]].concat();
    said(5, [vec![Field::N(id), Field::N(dir), name(called)], known].concat())
}

pub(crate) fn file_end(id: u64, pieces: u64) -> Said {
    said(7, [Field::N(id), Field::N(pieces), Field::W(0)])
}

/// A question: which of these names exist?
pub(crate) fn ask(dir: u64, names: &[&str]) -> Said {
    let first = [Field::N(dir), Field::N(names.len() as u64)];
    said(8, first.into_iter().chain(names.iter().map(|asked| name(asked))))
}

/// A question: what are the checksums of these files?
pub(crate) fn ask_sums(dir: u64, names: &[&str]) -> Said {
    Said { tag: 17, ..ask(dir, names) }
}

/// New attributes of a file that is complete.
pub(crate) fn new_facts(dir: u64, called: &str) -> Said {
    said(19, [vec![Field::N(dir), name(called)], facts(1, 0), no_more()].concat())
}

/// The attributes of a complete file with two names.
pub(crate) fn named_twice_facts(called: &str, len: u64) -> Said {
    let mut facts = facts(1, len);
    facts[5] = Field::N(2);
    said(19, [vec![Field::N(1), name(called)], facts, no_more()].concat())
}

/// Another name for a file.
pub(crate) fn one_more(place: &str, called: &str, first: &str, root: u64) -> Said {
    let rest = vec![name(called), name(first), Field::N(root), name("key"), name("first")];
    said(9, [vec![name(place)], facts(2, 0), rest].concat())
}

pub(crate) fn end() -> Said {
    said(10, [Field::W(0)])
}

/// A piece of a file, from this offset on.
pub(crate) fn piece(file: u64, at: u64) -> Said {
    said(1, [Field::N(file), Field::N(at)])
}

/// One small file of `len` bytes.
pub(crate) fn small(dir: u64, called: &str, len: u64) -> Said {
    let what = vec![Field::B(1), Field::W(0)];
    said(2, [vec![Field::N(1), Field::N(dir), name(called)], facts(1, len), no_more(), what].concat())
}

/// The same file, with two names at the source.
pub(crate) fn named_twice(mut small: Said) -> Said {
    small.fields[8] = Field::N(2);
    small
}

/// One link.
pub(crate) fn link(dir: u64, called: &str, to: &str) -> Said {
    let what = vec![Field::B(2), name(to)];
    said(2, [vec![Field::N(1), Field::N(dir), name(called)], facts(3, 0), no_more(), what].concat())
}

impl Said {
    /// Its bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.tag];
        for field in &self.fields {
            match field {
                Field::B(byte) => bytes.push(*byte),
                Field::N(number) => bytes.extend(number.to_le_bytes()),
                Field::W(number) => bytes.extend(number.to_le_bytes()),
                Field::S(text) => {
                    bytes.extend((text.len() as u64).to_le_bytes());
                    bytes.extend(text);
                }
            }
        }
        bytes
    }
}

/// The steps of a source, one after the other.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Sends it on the control stream.
    Tell(Said),
    /// Sends these bytes there, whatever they are.
    Raw(Vec<u8>),
    /// Sends this many bytes on the lane, with this description after them.
    Block(usize, Said),
    /// Sends a block as it is.
    RawBlock(Vec<u8>),
}

/// The end that ssh would have started. If the other end has gone, messages are dropped.
struct Far {
    link: Arc<Link>,
    control: (Outgoing, Incoming),
    lane: Option<(Outgoing, Incoming)>,
}

impl Far {
    fn meet(from: OwnedFd, to: OwnedFd) -> Option<Far> {
        let mut channel = Pipes::new(from, to).ok()?;
        let meeting = new_id();
        let temporary = TemporaryIdentity::new(meeting, Role::Node).ok()?;
        let greets =
            SshGreeting { meeting: meeting.to_string(), authority: temporary.authority(), address: None };
        let line = format!("thalweg-pump {VERSIONS} {}", to_json(&greets));
        channel.say(&line, Duration::from_secs(5)).ok()?;
        let Ok(Heard::Line(_)) = channel.hear(|| true) else { return None };
        let terms = Terms { block_bytes: FRAME_BYTES as u32, ..Terms::default() };
        let link = Arc::new(channel.link("the sink", (meeting, Role::Node), terms).ok()?);
        link.keep().ok()?;
        let (_, out, inc) = link.accept().ok()??;
        let pool = Pool::new(FRAME_BYTES, 4).ok()?;
        Some(Far { link, control: (out, inc.takes(&pool, 2)), lane: None })
    }

    fn tell(&mut self, mut bytes: Vec<u8>) -> Option<()> {
        self.control.0.send(0, &mut bytes).ok()
    }

    /// The lane, as soon as the other end has accepted the offer.
    fn lane(&mut self) -> Option<&mut Outgoing> {
        if self.lane.is_none() {
            let (_, out, inc) = self.link.accept().ok()??;
            self.lane = Some((out.unchecked(), inc));
        }
        self.lane.as_mut().map(|(out, _)| out)
    }

    fn step(&mut self, step: &Step) -> Option<()> {
        match step {
            Step::Tell(said) => {
                let bytes = said.bytes();
                self.tell([&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat())
            }
            Step::Raw(bytes) => self.tell(bytes.clone()),
            Step::Block(len, tail) => {
                let tail = tail.bytes();
                let end = [&xxh3_64(&tail).to_le_bytes()[..], &(tail.len() as u32).to_le_bytes()].concat();
                let mut bytes = [vec![b'x'; *len], tail, end].concat();
                self.lane()?.send_from(0, 0, &mut bytes).ok()
            }
            Step::RawBlock(bytes) => self.lane()?.send_from(0, 0, &mut bytes.clone()).ok(),
        }
    }

    /// Ends the stream with a receipt, and returns everything that the other end has said on it.
    fn end(mut self, receipt: &str) -> Vec<u8> {
        let _ = self.control.0.end(receipt.as_bytes());
        let _ = self.lane().map(|out| out.end(&[]));
        let (_out, mut inc) = self.control;
        let mut heard = Vec::new();
        while let Ok(Some((_, block))) = inc.next_on() {
            heard.extend_from_slice(&block);
        }
        self.link.close();
        heard
    }
}

/// Starts the command with this end in place of ssh, has `talk` talk to it, and returns how both ended.
fn talked<T>(place: &Place, args: &[&str], talk: impl FnOnce(Far, u32) -> T) -> (Outcome, Option<T>) {
    let fifo = |name: &str| {
        let path = place.0.join(name);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    };
    let (down, up) = (fifo("down"), fifo("up"));
    place.write("ssh.sh", b"cat <down & exec cat >up\n");
    let mut command = place.command(&[args, &["--ssh", "sh ssh.sh", "--through-ssh"]].concat());
    let running = Running::start(command.stdin(Stdio::null()));
    let open = |path: &Path, write: bool| -> OwnedFd {
        std::fs::OpenOptions::new().write(write).read(!write).open(path).unwrap().into()
    };
    let to = open(&down, true);
    let far = Far::meet(open(&up, false), to);
    let talked = far.map(|far| talk(far, running.0.id()));
    let outcome = running.ends();
    for name in ["down", "up", "ssh.sh"] {
        std::fs::remove_file(place.0.join(name)).unwrap();
    }
    (outcome, talked)
}

/// Runs a real sink, started as users start it, which receives what this source sends. Also returns what the sink said.
pub(crate) fn pump(
    place: &Place,
    flags: &[&str],
    dest: &str,
    steps: &[Step],
    receipt: &str,
) -> (Outcome, Vec<u8>) {
    let args = [&["pump", "ssh://far/src/tree", dest], flags].concat();
    let talk = |mut far: Far, _| {
        // A source that was refused has nothing more to send.
        let _ = steps.iter().try_for_each(|step| far.step(step));
        far.end(receipt)
    };
    let (outcome, heard) = talked(place, &args, talk);
    (outcome, heard.unwrap_or_default())
}

/// What a sink sends: after the source has sent a message with this tag, or at once.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub(crate) after: Option<u8>,
    pub(crate) said: Said,
}

/// What a sink received from a source.
pub(crate) struct Got {
    /// The bytes of all streams.
    pub(crate) bytes: Vec<u8>,
    /// The peak memory of the source.
    pub(crate) peak_bytes: u64,
}

/// How long a sink waits for a question of the source.
const ASKS_WITHIN: Duration = Duration::from_millis(1000);

/// Runs a real source, started as users start it, which sends `tree` to this sink. The sink's last message depends on
/// the sum that the source reported.
pub(crate) fn serve(
    place: &Place,
    flags: &[&str],
    turns: &[Turn],
    verdict: impl FnOnce(u128) -> String,
) -> (Outcome, Got) {
    let args = [&["pump", "tree", "ssh://far/dest"], flags].concat();
    let (outcome, heard) = talked(place, &args, |far, pid| {
        let (bytes, sum) = (Mutex::new(Vec::new()), Mutex::new(0));
        let (peak_bytes, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let Far { link, control: (mut out, mut inc), .. } = far;
        std::thread::scope(|scope| {
            let (bytes, sum, link) = (&bytes, &sum, &link);
            let (tags, asked) = channel();
            let (closes, closed) = channel::<()>();
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    peak_bytes.fetch_max(peak_of(pid), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            scope.spawn(move || {
                let mut rest = Vec::new();
                while let Ok(Some((_, block))) = inc.next_on() {
                    rest.extend_from_slice(&block);
                    bytes.lock().unwrap().extend_from_slice(&block);
                    while let Some(message) = first_of(&mut rest) {
                        if let (10, Some(told)) = (message[0], message.last_chunk()) {
                            *sum.lock().unwrap() = u128::from_le_bytes(*told);
                        }
                        let _ = tags.send(message[0]);
                    }
                }
            });
            scope.spawn(move || {
                while let Ok(Some((_, out, inc))) = link.accept() {
                    scope.spawn(move || {
                        // The stream would end without its other direction.
                        let _out = out;
                        let mut inc = inc.takes(&Pool::new(FRAME_BYTES, 4).unwrap(), 2);
                        while let Ok(Some((_, block))) = inc.next_on() {
                            bytes.lock().unwrap().extend_from_slice(&block);
                        }
                    });
                }
                drop(closes);
            });
            let has_come =
                |tag: &u8| std::iter::from_fn(|| asked.recv_timeout(ASKS_WITHIN).ok()).any(|t| t == *tag);
            for Turn { after, said } in turns {
                if after.as_ref().is_none_or(has_come) {
                    let said = said.bytes();
                    let _ = out.send(0, &mut [&(said.len() as u32).to_le_bytes()[..], &said].concat());
                }
            }
            while asked.recv_timeout(ASKS_WITHIN).is_ok() {}
            let _ = out.end(verdict(*sum.lock().unwrap()).as_bytes());
            // If the source is still listening, it closes the link when it has heard this.
            let _ = closed.recv_timeout(ASKS_WITHIN);
            link.close();
            ended.store(true, Ordering::Relaxed);
        });
        let peak_bytes = peak_bytes.into_inner();
        Got { bytes: bytes.into_inner().unwrap(), peak_bytes }
    });
    (outcome, heard.expect("they meet"))
}

/// Takes the first message from the received bytes, if it is complete.
fn first_of(rest: &mut Vec<u8>) -> Option<Vec<u8>> {
    let len = u32::from_le_bytes(*rest.first_chunk()?) as usize;
    let message = rest.get(4..4 + len)?.to_vec();
    rest.drain(..4 + len);
    Some(message)
}
