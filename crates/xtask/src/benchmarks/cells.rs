//! Numbers as the page shows them: three significant digits, and medians.

use thalweg_api::{BenchMeasure, BenchRow, BenchTarget};

/// The fewest runs for which the 99th percentile is shown.
const P99_RUNS_MIN: usize = 100;

/// The median; 0 if there are no numbers.
pub(super) fn median(numbers: &[f64]) -> f64 {
    let sorted = sorted(numbers);
    let (low, high) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
    match sorted.get(high) {
        Some(number) => sorted[low].midpoint(*number),
        None => 0.0,
    }
}

fn sorted(numbers: &[f64]) -> Vec<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The runs of several files as one measurement.
pub(super) fn together<'a>(measures: impl Iterator<Item = &'a BenchMeasure> + Clone) -> BenchMeasure {
    let each = |number: fn(&BenchMeasure) -> f64| median(&measures.clone().map(number).collect::<Vec<_>>());
    let all_seconds: Vec<f64> =
        measures.clone().flat_map(|measure| measure.all_seconds.iter().copied()).collect();
    // Computed values have no runs.
    let seconds = if all_seconds.is_empty() { each(|measure| measure.seconds) } else { median(&all_seconds) };
    BenchMeasure {
        seconds,
        cpu_seconds: each(|measure| measure.cpu_seconds),
        all_seconds,
        ..BenchMeasure::default()
    }
}

/// `0.629 s`, `4.78 ms`.
pub(super) fn time(seconds: f64) -> String {
    if seconds < 0.1 { format!("{} ms", digits(seconds * 1e3)) } else { format!("{} s", digits(seconds)) }
}

/// `0.629 s, 0.883 CPU-s`, with the 99th percentile of many runs.
pub(super) fn took(measure: &BenchMeasure) -> String {
    let mut text = time(measure.seconds);
    let runs = measure.all_seconds.len();
    if runs >= P99_RUNS_MIN {
        text += &format!(", p99 {}", time(sorted(&measure.all_seconds)[(runs * 99).div_ceil(100) - 1]));
    }
    if measure.cpu_seconds >= 0.01 {
        text += &format!(", {} CPU-s", digits(measure.cpu_seconds));
    }
    text
}

/// Three significant digits.
pub(super) fn digits(number: f64) -> String {
    match number {
        n if n >= 99.95 => format!("{n:.0}"),
        n if n >= 9.995 => format!("{n:.1}"),
        n if n >= 0.9995 => format!("{n:.2}"),
        n => format!("{n:.3}"),
    }
}

/// A target and its result in each file. A comparison with another contender is recomputed over all runs.
pub(super) fn target(target: &BenchTarget, rows: &[BenchRow]) -> String {
    let told = |measured: &str, met: Option<bool>| match met {
        Some(true) => format!("{measured}, yes"),
        Some(false) => format!("{measured}, no"),
        None => "not measured".to_string(),
    };
    let name = &target.target;
    let again =
        name.split_once(" x as fast as ").and_then(|(least, other)| Some((least.parse().ok()?, other)));
    let measured = match again {
        Some((least, other)) if rows.len() > 1 => {
            let theirs = together(others(rows, other)).seconds;
            let ratio = theirs / together(rows.iter().map(|row| &row.ours)).seconds;
            let least: f64 = least;
            told(&format!("{ratio:.2}"), Some(ratio >= least))
        }
        _ => {
            let of_file =
                rows.iter().flat_map(|row| row.targets.iter().filter(|there| there.target == *name));
            of_file.map(|there| told(&there.measured, there.met)).collect::<Vec<_>>().join(" and ")
        }
    };
    format!("{name}: {measured}")
}

/// The measurements of one comparison.
pub(super) fn others<'a>(
    rows: &'a [BenchRow],
    name: &'a str,
) -> impl Iterator<Item = &'a BenchMeasure> + Clone {
    let all = rows.iter().flat_map(|row| &row.others);
    all.filter(move |other| other.name == name).filter_map(|other| other.measure.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_count() {
        let shown = [0.0046693, 0.0999, 0.1, 0.99951, 1.005, 9.9951, 12.446, 224.4].map(time);
        let expected = ["4.67 ms", "99.9 ms", "0.100 s", "1.00 s", "1.00 s", "10.0 s", "12.4 s", "224 s"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_median_of_two_lies_between_them() {
        assert_eq!(
            (median(&[]), median(&[3.0]), median(&[5.0, 1.0]), median(&[9.0, 1.0, 2.0])),
            (0.0, 3.0, 3.0, 2.0)
        );
    }

    #[test]
    fn many_runs_show_their_slowest_hundredth() {
        let all_seconds: Vec<f64> = (1..=100).map(f64::from).collect();
        let many = BenchMeasure { seconds: 50.5, all_seconds, ..BenchMeasure::default() };
        assert_eq!(took(&many), "50.5 s, p99 99.0 s");
    }
}
