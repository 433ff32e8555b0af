//! Tables on up to a thousand servers, simulated: what a request costs in messages, and how full buckets are.

use thalweg::table::Variant;
use thalweg::table::scale::{Order, Scale, simulate};
use thalweg_api::{BenchMeasure, BenchRow};
use thalweg_base::clock::Stopwatch;

use thalweg_measure::Asked;

pub(super) const NAME: &str = "simulated";
/// Records of a bucket.
const CAPACITY: u64 = 100;
const SERVERS: [usize; 4] = [5, 10, 100, 1000];
const VARIANTS: [(&str, Variant); 4] =
    [("Cu", Variant::Nearest), ("C", Variant::Known), ("N", Variant::All), ("S", Variant::Indexed)];

/// Simulates tables of several sizes.
pub(super) fn measure(asked: &Asked<'_>) -> BenchRow {
    let watch = Stopwatch::start();
    let sizes = if asked.tiny { &SERVERS[..2] } else { &SERVERS[..] };
    let mut notes = Vec::new();
    for servers in sizes {
        for (name, variant) in VARIANTS {
            let Scale { per_insert, load, per_read, astray, per_later_read, index: (levels, pages), .. } =
                simulate(*servers, CAPACITY, Order::Random, variant);
            let index = match variant {
                Variant::Indexed => format!("; {pages} pages of the index on {levels} levels"),
                _ => String::new(),
            };
            notes.push(format!(
                "{servers} servers, RP*{name}: {per_insert:.2} messages an insert, {per_read:.2} a read of a new client, {astray} of them astray, then {per_later_read:.2}; buckets {load:.2} full{index}"
            ));
        }
        let Scale { load, .. } = simulate(*servers, CAPACITY, Order::Ascending, Variant::Nearest);
        notes.push(format!("{servers} servers, ascending keys: buckets {load:.2} full"));
    }
    let seconds = watch.seconds();
    BenchRow {
        name: NAME.into(),
        work: format!(
            "tables with buckets of {CAPACITY} records, on up to {} servers",
            sizes[sizes.len() - 1]
        ),
        ours: BenchMeasure { seconds, all_seconds: vec![seconds], ..BenchMeasure::default() },
        notes,
        ..BenchRow::default()
    }
}
