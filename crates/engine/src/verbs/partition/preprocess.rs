//! What is done with records on the way from a page into an inlet: nothing, a check of their order, or a tag for each.
//!
//! Invariant: a page is checked by itself, whichever lane has the page before it: its first record is compared with the
//! one before it in the file.

use thalweg_api::Proof;
use thalweg_merge::{Error as MergeError, records_until};
use thalweg_pump::{Input, InputsError};
use thalweg_record::{Key, Layout, Prover, Tagger, Tags};
use thalweg_river::Inlet;

use crate::Result;

/// How much is tagged at once.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes of a record that are kept to be compared with the next page's first.
const KEEP_BYTES: usize = 64 << 10;
/// Bytes of a file that are read at first to find the line before a page.
const LOOK_BYTES: u64 = 4 << 10;

/// What is done on the way.
pub(in crate::verbs) enum Preprocess {
    /// Nothing.
    Nothing,
    /// Every file has to be in the order of this key.
    Ordered(Key),
    /// Every record gets a tag in front, from its offset in all inputs; this many bytes come before these inputs.
    Tagged(Tags, u64),
}

/// The state of the preprocessing for one inlet.
pub(super) struct Preprocessor<'a> {
    preprocess: &'a Preprocess,
    layout: Layout,
    tagger: Tagger,
    tagged: Vec<u8>,
    prover: Prover,
    /// Where the next record begins in the file, whose pages come in order.
    next: u64,
}

impl<'a> Preprocessor<'a> {
    pub(super) fn new(preprocess: &'a Preprocess, layout: Layout) -> Preprocessor<'a> {
        let (tags, prover) = match preprocess {
            Preprocess::Tagged(tags, _) => (*tags, whole(layout)),
            _ => (Tags::new(0), Prover::nothing()),
        };
        Preprocessor {
            preprocess,
            layout,
            tagger: Tagger::new(tags, layout),
            tagged: Vec::new(),
            prover,
            next: 0,
        }
    }

    /// Where the first record begins in a page with `before` bytes of its file before it, as the page before tells;
    /// `None` if none begins.
    pub(super) fn first_record(&mut self, page: &[u8], before: u64) -> Option<usize> {
        if before == 0 {
            self.next = 0;
        }
        let first = (self.next - before) as usize;
        (first < page.len()).then_some(first)
    }

    /// Fails if a file that ends after `done` bytes of a record may not end there.
    pub(super) fn check_end(&self, input: &Input, done: usize) -> Result<()> {
        match self.layout.end_bytes() {
            0 if self.layout.is_found_anywhere() => {
                Err(InputsError::Changed(input.path().display().to_string()).into())
            }
            0 => Err(input.ends_inside(self.layout, done as u64).into()),
            _ => Ok(()),
        }
    }

    /// Begins a page whose first record is at byte `from` of the file.
    pub(super) fn begin(&mut self, input: &Input, from: u64) -> Result<()> {
        match self.preprocess {
            Preprocess::Nothing => {}
            // All pages of the file come here, so the prover continues.
            Preprocess::Ordered(_) if from > 0 && !self.layout.is_found_anywhere() => {}
            Preprocess::Ordered(key) => self.prover = self.proving_from(key, input, from)?,
            Preprocess::Tagged(_, before_bytes) => self.tagger.begin(before_bytes + input.first_byte + from),
        }
        Ok(())
    }

    /// Puts its next bytes.
    pub(super) fn put(&mut self, inlet: &mut Inlet, bytes: &[u8]) -> thalweg_river::Result<()> {
        match self.preprocess {
            Preprocess::Nothing => {}
            Preprocess::Ordered(_) => self.prover.push(bytes),
            Preprocess::Tagged(..) => {
                self.prover.push(bytes);
                for piece in bytes.chunks(PIECE_BYTES) {
                    self.tagged.clear();
                    self.tagger.push(piece, &mut self.tagged);
                    inlet.put_bytes(&self.tagged)?;
                }
                return Ok(());
            }
        }
        inlet.put_bytes(bytes)
    }

    /// Ends a page: all records that begin in it were put, up to byte `to` of the file.
    pub(super) fn end(&mut self, input: &Input, from: u64, to: u64) -> Result<()> {
        self.next = to;
        if self.prover.unfinished() > 0 {
            self.prover.push(self.layout.end());
        }
        match self.preprocess {
            Preprocess::Ordered(key) if self.prover.proof().unordered > 0 => {
                Err(self.unordered(key, input, from)?.into())
            }
            _ => Ok(()),
        }
    }

    /// The proof of what was put, without tags.
    pub(super) fn proof(&self, inlet: &Inlet) -> Proof {
        match self.preprocess {
            Preprocess::Tagged(..) => *self.prover.proof(),
            _ => *inlet.proof(),
        }
    }

    /// A prover of the order from the record before byte `from` on.
    fn proving_from(&self, key: &Key, input: &Input, from: u64) -> Result<Prover> {
        let prover = Prover::new(self.layout, key.clone(), false).keeping(KEEP_BYTES);
        if from == 0 {
            return Ok(prover);
        }
        Ok(prover.behind(Proof { records: 1, ..Proof::default() }, &before(input, from, self.layout)?))
    }

    /// Finds the record from byte `from` on that is less than the one before it.
    fn unordered(&self, key: &Key, input: &Input, from: u64) -> Result<MergeError> {
        let from = if self.layout.is_found_anywhere() { from } else { 0 };
        let mut prover = self.proving_from(key, input, from)?;
        let file = input.file()?;
        let first = records_until(&file, from, self.layout)? - prover.proof().records;
        let (mut at, mut piece) = (from, vec![0; PIECE_BYTES]);
        while prover.proof().unordered == 0 {
            let read = file.read_at(at, &mut piece)?;
            let last: &[u8] = if read == 0 { b"\n" } else { &piece[..read] };
            let found = last.iter().any(|byte| {
                prover.push(std::slice::from_ref(byte));
                prover.proof().unordered > 0
            });
            if found || read == 0 {
                break;
            }
            at += read as u64;
        }
        let record = first + prover.proof().records - 1;
        Ok(MergeError::Unordered { path: input.path().to_path_buf(), record })
    }
}

fn whole(layout: Layout) -> Prover {
    let key = Key::new(layout, &[]).expect("the layout has been looked at");
    Prover::new(layout, key, true).keeping(KEEP_BYTES)
}

/// The record that ends at byte `at` of a file; a line is without its newline.
fn before(input: &Input, at: u64, layout: Layout) -> Result<Vec<u8>> {
    let read = |from: u64| -> Result<Vec<u8>> {
        let mut bytes = vec![0; (at - from) as usize];
        let read = input.file()?.read_at(from, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    };
    if let Some(n) = layout.fixed_bytes() {
        return read(at - n as u64);
    }
    let mut look_bytes = LOOK_BYTES;
    loop {
        let from = at.saturating_sub(look_bytes);
        let mut bytes = read(from)?;
        bytes.pop();
        if let Some(end) = memchr::memrchr(b'\n', &bytes) {
            return Ok(bytes.split_off(end + 1));
        }
        if from == 0 {
            return Ok(bytes);
        }
        look_bytes *= 4;
    }
}
