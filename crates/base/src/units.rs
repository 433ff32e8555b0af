//! Parses and formats sizes (`512M`, `1GiB`, `10%`).
//!
//! Invariant: `K M G T` and `KiB MiB GiB TiB` are powers of 1024, and `KB MB GB TB` powers of 1000, as in GNU
//! coreutils.

use std::fmt;

/// One kibibyte.
pub const KIB: u64 = 1 << 10;
/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;

/// A size as typed: bytes, or a percentage of something that depends on the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage, 0 to 100.
    Percent(f64),
}

impl Size {
    /// The size in bytes; `whole_bytes` are 100 %.
    pub fn of(self, whole_bytes: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(p) => (whole_bytes as f64 * p / 100.0) as u64,
        }
    }
}

/// Why a size could not be parsed. Each variant contains the input text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SizeError {
    /// Not a size.
    NoSize(String),
    /// Not a percentage, or more than 100 %.
    NoShare(String),
    /// Too large for 64 bits.
    TooLarge(String),
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeError::NoSize(typed) => {
                write!(
                    f,
                    "'{typed}' is not a size: write a number and a unit, as in 512M, 1GiB, 100MB or 10%"
                )
            }
            SizeError::NoShare(typed) => {
                write!(f, "'{typed}' is not a share: write more than 0% and at most 100%")
            }
            SizeError::TooLarge(typed) => {
                write!(f, "'{typed}' is too large: a size is less than 16777216T, which is 2^64 bytes")
            }
        }
    }
}

impl std::error::Error for SizeError {}

/// Parses a number of bytes; percentages are not allowed. The error is one line.
pub fn parse_bytes(typed: &str) -> Result<u64, String> {
    match typed.parse() {
        Ok(Size::Bytes(bytes)) => Ok(bytes),
        Ok(Size::Percent(_)) => Err(format!("'{typed}' is a share of nothing; write bytes, as in 100MB")),
        Err(error @ SizeError::TooLarge(_)) => Err(error.to_string()),
        Err(_) => {
            Err(format!("'{typed}' is not a size: write a number and a unit, as in 512M, 1GiB or 100MB"))
        }
    }
}

impl std::str::FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let wrong = || SizeError::NoSize(text.to_string());
        let too_large = || SizeError::TooLarge(text.to_string());
        let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim();
        if unit == "%" {
            let share = number.parse().ok().filter(|p| *p > 0.0 && *p <= 100.0);
            return share.map(Size::Percent).ok_or_else(|| SizeError::NoShare(text.to_string()));
        }
        let scale: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => KIB,
            "m" | "mib" => MIB,
            "g" | "gib" => GIB,
            "t" | "tib" => GIB << 10,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(wrong()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Size::Bytes).ok_or_else(too_large);
        }
        // Only digits and points are left here, so the number is neither negative nor NaN.
        if scale == 1 && number.contains('.') {
            return Err(wrong());
        }
        let fraction: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = fraction * scale as f64;
        if bytes < u64::MAX as f64 { Ok(Size::Bytes(bytes as u64)) } else { Err(too_large()) }
    }
}

/// Formats bytes: `1.5 GiB`, `512 MiB`, `100 B`.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scale, unit) = match self.0 {
            b if b >= GIB << 10 => (GIB << 10, "TiB"),
            b if b >= GIB => (GIB, "GiB"),
            b if b >= MIB => (MIB, "MiB"),
            b if b >= KIB => (KIB, "KiB"),
            b => return write!(f, "{b} B"),
        };
        if self.0.is_multiple_of(scale) {
            write!(f, "{} {unit}", self.0 / scale)
        } else {
            write!(f, "{:.2} {unit}", self.0 as f64 / scale as f64)
        }
    }
}

/// Formats a count in groups of three digits: `10 000 000`.
#[derive(Debug, Clone, Copy)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (i, c) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i).is_multiple_of(3) {
                f.write_str(" ")?;
            }
            write!(f, "{c}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_coreutils_reads_them() {
        for (text, bytes) in [
            ("0", 0),
            ("100", 100),
            ("512M", 512 * MIB),
            ("1GiB", GIB),
            ("1.5g", GIB * 3 / 2),
            ("100MB", 100_000_000),
            ("2TiB", 2048 * GIB),
        ] {
            assert_eq!(text.parse(), Ok(Size::Bytes(bytes)), "{text}");
        }
        assert_eq!("10%".parse(), Ok(Size::Percent(10.0)));
        assert_eq!("10%".parse::<Size>().unwrap().of(1000), 100);
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        for text in ["", "M", "1Q", "-1", "1..2", "1e9", ".", ".T", "100.5"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::NoSize(text.into())), "{text}");
        }
        for text in ["0%", "101%", "%"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::NoShare(text.into())), "{text}");
        }
    }

    #[test]
    fn sizes_beyond_64_bits_are_too_large() {
        let digits = "9".repeat(400);
        for text in ["18446744073709551616", "99999999999999G", "16777216T", "16777216.5T", &digits] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::TooLarge(text.into())), "{text}");
        }
        assert_eq!("16777215T".parse(), Ok(Size::Bytes(16_777_215 << 40)));
    }

    #[test]
    fn sizes_and_counts_are_shown_for_people() {
        assert_eq!(Bytes(GIB * 3 / 2).to_string(), "1.50 GiB");
        assert_eq!(Bytes(512 * MIB).to_string(), "512 MiB");
        assert_eq!(Bytes(99).to_string(), "99 B");
        assert_eq!(Count(10_000_000).to_string(), "10 000 000");
        assert_eq!(Count(999).to_string(), "999");
    }
}
