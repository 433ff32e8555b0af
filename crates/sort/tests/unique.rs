//! Several lanes drop equal keys, and the last job has nothing to write.

mod support;

use support::{Case, Stage};

#[test]
fn the_last_job_drops_everything() {
    for _ in 0..30 {
        Stage::real().sorts(&Case::lines(vec![b'\n'; 11_696]).unique().lanes(2).within(64 << 20));
    }
}
