//! Python's buffer protocol: memory of Python that Rust reads, and memory of Rust that Python reads.
//!
//! Invariant: neither side copies. [`Bytes`] keeps its exporter's memory in place until it is dropped; a [`Lent`] keeps
//! its block until the last view of it is dropped.
//! Non-goals: writing through the protocol.
#![allow(unsafe_code)] // The protocol hands over pointers.

use std::ffi::{c_int, c_void};
use std::ops::Deref;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use thalweg::{Block, Layout};

use crate::Own;
use crate::numbers::{Number, ORDERED, numbers};

/// The bytes of an object with the buffer protocol: `bytes`, `memoryview`, numpy, `pyarrow.Buffer`.
pub(crate) struct Bytes {
    buffer: PyUntypedBuffer,
    /// The format and the bytes of an item.
    item: (Vec<u8>, usize),
}

impl<'py> FromPyObject<'_, 'py> for Bytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Bytes> {
        let (buffer, item) = match PyUntypedBuffer::get(&object) {
            Ok(buffer) => {
                let item = (buffer.format().to_bytes().to_vec(), buffer.item_size());
                (buffer, item)
            }
            // As numpy for an array of times, which it lends nobody.
            Err(why) if why.is_instance_of::<PyValueError>(object.py()) => {
                return Err(PyTypeError::new_err(format!("{}: {ORDERED}", why.value(object.py()))));
            }
            // As for a number of numpy, which has no dimensions.
            Err(why) if why.is_instance_of::<PyBufferError>(object.py()) => {
                let view = PyMemoryView::from(&object)?;
                let format: String = view.getattr("format")?.extract()?;
                let buffer = PyUntypedBuffer::get(&view.call_method1("cast", ("B",))?)?;
                let bytes = buffer.len_bytes();
                (buffer, (format.into_bytes(), bytes))
            }
            Err(why) => return Err(why),
        };
        if !buffer.is_c_contiguous() {
            return Err(PyTypeError::new_err(
                "the bytes do not lie one after the other; put a contiguous copy",
            ));
        }
        if has_references(&item.0) {
            let why = "the array holds references to objects, not their bytes; put an array of a fixed type";
            return Err(PyTypeError::new_err(why));
        }
        Ok(Bytes { buffer, item })
    }
}

/// Whether items of this format, as the module `struct` and PEP 3118 write it, refer to objects. Names of fields are
/// between colons.
fn has_references(format: &[u8]) -> bool {
    format.split(|byte| *byte == b':').step_by(2).any(|types| types.contains(&b'O'))
}

impl Bytes {
    /// The numbers in each item whose bytes are in another order than their values, and the bytes of an item.
    pub(crate) fn numbers(&self) -> (Vec<Number>, usize) {
        (numbers(&self.item.0), self.item.1)
    }

    /// The bytes as a key of a table, whose keys are in the order of their bytes.
    pub(crate) fn as_key(&self) -> PyResult<&[u8]> {
        let (numbers, item) = self.numbers();
        match numbers.first() {
            Some(number) if item > 1 => Err(number.refused()),
            _ => Ok(self),
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.buffer.len_bytes() {
            0 => &[],
            // SAFETY: the exporter keeps these bytes in place until the buffer is released, and they are contiguous. As
            // for `hashlib`, concurrent writes by another thread of the program lead to a mixture of old and new bytes.
            len => unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast(), len) },
        }
    }
}

/// Copies of the whole records in some bytes: lines without their newlines, prefixed records without their prefixes.
pub(crate) fn each_record<'py>(
    py: Python<'py>,
    layout: Layout,
    mut bytes: &[u8],
) -> Vec<Bound<'py, PyBytes>> {
    let mut records = Vec::new();
    while let Some(length) = layout.length(bytes).filter(|_| !bytes.is_empty()) {
        records.push(PyBytes::new(py, layout.contents(&bytes[..length - layout.end_bytes()])));
        bytes = &bytes[length..];
    }
    records
}

/// The memory that a [`Lent`] may hold. Its bytes do not move when it is moved.
pub(crate) enum Memory {
    /// Sorted records: this range of the block.
    Block(Block, std::ops::Range<usize>),
    /// One or more records, joined from the ends of two blocks.
    Joined(Vec<u8>),
}

impl Memory {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Memory::Block(block, range) => &block[range.clone()],
            Memory::Joined(bytes) => bytes,
        }
    }
}

/// Records that Python reads in place.
#[pyclass(frozen, module = "thalweg._native")]
pub(crate) struct Lent(Own<Memory>);

impl Lent {
    pub(crate) fn new(memory: Memory) -> Lent {
        Lent(Own::new(memory))
    }
}

#[pymethods]
impl Lent {
    fn __len__(&self) -> usize {
        self.0.bytes().len()
    }

    /// # Safety
    /// Only the interpreter calls this, with a view to fill in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let bytes = slf.get().0.bytes();
        let (pointer, len) = (bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len() as ffi::Py_ssize_t);
        const READ_ONLY: c_int = 1;
        // SAFETY: the view holds a reference to this object, whose class is frozen, so the bytes stay in place and
        // unchanged until the view is released; and it is read-only.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), pointer, len, READ_ONLY, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
