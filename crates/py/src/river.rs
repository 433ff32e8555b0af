//! The inlets and outlets of a river, for threads of a Python program.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard};
use std::vec::IntoIter;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;
use thalweg::{Batch, Block, Layout, Partitioner, River, Sink, Source};
use thalweg_record::Key;

use crate::buffer::Bytes;
use crate::call::work_options;
use crate::watch::watched;
use crate::{errors, same_process};

thread_local! {
    /// The lanes that a Python function chose for the records that this thread puts next.
    static CHOSEN: RefCell<IntoIter<usize>> = RefCell::default();
    /// Whether this thread is in a Python function that chooses lanes, during a call of an inlet.
    static CHOOSING: Cell<bool> = const { Cell::new(false) };
}

/// All inlets and outlets of a new river: `words` give the layout and the key of records, as for a sort; `pick` is a
/// name or a function from a list of records to a list of outlets.
#[pyfunction]
pub(crate) fn river(
    py: Python<'_>,
    words: Vec<OsString>,
    inlets: usize,
    outlets: usize,
    pick: Bound<'_, PyAny>,
) -> PyResult<(Vec<Inlet>, Vec<Outlet>)> {
    same_process(py)?;
    let asked = work_options(py, words)?;
    let key = Key::new(asked.layout, &asked.keys).map_err(|why| errors::raised(py, &why.into()))?;
    let by_function = pick.is_callable().then(|| pick.clone().unbind());
    let builder = River::builder().inlets(inlets).outlets(outlets).records(asked.layout, key);
    let builder = match &by_function {
        Some(_) => builder.lanes(outlets).partitioner(Partitioner::Own(Box::new(|_, _| {
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
    let inlet = |inner| {
        let pick = by_function.as_ref().map(|pick| Picked { pick: pick.clone_ref(py), carry: Vec::new() });
        Inlet(Mutex::new(Some(Put { inner, layout: asked.layout, pick })))
    };
    let outlets = river.outlets.into_iter().map(|outlet| Outlet(Mutex::new(Some(outlet))));
    Ok((river.inlets.into_iter().map(inlet).collect(), outlets.collect()))
}

/// An inlet, into which one thread puts records. Empty once it is finished or closed.
#[pyclass(frozen, module = "thalweg._native")]
pub(crate) struct Inlet(Mutex<Option<Put>>);

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
        self.inner(py)?.as_mut().ok_or_else(|| errors::closed(py, "inlet"))?.put(py, &bytes)
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.inner(py)?.take().map_or(Ok(()), |put| put.finish(py))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
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
    let (mut list, mut rest) = (Vec::new(), records);
    while let Some(length) = layout.length(rest).filter(|_| !rest.is_empty()) {
        list.push(PyBytes::new(py, layout.contents(&rest[..length - layout.end_bytes()])));
        rest = &rest[length..];
    }
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
pub(crate) struct Outlet(Mutex<Option<thalweg::Outlet>>);

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
        drop(self.0.lock_py_attached(py).expect("no holder panics").take());
    }
}

/// An inlet or outlet that another thread can stop.
trait Stops: Send {
    fn stopper(&self) -> impl Fn() + use<Self>;
}

impl Stops for thalweg::Inlet {
    fn stopper(&self) -> impl Fn() + use<> {
        let stopper = thalweg::Inlet::stopper(self);
        move || stopper.stop()
    }
}

impl Stops for thalweg::Outlet {
    fn stopper(&self) -> impl Fn() + use<> {
        let stopper = thalweg::Outlet::stopper(self);
        move || stopper.stop()
    }
}

/// Works at an inlet or outlet, which may block. Only the main thread gets signals, so only it is watched.
fn waiting<S: Stops, T: Send>(
    py: Python<'_>,
    end: &mut S,
    work: impl FnOnce(&mut S) -> Result<T, RiverError> + Send,
) -> PyResult<T> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    let done = if threading.call_method0("get_ident")?.eq(main)? {
        let stop = end.stopper();
        watched(py, || work(end), stop, |_| Ok(()))?
    } else {
        py.detach(|| work(end))
    };
    done.map_err(|why| errors::of_inlet_or_outlet(py, &why))
}
