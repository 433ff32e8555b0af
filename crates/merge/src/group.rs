//! The records of one key, which can be read any number of times.
//!
//! ```text
//! scratch [ chunk 0 ][ chunk 1 ] ..   memory [ len|record len|record ..  ]
//! ```
//!
//! Model: records are stored in memory. When it is full, they become a chunk in a scratch file, which is read again
//! each time. The join writes more bytes than it reads here, because it makes a pair of each record.
//! Invariant: at most two chunks are in memory, whatever their number. Only a chunk of one record exceeds the limit.

use thalweg_io::File;
use thalweg_pump::Meters;

/// Bytes of a record's length.
const LEN_BYTES: usize = 4;

/// A list of records.
pub struct Group<'a> {
    /// Bytes of a chunk.
    limit: usize,
    /// Creates the scratch file when it is needed.
    make: &'a dyn Fn() -> thalweg_io::Result<File>,
    meters: &'a Meters,
    file: Option<File>,
    /// The lengths of the chunks in the file.
    chunks: Vec<usize>,
    memory: Vec<u8>,
    read: Vec<u8>,
}

impl<'a> Group<'a> {
    /// An empty list whose chunks have at most `limit` bytes, or one record.
    pub fn new(
        limit: usize,
        make: &'a dyn Fn() -> thalweg_io::Result<File>,
        meters: &'a Meters,
    ) -> Group<'a> {
        let (memory, read) = (Vec::new(), Vec::new());
        Group { limit, make, meters, file: None, chunks: Vec::new(), memory, read }
    }

    /// Removes all records.
    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.memory.clear();
    }

    /// Adds a record.
    pub(crate) fn push(&mut self, record: &[u8]) -> thalweg_io::Result<()> {
        if !self.memory.is_empty() && self.memory.len() + LEN_BYTES + record.len() > self.limit {
            let file = match &self.file {
                Some(file) => file,
                None => self.file.insert((self.make)()?),
            };
            let at: usize = self.chunks.iter().sum();
            self.meters.stage.for_write(|| file.write_at(at as u64, &self.memory))?;
            self.meters.scratch.wrote(self.memory.len() as u64);
            self.chunks.push(self.memory.len());
            self.memory.clear();
        }
        let len = u32::try_from(record.len()).expect("memory holds no such record");
        self.memory.extend_from_slice(&len.to_le_bytes());
        self.memory.extend_from_slice(record);
        Ok(())
    }

    /// Calls `f` with each record, in order.
    pub(crate) fn each<E: From<thalweg_io::Error>>(
        &mut self,
        mut f: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = 0;
        for &chunk in &self.chunks {
            let file = self.file.as_ref().expect("chunks are in a file");
            self.read.resize(chunk, 0);
            let n = self.meters.stage.for_read(|| file.read_at(at, &mut self.read))?;
            assert_eq!(n, chunk, "a scratch file has no other writer");
            self.meters.scratch.read(chunk as u64);
            at += chunk as u64;
            each_in(&self.read, &mut f)?;
        }
        each_in(&self.memory, &mut f)
    }
}

fn each_in<E>(mut chunk: &[u8], f: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    while let Some((len, rest)) = chunk.split_first_chunk::<LEN_BYTES>() {
        let (record, after) = rest.split_at(u32::from_le_bytes(*len) as usize);
        f(record)?;
        chunk = after;
    }
    Ok(())
}
