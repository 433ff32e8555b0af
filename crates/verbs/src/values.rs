//! Parses the values of flags. Each error names the value and describes a valid one.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::time::Duration;

use thalweg::KeyPart;
use thalweg::model::Simulated;
use thalweg::nodes::cluster::HOSTS_MAX;
use thalweg_api::{May, Schedule};
use thalweg_base::host_list;
use thalweg_base::units::{Size, parse_bytes};

/// The value as text. An error if it is not UTF-8.
pub fn text(value: &OsStr) -> Result<&str, String> {
    value.to_str().ok_or_else(|| format!("'{}' is not readable text", value.to_string_lossy()))
}

/// A value of any type that implements `FromStr`.
pub fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(value: &OsStr) -> Result<T, String> {
    text(value)?.parse().map_err(|e: T::Err| e.to_string())
}

/// A count or a record number: digits, and `k`, `M`, `G` or `T` for powers of 1000.
pub fn count(value: &OsStr) -> Result<u128, String> {
    let typed = text(value)?;
    let wrong =
        || format!("'{typed}' is not a count: write digits, as in 1000000, or with k, M, G or T, as in 10M");
    let digits = typed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale: u128 = match &typed[digits.len()..] {
        "" => 1,
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        "t" | "T" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let number = digits.parse::<u128>().ok().and_then(|n| n.checked_mul(scale));
    number.ok_or_else(|| format!("'{typed}' is more than 128 bits can count"))
}

/// A separator within a line.
pub fn between(value: &OsStr) -> Result<Vec<u8>, String> {
    let bytes = value.as_encoded_bytes().to_vec();
    if bytes.contains(&b'\n') {
        Err("a newline ends a line and cannot stand in it".into())
    } else {
        Ok(bytes)
    }
}

/// A seed for random numbers.
pub fn seed(value: &OsStr) -> Result<u64, String> {
    let typed = text(value)?;
    typed.parse().map_err(|_| format!("'{typed}' is not a seed: write a number from 0 to {}", u64::MAX))
}

/// The bytes of a record.
pub fn record_bytes(value: &OsStr) -> Result<u32, String> {
    let typed = text(value)?;
    match typed.parse() {
        Ok(Size::Bytes(bytes)) if (1..=u64::from(u32::MAX)).contains(&bytes) => Ok(bytes as u32),
        _ => Err(format!(
            "'{typed}' is not a record's length: write 1 to {} bytes, as in 100 or 4KiB",
            u32::MAX
        )),
    }
}

/// A number of records other than 0.
pub fn record_count(value: &OsStr) -> Result<u64, String> {
    let records = count(value)?;
    let fits = u64::try_from(records).ok().filter(|records| *records > 0);
    fits.ok_or_else(|| format!("{records} is not a number of records: write 1 or more, below 2^64"))
}

/// Number of threads.
pub fn threads(value: &OsStr) -> Result<usize, String> {
    let typed = text(value)?;
    match typed.parse::<usize>() {
        Ok(threads) if threads > 0 => Ok(threads),
        _ => Err(format!("'{typed}' is not a number of threads: write 1 or more")),
    }
}

/// The hosts on which a command runs at a time.
pub fn at_once(value: &OsStr) -> Result<usize, String> {
    let typed = text(value)?;
    let hosts = typed.parse().ok().filter(|hosts| *hosts > 0);
    hosts.ok_or_else(|| format!("'{typed}' is not a number of hosts: write 1 or more"))
}

/// The lines of a header.
pub fn header(value: &OsStr) -> Result<usize, String> {
    let typed = text(value)?;
    typed.parse().map_err(|_| format!("'{typed}' is not a number of lines: write 0, 1 or more"))
}

/// A client's rights.
pub fn may(value: &OsStr) -> Result<May, String> {
    choice(value, &[("all", May::All), ("status", May::Status)])
}

/// The order of an exchange.
pub fn schedule(value: &OsStr) -> Result<Schedule, String> {
    let all = [
        ("together", Schedule::Together),
        ("same", Schedule::Same),
        ("shifted", Schedule::Shifted),
        ("paced", Schedule::Paced),
    ];
    choice(value, &all)
}

/// A number of runs.
pub fn runs(value: &OsStr) -> Result<usize, String> {
    let typed = text(value)?;
    let runs = typed.parse::<usize>().ok().filter(|runs| (1..=100_000).contains(runs));
    runs.ok_or_else(|| format!("'{typed}' is not a number of runs: write 1 to 100000"))
}

/// A number of nodes in this process.
pub fn nodes(value: &OsStr) -> Result<usize, String> {
    let typed = text(value)?;
    let nodes = typed.parse::<usize>().ok().filter(|nodes| (1..=200).contains(nodes));
    nodes.ok_or_else(|| format!("'{typed}' is not a number of nodes: write 1 to 200"))
}

/// A number without limits; its user checks the range.
pub fn parsed_number(value: &OsStr, what: &str) -> Result<u32, String> {
    let typed = text(value)?;
    typed.parse().map_err(|_| format!("'{typed}' is not {what}"))
}

/// A number of parts.
pub fn parts(value: &OsStr) -> Result<usize, String> {
    let typed = text(value)?;
    typed.parse().map_err(|_| format!("'{typed}' is not a number of parts: write 1 or more"))
}

/// A number of bytes; percentages are not allowed.
pub fn bytes(value: &OsStr) -> Result<u64, String> {
    parse_bytes(text(value)?)
}

/// Bytes per second; the value may be in bits.
fn rate(typed: &str) -> Result<f64, String> {
    let wrong =
        || format!("'{typed}' is not a rate: write bytes per second, as in 2GB/s, or bits, as in 100Gbit");
    let plain = typed.strip_suffix("/s").unwrap_or(typed);
    let lower = plain.to_ascii_lowercase();
    let rate = match lower.strip_suffix("bit") {
        Some(bits) => {
            let number = bits.trim_end_matches(['k', 'm', 'g', 't']);
            let scale = match &bits[number.len()..] {
                "" => 1.0,
                "k" => 1e3,
                "m" => 1e6,
                "g" => 1e9,
                "t" => 1e12,
                _ => return Err(wrong()),
            };
            let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            number.parse::<f64>().ok().filter(|_| plain).ok_or_else(wrong)? * scale / 8.0
        }
        None => match plain.parse::<Size>() {
            Ok(Size::Bytes(bytes)) => bytes as f64,
            _ => return Err(wrong()),
        },
    };
    if (1.0..1e18).contains(&rate) { Ok(rate) } else { Err(wrong()) }
}

/// A cluster to simulate: names and values, separated by commas.
pub fn simulated(value: &OsStr) -> Result<Simulated, String> {
    const NAMES: [&str; 7] = ["nodes", "disk", "link", "memory", "data", "cores", "trunk"];
    let typed = text(value)?;
    let mut asked = Simulated::default();
    let mut seen: Vec<&str> = Vec::new();
    for part in typed.split(',') {
        let (name, value) =
            part.split_once('=').ok_or_else(|| format!("'{part}' says nothing: write NAME=VALUE"))?;
        let known = NAMES.into_iter().find(|known| *known == name);
        let known = known.ok_or_else(|| format!("'{name}' is none of {}", NAMES.join(", ")))?;
        if seen.contains(&known) {
            return Err(format!("{known} is said twice"));
        }
        seen.push(known);
        let number = || {
            let number = value.parse::<u32>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| format!("'{value}' is not a number of {known}: write 1 or more"))
        };
        let size = || bytes(OsStr::new(value));
        match known {
            "nodes" => asked.nodes = number()?,
            "disk" => asked.disk_bytes_per_second = rate(value)?,
            "link" => asked.link_bytes_per_second = rate(value)?,
            "memory" => asked.memory_bytes = Some(size()?),
            "data" => asked.data_bytes = Some(size()?),
            "cores" => asked.cores = Some(number()?),
            _ => asked.trunk_bytes_per_second = Some(rate(value)?),
        }
    }
    let missing = NAMES[..3].iter().find(|name| !seen.contains(name));
    missing.map_or(Ok(asked), |name| Err(format!("{name} is missing: write nodes=N,disk=RATE,link=RATE")))
}

/// Parts of a key, separated by commas.
pub fn keys(value: &OsStr) -> Result<Vec<KeyPart>, String> {
    text(value)?.split(',').map(|part| part.parse::<KeyPart>().map_err(|e| e.to_string())).collect()
}

/// Names, separated by commas.
pub fn names(value: &OsStr) -> Result<Vec<String>, String> {
    let typed = text(value)?;
    if typed.split(',').any(str::is_empty) {
        return Err(format!("'{typed}' has an empty name: write names with commas between them"));
    }
    Ok(typed.split(',').map(String::from).collect())
}

/// Hosts: names and roles, with ranges in brackets, separated by commas.
pub fn hosts(value: &OsStr) -> Result<Vec<String>, String> {
    host_list::expand(text(value)?, HOSTS_MAX)
}

/// An IP address and a port.
pub fn address(value: &OsStr) -> Result<SocketAddr, String> {
    let typed = text(value)?;
    typed.parse().map_err(|_| {
        format!(
            "'{typed}' is not an address: write an IP address and a port, as in 127.0.0.1:7171 or [::1]:7171"
        )
    })
}

/// A length of time.
pub fn duration(value: &OsStr) -> Result<Duration, String> {
    let typed = text(value)?;
    let digits = typed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ms = match &typed[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => 0,
    };
    let ms = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit_ms)).filter(|ms| *ms > 0);
    ms.map(Duration::from_millis).ok_or_else(|| {
        format!("'{typed}' is not a length of time: write a number with ms, s, m or h, as in 10s")
    })
}

/// An environment variable and its value.
pub fn variable(value: &OsStr) -> Result<(String, String), String> {
    let typed = text(value)?;
    match typed.split_once('=') {
        Some((name, value)) if !name.is_empty() && !typed.contains('\0') => Ok((name.into(), value.into())),
        _ => Err(format!("'{typed}' is not a variable: write NAME=VALUE")),
    }
}

/// One of the given choices.
pub fn choice<T: Copy>(value: &OsStr, choices: &[(&str, T)]) -> Result<T, String> {
    let typed = value.to_string_lossy();
    let found = choices.iter().find(|(name, _)| *name == typed);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let near = crate::nearest(&typed, names.iter().copied());
        let hint = near.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
        format!("'{typed}' is none of {}{hint}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_plain_or_in_powers_of_a_thousand() {
        for (typed, n) in [("0", 0), ("10", 10), ("10k", 10_000), ("2M", 2_000_000), ("3G", 3_000_000_000)] {
            assert_eq!(count(OsStr::new(typed)), Ok(n), "{typed}");
        }
        assert_eq!(count(OsStr::new(&u128::MAX.to_string())), Ok(u128::MAX));
        for typed in ["", "M", "-1", "+1", "1.5M", "1e6", "10MiB", "1 0", "0x10"] {
            assert!(count(OsStr::new(typed)).unwrap_err().contains("not a count"), "{typed}");
        }
        for typed in ["340282366920938463463374607431768211456", "340282366920938463463374607431768211455k"] {
            assert!(count(OsStr::new(typed)).unwrap_err().contains("128 bits"), "{typed}");
        }
    }

    #[test]
    fn seeds_are_plain_numbers_of_64_bits() {
        assert_eq!(seed(OsStr::new("0")), Ok(0));
        assert_eq!(seed(OsStr::new("18446744073709551615")), Ok(u64::MAX));
        for typed in ["", "-1", "0x1", "1k", "18446744073709551616"] {
            assert!(seed(OsStr::new(typed)).unwrap_err().contains("not a seed"), "{typed}");
        }
    }

    #[test]
    fn records_are_of_at_least_a_byte() {
        assert_eq!(record_bytes(OsStr::new("100")), Ok(100));
        assert_eq!(record_bytes(OsStr::new("1MiB")), Ok(1 << 20));
        for typed in ["0", "10%", "-5", "4294967296", "lines"] {
            assert!(record_bytes(OsStr::new(typed)).is_err(), "{typed}");
        }
    }

    #[test]
    fn times_addresses_and_variables_are_read_strictly() {
        for (typed, ms) in
            [("500ms", 500), ("10", 10_000), ("10s", 10_000), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(duration(OsStr::new(typed)), Ok(Duration::from_millis(ms)), "{typed}");
        }
        for typed in ["", "0", "s", "-1s", "1.5s", "1d", "99999999999999999h"] {
            assert!(duration(OsStr::new(typed)).is_err(), "{typed}");
        }
        assert!(address(OsStr::new("127.0.0.1:0")).is_ok() && address(OsStr::new("[::1]:80")).is_ok());
        for typed in ["", "7171", "localhost:80", "127.0.0.1", "127.0.0.1:70000"] {
            assert!(address(OsStr::new(typed)).is_err(), "{typed}");
        }
        assert_eq!(variable(OsStr::new("A=b=c")), Ok(("A".into(), "b=c".into())));
        for typed in ["", "A", "=b"] {
            assert!(variable(OsStr::new(typed)).is_err(), "{typed}");
        }
    }

    #[test]
    fn rates_are_of_bytes_or_of_bits() {
        for (typed, bytes) in [
            ("2GB/s", 2e9),
            ("2GB", 2e9),
            ("100Gbit", 12.5e9),
            ("100mbit/s", 12.5e6),
            ("2.5gbit", 312.5e6),
            ("1MiB/s", 1048576.0),
            ("800bit", 100.0),
        ] {
            assert_eq!(rate(typed), Ok(bytes), "{typed}");
        }
        for typed in ["", "bit", "/s", "-1MB/s", "10%", "1e3Mbit", "0GB/s", "inf", "nanGbit", "99999999Tbit"]
        {
            assert!(rate(typed).unwrap_err().contains("not a rate"), "{typed}");
        }
    }

    #[test]
    fn a_cluster_to_simulate_is_told_name_by_name() {
        let read = |typed: &str| simulated(OsStr::new(typed));
        let asked =
            read("nodes=1000,disk=2GB/s,link=100Gbit,memory=1GiB,data=1TB,cores=16,trunk=1Gbit").unwrap();
        assert_eq!((asked.nodes, asked.cores, asked.memory_bytes), (1000, Some(16), Some(1 << 30)));
        assert_eq!((asked.data_bytes, asked.trunk_bytes_per_second), (Some(1_000_000_000_000), Some(125e6)));
        for (typed, holds) in [
            ("nodes=2,disk=1MB/s", "link is missing"),
            ("nodes=0,disk=1,link=1", "not a number of nodes"),
            ("nodes=2,disk=fast,link=1", "not a rate"),
            ("nodes=2,nodes=3,disk=1,link=1", "said twice"),
            ("nodes", "says nothing"),
            ("node=2", "'node' is none of nodes"),
            ("nodes=2,disk=1,link=1,data=5%", "write bytes"),
        ] {
            let message = read(typed).unwrap_err();
            assert!(message.contains(holds) && !message.contains('\n'), "{typed}: {message}");
        }
    }

    #[test]
    fn key_parts_come_in_a_row() {
        let parts = keys(OsStr::new("4:2:desc,0:4")).unwrap();
        assert_eq!(parts.len(), 2);
        assert!(parts[0].descending && parts[1].offset == 0);
        for typed in ["", "0:10,", "0:0", "a"] {
            assert!(keys(OsStr::new(typed)).is_err(), "{typed}");
        }
    }

    #[test]
    fn a_wrong_choice_names_the_near_one() {
        let choices = [("auto", 1), ("always", 2), ("never", 3)];
        assert_eq!(choice(OsStr::new("never"), &choices), Ok(3));
        let message = choice(OsStr::new("alway"), &choices).unwrap_err();
        assert_eq!(message, "'alway' is none of auto, always, never; did you mean always?");
    }
}
