//! The targets of a row, and whether it met them.
//!
//! Invariant: a target that needs something that was not measured is neither met nor missed.

use thalweg_api::{BenchMeasure, BenchOther, BenchRow, BenchTarget};

/// A target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// At most this many times the wall-clock time of the floor.
    WallOfFloor(f64),
    /// At most this many seconds of wall-clock time.
    Wall(f64),
    /// At least this many bytes a second.
    Rate(f64),
    /// At most this many seconds of wall-clock time in 99 of 100 runs.
    P99(f64),
    /// At most this many seconds of wall-clock time for another contender.
    OtherWall(&'static str, f64),
    /// At most this many CPU seconds for each gigabyte.
    CpuPerGigabyte(f64),
    /// At most this many clocks of a core for each byte, both ends together.
    ClocksPerByte(f64),
    /// At most `times` the wall-clock time of another run of ours.
    NoSlower {
        /// The other run or the rival.
        than: &'static str,
        /// The factor.
        times: f64,
    },
    /// At least `times` as fast as a rival, or within `or_floor` times the floor.
    Faster {
        /// The other run or the rival.
        than: Than,
        /// The factor.
        times: f64,
        /// Or at most this many times the floor.
        or_floor: Option<f64>,
    },
    /// At least `times` less CPU than a rival.
    LessCpu {
        /// The other run or the rival.
        than: Than,
        /// The factor.
        times: f64,
    },
    /// At least `times` less peak memory than a rival.
    LessMemory {
        /// The other run or the rival.
        than: Than,
        /// The factor.
        times: f64,
    },
}

/// The rival of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Than {
    /// The rival of this name.
    Named(&'static str),
    /// The best of these rivals.
    BestOf(&'static [&'static str]),
    /// The best rival in the figure that is compared.
    BestRival,
    /// The best of the rivals that stayed within the memory they were given.
    CappedRivals,
}

/// A rival may exceed its memory limit by this factor: ours promises 1.05 for the whole process, and an engine counts
/// only its buffers.
const CAP_MARGIN: f64 = 1.10;
/// With fewer runs there is no 99th percentile.
pub const P99_RUNS_MIN: usize = 100;

/// The time that 99 of 100 runs stayed within.
pub fn p99(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() * 99).div_ceil(100) - 1]
}

impl Target {
    /// The target with what was measured for this row.
    pub fn of(&self, row: &BenchRow) -> BenchTarget {
        let floor = row.floor.as_ref().map(|floor| row.ours.seconds / floor.seconds.max(1e-9));
        match *self {
            Target::WallOfFloor(most) => at_most(format!("wall <= {most} x floor"), floor, most),
            Target::Wall(most) => at_most(format!("wall <= {most} s"), Some(row.ours.seconds), most),
            Target::Rate(least) => {
                let measured = row.bytes as f64 / row.ours.seconds / 1e6;
                at_least(format!("MB/s >= {}", least / 1e6), Some(measured), least / 1e6)
            }
            Target::P99(most) => {
                let enough = row.ours.all_seconds.len() >= P99_RUNS_MIN;
                let measured = enough.then(|| p99(&row.ours.all_seconds));
                at_most(format!("p99 <= {most} s"), measured, most)
            }
            Target::OtherWall(name, most) => {
                at_most(format!("{name} <= {most} s"), best(row, Than::Named(name), |m| m.seconds), most)
            }
            Target::CpuPerGigabyte(most) => {
                let measured = row.ours.cpu_seconds / (row.bytes as f64 / 1e9);
                at_most(format!("CPU <= {most} s/GB"), Some(measured), most)
            }
            Target::ClocksPerByte(most) => {
                let hz = thalweg_io::process::clock_hz();
                let measured = hz.map(|hz| row.ours.cpu_seconds * hz / row.bytes.max(1) as f64);
                at_most(format!("clocks <= {most} a byte"), measured, most)
            }
            Target::NoSlower { than, times } => {
                let measured =
                    best(row, Than::Named(than), |m| m.seconds).map(|other| row.ours.seconds / other);
                at_most(format!("wall <= {times} x {than}"), measured, times)
            }
            Target::Faster { than, times, or_floor } => {
                let measured = best(row, than, |m| m.seconds).map(|other| other / row.ours.seconds);
                faster(than, measured, times, floor, or_floor)
            }
            Target::LessCpu { than, times } => {
                let measured = best(row, than, |m| m.cpu_seconds).map(|other| other / row.ours.cpu_seconds);
                at_least(format!("CPU 1/{times} of {}", than.name()), measured, times)
            }
            Target::LessMemory { than, times } => {
                let ours = row.ours.peak_bytes.max(1) as f64;
                let measured = best(row, than, |m| m.peak_bytes as f64).map(|other| other / ours);
                at_least(format!("memory 1/{times} of {}", than.name()), measured, times)
            }
        }
    }
}

impl Than {
    fn name(self) -> &'static str {
        match self {
            Than::Named(name) => name,
            Than::BestRival | Than::BestOf(_) => "the best",
            Than::CappedRivals => "the best within its cap",
        }
    }
}

fn at_most(target: String, measured: Option<f64>, most: f64) -> BenchTarget {
    BenchTarget { target, measured: said(measured), met: measured.map(|measured| measured <= most) }
}

fn at_least(target: String, measured: Option<f64>, least: f64) -> BenchTarget {
    BenchTarget { target, measured: said(measured), met: measured.map(|measured| measured >= least) }
}

fn said(number: Option<f64>) -> String {
    let digits = if number.is_some_and(|number| number < 0.2) { 4 } else { 2 };
    number.map_or_else(|| "-".to_string(), |number| format!("{number:.digits$}"))
}

fn faster(
    than: Than,
    measured: Option<f64>,
    times: f64,
    floor: Option<f64>,
    or_floor: Option<f64>,
) -> BenchTarget {
    let by_rival = measured.map(|measured| measured >= times);
    let Some(most) = or_floor else {
        let target = format!("{times} x as fast as {}", than.name());
        return at_least(target, measured, times);
    };
    let by_floor = floor.map(|floor| floor <= most);
    BenchTarget {
        target: format!("{times} x as fast as {}, or <= {most} x floor", than.name()),
        measured: format!("{}, {}", said(measured), said(floor)),
        met: match (by_rival, by_floor) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        },
    }
}

/// The lowest value of a figure among the rivals that count.
fn best(row: &BenchRow, than: Than, number: impl Fn(&BenchMeasure) -> f64) -> Option<f64> {
    let counts = |other: &&BenchOther| match than {
        Than::Named(name) => other.name == name,
        Than::BestOf(names) => names.contains(&&*other.name),
        Than::BestRival => true,
        Than::CappedRivals => other
            .measure
            .as_ref()
            .is_some_and(|m| m.peak_bytes as f64 <= CAP_MARGIN * row.memory_bytes as f64),
    };
    let right = |other: &&BenchOther| other.right != Some(false);
    let measured = row.others.iter().filter(counts).filter(right).filter_map(|other| other.measure.as_ref());
    measured.map(number).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use thalweg_api::BenchFloor;

    use super::*;

    fn measure(seconds: f64, cpu_seconds: f64, peak_bytes: u64) -> BenchMeasure {
        BenchMeasure {
            seconds,
            cpu_seconds,
            peak_bytes,
            all_seconds: vec![seconds],
            ..BenchMeasure::default()
        }
    }

    fn other(name: &str, measure: Option<BenchMeasure>) -> BenchOther {
        BenchOther { name: name.into(), measure, right: None, note: String::new() }
    }

    fn row() -> BenchRow {
        BenchRow {
            bytes: 2_000_000_000,
            memory_bytes: 1000,
            ours: measure(2.0, 3.0, 1000),
            floor: Some(BenchFloor { seconds: 1.0, ..BenchFloor::default() }),
            others: vec![
                other("a", Some(measure(3.0, 30.0, 5000))),
                other("b", Some(measure(4.0, 12.0, 1100))),
                other("c", None),
            ],
            ..BenchRow::default()
        }
    }

    #[test]
    fn ratios_are_of_medians_and_cpu_is_for_a_gigabyte() {
        let row = row();
        let told = |target: Target| target.of(&row);
        assert_eq!(told(Target::WallOfFloor(1.25)).met, Some(false));
        assert_eq!(told(Target::WallOfFloor(1.25)).measured, "2.00");
        assert_eq!(told(Target::CpuPerGigabyte(1.6)).met, Some(true));
        assert_eq!(told(Target::Wall(1.0)).met, Some(false));
        assert_eq!(told(Target::NoSlower { than: "a", times: 0.7 }).met, Some(true));
    }

    #[test]
    fn the_best_rival_is_the_best_in_what_is_compared() {
        let row = row();
        let told = |target: Target| target.of(&row);
        let faster = Target::Faster { than: Than::BestRival, times: 1.5, or_floor: None };
        assert_eq!(told(faster).measured, "1.50");
        assert_eq!(told(Target::LessCpu { than: Than::BestRival, times: 4.0 }).measured, "4.00");
        let memory = Target::LessMemory { than: Than::BestRival, times: 2.0 };
        assert_eq!((told(memory).met, told(memory).measured.as_str()), (Some(false), "1.10"));
        let capped = Target::Faster { than: Than::CappedRivals, times: 2.0, or_floor: None };
        assert_eq!((told(capped).met, told(capped).measured.as_str()), (Some(true), "2.00"));
    }

    #[test]
    fn one_run_in_a_hundred_may_be_slow() {
        let mut seconds: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(p99(&seconds), 198.0);
        seconds.truncate(100);
        assert_eq!(p99(&seconds), 99.0);
        assert_eq!(Target::P99(1.0).of(&row()).met, None, "one run says nothing of a hundred");
    }

    #[test]
    fn what_was_not_measured_decides_nothing() {
        let mut row = row();
        let told = |row: &BenchRow, or_floor| {
            Target::Faster { than: Than::Named("c"), times: 1.0, or_floor }.of(row).met
        };
        assert_eq!(told(&row, None), None);
        assert_eq!(told(&row, Some(1.25)), None);
        assert_eq!(told(&row, Some(2.0)), Some(true), "one of the two is enough");
        row.floor = None;
        assert_eq!(Target::WallOfFloor(1.25).of(&row).met, None);
    }

    #[test]
    fn a_rival_whose_output_is_wrong_does_not_count() {
        let mut row = row();
        row.others[0].right = Some(false);
        let faster = Target::Faster { than: Than::BestRival, times: 1.5, or_floor: None };
        assert_eq!(faster.of(&row).measured, "2.00");
    }
}
