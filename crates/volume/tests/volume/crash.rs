//! The process is killed, or the machine loses power, at every operation of the stores.
//!
//! What was acknowledged survives the process, what was synced survives a power loss, and of what was under way each
//! byte is the old one or the new one. No checksum is wrong afterwards, and copies are equal.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_io::sim::Faults;
use thalweg_volume::layout::Policy;
use thalweg_volume::{Result, Volume};

use crate::bed::Bed;

/// What a byte of the file may be: one of these.
type Either = Vec<Vec<u8>>;

/// What one file may be after a crash.
struct Expected {
    bytes: Either,
    /// The lengths that it may have.
    lens: Vec<usize>,
}

impl Expected {
    fn settled(&mut self) {
        self.bytes.iter_mut().for_each(|byte| *byte = vec![*byte.last().unwrap()]);
        self.lens = vec![*self.lens.last().unwrap()];
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        let end = at + from.len();
        while self.bytes.len() < end {
            self.bytes.push(vec![0]);
        }
        self.bytes[at..end].iter_mut().zip(from).for_each(|(byte, new)| byte.push(*new));
        self.lens.push(end.max(*self.lens.last().unwrap()));
    }

    fn resize(&mut self, len: usize) {
        let before = *self.lens.last().unwrap();
        while self.bytes.len() < len.max(before) {
            self.bytes.push(vec![0]);
        }
        self.bytes[len.min(before)..].iter_mut().for_each(|byte| byte.push(0));
        self.lens.push(len);
    }

    fn check(&self, volume: &Arc<Volume>, about: &str) {
        let found = match volume.open(Path::new("f")) {
            Ok(file) => {
                let mut found = vec![0; file.size() as usize];
                let read = file.read_at(0, &mut found);
                read.unwrap_or_else(|e| panic!("{about}: {e}"));
                found
            }
            Err(e) if e.is_not_found() => Vec::new(),
            Err(e) => panic!("{about}: {e}"),
        };
        let (least, most) = (self.lens.iter().min().unwrap(), self.lens.iter().max().unwrap());
        assert!((*least..=*most).contains(&found.len()), "{about}: {} bytes of {:?}", found.len(), self.lens);
        for (at, byte) in found.iter().enumerate() {
            assert!(
                self.bytes[at].contains(byte),
                "{about}: byte {at} is {byte}, not of {:?}",
                self.bytes[at]
            );
        }
    }
}

#[test]
fn many_closed_files_are_made_durable_at_once() {
    for copies in [1, 2] {
        let mut bed = Bed::new(3, &Policy { copies, ..Policy::default() }, 5);
        let path = |n: u8| PathBuf::from(format!("f{n}"));
        let volume = bed.open().unwrap();
        for n in 0..100 {
            volume.create(&path(n), 0o644, true).unwrap().write_at(0, &[n; 5000]).unwrap();
        }
        volume.sync().unwrap();
        bed.without_power(Some(volume));
        let volume = bed.open().unwrap();
        for n in 0..100 {
            let mut found = vec![0; 5001];
            let read = volume.open(&path(n)).unwrap().read_at(0, &mut found).unwrap();
            assert_eq!((read, &found[..5000]), (5000, &[n; 5000][..]), "file {n}, {copies} copies");
        }
    }
}

/// Operations that meet every path of a store: new strips, blocks in part, overwriting what is durable, cutting,
/// growing. With `kept` each is expected to survive as soon as it is acknowledged, else when it is synced.
fn script(volume: &Arc<Volume>, expected: &mut Expected, kept: bool) -> Result<()> {
    let file = volume.create(Path::new("f"), 0o644, false)?;
    let write = |expected: &mut Expected, at: usize, len: usize, with: u8| -> Result<()> {
        let from = vec![with; len];
        expected.write(at, &from);
        file.write_at(at as u64, &from)?;
        if kept {
            expected.settled();
        }
        Ok(())
    };
    write(expected, 0, 5000, 1)?;
    write(expected, 9000, 100, 2)?;
    file.sync()?;
    expected.settled();
    write(expected, 4000, 6000, 3)?;
    expected.resize(4500);
    file.set_size(4500)?;
    if kept {
        expected.settled();
    }
    expected.resize(9500);
    file.set_size(9500)?;
    if kept {
        expected.settled();
    }
    write(expected, 4400, 300, 4)?;
    file.sync()?;
    expected.settled();
    write(expected, 12_000, 50, 5)?;
    drop(file);
    volume.sync()?;
    expected.settled();
    Ok(())
}

fn crash_everywhere(copies: u32, kept: bool) {
    let policy = Policy { width: 2, stripe_bytes: 4096, copies, record_bytes: 0 };
    for crash_at in 0.. {
        let mut bed = Bed::new(2, &policy, crash_at);
        let about =
            format!("{copies} copies, crash at {crash_at}, {}", if kept { "killed" } else { "no power" });
        let volume = bed.open().unwrap();
        let after = bed.sim.boundaries() + crash_at;
        bed.sim.set_faults(Faults { crash_at: Some(after), ..Faults::default() });
        let mut expected = Expected { bytes: Vec::new(), lens: vec![0] };
        let ended = script(&volume, &mut expected, kept).is_ok();
        if kept {
            bed.killed(Some(volume))
        } else {
            bed.without_power(Some(volume))
        }
        // A crash while the crash before is being recovered from changes nothing.
        if crash_at % 3 == 0 {
            bed.sim.set_faults(Faults {
                crash_at: Some(bed.sim.boundaries() + crash_at % 17),
                ..Faults::default()
            });
            let volume = bed.open().ok();
            if kept { bed.killed(volume) } else { bed.without_power(volume) }
        }
        let volume = bed.open().unwrap_or_else(|e| panic!("{about}: {e}"));
        expected.check(&volume, &about);
        drop(volume);
        if copies == 2 {
            copies_are_equal(&bed, &about);
        }
        if ended {
            assert!(crash_at > 30, "the script has {crash_at} operations");
            return;
        }
    }
}

/// What one copy has not is a hole there: bytes behind its end, and all of it if the crash came before its first byte.
fn copies_are_equal(bed: &Bed, about: &str) {
    for path in bed.strips() {
        let name = path.to_str().unwrap();
        let other = match name.strip_suffix("-0.strip") {
            Some(strip) => format!("{strip}-1.strip"),
            None => name.replace("-1.strip", "-0.strip"),
        };
        // Neighbours have the copies of each other's strips.
        let other = bed.strips().into_iter().find(|path| path.file_name() == Path::new(&other).file_name());
        let mut two = other.map_or_else(Vec::new, |other| bed.sim.get(other).unwrap());
        let mut one = bed.sim.get(&path).unwrap();
        let len = one.len().max(two.len());
        one.resize(len, 0);
        two.resize(len, 0);
        assert!(one == two, "{about}: the copies of {name} differ");
    }
}

#[test]
fn a_process_that_is_killed_loses_nothing_that_was_acknowledged() {
    crash_everywhere(1, true);
}

#[test]
fn the_same_with_two_copies() {
    crash_everywhere(2, true);
}

#[test]
fn a_power_loss_costs_nothing_that_was_synced() {
    crash_everywhere(1, false);
}

#[test]
fn the_same_with_two_copies_and_no_power() {
    crash_everywhere(2, false);
}

#[test]
fn a_damaged_bit_is_an_error_or_comes_from_the_copy() {
    for copies in [1, 2] {
        let bed = Bed::new(2, &Policy { copies, ..Policy::default() }, 1);
        let volume = bed.open().unwrap();
        let file = volume.create(Path::new("f"), 0o644, true).unwrap();
        file.write_at(0, &[7; 9000]).unwrap();
        file.sync().unwrap();
        let is_first = |path: &PathBuf| path.to_str().unwrap().ends_with("-00-0.strip");
        bed.sim.flip_bit(bed.strips().into_iter().find(is_first).unwrap(), 8 * 5000);
        let mut found = vec![0; 9000];
        let read = file.read_at(0, &mut found);
        match copies {
            1 => {
                let told = read.unwrap_err().to_string();
                assert!(told.contains("f at byte 0") && told.contains("damaged at byte 4096"), "{told}");
                file.read_at(0, &mut found[..4096]).unwrap();
            }
            _ => assert!(read.unwrap() == 9000 && found == [7; 9000]),
        }
    }
}
