//! Files as a source: one stream of pages over all inputs, read ahead by several lanes.
//!
//! ```text
//! file a  [page 0][page 1][pa]      every file begins on a page of its own;
//! file b  [page 3][page]            only the last page of a file may be short.
//! ```
//!
//! If the last line of a file has no newline, one is added in its last page, or in an extra page. Files stay open if
//! they are at most half of the files that this process may still open. Otherwise each is opened whenever it is read,
//! so their number has no limit.
//! Invariant: a change of a file's length or contents during the job is an error.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use thalweg_block::{Block, Pool};
use thalweg_io::{ALIGN, Backends, Caching, Error, InputFile, InputLocation, Metadata, Queue, host, process};
use thalweg_record::Layout;

use crate::{Meters, ReadAhead, Source};

/// An error of the inputs.
#[derive(Debug, thiserror::Error)]
pub enum InputsError {
    /// The system refused an operation.
    #[error("{0}")]
    Io(Error),
    /// It is a directory.
    #[error("{0} is a directory; name the files in it")]
    Directory(String),
    /// Its size is not a multiple of the record.
    #[error(
        "{path} has {len} bytes, which is not a multiple of the record's {record_bytes} ({} left over); it is cut \
         off, or of another --record",
        .len % u64::from(*.record_bytes)
    )]
    Ragged {
        /// The file.
        path: String,
        /// Its bytes.
        len: u64,
        /// Bytes of a record.
        record_bytes: u32,
    },
    /// It ends inside a record.
    #[error("{path} ends inside the record at byte {at}, after {bytes} bytes of it; it is cut off")]
    CutOff {
        /// The file.
        path: String,
        /// The offset of the record.
        at: u64,
        /// The bytes of the record that exist.
        bytes: u64,
    },
    /// It changed while it was read.
    #[error("{0} changed while it was being read; nothing was written, run again")]
    Changed(String),
    /// The records that were read are not all bytes of the inputs.
    #[error("of {bytes} bytes of the inputs {came} came; nothing was written, run again")]
    NotAll {
        /// The bytes that were read.
        came: u64,
        /// The bytes of the inputs.
        bytes: u64,
    },
}

impl InputsError {
    /// The error of a file of `len` bytes, the last `left` of which are not a whole record.
    pub fn cut_off(path: &Path, layout: Layout, len: u64, left: u64) -> InputsError {
        let path = path.display().to_string();
        match layout.fixed_bytes() {
            Some(n) => InputsError::Ragged { path, len, record_bytes: n as u32 },
            None => InputsError::CutOff { path, at: len - left, bytes: left },
        }
    }
}

impl From<Error> for InputsError {
    fn from(e: Error) -> Self {
        InputsError::Io(e)
    }
}

/// One input file.
#[derive(Clone)]
pub struct Input {
    location: InputLocation,
    caching: Caching,
    is_direct: bool,
    /// The open file, if it stays open.
    kept: Option<InputFile>,
    /// Its attributes at the start.
    pub metadata: Metadata,
    /// Whether its last line lacks a newline.
    pub lacks_newline: bool,
    /// Its first page in the stream.
    pub first_page: u64,
    /// Bytes of all inputs before it.
    pub first_byte: u64,
}

impl Input {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.location.path
    }

    /// Whether it bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// The open file. If it does not stay open, it is opened now and compared with its attributes at the start.
    pub fn file(&self) -> Result<InputFile, InputsError> {
        if let Some(file) = &self.kept {
            return Ok(file.clone());
        }
        let file = self.location.open(self.caching)?;
        if file.metadata()?.has_contents_of(&self.metadata) { Ok(file) } else { Err(self.changed()) }
    }

    fn check_unchanged(&self) -> Result<(), InputsError> {
        let now = match &self.kept {
            Some(file) => file.metadata()?,
            None => self.location.stat()?,
        };
        if now.has_contents_of(&self.metadata) { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> InputsError {
        InputsError::Changed(self.path().display().to_string())
    }

    /// Its bytes, with the added newline.
    pub fn len(&self) -> u64 {
        self.metadata.len + u64::from(self.lacks_newline)
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.path().display(), self.metadata.len)
    }
}

/// The number of files open at once if they do not stay open: those of a few lanes, each with a few small files.
const OPEN_IN_PASSING: u64 = 16;

/// All input files as one stream of pages.
#[derive(Debug)]
pub struct Inputs {
    inputs: Vec<Input>,
    backends: Backends,
    page_bytes: u64,
    pages: u64,
    bytes: u64,
}

impl Inputs {
    /// How many of `count` files may be open at once: all, or only a few. Raises the soft limit if necessary.
    pub fn open_at_once(count: usize) -> u64 {
        let (open, count) = (process::open_files(), count as u64);
        let may_be = host::allow_open_files(open + 2 * count.max(OPEN_IN_PASSING)).saturating_sub(open);
        if count <= may_be / 2 { count } else { count.min(OPEN_IN_PASSING) }
    }

    /// Opens regular files. Those that are mostly in the page cache are read through it.
    pub fn open(locations: &[InputLocation], layout: Layout) -> Result<Inputs, InputsError> {
        let keeps = Inputs::open_at_once(locations.len()) >= locations.len() as u64;
        let mut inputs = Vec::with_capacity(locations.len());
        for location in locations {
            inputs.push(open_one(location, layout, keeps)?);
        }
        let bytes = inputs.iter().map(Input::len).sum();
        let backends = locations.iter().map(|location| Arc::clone(&location.fs) as _).collect();
        Ok(Inputs { inputs, backends, page_bytes: 0, pages: 0, bytes })
    }

    /// Their back ends.
    pub fn backends(&self) -> &Backends {
        &self.backends
    }

    /// Divides the files into pages.
    pub fn set_page_bytes(&mut self, page_bytes: usize) {
        assert!(page_bytes.is_multiple_of(ALIGN));
        self.page_bytes = page_bytes as u64;
        self.pages = 0;
        let mut bytes = 0;
        for input in &mut self.inputs {
            (input.first_page, input.first_byte) = (self.pages, bytes);
            self.pages += input.len().div_ceil(self.page_bytes);
            bytes += input.len();
        }
    }

    /// The files.
    pub fn files(&self) -> &[Input] {
        &self.inputs
    }

    /// The pages of the whole stream.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The bytes of the whole stream, with added newlines.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of files that are open at once.
    pub fn open_files(&self) -> u64 {
        let kept = self.inputs.iter().filter(|input| input.kept.is_some()).count() as u64;
        kept + (self.inputs.len() as u64 - kept).min(OPEN_IN_PASSING)
    }

    /// The bytes of the files themselves.
    pub fn file_bytes(&self) -> u64 {
        self.inputs.iter().map(|input| input.metadata.len).sum()
    }

    /// The file that page `page` belongs to.
    pub fn file_of(&self, page: u64) -> &Input {
        &self.inputs[self.index_of(page)]
    }

    /// The index of the file that page `page` belongs to.
    pub fn index_of(&self, page: u64) -> usize {
        assert!(page < self.pages);
        self.inputs.partition_point(|i| i.first_page <= page) - 1
    }

    /// The file at this position of the stream of pages, and the offset in it.
    pub fn place(&self, at: u64) -> (&Input, u64) {
        let input = self.file_of((at / self.page_bytes).min(self.pages - 1));
        (input, at - input.first_page * self.page_bytes)
    }

    /// The bytes by which positions in the stream of pages exceed those in the inputs, from page `page` to the end of
    /// its file: the last pages of the files before it may be short.
    pub fn padding_before(&self, page: u64) -> u64 {
        let input = self.file_of(page);
        input.first_page * self.page_bytes - input.first_byte
    }

    /// The number of bytes in page `page`.
    pub fn page_len(&self, page: u64) -> usize {
        let input = self.file_of(page);
        (input.len() - (page - input.first_page) * self.page_bytes).min(self.page_bytes) as usize
    }

    /// Fails unless `came`, the bytes of the records that were read, is the bytes of all inputs.
    pub fn check_all_came(&self, came: u64) -> Result<(), InputsError> {
        let bytes = self.bytes;
        if came == bytes { Ok(()) } else { Err(InputsError::NotAll { came, bytes }) }
    }

    /// Fails if a file has changed since the start.
    pub fn check_unchanged(&self) -> Result<(), InputsError> {
        self.inputs.iter().try_for_each(Input::check_unchanged)
    }
}

fn open_one(location: &InputLocation, layout: Layout, keeps: bool) -> Result<Input, InputsError> {
    let name = || location.path.display().to_string();
    if location.stat()?.is_directory {
        return Err(InputsError::Directory(name()));
    }
    let direct = location.open(Caching::Direct)?;
    let metadata = direct.metadata()?;
    let cached = direct.cached_share(metadata.len) > 0.5;
    let caching = if cached { Caching::Cached } else { Caching::Direct };
    let file = if cached { location.open(caching)? } else { direct };
    if let Some(n) = layout.fixed_bytes()
        && !metadata.len.is_multiple_of(n as u64)
    {
        return Err(InputsError::cut_off(&location.path, layout, metadata.len, metadata.len % n as u64));
    }
    let lacks_newline = layout.end_bytes() > 0 && metadata.len > 0 && {
        let mut last = [0u8];
        file.read_at(metadata.len - 1, &mut last)?;
        last != *layout.end()
    };
    Ok(Input {
        location: location.clone(),
        caching,
        is_direct: file.is_direct(),
        kept: keeps.then_some(file),
        metadata,
        lacks_newline,
        first_page: 0,
        first_byte: 0,
    })
}

/// Some pages of the inputs, in order: those of one lane.
pub struct InputLane<'a> {
    inputs: &'a Inputs,
    /// The file that was read last, and its first page.
    open: Option<(u64, InputFile)>,
    /// Reads in flight, each with its page.
    ahead: ReadAhead<'a, u64>,
    /// The pages that were not requested yet.
    pages: Box<dyn Iterator<Item = u64> + 'a>,
    /// The end of the pages.
    exhausted: bool,
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
        assert!(lane < lanes && end <= inputs.pages);
        InputLane::of_pages(inputs, queue, pool, meters, (first + lane as u64..end).step_by(lanes))
    }

    /// These pages, into blocks of `pool`.
    pub fn of_pages(
        inputs: &'a Inputs,
        queue: Box<dyn Queue>,
        pool: &'a Pool,
        meters: &'a Meters,
        pages: impl Iterator<Item = u64> + 'a,
    ) -> InputLane<'a> {
        assert_eq!(pool.block_size() as u64, inputs.page_bytes, "pages fill blocks");
        let ahead = ReadAhead::new(queue, pool, meters);
        InputLane { inputs, open: None, ahead, pages: Box::new(pages), exhausted: false }
    }

    /// Whether no page follows the last one; also false if there was no free block to look for one.
    pub fn is_over(&self) -> bool {
        self.exhausted && self.ahead.pending() == 0
    }

    /// Starts as many reads as depth and free blocks allow.
    fn read_ahead(&mut self) -> Result<(), InputsError> {
        while let Some(block) = self.ahead.room() {
            let Some(page) = self.pages.next() else {
                self.exhausted = true;
                break;
            };
            self.start(page, block)?;
        }
        Ok(())
    }

    fn start(&mut self, page: u64, mut block: Block) -> Result<(), InputsError> {
        let input = self.inputs.file_of(page);
        let at = (page - input.first_page) * self.inputs.page_bytes;
        block.set_offset(page * self.inputs.page_bytes);
        let on_disk = (input.metadata.len - at.min(input.metadata.len)).min(self.inputs.page_bytes) as usize;
        if on_disk == 0 {
            // The page for an added newline.
            block.set_len(0);
            self.ahead.ready(block, page);
            return Ok(());
        }
        if self.open.as_ref().is_none_or(|(first, _)| *first != input.first_page) {
            self.open = Some((input.first_page, input.file()?));
        }
        let (_, file) = self.open.as_ref().expect("it was opened just now");
        self.ahead.read(block, file, at, on_disk, page);
        Ok(())
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
}

impl Source for InputLane<'_> {
    type Error = InputsError;

    fn next(&mut self) -> Result<Option<Block>, InputsError> {
        self.read_ahead()?;
        let Some((block, page)) = self.ahead.next_block()? else { return Ok(None) };
        self.read_ahead()?;
        let input = self.inputs.file_of(page);
        let block = if input.lacks_newline { self.add_newline(page, block) } else { block };
        if block.len() != self.inputs.page_len(page) {
            return Err(input.changed());
        }
        Ok(Some(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_io::Location;
    use thalweg_io::sim::Sim;

    #[test]
    fn a_file_that_is_opened_again_is_the_same_or_an_error() {
        let sim = Sim::new(1);
        let path = Path::new("/in");
        let location = Location::new(&sim.io(), path).as_input();
        for keeps in [true, false] {
            sim.put(path, b"b\na");
            let input = open_one(&location, Layout::Lines, keeps).unwrap();
            let mut read = [0; 3];
            assert_eq!(input.file().unwrap().read_at(0, &mut read).unwrap(), 3);
            assert_eq!((&read, input.lacks_newline, sim.open_files()), (b"b\na", true, usize::from(keeps)));
            input.check_unchanged().unwrap();
            let all = Inputs::open(std::slice::from_ref(&location), Layout::Lines).unwrap();
            all.check_all_came(4).expect("its newline was added");
            let told = all.check_all_came(3).unwrap_err().to_string();
            assert_eq!(told, "of 4 bytes of the inputs 3 came; nothing was written, run again");
            sim.put(path, b"c\na\n");
            assert!(matches!(input.check_unchanged(), Err(InputsError::Changed(_))));
            assert_eq!(matches!(input.file(), Err(InputsError::Changed(_))), !keeps);
        }
    }
}
