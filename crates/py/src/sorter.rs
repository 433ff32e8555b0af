//! A sorter of the facade, for records in a program's memory.

use std::ops::Range;
use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict, PyMemoryView};
use thalweg::{Block, KeyPart, Layout, SorterOptions, Source};
use thalweg_api::to_json;

use crate::asked::asked_of_records;
use crate::buffer::{Bytes, Lent, Memory, each_record};
use crate::numbers::Number;
use crate::watch::LOOK_EVERY;
use crate::{Own, errors, is_forked, same_process};

/// Bytes that are put before Python's signal handlers get their turn.
const PUT_BYTES: usize = 4 << 20;

/// The sorter, into which records are put. Empty once it was sorted or closed.
#[pyclass(frozen, module = "thalweg._native")]
pub(crate) struct Sorter {
    inner: Own<Mutex<Option<thalweg::Sorter>>>,
    layout: Layout,
    /// The parts of a record that are its key, if all records have the same length.
    key: Vec<Range<usize>>,
}

#[pymethods]
impl Sorter {
    /// A sorter with the keywords of a sort.
    #[new]
    fn new(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<Sorter> {
        same_process(py)?;
        let (layout, keys, asked) = asked_of_records(options)?;
        let part = |part: &KeyPart| part.offset as usize..part.offset as usize + part.length as usize;
        let key = match &keys[..] {
            [] => std::iter::once(0..usize::MAX).collect(),
            parts => parts.iter().map(part).collect(),
        };
        let options = SorterOptions {
            layout,
            keys,
            memory: asked.memory,
            scratch: asked.scratch,
            scratch_limit: asked.scratch_limit,
            threads: asked.threads,
            unique: asked.unique,
            io: asked.io,
            no_proof: asked.no_proof,
        };
        let made = py.detach(|| thalweg::Sorter::new(&options));
        let inner = made.map_err(|why| errors::raised(py, &why))?;
        Ok(Sorter { inner: Own::new(Mutex::new(Some(inner))), layout, key })
    }

    fn put(&self, py: Python<'_>, bytes: Bytes) -> PyResult<()> {
        self.check_order(&bytes)?;
        self.put_bytes(py, &bytes)
    }

    /// Puts records that are each by itself: lines without their newlines, prefixed records without their prefixes.
    fn put_records(&self, py: Python<'_>, records: Vec<Bytes>) -> PyResult<()> {
        let mut bytes = Vec::new();
        for record in &records {
            self.check_order(record)?;
            let why = match self.layout {
                Layout::Fixed(n) if record.len() != n as usize => {
                    format!(
                        "a record of {} bytes, and each has {n}: put records that are whole",
                        record.len()
                    )
                }
                Layout::Lines if record.contains(&b'\n') => {
                    "a line with a newline in it: put each line by itself, or records that are prefixed"
                        .into()
                }
                _ => {
                    self.layout.push(record, &mut bytes);
                    continue;
                }
            };
            return Err(errors::usage(py, &why));
        }
        self.put_bytes(py, &bytes)
    }

    fn sorted(&self, py: Python<'_>) -> PyResult<Sorted> {
        same_process(py)?;
        let mut inner = self.inner.lock_py_attached(py).expect("no holder panics");
        let sorter = inner.take().ok_or_else(|| errors::closed(py, "sorter"))?;
        let sorted = py.detach(|| sorter.sorted()).map_err(|why| errors::raised(py, &why))?;
        let ends = Ends { sorted, layout: self.layout, carry: Vec::new(), whole: None };
        Ok(Sorted { inner: Own::new(Mutex::new(Some(ends))) })
    }

    fn close(&self, py: Python<'_>) {
        if is_forked() {
            return;
        }
        let sorter = self.inner.lock_py_attached(py).expect("no holder panics").take();
        py.detach(|| drop(sorter));
    }
}

impl Sorter {
    /// Refuses numbers in the key that would not be sorted by their values.
    fn check_order(&self, bytes: &Bytes) -> PyResult<()> {
        let (numbers, item) = bytes.numbers();
        let is_in_key = |number: &&Number| match self.layout.fixed_bytes() {
            Some(record) => self.key.iter().any(|part| number.is_in(part, item, record)),
            // Text may be in signed bytes.
            None => item > 1,
        };
        numbers.iter().find(is_in_key).map_or(Ok(()), |number| Err(number.refused()))
    }

    fn put_bytes(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<()> {
        same_process(py)?;
        let mut inner = self.inner.lock_py_attached(py).expect("no holder panics");
        let sorter = inner.as_mut().ok_or_else(|| errors::closed(py, "sorter"))?;
        for piece in bytes.chunks(PUT_BYTES) {
            py.check_signals()?;
            py.detach(|| sorter.put_bytes(piece)).map_err(|why| errors::raised(py, &why))?;
        }
        Ok(())
    }
}

/// The sorted stream. Empty once it is closed.
#[pyclass(frozen, module = "thalweg._native")]
pub(crate) struct Sorted {
    inner: Own<Mutex<Option<Ends>>>,
}

#[pymethods]
impl Sorted {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyMemoryView>>> {
        let next = self.with(py, |py, ends| ends.next(py))?;
        next.map(|memory| PyMemoryView::from(Bound::new(py, Lent::new(memory))?.as_any())).transpose()
    }

    /// The next block, each of its records by itself.
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<Bound<'py, PyBytes>>>> {
        self.with(py, |_, ends| {
            let next = ends.next(py)?;
            Ok(next.map(|memory| each_record(py, ends.layout, memory.bytes())))
        })
    }

    fn receipt(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |py, ends| {
            ends.wait(py)?;
            let receipt = ends.sorted.receipt().map_err(|why| errors::raised(py, &why))?;
            Ok(to_json(&receipt))
        })
    }

    fn close(&self, py: Python<'_>) {
        if is_forked() {
            return;
        }
        let ends = self.inner.lock_py_attached(py).expect("no holder panics").take();
        py.detach(|| drop(ends));
    }
}

impl Sorted {
    fn with<T>(&self, py: Python<'_>, f: impl FnOnce(Python<'_>, &mut Ends) -> PyResult<T>) -> PyResult<T> {
        same_process(py)?;
        let mut inner = self.inner.lock_py_attached(py).expect("no holder panics");
        f(py, inner.as_mut().ok_or_else(|| errors::closed(py, "sorted stream"))?)
    }
}

/// Joins records that are split across two blocks.
struct Ends {
    sorted: thalweg::Sorted,
    layout: Layout,
    /// The beginning of a record whose rest is in the next block.
    carry: Vec<u8>,
    /// The records of a block after the one that its beginning completed.
    whole: Option<Memory>,
}

impl Ends {
    fn next(&mut self, py: Python<'_>) -> PyResult<Option<Memory>> {
        if let Some(whole) = self.whole.take() {
            return Ok(Some(whole));
        }
        loop {
            self.wait(py)?;
            match self.sorted.next().map_err(|why| errors::raised(py, &why))? {
                None => return Ok(None),
                Some(block) => {
                    if let Some(memory) = self.take(block) {
                        return Ok(Some(memory));
                    }
                }
            }
        }
    }

    /// The whole records of a block, after the one that its beginning completes.
    fn take(&mut self, block: Block) -> Option<Memory> {
        let begin = match (self.carry.is_empty(), self.layout.completes(&self.carry, &block)) {
            (true, _) => 0,
            (false, Some(begin)) => begin,
            (false, None) => {
                self.carry.extend_from_slice(&block);
                return None;
            }
        };
        let mut joined = std::mem::take(&mut self.carry);
        joined.extend_from_slice(&block[..begin]);
        let end = begin + self.layout.whole(&block[begin..]);
        self.carry.extend_from_slice(&block[end..]);
        let whole = (begin < end).then(|| Memory::Block(block, begin..end));
        if joined.is_empty() {
            return whole;
        }
        self.whole = whole;
        Some(Memory::Joined(joined))
    }

    /// Waits until the stream can continue, and lets signal handlers run.
    fn wait(&mut self, py: Python<'_>) -> PyResult<()> {
        while !py.detach(|| self.sorted.wait(LOOK_EVERY)) {
            py.check_signals()?;
        }
        Ok(())
    }
}
