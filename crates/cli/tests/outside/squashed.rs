//! A share that squashes root: all new files belong to nobody, whoever creates them, and none can be given away.
//!
//! Model: one directory of regular files in memory, which a thread of the test serves to the kernel through
//! `/dev/fuse`, in the protocol of `linux/fuse.h`, 7.31. Other requests are answered with ENOSYS, and the kernel
//! manages without them.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use thalweg_api::{Receipt, from_json};

use super::support::{Place, Running, skipped, until};

/// The owner of all files.
const NOBODY: u32 = 65534;
const ROOT: u64 = 1;
const DIRECTORY_MODE: u32 = 0o40_777;
/// The most bytes that one message writes, and the bytes around them.
const WRITE_BYTES_MAX: usize = 1 << 20;
const AROUND_BYTES: usize = 64 << 10;
const IN_HEAD_BYTES: usize = 40;
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOSYS: i32 = 38;

#[derive(Default)]
struct Node {
    bytes: Vec<u8>,
    mode: u32,
    links: u32,
    modified: (u64, u32),
}

/// The file system, as its thread sees it.
struct Served {
    nodes: HashMap<u64, Node>,
    names: BTreeMap<Vec<u8>, u64>,
    last: u64,
    /// Counts changes, and serves as the time.
    clock: u64,
}

/// The number at a byte of a message.
fn long(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(from[at..at + 8].try_into().unwrap())
}

fn word(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(from[at..at + 4].try_into().unwrap())
}

fn longs(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|n| n.to_le_bytes()).collect()
}

fn words(all: &[u32]) -> Vec<u8> {
    all.iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// A name that ends with a zero byte.
fn name_of(from: &[u8]) -> Vec<u8> {
    from.split(|b| *b == 0).next().unwrap_or_default().to_vec()
}

type Answer = Result<Vec<u8>, i32>;

impl Served {
    fn attributes(&self, id: u64) -> Answer {
        let root = Node { mode: DIRECTORY_MODE, links: 2, ..Node::default() };
        let node = if id == ROOT { &root } else { self.nodes.get(&id).ok_or(ENOENT)? };
        let (seconds, part) = node.modified;
        let len = node.bytes.len() as u64;
        Ok([
            longs(&[id, len, len.div_ceil(512), seconds, seconds, seconds]),
            words(&[part, part, part, node.mode, node.links, NOBODY, NOBODY, 0, 4096, 0]),
        ]
        .concat())
    }

    fn entry(&self, id: u64) -> Answer {
        Ok([longs(&[id, 0, 0, 0, 0]), self.attributes(id)?].concat())
    }

    fn told(&self, id: u64) -> Answer {
        Ok([longs(&[0, 0]), self.attributes(id)?].concat())
    }

    fn make(&mut self, name: Vec<u8>, mode: u32) -> Result<u64, i32> {
        if self.names.contains_key(&name) {
            return Err(EEXIST);
        }
        (self.last, self.clock) = (self.last + 1, self.clock + 1);
        let modified = (1_600_000_000 + self.clock, 0);
        let mode = 0o100_000 | mode & 0o7777;
        self.nodes.insert(self.last, Node { bytes: Vec::new(), mode, links: 1, modified });
        self.names.insert(name, self.last);
        Ok(self.last)
    }

    /// Removes a name.
    fn unlink(&mut self, name: &[u8]) -> Answer {
        let id = self.names.remove(name).ok_or(ENOENT)?;
        // Processes that have the file open can still read and write it: no file is ever freed.
        self.nodes.get_mut(&id).ok_or(ENOENT)?.links -= 1;
        Ok(Vec::new())
    }

    fn rename(&mut self, names: &[u8]) -> Answer {
        let (from, to) = (name_of(names), name_of(&names[name_of(names).len() + 1..]));
        let id = *self.names.get(&from).ok_or(ENOENT)?;
        let _ = self.unlink(&to);
        self.names.remove(&from);
        self.names.insert(to, id);
        Ok(Vec::new())
    }

    fn change(&mut self, id: u64, body: &[u8]) -> Answer {
        let valid = word(body, 0);
        if valid & 0b110 != 0 {
            return Err(EPERM);
        }
        let Some(node) = self.nodes.get_mut(&id) else { return self.told(id) };
        if valid & 1 != 0 {
            node.mode = 0o100_000 | word(body, 68) & 0o7777;
        }
        if valid & 8 != 0 {
            node.bytes.resize(long(body, 16) as usize, 0);
        }
        if valid & 32 != 0 && valid & 256 == 0 {
            node.modified = (long(body, 40), word(body, 60));
        }
        self.told(id)
    }

    fn write(&mut self, id: u64, body: &[u8]) -> Answer {
        let (at, len) = (long(body, 8) as usize, word(body, 16) as usize);
        self.clock += 1;
        let node = self.nodes.get_mut(&id).ok_or(ENOENT)?;
        node.modified = (1_600_000_000 + self.clock, 0);
        let end = node.bytes.len().max(at + len);
        node.bytes.resize(end, 0);
        node.bytes[at..at + len].copy_from_slice(&body[40..40 + len]);
        Ok(words(&[len as u32, 0]))
    }

    fn list(&self, body: &[u8]) -> Vec<u8> {
        let (from, room) = (long(body, 8), word(body, 16) as usize);
        let mut all = Vec::new();
        for (number, (name, id)) in self.names.iter().enumerate().skip(from as usize) {
            let mut one =
                [longs(&[*id, number as u64 + 1]), words(&[name.len() as u32, 8]), name.clone()].concat();
            one.resize(one.len().next_multiple_of(8), 0);
            if all.len() + one.len() > room {
                break;
            }
            all.extend(one);
        }
        all
    }

    /// The answer to a message; `None` if none is expected.
    fn answer(&mut self, what: u32, id: u64, body: &[u8]) -> Option<Answer> {
        const OPENED: [u64; 2] = [0, 0];
        Some(match what {
            1 => self.names.get(&name_of(body)).copied().ok_or(ENOENT).and_then(|id| self.entry(id)),
            2 | 42 => return None,
            3 => self.told(id),
            4 => self.change(id, body),
            10 => self.unlink(&name_of(body)),
            12 => self.rename(&body[8..]),
            14 | 27 => Ok(longs(&OPENED)),
            15 => self.nodes.get(&id).ok_or(ENOENT).map(|node| {
                let (at, len) = (long(body, 8) as usize, word(body, 16) as usize);
                let end = node.bytes.len().min(at + len);
                node.bytes.get(at..end).unwrap_or_default().to_vec()
            }),
            16 => self.write(id, body),
            17 => Ok([
                longs(&[1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20]),
                words(&[4096, 255, 4096, 0]),
                vec![0; 24],
            ]
            .concat()),
            18 | 20 | 25 | 29 | 30 => Ok(Vec::new()),
            26 => {
                const BIG_WRITES_AND_MANY_PAGES: u32 = 1 << 5 | 1 << 22;
                let first = words(&[7, 31, AROUND_BYTES as u32, BIG_WRITES_AND_MANY_PAGES, 0]);
                let rest = words(&[WRITE_BYTES_MAX as u32, 1, (WRITE_BYTES_MAX / 4096) as u32]);
                Ok([first, rest, vec![0; 32]].concat())
            }
            28 => Ok(self.list(body)),
            35 => {
                let made = self.make(name_of(&body[16..]), word(body, 4));
                made.and_then(|id| Ok([self.entry(id)?, longs(&OPENED)].concat()))
            }
            45 => self.rename(&body[16..]),
            _ => Err(ENOSYS),
        })
    }

    fn serve(mut self, mut device: File) {
        let mut buffer = vec![0; WRITE_BYTES_MAX + AROUND_BYTES];
        loop {
            let len = match device.read(&mut buffer) {
                Ok(len) => len,
                // Nothing is mounted yet, or the request was cancelled in the meantime.
                Err(e) if [Some(EPERM), Some(ENOENT), Some(4)].contains(&e.raw_os_error()) => {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                Err(_) => return,
            };
            let (head, body) = buffer[..len].split_at(IN_HEAD_BYTES);
            let Some(answer) = self.answer(word(head, 4), long(head, 16), body) else { continue };
            let (error, bytes) = answer.map_or_else(|error| (-error, Vec::new()), |bytes| (0, bytes));
            let head_len = 16 + bytes.len() as u32;
            let out = [words(&[head_len, error as u32]), longs(&[long(head, 8)]), bytes].concat();
            // The process that asked may have ended.
            let _ = device.write(&out);
        }
    }
}

/// The directory where it is mounted, as long as this value lives.
struct Share(PathBuf);

impl Share {
    /// Mounts it; `None` if that is not possible.
    fn mount(at: PathBuf) -> Option<Share> {
        std::fs::create_dir(&at).unwrap();
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
        let served = Served { nodes: HashMap::new(), names: BTreeMap::new(), last: ROOT, clock: 0 };
        let theirs = device.try_clone().unwrap();
        let mut mount = Command::new("mount");
        let options = "fd=0,rootmode=40777,user_id=0,group_id=0,allow_other";
        mount.args(["-i", "-t", "fuse", "-o", options, "squashed"]).arg(&at);
        let mut mount = mount.stdin(Stdio::from(device)).spawn().ok()?;
        std::thread::spawn(move || served.serve(theirs));
        mount.wait().unwrap().success().then(|| Share(at))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A hidden file counts as this user's if it has the owner that a new file gets there now. It need not have the user's
/// own number: otherwise root on such a share would find no file to continue from, and none to remove.
#[test]
fn on_a_share_that_squashes_root_a_killed_sort_is_gone_on_from_and_its_leavings_go() {
    let place = Place::new();
    let Some(share) = Share::mount(place.0.join("share")) else {
        return skipped("no file system of our own can be mounted here");
    };
    place.shell("$T gen 400k in -q && $T sort in -o expected --datamation -q").is_done();
    place.shell("touch share/it && rm share/it").is_done();
    let sort = ["sort", "in", "-o", "share/out", "--datamation", "--memory", "16MiB", "--scratch", "share"];
    let manifest = share.0.join(".out.thalweg-manifest");
    let killed = || {
        let running = Running::start(&mut place.command(&[&sort[..], &["--resume", "-q"]].concat()));
        let len = || manifest.metadata().map_or(0, |there| there.len());
        until("a manifest", || len() > 0);
        let begun = len();
        until("a checkpoint", || len() > begun);
        running.signal("-KILL");
        running.ends();
        let there = manifest.metadata().expect("it was killed in the middle");
        assert_eq!(there.uid(), NOBODY, "root is squashed here");
    };
    killed();
    let told = place.run(&[&sort[..], &["--resume", "--json"]].concat());
    let receipt: Receipt = from_json(told.is_done()).unwrap();
    assert!(receipt.resumed_bytes > 0, "{receipt:?}");
    place.shell("cmp share/out expected && rm share/out && test -z \"$(ls -A share)\"").is_done();
    killed();
    place.run(&[&sort[..], &["-q"]].concat()).is_done();
    place.shell("cmp share/out expected && test \"$(ls -A share)\" = out").is_done();
}
