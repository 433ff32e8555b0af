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
//!
//! A file that grows, such as a log, is read as far as it went when it was opened. If its last record was not complete
//! then, that is known only when the file has grown: [`InputsError::Growing`] says where it has to be cut off, and the
//! verb opens its inputs anew with these [`Cuts`].
//! Invariant: any other change of a file's length or contents during the job is an error.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use thalweg_api::GrownInputs;
use thalweg_block::{Block, Pool};
use thalweg_io::{
    ALIGN, Backends, Caching, Error, InputFile, InputLocation, Metadata, Queue, host, look_until, process,
};
use thalweg_record::Layout;

use crate::{Meters, ReadAhead, Source, format};

/// An error of the inputs.
#[derive(Debug, thiserror::Error)]
pub enum InputsError {
    /// The system refused an operation.
    #[error("{0}")]
    Io(Error),
    /// It is a directory.
    #[error("{0} is a directory; name the files in it")]
    Directory(String),
    /// It is of a format that has no lines, and nobody said how long its records are.
    #[error(
        "{path} is {is}, not lines; {remedy}; if its bytes are records, say how long they are with --record or \
         --prefixed"
    )]
    Format {
        /// The file.
        path: String,
        /// What it is.
        is: &'static str,
        /// What to do with it.
        remedy: &'static str,
    },
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
    /// Files grew while they were read, and ended in an incomplete record before.
    #[error(
        "{path} grew while it was being read, and its last record was not complete; nothing was written, run again"
    )]
    Growing {
        /// The first of the files.
        path: String,
        /// Where each of them ends without the incomplete record.
        cuts: Cuts,
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

/// Where files that grow are cut off: they end with the last record that was complete when they were first opened.
#[derive(Debug, Clone, Default)]
pub struct Cuts(Vec<Cut>);

#[derive(Debug, Clone)]
struct Cut {
    /// The file, as it was when it was first opened.
    opening: Metadata,
    /// Bytes of its complete records.
    bytes: u64,
}

impl Cuts {
    /// Adds those of another attempt.
    pub fn extend(&mut self, more: Cuts) {
        self.0.extend(more.0);
    }

    fn of(&self, there: &Metadata) -> Option<&Cut> {
        self.0.iter().find(|cut| has_kept(&cut.opening, there))
    }
}

/// Whether a file has the contents that it had, and perhaps more behind them.
fn has_kept(before: &Metadata, now: &Metadata) -> bool {
    now.has_contents_of(before) || now.is_same(before) && now.len > before.len
}

/// How long to wait for a file to grow whose last record is incomplete, which is an error if the file is complete.
const GROWS_WITHIN: Duration = Duration::from_millis(300);
/// Bytes of a piece in which the end of the last complete line is looked for.
const PIECE_BYTES: u64 = 64 << 10;

/// One input file.
#[derive(Clone)]
pub struct Input {
    location: InputLocation,
    caching: Caching,
    is_direct: bool,
    /// The open file, if it stays open.
    kept: Option<InputFile>,
    /// Its attributes at the start. The length is without an incomplete record that is left out.
    pub metadata: Metadata,
    /// Its length when it was first opened.
    opened_len: u64,
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
        if has_kept(&self.opening(), &file.metadata()?) { Ok(file) } else { Err(self.changed()) }
    }

    fn now(&self) -> thalweg_io::Result<Metadata> {
        match &self.kept {
            Some(file) => file.metadata(),
            None => self.location.stat(),
        }
    }

    fn opening(&self) -> Metadata {
        Metadata { len: self.opened_len, ..self.metadata }
    }

    /// Fails if the file has changed in another way than by growing. Returns where to cut it off if it has grown, and
    /// its last line was not complete before.
    fn check_unchanged(&self) -> Result<Option<Cut>, InputsError> {
        let (now, opening) = (self.now()?, self.opening());
        if !has_kept(&opening, &now) {
            return Err(self.changed());
        }
        if now.len == opening.len || !self.lacks_newline {
            return Ok(None);
        }
        let (file, mut end) = (self.file()?, opening.len);
        let mut piece = vec![0; PIECE_BYTES as usize];
        while end > 0 {
            let start = end.saturating_sub(PIECE_BYTES);
            let piece = &mut piece[..(end - start) as usize];
            file.read_exact_at(start, piece)?;
            if let Some(newline) = piece.iter().rposition(|byte| *byte == b'\n') {
                end = start + newline as u64 + 1;
                break;
            }
            end = start;
        }
        Ok(Some(Cut { opening, bytes: end }))
    }

    /// The error if the last `left` bytes of the file are not a whole record, which only reading it tells. A file that
    /// grows is to be cut off there.
    pub fn ends_inside(&self, layout: Layout, left: u64) -> InputsError {
        let grown = || self.now().ok().filter(|now| now.is_same(&self.metadata) && now.len > self.opened_len);
        match look_until(GROWS_WITHIN, grown) {
            Some(_) => self.growing(Cut { opening: self.opening(), bytes: self.metadata.len - left }),
            None => InputsError::cut_off(self.path(), layout, self.metadata.len, left),
        }
    }

    fn growing(&self, cut: Cut) -> InputsError {
        InputsError::Growing { path: self.path().display().to_string(), cuts: Cuts(vec![cut]) }
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
        Inputs::open_cut(locations, layout, &Cuts::default())
    }

    /// Like [`Inputs::open`], with the ends that an earlier attempt found.
    pub fn open_cut(locations: &[InputLocation], layout: Layout, cuts: &Cuts) -> Result<Inputs, InputsError> {
        let keeps = Inputs::open_at_once(locations.len()) >= locations.len() as u64;
        let mut inputs = Vec::with_capacity(locations.len());
        for location in locations {
            inputs.push(open_one(location, layout, keeps, cuts)?);
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

    /// The number of bytes in page `page` without an added newline.
    fn on_disk(&self, page: u64) -> usize {
        let input = self.file_of(page);
        let at = (page - input.first_page) * self.page_bytes;
        input.metadata.len.saturating_sub(at).min(self.page_bytes) as usize
    }

    /// Fails unless `came`, the bytes of the records that were read, is the bytes of all inputs.
    pub fn check_all_came(&self, came: u64) -> Result<(), InputsError> {
        let bytes = self.bytes;
        if came == bytes { Ok(()) } else { Err(InputsError::NotAll { came, bytes }) }
    }

    /// Fails if a file has changed since the start, other than by growing after a complete record.
    pub fn check_unchanged(&self) -> Result<(), InputsError> {
        let mut growing: Option<InputsError> = None;
        for input in &self.inputs {
            let Some(cut) = input.check_unchanged()? else { continue };
            match &mut growing {
                Some(InputsError::Growing { cuts, .. }) => cuts.0.push(cut),
                _ => growing = Some(input.growing(cut)),
            }
        }
        growing.map_or(Ok(()), Err)
    }

    /// What was not read of files that grow; `None` if no file has grown since it was opened.
    pub fn grown(&self) -> Option<GrownInputs> {
        let mut grown = GrownInputs::default();
        for input in &self.inputs {
            let left_out = input.opened_len - input.metadata.len;
            let more = input.now().map_or(0, |now| now.len.saturating_sub(input.opened_len));
            grown.inputs += u64::from(more > 0 || left_out > 0);
            grown.bytes += more;
            grown.incomplete_records += u64::from(left_out > 0);
            grown.incomplete_bytes += left_out;
        }
        (grown.inputs > 0).then_some(grown)
    }
}

fn open_one(
    location: &InputLocation,
    layout: Layout,
    keeps: bool,
    cuts: &Cuts,
) -> Result<Input, InputsError> {
    let name = || location.path.display().to_string();
    if location.stat()?.is_directory {
        return Err(InputsError::Directory(name()));
    }
    let direct = location.open(Caching::Direct)?;
    let mut metadata = direct.metadata()?;
    let cached = direct.cached_share(metadata.len) > 0.5;
    let caching = if cached { Caching::Cached } else { Caching::Direct };
    let file = if cached { location.open(caching)? } else { direct };
    let mut opened_len = metadata.len;
    if let Some(cut) = cuts.of(&metadata) {
        (opened_len, metadata.len) = (cut.opening.len, cut.bytes);
    }
    if let Some(n) = layout.fixed_bytes()
        && !metadata.len.is_multiple_of(n as u64)
    {
        let left = metadata.len % n as u64;
        let grown = || file.metadata().ok().filter(|now| now.len > opened_len);
        if look_until(GROWS_WITHIN, grown).is_none() {
            return Err(InputsError::cut_off(&location.path, layout, metadata.len, left));
        }
        metadata.len -= left;
    }
    if layout == Layout::Lines
        && let Some((is, remedy)) = format::of(&file, metadata.len)?
    {
        return Err(InputsError::Format { path: name(), is, remedy });
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
        opened_len,
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
        let on_disk = self.inputs.on_disk(page);
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
        let Some((mut block, page)) = self.ahead.next_block()? else { return Ok(None) };
        self.read_ahead()?;
        let input = self.inputs.file_of(page);
        // Of a file that has grown, whole sectors may hold more.
        block.set_len(block.len().min(self.inputs.on_disk(page)));
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
            let input = open_one(&location, Layout::Lines, keeps, &Cuts::default()).unwrap();
            let mut read = [0; 3];
            assert_eq!(input.file().unwrap().read_at(0, &mut read).unwrap(), 3);
            assert_eq!((&read, input.lacks_newline, sim.open_files()), (b"b\na", true, usize::from(keeps)));
            input.check_unchanged().unwrap();
            let all = Inputs::open(std::slice::from_ref(&location), Layout::Lines).unwrap();
            all.check_all_came(4).expect("its newline was added");
            let told = all.check_all_came(3).unwrap_err().to_string();
            assert_eq!(told, "of 4 bytes of the inputs 3 came; nothing was written, run again");
            sim.put(path, b"c\nb");
            assert!(matches!(input.check_unchanged(), Err(InputsError::Changed(_))));
            assert_eq!(matches!(input.file(), Err(InputsError::Changed(_))), !keeps);
        }
    }

    #[test]
    fn of_a_file_that_grows_the_records_are_read_that_were_complete_when_it_was_opened() {
        let sim = Sim::new(1);
        let path = Path::new("/in");
        let location = Location::new(&sim.io(), path).as_input();
        let open = |layout, cuts: &Cuts| Inputs::open_cut(std::slice::from_ref(&location), layout, cuts);
        let whole = |inputs: &Inputs| (inputs.file_bytes(), inputs.bytes());
        sim.put(path, b"b\na\n");
        let inputs = open(Layout::Lines, &Cuts::default()).unwrap();
        sim.put(path, b"b\na\nc");
        inputs.check_unchanged().expect("its last record was complete");
        let grown = inputs.grown().unwrap();
        assert_eq!((grown.inputs, grown.bytes, grown.incomplete_records), (1, 1, 0));
        // Now the end of a line is missing.
        let inputs = open(Layout::Lines, &Cuts::default()).unwrap();
        inputs.check_unchanged().expect("it may be the last line");
        sim.put(path, b"b\na\ncd\n");
        let Err(InputsError::Growing { cuts, .. }) = inputs.check_unchanged() else { panic!("it grew") };
        let inputs = open(Layout::Lines, &cuts).unwrap();
        assert_eq!(whole(&inputs), (4, 4));
        inputs.check_unchanged().unwrap();
        let grown = inputs.grown().unwrap();
        assert_eq!((grown.bytes, grown.incomplete_records, grown.incomplete_bytes), (2, 1, 1));
        // Another file with the name is not cut off, and a shorter one is an error.
        sim.put(path, b"b\n");
        assert!(matches!(inputs.check_unchanged(), Err(InputsError::Changed(_))));
        assert_eq!(whole(&open(Layout::Lines, &cuts).unwrap()), (2, 2));
        // Of fixed records, waits a moment for the rest to come.
        sim.put(path, b"abcd");
        assert!(matches!(open(Layout::Fixed(3), &Cuts::default()), Err(InputsError::Ragged { .. })));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::park_timeout(GROWS_WITHIN / 6);
                sim.put(path, b"abcdef");
            });
            let inputs = open(Layout::Fixed(3), &Cuts::default()).unwrap();
            assert_eq!((whole(&inputs), inputs.grown().unwrap().incomplete_bytes), ((3, 3), 1));
        });
    }
}
