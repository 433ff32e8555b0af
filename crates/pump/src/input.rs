//! Files as a source: one stream of pages over all inputs, read ahead by several lanes.
//!
//! ```text
//! file a  [page 0][page 1][pa]      every file begins on a page of its own;
//! file b  [page 3][page]            only the last page of a file may be short.
//! ```
//!
//! A file whose last line has no newline is given one, in its last page or in a page made for it.
//! Law: a file that is shorter or longer than at the start, or was written to, is noticed.

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use thalweg_block::{Block, Pool};
use thalweg_io::{ALIGN, Access, Done, Error, File, Io, Kind, Metadata, Op, Queue};
use thalweg_record::Layout;

use crate::{Meters, Source};

/// What can be wrong with inputs.
#[derive(Debug)]
pub enum InputsError {
    /// The system refused.
    Io(Error),
    /// It is a directory.
    Directory(String),
    /// Its size is not a multiple of the record.
    Ragged {
        /// The file.
        path: String,
        /// Its bytes.
        len: u64,
        /// Bytes of a record.
        record_bytes: u32,
    },
    /// It changed while it was read.
    Changed(String),
}

impl fmt::Display for InputsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputsError::Io(e) => write!(f, "{e}"),
            InputsError::Directory(path) => write!(f, "{path} is a directory; name the files in it"),
            InputsError::Ragged { path, len, record_bytes } => write!(
                f,
                "{path} has {len} bytes, which is not a multiple of the record's {record_bytes} ({} left over); \
                 give the right --record",
                len % u64::from(*record_bytes)
            ),
            InputsError::Changed(path) => {
                write!(f, "{path} changed while it was being read; nothing was written, run again")
            }
        }
    }
}

impl std::error::Error for InputsError {}

impl From<Error> for InputsError {
    fn from(e: Error) -> Self {
        InputsError::Io(e)
    }
}

/// One input file.
#[derive(Debug, Clone)]
pub struct Input {
    /// The open file.
    pub file: File,
    /// Facts about it at the start.
    pub metadata: Metadata,
    /// Whether its last line lacks a newline.
    pub lacks_newline: bool,
    /// Its first page in the stream.
    pub first_page: u64,
}

impl Input {
    /// Bytes, the added newline included.
    pub fn len(&self) -> u64 {
        self.metadata.len + u64::from(self.lacks_newline)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// All input files as one stream of pages.
#[derive(Debug)]
pub struct Inputs {
    inputs: Vec<Input>,
    page_bytes: u64,
    pages: u64,
    bytes: u64,
}

impl Inputs {
    /// Opens regular files. Those that the page cache mostly holds are read through it.
    pub fn open(io: &Arc<dyn Io>, paths: &[&Path], layout: Layout) -> Result<Inputs, InputsError> {
        let mut inputs = Vec::with_capacity(paths.len());
        for path in paths {
            inputs.push(open_one(io, path, layout)?);
        }
        let bytes = inputs.iter().map(Input::len).sum();
        Ok(Inputs { inputs, page_bytes: 0, pages: 0, bytes })
    }

    /// Lays the files out in pages.
    pub fn set_page_bytes(&mut self, page_bytes: usize) {
        assert!(page_bytes.is_multiple_of(ALIGN));
        self.page_bytes = page_bytes as u64;
        self.pages = 0;
        for input in &mut self.inputs {
            input.first_page = self.pages;
            self.pages += input.len().div_ceil(self.page_bytes);
        }
    }

    /// The files.
    pub fn files(&self) -> &[Input] {
        &self.inputs
    }

    /// Pages of the whole stream.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Bytes of the whole stream, added newlines included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the files as they are.
    pub fn file_bytes(&self) -> u64 {
        self.inputs.iter().map(|input| input.metadata.len).sum()
    }

    /// The file that page `page` belongs to.
    pub fn file_of(&self, page: u64) -> &Input {
        assert!(page < self.pages);
        &self.inputs[self.inputs.partition_point(|i| i.first_page <= page) - 1]
    }

    /// How many bytes page `page` has.
    pub fn page_len(&self, page: u64) -> usize {
        let input = self.file_of(page);
        (input.len() - (page - input.first_page) * self.page_bytes).min(self.page_bytes) as usize
    }

    /// Fails if a file is not what it was at the start.
    pub fn check_unchanged(&self) -> Result<(), InputsError> {
        for input in &self.inputs {
            if input.file.metadata()? != input.metadata {
                return Err(InputsError::Changed(input.file.path().display().to_string()));
            }
        }
        Ok(())
    }
}

fn open_one(io: &Arc<dyn Io>, path: &Path, layout: Layout) -> Result<Input, InputsError> {
    let stat = io.stat(path)?;
    if stat.is_directory {
        return Err(InputsError::Directory(path.display().to_string()));
    }
    let direct = File::open(io, path, Access::ReadDirect)?;
    let metadata = direct.metadata()?;
    let cached = direct.cached_share(metadata.len) > 0.5;
    let file = if cached { File::open(io, path, Access::Read)? } else { direct };
    let lacks_newline = match layout {
        Layout::Fixed(n) if metadata.len % u64::from(n) != 0 => {
            let path = path.display().to_string();
            return Err(InputsError::Ragged { path, len: metadata.len, record_bytes: n });
        }
        Layout::Lines if metadata.len > 0 => {
            let mut last = [0u8];
            file.read_at(metadata.len - 1, &mut last)?;
            last[0] != b'\n'
        }
        _ => false,
    };
    Ok(Input { file, metadata, lacks_newline, first_page: 0 })
}

/// Lane `lane` of `lanes` over some pages of the inputs, in order.
pub struct InputLane<'a> {
    inputs: &'a Inputs,
    queue: Box<dyn Queue>,
    pool: &'a Pool,
    meters: &'a Meters,
    next_to_read: u64,
    step: u64,
    end: u64,
    /// Pages asked for, in order; `None` until read.
    pending: VecDeque<(u64, Option<Block>)>,
}

impl<'a> InputLane<'a> {
    /// Pages `first + lane`, `first + lane + lanes`, ... below `end`, into blocks of `pool`.
    pub fn new(
        inputs: &'a Inputs,
        queue: Box<dyn Queue>,
        pool: &'a Pool,
        meters: &'a Meters,
        (lane, lanes): (usize, usize),
        (first, end): (u64, u64),
    ) -> InputLane<'a> {
        assert_eq!(pool.block_size() as u64, inputs.page_bytes, "pages fill blocks");
        assert!(lane < lanes && end <= inputs.pages);
        InputLane {
            inputs,
            queue,
            pool,
            meters,
            next_to_read: first + lane as u64,
            step: lanes as u64,
            end,
            pending: VecDeque::new(),
        }
    }

    /// Starts as many reads as depth and free blocks allow; with none pending waits for a block.
    fn read_ahead(&mut self) {
        while self.next_to_read < self.end && self.pending.len() < self.queue.depth() {
            let block = match self.pool.try_take() {
                Some(block) => block,
                None if self.pending.is_empty() => self.meters.stage.for_write(|| self.pool.take()),
                None => return,
            };
            self.start(self.next_to_read, block);
            self.next_to_read += self.step;
        }
    }

    fn start(&mut self, page: u64, mut block: Block) {
        let input = self.inputs.file_of(page);
        let at = (page - input.first_page) * self.inputs.page_bytes;
        block.set_offset(page * self.inputs.page_bytes);
        let on_disk = (input.metadata.len - at.min(input.metadata.len)).min(self.inputs.page_bytes) as usize;
        if on_disk == 0 {
            // The page made for an added newline.
            block.set_len(0);
            self.pending.push_back((page, Some(self.add_newline(page, block))));
            return;
        }
        let wanted = if input.file.is_direct() { on_disk.next_multiple_of(ALIGN) } else { on_disk };
        block.set_len(wanted);
        self.pending.push_back((page, None));
        self.queue.submit(Op { kind: Kind::Read, file: input.file.clone(), at, block, tag: page });
    }

    fn add_newline(&self, page: u64, mut block: Block) -> Block {
        let want = self.inputs.page_len(page);
        let have = block.len();
        if have + 1 == want {
            block.set_len(want);
            block[have] = b'\n';
        }
        block
    }

    fn finish_one(&mut self, done: Done) -> Result<(), InputsError> {
        done.result?;
        let (page, block) = (done.tag, done.block);
        self.meters.input.read(block.len() as u64);
        if !done.file.is_direct() {
            self.meters.cached.read(block.len() as u64);
        }
        let block =
            if self.inputs.file_of(page).lacks_newline { self.add_newline(page, block) } else { block };
        if block.len() != self.inputs.page_len(page) {
            return Err(InputsError::Changed(done.file.path().display().to_string()));
        }
        let slot = self.pending.iter_mut().find(|(p, _)| *p == page).expect("only pending pages complete");
        slot.1 = Some(block);
        Ok(())
    }
}

impl Source for InputLane<'_> {
    type Error = InputsError;

    fn next(&mut self) -> Result<Option<Block>, InputsError> {
        self.read_ahead();
        loop {
            match self.pending.front() {
                None => return Ok(None),
                Some((_, Some(_))) => {
                    let (_, block) = self.pending.pop_front().expect("there is a front");
                    self.read_ahead();
                    return Ok(block);
                }
                Some((_, None)) => {
                    let queue = &mut self.queue;
                    let done = self.meters.stage.for_read(|| queue.reap(true)).expect("a read is in flight");
                    self.finish_one(done)?;
                }
            }
        }
    }
}
