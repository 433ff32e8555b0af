//! Files and streams, from one end to the other.

use std::os::unix::fs::MetadataExt;

use thalweg_api::{PumpReceipt, from_json};

use super::support::Place;

/// Bytes that depend on their offset, without a cell of zeros.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut word = seed;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(word >> 8).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub(crate) fn receipt(json: &str) -> PumpReceipt {
    from_json(json).expect("one receipt")
}

#[test]
fn a_file_of_any_size_arrives_by_either_back_end_with_the_same_checksum_on_any_number_of_streams() {
    let place = Place::new();
    const MIB: usize = 1 << 20;
    for len in [0, 1, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1, 20 * MIB + 12345] {
        place.write("in", &bytes(len, 7));
        let mut sums = Vec::new();
        for io in ["uring", "threads"] {
            for streams in ["1", "2", "5"] {
                let told = place.run(&["pump", "in", "out", "--io", io, "--streams", streams, "--json"]);
                let receipt = receipt(told.is_done());
                assert_eq!((receipt.bytes, receipt.files, receipt.backend.as_str()), (len as u64, 1, io));
                assert!(receipt.holds && receipt.proved && receipt.checksum_in == receipt.checksum_out);
                sums.push(receipt.checksum_out);
                assert!(place.read("out") == place.read("in"), "{len} {io} {streams}");
            }
        }
        assert!(sums.iter().all(|sum| *sum == sums[0] && (*sum == 0) == (len == 0)), "{sums:x?}");
        assert_eq!(place.names(), ["in", "out"]);
    }
}

#[test]
fn permissions_and_time_come_along() {
    let place = Place::new();
    place.write("in", b"some");
    place.shell("chmod 640 in; touch -d '2001-02-03 04:05:06.123456789' in").is_done();
    place.run(&["pump", "in", "out", "-q"]).is_done();
    let (a, b) = (place.0.join("in").metadata().unwrap(), place.0.join("out").metadata().unwrap());
    assert_eq!((a.mode(), a.mtime(), a.mtime_nsec()), (b.mode(), b.mtime(), b.mtime_nsec()));
    assert_eq!(b.mtime_nsec(), 123_456_789);
}

#[test]
fn streams_are_moved_from_and_to() {
    let place = Place::new();
    for len in [0, 5, 1 << 20, 3_333_333] {
        place.write("in", &bytes(len, 3));
        place.shell("cat in | $T pump - out -q && cmp in out").is_done();
        place.shell("$T pump in - -q | cmp - in").is_done();
        place.shell("$T pump - - -q < in | cmp - in").is_done();
        place.shell("mkfifo p; cat in > p & $T pump p out2 -q; cmp in out2; rm p out2").is_done();
        let from_pipe = receipt(place.shell("cat in | $T pump - out --json").is_done());
        let from_file = receipt(place.run(&["pump", "in", "out", "--json"]).is_done());
        assert_eq!(from_pipe.checksum_in, from_file.checksum_in, "{len}");
    }
    // The receipt goes to standard error if the bytes go to standard output.
    let told = place.shell("$T pump in - --json > out");
    assert_eq!((told.status, told.out.as_str()), (Some(0), ""));
    assert!(receipt(&told.err).holds && place.read("out") == place.read("in"));
    assert_eq!(place.names(), ["in", "out"]);
}

#[test]
fn zeros_nothing_and_memory_are_ends_too() {
    let place = Place::new();
    place.run(&["pump", "zero:3MB", "out", "-q"]).is_done();
    assert!(place.read("out") == vec![0; 3_000_000]);
    let told = receipt(place.run(&["pump", "zero:3MB", "null:", "--json"]).is_done());
    assert_eq!(
        (told.bytes, told.source.kind.as_str(), told.dest.kind.as_str()),
        (3_000_000, "memory", "nothing")
    );
    let told = receipt(place.run(&["pump", "out", "null:", "--json"]).is_done());
    assert_eq!((told.bytes, told.source.bytes, told.checksum_in), (3_000_000, 3_000_000, 0));
    let told = receipt(place.run(&["pump", "--no-disk", "64MiB", "--json"]).is_done());
    assert_eq!((told.bytes, told.holds), (64 << 20, true));
    assert!(
        told.checksum_in != 0 && told.source.clocks_per_byte.is_some_and(|clocks| clocks > 0.0),
        "{told:?}"
    );
    let bare = receipt(place.run(&["pump", "--no-disk", "64MiB", "--no-checksum", "--json"]).is_done());
    assert_eq!((bare.proved, bare.checksum_in), (false, 0));
    assert_eq!(place.names(), ["out"]);
}

#[test]
fn memory_stays_within_what_the_streams_may_hold() {
    let place = Place::new();
    // Written by another process: what the kernel counts for a child begins with its parent's own memory.
    place.shell("head -c 200000000 /dev/urandom > in").is_done();
    for streams in [1, 2, 4] {
        let args = ["pump", "in", "out", "-q", "--streams", &streams.to_string()];
        let mut child = place.command(&args).spawn().expect("the binary starts");
        // The kernel's own high-water mark, which begins when the program starts.
        let mut peak = 0;
        while child.try_wait().unwrap().is_none() {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
            let mark = status
                .lines()
                .find_map(|l| l.strip_prefix("VmHWM:"))
                .and_then(|l| l.split_whitespace().next());
            peak = peak.max(mark.map_or(0, |kib| kib.parse::<u64>().unwrap() << 10));
        }
        let most = (streams * 34 + 16) << 20;
        assert!(peak > 2 << 20 && peak < most, "{peak} of {most} with {streams} streams");
    }
}

#[test]
fn a_limit_holds() {
    let place = Place::new();
    place.write("in", &bytes(10_000_000, 1));
    let told = receipt(place.run(&["pump", "in", "out", "--limit", "20MB", "--json"]).is_done());
    // A tenth of a second's worth, and one block of each lane, may pass at once.
    assert!(told.seconds >= 0.3, "{told:?}");
    // On a busy machine the pump may be slower than its limit, which then does not make it wait.
    let is_limited = told.bottleneck.starts_with("the rate limit") && told.limited_seconds > 0.2;
    assert!(is_limited || told.seconds > 1.5, "{told:?}");
}

#[test]
fn what_was_written_is_read_back_past_the_cache() {
    let place = Place::new();
    place.write("in", &bytes(9_000_000, 5));
    let told = receipt(place.run(&["pump", "in", "out", "--verify", "--json"]).is_done());
    assert!(told.verified && told.holds);
    place.shell("mkdir tree; for i in 1 2 3; do echo $i > tree/$i; done").is_done();
    assert!(place.run(&["pump", "tree", "copy", "--verify"]).is_done().contains("read back"));
}

#[test]
fn holes_stay_holes() {
    let place = Place::new();
    place
        .shell("truncate -s 300M in; printf data | dd of=in bs=1 seek=100M conv=notrunc status=none")
        .is_done();
    let told = receipt(place.run(&["pump", "in", "out", "--json"]).is_done());
    assert!(told.source.bytes < 1_000_000 && told.bytes == 300 << 20, "{told:?}");
    let out = place.0.join("out").metadata().unwrap();
    assert!(out.blocks() * 512 < 1_000_000, "{} blocks", out.blocks());
    place.shell("cmp in out").is_done();
    // The same bytes without holes have the same checksum.
    place.shell("cat in > dense").is_done();
    let dense = receipt(place.run(&["pump", "dense", "null:", "--json"]).is_done());
    assert_eq!(dense.checksum_in, told.checksum_in);
}

#[test]
fn the_receipt_reads_like_this() {
    let place = Place::new();
    place.write("in", &bytes(1_000_000, 5));
    let told = place.run(&["pump", "in", "out", "--io", "threads"]);
    let text = told.is_done();
    assert!(text.starts_with("moved 1 file, 1 000 000 bytes, in "), "{text}");
    for line in [
        "in        checksum ",
        "invariant out = in: holds\n",
        "  source: disk",
        "slowest   ",
        "io        threads",
    ] {
        assert!(text.contains(line), "no '{line}' in {text}");
    }
}
