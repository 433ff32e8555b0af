//! The programs that a row compares, each with its runs so far. Ours comes first.
//!
//! Invariant: ours must succeed. A rival that fails or writes wrong output is measured no further, and its note says
//! why.

use thalweg_api::{BenchOther, BenchRow};

use crate::process::Series;
use crate::targets::Target;

/// A program, and its runs so far.
pub struct Contender<W> {
    /// Its name in reports.
    pub name: String,
    /// The program and the way it is run.
    pub who: W,
    /// Its runs so far.
    pub series: Series,
    /// Whether its output was right, if that was checked.
    pub right: Option<bool>,
    /// Why it is no longer measured; empty while it is.
    pub note: String,
}

impl<W> Contender<W> {
    /// A program that has not run yet.
    pub fn new(name: &str, who: W) -> Contender<W> {
        Contender { name: name.into(), who, series: Series::default(), right: None, note: String::new() }
    }

    fn finish(self) -> BenchOther {
        // The runs before a failure give no median.
        let whole = !self.series.is_empty() && (self.note.is_empty() || self.right == Some(false));
        let measure = whole.then(|| self.series.measure());
        BenchOther { name: self.name, measure, right: self.right, note: self.note }
    }
}

/// Writes the contenders' results, and the comparison with the targets, into a row.
pub fn finish<W>(row: &mut BenchRow, contenders: Vec<Contender<W>>, targets: &[Target], tiny: bool) {
    let mut contenders = contenders.into_iter();
    row.ours = contenders.next().expect("ours comes first").series.measure();
    row.others.extend(contenders.map(Contender::finish));
    judge(row, targets, tiny);
}

/// Compares a row with its targets. A tiny run neither meets nor misses them.
pub fn judge(row: &mut BenchRow, targets: &[Target], tiny: bool) {
    row.targets = targets.iter().map(|target| target.of(row)).collect();
    if tiny {
        row.targets.iter_mut().for_each(|target| target.met = None);
    }
}

/// A row that could not be measured: it misses all its targets.
pub fn failed(row: BenchRow, targets: &[Target], why: String) -> BenchRow {
    let mut row = BenchRow { failed: why, ..row };
    row.targets = targets.iter().map(|target| target.of(&row)).collect();
    for target in &mut row.targets {
        (target.measured, target.met) = ("failed".to_string(), Some(false));
    }
    row
}
