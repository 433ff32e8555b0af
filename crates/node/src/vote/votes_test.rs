//! What a node keeps of its votes, on a real disk.
#![allow(clippy::disallowed_methods)] // Tests look at files by other means than ours.

use std::path::PathBuf;

use thalweg_api::{AttemptId, VoteRecord, to_json};
use thalweg_io::small;

use super::core::Core;
use super::{DIRECTORY, Votes};

const JOB: &str = "00000000000000000000000000000001";

/// The directory of an identity.
struct Place(PathBuf);

impl Place {
    fn new(of: &str) -> Place {
        let place = std::env::temp_dir().join(format!("thalweg-votes-{of}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        small::make_directory(&place).unwrap();
        Place(place)
    }

    /// The file of a job's record.
    fn record(&self, job: &str) -> PathBuf {
        self.0.join(DIRECTORY).join(job)
    }

    fn votes(&self) -> Votes {
        Votes::load("n1", Some(&self.0))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn attempt(number: u32, hosts: &[&str]) -> AttemptId {
    let hosts = hosts.iter().map(|host| host.to_string()).collect();
    AttemptId { number, coordinator: "n1".into(), hosts }
}

fn record(job: &str, attempt: AttemptId) -> VoteRecord {
    Core::new("n1", job, attempt).record().clone()
}

/// A node was killed while it wrote a record: the file without its name was read as one more record of that job, and was taken
/// for the last if the directory had it last. So a vote that had been answered was forgotten.
#[test]
fn a_record_that_was_not_finished_is_no_vote() {
    let place = Place::new("unfinished");
    let hosts = ["n1", "n2"];
    let kept = record(JOB, attempt(2, &hosts));
    let old = to_json(&record(JOB, attempt(1, &hosts)));
    small::make_directory(&place.0.join(DIRECTORY)).unwrap();
    small::write(&place.record(JOB), to_json(&kept).as_bytes()).unwrap();
    // One on each side of it, whichever way a directory is read.
    for number in 0..64 {
        std::fs::write(place.record(&format!(".thalweg-partial-1-{number}")), &old).unwrap();
    }
    let other = "00000000000000000000000000000002";
    std::fs::write(place.record(other), &old).unwrap();
    let votes = place.votes();
    assert_eq!(votes.known(JOB), Some((attempt(2, &hosts), None)));
    assert_eq!(votes.known(other), None, "it speaks of another job");
    assert_eq!(std::fs::read_dir(place.0.join(DIRECTORY)).unwrap().count(), 2, "nothing unfinished is left");
}
