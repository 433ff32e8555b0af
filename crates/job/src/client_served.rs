//! Files of the client that nodes sort or write: the client serves them, and every node has a file system that reads
//! and writes them over the link.
//!
//! ```text
//! node:    ClientFileRequest, ClientFileRequest [bytes]       ClientFileRequest            on a stream for each queue; two questions at most wait
//! client:                   [head][bytes]         [head]...  answers in the order of the requests
//! head:    [errno: u32][bytes that follow: u64]              in a frame of its own; little-endian
//! ```
//!
//! Model: [`serve`] answers all requests of a peer on a link, as long as the link is open. At a node [`ClientInputs`]
//! is a back end whose files can be read, and [`client_output`] a file that queues can write to. So all nodes see the
//! same files, and the code that reads inputs does not know that they are elsewhere.
//! Invariant: a node names files by their place among the inputs, and reads no others. It writes to the output of the
//! attempt that it takes part in, as long as that runs, and to nothing else. An answer has what the file holds at that
//! moment; a node notices that it has changed by looking again, as with a file of its own.
//! Non-goals: streams, which cannot be read twice, nor written at any place.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_api::{ClientFile, ClientFileRequest, from_json, to_json};
use thalweg_block::Pool;
use thalweg_engine::{AskedOfCluster, Result};
use thalweg_io::threads::Threads;
use thalweg_io::{
    Action, Backend, Caching, Done, Error, File, FileId, FileSystem, Handle, InputFile, Kind, Metadata, Op,
    Queue, ReadFiles,
};
use thalweg_wire::{Incoming, Link, LinkError, Outgoing, What, message};

/// The prefix of the names of the client's files.
pub(crate) const CLIENT: &str = "client:";
/// Requests of a queue that wait for an answer: no more than the client has room for, so sending one never waits.
const ASKED: usize = 2;
/// The most streams of a link at once: for each side of a join one that blocks and one for pages, and one for what is
/// written.
const STREAMS_MAX: usize = 8;
/// Bytes that are read after a page, and kept: the line that begins in it may end there.
const TAIL_BYTES: usize = 4 << 10;
/// A shorter read is no page.
const PAGE_BYTES_MIN: usize = 64 << 10;
/// The most tails that are kept.
const TAILS: usize = 16;
/// Blocks that are reserved for answers.
const WINDOW: usize = 3;
const HEAD_BYTES: usize = 12;
const STACK_BYTES: usize = 256 << 10;

/// The files that a client serves.
pub(crate) struct Server {
    io: Arc<dyn FileSystem>,
    inputs: Vec<InputFile>,
    /// The output of the attempt with this number.
    output: Mutex<Option<(u32, File)>>,
}

impl Server {
    /// Opens the inputs that it serves.
    pub(crate) fn of(inputs: &[&Path]) -> Result<Server> {
        let io: Arc<dyn FileSystem> = Arc::new(Threads::new(1));
        let open = |path: &&Path| -> Result<InputFile> {
            let file = File::open_to_read(io.clone(), path, Caching::Cached)?;
            match file.metadata()?.is_regular {
                true => Ok(file),
                false => Err(AskedOfCluster::ClientStream(path.to_path_buf()).into()),
            }
        };
        let inputs = inputs.iter().map(open).collect::<Result<_>>()?;
        Ok(Server { io, inputs, output: Mutex::default() })
    }

    /// The file system of the served files.
    pub(crate) fn io(&self) -> &Arc<dyn FileSystem> {
        &self.io
    }

    /// From now on, nodes write to this output of this attempt.
    pub(crate) fn serve_output(&self, attempt: u32, output: File) {
        *self.output.lock().expect("no holder panics") = Some((attempt, output));
    }
}

/// Answers the peer's requests for the files on this link, until the link ends.
pub(crate) fn serve(server: &Arc<Server>, link: &Arc<Link>) -> std::io::Result<()> {
    let (server, link) = (Arc::clone(server), Arc::clone(link));
    let thread = |name: &str| std::thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
    let accept = move || {
        let streams = Arc::new(AtomicUsize::new(0));
        while let Ok(Some((_, out, inc))) = link.accept() {
            if streams.fetch_add(1, Ordering::Relaxed) >= STREAMS_MAX {
                streams.fetch_sub(1, Ordering::Relaxed);
                let _ = out.abort(&format!("{STREAMS_MAX} streams read from this client already"));
                continue;
            }
            let (server, link, streams) = (Arc::clone(&server), Arc::clone(&link), Arc::clone(&streams));
            // The end of the stream tells the peer of a failure.
            let answer = move || {
                let _ = server.answer(&link, out, inc);
                streams.fetch_sub(1, Ordering::Relaxed);
            };
            if thread("serves").spawn(answer).is_err() {
                return;
            }
        }
    };
    thread("server").spawn(accept).map(drop)
}

impl Server {
    fn answer(&self, link: &Link, mut out: Outgoing, inc: Incoming) -> std::result::Result<(), LinkError> {
        let mut hearing = message::Reader::new(inc, link.peer(), link.block_bytes())?;
        let mut piece = vec![0; link.block_bytes()];
        while let Some((text, bytes)) = hearing.next()? {
            let answered = match from_json(&text) {
                Ok(ClientFileRequest::Look(place)) => self.look(&mut out, place),
                Ok(ClientFileRequest::Read { file, at, bytes }) => {
                    self.read(&mut out, &mut piece, file, (at, bytes))
                }
                Ok(ClientFileRequest::Write { attempt, at }) => self.write(&mut out, attempt, (at, &bytes)),
                Err(why) => Err(Failed::Request(why)),
            };
            match answered {
                Ok(()) => {}
                Err(Failed::Link(why)) => return Err(why),
                Err(why) => return out.abort(&why.to_string()),
            }
        }
        out.end(&[])
    }

    fn file(&self, place: usize) -> std::result::Result<&InputFile, Failed> {
        let none = || Failed::NoFile { files: self.inputs.len(), place };
        self.inputs.get(place).ok_or_else(none)
    }

    fn look(&self, out: &mut Outgoing, place: usize) -> std::result::Result<(), Failed> {
        match self.file(place)?.metadata() {
            Ok(found) => {
                let mut told = to_json(&told(&found)).into_bytes();
                head(out, 0, told.len() as u64)?;
                Ok(out.send(0, &mut told)?)
            }
            Err(why) => refuse(out, why),
        }
    }

    /// Sends this many bytes from here on, or as many as there are.
    fn read(
        &self,
        out: &mut Outgoing,
        piece: &mut [u8],
        place: usize,
        (at, bytes): (u64, u64),
    ) -> std::result::Result<(), Failed> {
        let file = self.file(place)?;
        let found = match file.metadata() {
            Ok(found) => found,
            Err(why) => return refuse(out, why),
        };
        let bytes = bytes.min(found.len.saturating_sub(at));
        head(out, 0, bytes)?;
        let mut sent = 0;
        while sent < bytes {
            let want = (bytes - sent).min(piece.len() as u64) as usize;
            match file.read_at(at + sent, &mut piece[..want]) {
                Ok(got) if got == want => out.send(0, &mut piece[..want])?,
                Ok(_) => return Err(Failed::Shorter(file.path().to_path_buf())),
                Err(why) => return Err(why.into()),
            }
            sent += want as u64;
        }
        Ok(())
    }

    /// Writes the bytes that follow to the output, if it is that of this attempt.
    fn write(
        &self,
        out: &mut Outgoing,
        attempt: u32,
        (at, bytes): (u64, &[u8]),
    ) -> std::result::Result<(), Failed> {
        let output = self.output.lock().expect("no holder panics").clone();
        let Some((_, file)) = output.filter(|(number, _)| *number == attempt) else {
            return Err(Failed::NoOutput(attempt));
        };
        match file.write_at(at, bytes) {
            Ok(()) => Ok(head(out, 0, 0)?),
            Err(why) => refuse(out, why),
        }
    }
}

/// Why a node gets no answer.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Io(#[from] Error),
    #[error("a request that cannot be understood: {0}")]
    Request(String),
    #[error("the client serves {files} files, and number {place} is none of them")]
    NoFile { files: usize, place: usize },
    #[error("{} became shorter", .0.display())]
    Shorter(PathBuf),
    #[error("attempt {0} has no output any more")]
    NoOutput(u32),
}

fn head(out: &mut Outgoing, errno: i32, bytes: u64) -> std::result::Result<(), LinkError> {
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&errno.to_le_bytes());
    head[4..].copy_from_slice(&bytes.to_le_bytes());
    out.send(0, &mut head)
}

/// Answers with the system's error number; without a number, the stream ends.
fn refuse(out: &mut Outgoing, why: Error) -> std::result::Result<(), Failed> {
    match why.errno() {
        Some(errno) => Ok(head(out, errno, 0)?),
        None => Err(why.into()),
    }
}

fn told(found: &Metadata) -> ClientFile {
    ClientFile {
        bytes: found.len,
        device: found.device,
        inode: found.inode,
        modified_ns: i64::try_from(found.modified_ns).unwrap_or(i64::MAX),
    }
}

/// A client whose files a node reads or writes.
pub(crate) struct Client {
    link: Arc<Link>,
    request: String,
    /// For requests that are made one by one.
    way: Mutex<Option<Way>>,
    /// Bytes that came after pages: their file, their offset and the bytes.
    tails: Mutex<VecDeque<(FileId, u64, Vec<u8>)>>,
}

impl Client {
    /// The client at the other end of a link; `request` tells it what its files are for.
    pub(crate) fn new(link: &Arc<Link>, request: String) -> Arc<Client> {
        let (link, way, tails) = (Arc::clone(link), Mutex::default(), Mutex::default());
        Arc::new(Client { link, request, way, tails })
    }

    fn queue(self: &Arc<Client>, depth: usize, attempt: Option<u32>) -> thalweg_io::Result<Box<dyn Queue>> {
        let wrong = |why| Error::new(Action::Setup, CLIENT, std::io::Error::other(why));
        let (asked, waiting) = (VecDeque::new(), VecDeque::new());
        let way = self.way().map_err(wrong)?;
        Ok(Box::new(ClientQueue { client: Arc::clone(self), attempt, way, depth, asked, waiting }))
    }

    fn way(&self) -> std::result::Result<Way, LinkError> {
        let (out, inc) = self.link.open(self.request.as_bytes())?;
        let peer = self.link.peer().to_string();
        let no_room = |why: thalweg_block::PoolError| LinkError::new(&peer, What::Cut(why.to_string()));
        let pool = Pool::new(self.link.block_bytes(), WINDOW + 1).map_err(no_room)?;
        Ok(Way { out, inc: inc.takes(&pool, WINDOW), peer })
    }

    /// Sends a request, and waits for the answer.
    fn answer(&self, ask: &ClientFileRequest, take: &mut dyn FnMut(&[u8])) -> std::io::Result<()> {
        let mut way = self.way.lock().expect("no holder panics");
        if way.is_none() {
            *way = Some(self.way().map_err(std::io::Error::other)?);
        }
        let way = way.as_mut().expect("it was made");
        way.ask(ask, &[]).map_err(std::io::Error::other)?;
        way.answer(take)
    }

    fn look(&self, id: FileId, path: &Path) -> thalweg_io::Result<Metadata> {
        let wrong = |why| Error::new(Action::Stat, path, why);
        let mut text = Vec::new();
        self.answer(&ClientFileRequest::Look(id.0 as usize), &mut |bytes| text.extend_from_slice(bytes))
            .map_err(wrong)?;
        let found: ClientFile =
            from_json(&String::from_utf8_lossy(&text)).map_err(|why| wrong(std::io::Error::other(why)))?;
        Ok(Metadata {
            len: found.bytes,
            is_regular: true,
            is_directory: false,
            device: found.device,
            inode: found.inode,
            modified_ns: i128::from(found.modified_ns),
            changed_ns: i128::from(found.modified_ns),
            mode: 0,
        })
    }

    /// Copies bytes from here on out of a kept tail, if it has enough. Returns whether it did.
    fn kept(&self, id: FileId, at: u64, into: &mut [u8]) -> bool {
        let tails = self.tails.lock().expect("no holder panics");
        let tail =
            tails.iter().find(|(file, from, tail)| (*file, *from) == (id, at) && tail.len() >= into.len());
        tail.map(|(.., tail)| into.copy_from_slice(&tail[..into.len()])).is_some()
    }

    fn keep(&self, id: FileId, at: u64, tail: Vec<u8>) {
        let mut tails = self.tails.lock().expect("no holder panics");
        if tails.len() >= TAILS {
            tails.pop_front();
        }
        tails.push_back((id, at, tail));
    }
}

/// A stream of requests and answers.
struct Way {
    out: Outgoing,
    inc: Incoming,
    peer: String,
}

impl Way {
    fn ask(&mut self, ask: &ClientFileRequest, behind: &[u8]) -> std::result::Result<(), LinkError> {
        message::send(&mut self.out, &to_json(ask), behind)
    }

    /// Gives the bytes of the answer to the oldest request, piece by piece, to `take`.
    fn answer(&mut self, take: &mut dyn FnMut(&[u8])) -> std::io::Result<()> {
        let head = self.next()?;
        let Some((errno, bytes)) = head.split_first_chunk::<4>() else { return Err(self.wrong()) };
        let bytes: [u8; 8] = bytes.try_into().map_err(|_| self.wrong())?;
        match i32::from_le_bytes(*errno) {
            0 => {}
            errno => return Err(std::io::Error::from_raw_os_error(errno)),
        }
        let mut left = u64::from_le_bytes(bytes);
        while left > 0 {
            let block = self.next()?;
            left = left.checked_sub(block.len() as u64).ok_or_else(|| self.wrong())?;
            take(&block);
        }
        Ok(())
    }

    fn next(&mut self) -> std::io::Result<thalweg_block::Block> {
        let came = self.inc.next_on().map_err(std::io::Error::other)?;
        came.map(|(_, block)| block).ok_or_else(|| self.wrong())
    }

    fn wrong(&self) -> std::io::Error {
        std::io::Error::other(format!("{} answered what was not asked", self.peer))
    }
}

/// A client's inputs, by the names that they have at this node.
pub(crate) struct ClientInputs {
    client: Arc<Client>,
    /// In the order of the inputs.
    names: Vec<PathBuf>,
}

impl ClientInputs {
    /// Inputs of these names.
    pub(crate) fn new(client: &Arc<Client>, names: Vec<PathBuf>) -> ClientInputs {
        ClientInputs { client: Arc::clone(client), names }
    }

    fn id(&self, path: &Path) -> thalweg_io::Result<FileId> {
        let none = || Error::new(Action::Open, path, std::io::ErrorKind::NotFound.into());
        let place = self.names.iter().position(|name| name == path).ok_or_else(none)?;
        i32::try_from(place).map(FileId).map_err(|_| none())
    }
}

impl Backend for ClientInputs {
    fn name(&self) -> &'static str {
        "client"
    }

    fn queue(&self, depth: usize) -> thalweg_io::Result<Box<dyn Queue>> {
        self.client.queue(depth, None)
    }

    fn close(&self, _id: FileId) {}
}

impl ReadFiles for ClientInputs {
    fn open_to_read(&self, path: &Path, _caching: Caching) -> thalweg_io::Result<(FileId, bool)> {
        Ok((self.id(path)?, false))
    }

    fn metadata(&self, id: FileId, path: &Path) -> thalweg_io::Result<Metadata> {
        self.client.look(id, path)
    }

    fn stat(&self, path: &Path) -> thalweg_io::Result<Metadata> {
        self.client.look(self.id(path)?, path)
    }

    fn cached_share(&self, _id: FileId, _len: u64) -> f64 {
        0.0
    }

    fn read_at(&self, id: FileId, path: &Path, at: u64, into: &mut [u8]) -> thalweg_io::Result<usize> {
        if self.client.kept(id, at, into) {
            return Ok(into.len());
        }
        let ask = ClientFileRequest::Read { file: id.0 as usize, at, bytes: into.len() as u64 };
        let mut got = 0;
        let mut take = |bytes: &[u8]| {
            let fits = bytes.len().min(into.len() - got);
            into[got..got + fits].copy_from_slice(&bytes[..fits]);
            got += fits;
        };
        let answered = self.client.answer(&ask, &mut take);
        answered.map_err(|why| Error::at(Action::Read, path, at, why)).map(|()| got)
    }
}

/// The output of an attempt, which the client makes and names.
struct ClientOutput {
    client: Arc<Client>,
    attempt: u32,
}

impl Backend for ClientOutput {
    fn name(&self) -> &'static str {
        "client"
    }

    fn queue(&self, depth: usize) -> thalweg_io::Result<Box<dyn Queue>> {
        self.client.queue(depth, Some(self.attempt))
    }

    fn close(&self, _id: FileId) {}
}

/// The output of an attempt as a file of this name.
pub(crate) fn client_output(client: &Arc<Client>, name: &Path, attempt: u32) -> Handle {
    Handle::new(Arc::new(ClientOutput { client: Arc::clone(client), attempt }), name, (FileId(0), false))
}

/// Reads and writes, answered in their order. Nothing is ready before it is waited for.
struct ClientQueue {
    client: Arc<Client>,
    /// The attempt whose output it writes to; `None` if it reads.
    attempt: Option<u32>,
    way: Way,
    depth: usize,
    /// Requests that were sent, or could not be.
    asked: VecDeque<(Op, std::io::Result<()>)>,
    waiting: VecDeque<Op>,
}

impl ClientQueue {
    fn ask_of(&mut self, op: &Op) -> std::io::Result<()> {
        let Op { kind, ref file, at, ref block, .. } = *op;
        let asked = match self.attempt {
            None => {
                assert_eq!(kind, Kind::Read, "inputs are read");
                let tail = if block.len() < PAGE_BYTES_MIN { 0 } else { TAIL_BYTES };
                let (file, bytes) = (file.id().0 as usize, (block.len() + tail) as u64);
                self.way.ask(&ClientFileRequest::Read { file, at, bytes }, &[])
            }
            Some(attempt) => {
                assert_eq!(kind, Kind::Write, "an output is written");
                self.way.ask(&ClientFileRequest::Write { attempt, at }, block)
            }
        };
        asked.map_err(std::io::Error::other)
    }

    fn ask(&mut self) {
        while self.asked.len() < ASKED
            && let Some(op) = self.waiting.pop_front()
        {
            let asked = self.ask_of(&op);
            self.asked.push_back((op, asked));
        }
    }
}

impl Queue for ClientQueue {
    fn submit(&mut self, op: Op) {
        assert!(self.in_flight() < self.depth, "one more than the queue is deep");
        self.waiting.push_back(op);
        self.ask();
    }

    fn reap(&mut self, wait: bool) -> Option<Done> {
        if !wait {
            return None;
        }
        let (Op { kind, file, at, mut block, tag }, asked) = self.asked.pop_front()?;
        let (want, mut got, mut tail) = (block.len(), 0, Vec::new());
        let mut take = |bytes: &[u8]| {
            let fits = bytes.len().min(want - got);
            block[got..got + fits].copy_from_slice(&bytes[..fits]);
            got += fits;
            tail.extend_from_slice(&bytes[fits..]);
        };
        let answered = asked.and_then(|()| self.way.answer(&mut take));
        if kind == Kind::Read {
            block.set_len(got);
        }
        if !tail.is_empty() {
            self.client.keep(file.id(), at + want as u64, tail);
        }
        self.ask();
        let result = answered.map_err(|why| Error::at(kind.action(), file.path(), at, why));
        Some(Done { kind, file, at, block, tag, result })
    }

    fn in_flight(&self) -> usize {
        self.asked.len() + self.waiting.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // Tests look at files by other means than ours.
mod tests {
    use std::thread;

    use thalweg_io::Access;
    use thalweg_wire::{Terms, pair};

    use super::*;

    #[test]
    fn of_what_is_lent_inputs_are_read_and_the_output_of_this_attempt_is_written() {
        let place = std::env::temp_dir().join(format!("thalweg-client-served-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let (input, output) = (place.join("in"), place.join("out"));
        std::fs::write(&input, b"a client's").unwrap();
        let server = Arc::new(Server::of(&[&input]).unwrap());
        server.serve_output(2, File::open(server.io(), &output, Access::CreateDirect).unwrap());
        let (node, client) = pair(Terms::default()).unwrap();
        let (node, client) = (Arc::new(node), Arc::new(client));
        serve(&server, &client).unwrap();
        let reading = thread::spawn({
            let node = Arc::clone(&node);
            move || while let Ok(Some(_)) = node.accept() {}
        });
        let names = vec![PathBuf::from("client:in")];
        let asking = Client::new(&node, "of a job".into());
        let inputs: Arc<dyn ReadFiles> = Arc::new(ClientInputs::new(&asking, names));
        let open = |name: &str| File::open_to_read(inputs.clone(), Path::new(name), Caching::Direct);
        let mut read = [0; 20];
        let there = open("client:in").unwrap().read_at(2, &mut read).unwrap();
        assert_eq!(&read[..there], b"client's");
        for other in ["client:out", "client:other"] {
            assert!(open(other).is_err(), "{other} is no input");
        }
        let written = client_output(&asking, Path::new("client:out"), 2);
        let (pool, mut queue) = (Pool::new(8 << 10, 3).unwrap(), written.backend().queue(3).unwrap());
        for at in 0..3 {
            let mut block = pool.take();
            block.set_len(8 << 10);
            block.fill(b'0' + at as u8);
            queue.submit(Op { kind: Kind::Write, file: written.clone(), at: at << 13, block, tag: at });
        }
        for at in 0..3 {
            let done = queue.reap(true).unwrap();
            assert_eq!((done.tag, done.block.len()), (at, 8 << 10));
            done.result.unwrap();
        }
        let expected = [vec![b'0'; 8 << 10], vec![b'1'; 8 << 10], vec![b'2'; 8 << 10]].concat();
        assert!(std::fs::read(&output).unwrap() == expected);
        // A write that comes too late.
        let late = client_output(&asking, Path::new("client:out"), 1);
        let mut queue = late.backend().queue(1).unwrap();
        let mut block = pool.take();
        block.set_len(4);
        queue.submit(Op { kind: Kind::Write, file: late.clone(), at: 0, block, tag: 0 });
        let why = queue.reap(true).unwrap().result.unwrap_err().to_string();
        assert!(why.contains("attempt 1 has no output any more"), "{why}");
        assert!(
            std::fs::read(&output).unwrap() == expected && std::fs::read(&input).unwrap() == b"a client's"
        );
        node.close();
        reading.join().unwrap();
        std::fs::remove_dir_all(&place).unwrap();
    }
}
