//! The inlets and outlets of a river, for threads of a Python program.

use std::cell::{Cell, RefCell};
use std::sync::{Mutex, MutexGuard};
use std::vec::IntoIter;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict};
use thalweg::{Batch, Block, Layout, Partitioner, River, Sink, Source};
use thalweg_record::Key;

use crate::asked::asked_of_records;
use crate::buffer::{Bytes, each_record};
use crate::{Own, errors, is_forked, same_process};

thread_local! {
    /// The lanes that a Python function chose for the records that this thread puts next.
    static CHOSEN: RefCell<IntoIter<usize>> = RefCell::default();
    /// Whether this thread is in a Python function that chooses lanes, during a call of an inlet.
    static CHOOSING: Cell<bool> = const { Cell::new(false) };
    /// Whether this is Python's main thread, which alone gets signals; `None` before it is known.
    static IS_MAIN: Cell<Option<bool>> = const { Cell::new(None) };
    /// What has ended the wait of this thread at an inlet or outlet.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Bytes that are put before Python's signal handlers get their turn.
const PUT_BYTES: usize = 4 << 20;
/// Why a wait at an inlet would not end in a program of one thread.
const FULL: &str = "the river is full, and this program has no other thread that could take from its outlets: take in \
                    another thread, or put less before you take; it has room for 512 KiB for each outlet";
/// The same at an outlet.
const EMPTY: &str = "nothing more has been put, and this program has no other thread that could put it: finish all \
                     inlets before you take, or put in another thread";

/// All inlets and outlets of a new river: `options` are keywords of a sort that give the layout and the key of records; `pick` is a
/// name or a function from a list of records to a list of outlets.
#[pyfunction]
pub(crate) fn river(
    py: Python<'_>,
    options: &Bound<'_, PyDict>,
    inlets: usize,
    outlets: usize,
    pick: Bound<'_, PyAny>,
) -> PyResult<(Vec<Inlet>, Vec<Outlet>)> {
    same_process(py)?;
    let (layout, keys, _) = asked_of_records(options)?;
    let key = Key::new(layout, &keys).map_err(|why| errors::raised(py, &why.into()))?;
    let by_function = pick.is_callable().then(|| pick.clone().unbind());
    let builder = River::builder().inlets(inlets).outlets(outlets).records(layout, key);
    // With one lane for each outlet, what is put waits together until it fills a batch, so how much there is room for
    // depends on bytes and not on how records are distributed.
    let builder = builder.lanes(outlets);
    let builder = match &by_function {
        Some(_) => builder.partitioner(Partitioner::Own(Box::new(|_, _| {
            CHOSEN.with_borrow_mut(|chosen| chosen.next().expect("a lane was chosen for each record"))
        }))),
        None => builder.partitioner(match pick.extract::<&str>() {
            Ok("robin") => Partitioner::RoundRobin,
            Ok("hash") => Partitioner::Hash,
            Ok("copy") => Partitioner::Copy,
            Ok("least-busy") => Partitioner::LeastBusy,
            _ => {
                let other = pick.repr()?;
                let why = format!("{other} is none of robin, hash, copy, least-busy, and no function");
                return Err(errors::usage(py, &why));
            }
        }),
    };
    let river = py.detach(|| builder.build()).map_err(|why| errors::of_inlet_or_outlet(py, &why))?;
    let inlet = |mut inner: thalweg::Inlet| {
        inner.look_while_waiting(|| goes_on(FULL));
        let pick = by_function.as_ref().map(|pick| Picked { pick: pick.clone_ref(py), carry: Vec::new() });
        Inlet(Own::new(Mutex::new(Some(Put { inner, layout, pick }))))
    };
    let outlets = river.outlets.into_iter().map(|mut outlet| {
        outlet.look_while_waiting(|| goes_on(EMPTY));
        Outlet(Own::new(Mutex::new(Some(outlet))))
    });
    Ok((river.inlets.into_iter().map(inlet).collect(), outlets.collect()))
}

/// An inlet, into which one thread puts records. Empty once it is finished or closed.
#[pyclass(frozen, module = "thalweg._native")]
pub(crate) struct Inlet(Own<Mutex<Option<Put>>>);

struct Put {
    inner: thalweg::Inlet,
    layout: Layout,
    pick: Option<Picked>,
}

/// A Python function that picks the outlet of each record.
struct Picked {
    pick: Py<PyAny>,
    /// The beginning of a record that is still incomplete.
    carry: Vec<u8>,
}

#[pymethods]
impl Inlet {
    fn put(&self, py: Python<'_>, bytes: Bytes) -> PyResult<()> {
        let mut inner = self.inner(py)?;
        let put = inner.as_mut().ok_or_else(|| errors::closed(py, "inlet"))?;
        for piece in bytes.chunks(PUT_BYTES) {
            put.put(py, piece)?;
            if bytes.len() > PUT_BYTES {
                py.check_signals()?;
            }
        }
        Ok(())
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.inner(py)?.take().map_or(Ok(()), |put| put.finish(py))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if is_forked() {
            return Ok(());
        }
        self.inner(py).map(|mut put| drop(put.take()))
    }
}

impl Inlet {
    /// Waits until no other thread uses this inlet. The function that chooses lanes runs while its inlet is in use.
    fn inner(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Option<Put>>> {
        same_process(py)?;
        if CHOOSING.get() {
            return Err(errors::usage(py, "the function of pick uses an inlet; let it only choose outlets"));
        }
        Ok(self.0.lock_py_attached(py).expect("no holder panics"))
    }
}

impl Put {
    fn put(&mut self, py: Python<'_>, bytes: &[u8]) -> PyResult<()> {
        let Put { inner, layout, pick: Some(Picked { pick, carry }) } = self else {
            return self.work(py, |inner| inner.put_bytes(bytes));
        };
        carry.extend_from_slice(bytes);
        let whole = layout.whole(carry);
        let rest = carry.split_off(whole);
        let records = std::mem::replace(carry, rest);
        let chosen = choose(pick.bind(py), *layout, &records)?;
        waiting(py, inner, |inner| {
            CHOSEN.set(chosen.into_iter());
            inner.put_bytes(&records)
        })
    }

    fn finish(mut self, py: Python<'_>) -> PyResult<()> {
        if let Some(Picked { carry, .. }) = &self.pick
            && !carry.is_empty()
        {
            // The last line lacks its newline; a cut record is refused at the end.
            match self.layout.end() {
                b"" => {
                    let Some(Picked { carry, .. }) = self.pick.take() else { unreachable!("it was there") };
                    self.work(py, |inner| inner.put_bytes(&carry))?;
                }
                end => self.put(py, end)?,
            }
        }
        self.work(py, Sink::<Block>::finish)
    }

    fn work(
        &mut self,
        py: Python<'_>,
        work: impl FnOnce(&mut thalweg::Inlet) -> Result<(), RiverError> + Send,
    ) -> PyResult<()> {
        waiting(py, &mut self.inner, work)
    }
}

/// Calls the function with a list of all records, and returns the outlet of each.
fn choose(pick: &Bound<'_, PyAny>, layout: Layout, records: &[u8]) -> PyResult<Vec<usize>> {
    let py = pick.py();
    let list = each_record(py, layout, records);
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let count = list.len();
    CHOOSING.set(true);
    let chosen = pick.call1((list,));
    CHOOSING.set(false);
    let chosen = chosen?;
    let chosen: Vec<usize> = chosen.extract().map_err(|why: PyErr| {
        if why.is_instance_of::<PyOverflowError>(py) {
            return errors::usage(py, "pick chose an outlet that is no number from 0 on");
        }
        let kind = chosen.get_type().name().map_or_else(|_| "wrong type".into(), |name| name.to_string());
        let wanted = "return a list with the number of an outlet for each record";
        PyTypeError::new_err(format!("pick returned {kind}: {wanted}"))
    })?;
    if chosen.len() == count {
        return Ok(chosen);
    }
    let why =
        format!("pick returned {} numbers for a list of {count}; return one for each record", chosen.len());
    Err(errors::usage(py, &why))
}

type RiverError = <thalweg::Inlet as Sink>::Error;

/// An outlet, from which one thread takes records. Empty once it is closed.
#[pyclass(frozen, module = "thalweg._native")]
pub(crate) struct Outlet(Own<Mutex<Option<thalweg::Outlet>>>);

#[pymethods]
impl Outlet {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// A copy of the next batch: a program that held the batch itself could keep its buffer from the river for ever.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        same_process(py)?;
        let mut outlet = self.0.lock_py_attached(py).expect("no holder panics");
        let outlet = outlet.as_mut().ok_or_else(|| errors::closed(py, "outlet"))?;
        let batch: Option<Batch> = waiting(py, outlet, Source::next)?;
        Ok(batch.map(|batch| PyBytes::new(py, batch.records())))
    }

    fn close(&self, py: Python<'_>) {
        if is_forked() {
            return;
        }
        drop(self.0.lock_py_attached(py).expect("no holder panics").take());
    }
}

/// Works at an inlet or outlet without the interpreter's lock.
fn waiting<S: Send, T: Send>(
    py: Python<'_>,
    end: &mut S,
    work: impl FnOnce(&mut S) -> Result<T, RiverError> + Send,
) -> PyResult<T> {
    if IS_MAIN.get().is_none() {
        let threading = py.import("threading")?;
        let main = threading.call_method0("main_thread")?.getattr("ident")?;
        IS_MAIN.set(Some(threading.call_method0("get_ident")?.eq(main)?));
    }
    let done = py.detach(|| work(end));
    match RAISED.take() {
        Some(why) => Err(why),
        None => done.map_err(|why| errors::of_inlet_or_outlet(py, &why)),
    }
}

/// Whether this thread should go on waiting: no signal handler raises, and another thread may end the wait. The main
/// thread is there as long as any other, and others may not take the interpreter's lock while the program ends.
fn goes_on(alone: &str) -> bool {
    if IS_MAIN.get() != Some(true) {
        return true;
    }
    Python::attach(|py| {
        let threads = || py.import("sys")?.call_method0("_current_frames")?.len();
        let raised = match py.check_signals().and_then(|()| threads()) {
            Ok(1) => errors::waits_for_ever(py, alone),
            Ok(_) => return true,
            Err(why) => why,
        };
        RAISED.set(Some(raised));
        false
    })
}
