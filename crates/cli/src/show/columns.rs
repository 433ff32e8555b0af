//! Numbers in human-readable form, and columns of them.
//!
//! Invariant: traffic is shown in powers of 1000, the usual units of disks and rates; memory in powers of 1024, the
//! units of `--memory`.

use thalweg_base::units::Count;

/// Rows as columns: the first aligned left, the others right.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|i| width(i).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let width = widths[i];
            line += &if i == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// A number with its noun, singular or plural.
pub(crate) fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A line with its label.
pub(crate) fn labelled(label: &str, text: &str) -> String {
    format!("{label:<9} {text}\n")
}

/// The command that was asked for, as a shell reads it; empty for a plan without it.
pub(super) fn asked(words: &[String]) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_./:=,@%+-".contains(c);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    match words {
        [] => String::new(),
        words => labelled("asked", &words.iter().map(quoted).collect::<Vec<_>>().join(" ")),
    }
}

/// `1.84 s`, `0.004 s`, `75 s`, `1 h 12 min`.
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.1 => format!("{s:.3} s"),
        s if s < 10.0 => format!("{s:.2} s"),
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{s:.0} s"),
        s => format!("{} h {} min", s as u64 / 3600, s as u64 % 3600 / 60),
    }
}

/// `1.25 GB`, `700 MB`, `0 B`.
pub(crate) fn traffic(bytes: u64) -> String {
    let (scale, unit) = match bytes {
        b if b >= 1_000_000_000_000 => (1e12, "TB"),
        b if b >= 1_000_000_000 => (1e9, "GB"),
        b if b >= 1_000_000 => (1e6, "MB"),
        b if b >= 1_000 => (1e3, "kB"),
        b => return format!("{b} B"),
    };
    let number = bytes as f64 / scale;
    if number < 10.0 { format!("{number:.2} {unit}") } else { format!("{number:.0} {unit}") }
}

/// `1 record`, `10 000 records`.
pub(crate) fn records(count: u64) -> String {
    format!("{} {}", Count(count), if count == 1 { "record" } else { "records" })
}

/// `543 MB/s`, or `-` if no time has passed.
pub(crate) fn rate(bytes: u64, seconds: f64) -> String {
    if seconds > 0.0 { format!("{}/s", traffic((bytes as f64 / seconds) as u64)) } else { "-".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_two_or_three_digits() {
        let said: Vec<String> = [0.0, 0.0042, 1.844, 12.34, 754.0, 7385.0].map(seconds).to_vec();
        assert_eq!(said, ["0.000 s", "0.004 s", "1.84 s", "12.3 s", "754 s", "2 h 3 min"]);
        let said: Vec<String> =
            [0, 999, 1_500, 700_000_000, 1_250_000_000, 45_000_000_000_000].map(traffic).to_vec();
        assert_eq!(said, ["0 B", "999 B", "1.50 kB", "700 MB", "1.25 GB", "45 TB"]);
        assert_eq!(rate(1_000_000_000, 2.0), "500 MB/s");
        assert_eq!(rate(1, 0.0), "-");
        assert_eq!((records(1), records(2000)), ("1 record".into(), "2 000 records".into()));
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".into(), "1".into()], vec!["long".into(), "100".into()], vec!["b".into()]];
        assert_eq!(columns(&rows), "a       1\nlong  100\nb\n");
    }
}
