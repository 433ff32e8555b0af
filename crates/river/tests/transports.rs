//! The ends of a river: slow outlets, ends that disconnect, a split that is put twice; and the same over links with
//! sockets, where a link is cut.
#![allow(clippy::disallowed_methods)] // The cluster that links need has its files.

#[path = "../../wire/tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::City;
use thalweg_block::Block;
use thalweg_pump::{Sink, Source};
use thalweg_record::{Key, Layout};
use thalweg_river::{Builder, Connection, Error, Inlet, Outlet, Partitioner, River, RiverConfig};
use thalweg_wire::{Link, Terms};

const RECORD: usize = 8;
/// Blocks of links.
const LINK: usize = 16 << 10;

fn river() -> Builder {
    let layout = Layout::Fixed(RECORD as u32);
    River::builder().records(layout, Key::new(layout, &[]).unwrap()).batch_bytes(4 * RECORD)
}

/// Selects the lane by the first byte.
fn by_first() -> Partitioner {
    Partitioner::Own(Box::new(|record, _| usize::from(record[0])))
}

fn record(lane: u8, number: u32) -> [u8; RECORD] {
    let mut record = [lane; RECORD];
    record[4..].copy_from_slice(&number.to_be_bytes());
    record
}

fn finish(inlet: &mut Inlet) -> Result<(), Error> {
    Sink::<Block>::finish(inlet)
}

fn all(outlet: &mut Outlet) -> Result<Vec<Vec<u8>>, Error> {
    let mut records = Vec::new();
    while let Some(record) = outlet.get_record()? {
        records.push(record.to_vec());
    }
    Ok(records)
}

#[test]
fn a_blocked_outlet_does_not_delay_other_lanes() {
    let mut river =
        river().outlets(2).lanes(2).partitioner(by_first()).credits(2, 0).queued(3, 10).build().unwrap();
    let (inlet, slow) = (&mut river.inlets[0], 0u8);
    // No credit comes: three batches wait in the queue and one is open, each with four records.
    for number in 0..4 * (3 + 1) {
        inlet.put_record(&record(slow, number)).unwrap();
    }
    let mut outlets = river.outlets.into_iter();
    let (mut waiting, mut quick) = (outlets.next().unwrap(), outlets.next().unwrap());
    std::thread::scope(|scope| {
        let taken = scope.spawn(move || all(&mut quick).unwrap().len());
        for number in 0..100_000 {
            inlet.put_record(&record(1, number)).unwrap();
        }
        let rest = scope.spawn(move || all(&mut waiting).unwrap().len());
        finish(inlet).unwrap();
        assert_eq!((rest.join().unwrap(), taken.join().unwrap()), (16, 100_000));
    });
}

/// The last piece of a long record shares a batch with the records after it, and pieces of several lanes are
/// interleaved.
#[test]
fn records_longer_than_a_batch_also_cross_two_rivers() {
    let long = |lane: u8, n: usize| [&[b'0' + lane][..], &vec![b'a' + (n % 26) as u8; 7 * n]].concat();
    let lines = || {
        let of_lane = Partitioner::Own(Box::new(|line, _| usize::from(line[0] - b'0')));
        River::builder()
            .records(Layout::Lines, Key::new(Layout::Lines, &[]).unwrap())
            .batch_bytes(50)
            .partitioner(of_lane)
    };
    let [first, second] = [3, 3].map(|lanes| lines().lanes(lanes).splits(1).ordered().build().unwrap());
    let put: Vec<Vec<u8>> = (0..60).map(|n| long((n % 3) as u8, n)).collect();
    let [mut first, mut second] = [first, second];
    let (mut inlet, mut between) = (first.inlets.remove(0), first.outlets.remove(0));
    let (mut onwards, mut last) = (second.inlets.remove(0), second.outlets.remove(0));
    let arrived = std::thread::scope(|scope| {
        scope.spawn(|| {
            put.iter().for_each(|line| inlet.put_record(line).unwrap());
            finish(&mut inlet).unwrap();
        });
        scope.spawn(move || {
            while let Some(batch) = Source::next(&mut between).unwrap() {
                onwards.put(batch).unwrap();
            }
            finish(&mut onwards).unwrap();
        });
        all(&mut last).unwrap()
    });
    for lane in 0..3 {
        let of_lane = |lines: &[Vec<u8>]| -> Vec<Vec<u8>> {
            lines.iter().filter(|line| line[0] == b'0' + lane).cloned().collect()
        };
        assert_eq!(of_lane(&arrived), of_lane(&put), "lane {lane}");
    }
    assert_eq!(arrived.len(), put.len());
}

#[test]
fn a_waiting_end_can_be_stopped() {
    let mut river =
        river().outlets(1).lanes(1).partitioner(by_first()).credits(1, 0).queued(1, 1).build().unwrap();
    let (inlet, outlet) = (&mut river.inlets[0], &mut river.outlets[0]);
    let stoppers = [inlet.stopper(), outlet.stopper()];
    std::thread::scope(|scope| {
        // First nobody takes, then nobody puts.
        let putting = scope.spawn(|| (0..).find_map(|n| inlet.put_record(&record(0, n)).err()));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!putting.is_finished());
        stoppers[0].stop();
        assert!(matches!(putting.join().unwrap(), Some(Error::Stopped)));
        let taking = scope.spawn(|| all(outlet).unwrap_err());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!taking.is_finished());
        stoppers[1].stop();
        assert!(matches!(taking.join().unwrap(), Error::Stopped));
    });
}

/// The fast outlet came late: the next batches had been queued for the slow one, and the inlet waited for that.
#[test]
fn the_least_busy_outlet_gets_more_even_if_it_starts_late() {
    for quick in [0, 1] {
        let river =
            river().outlets(2).lanes(2).partitioner(Partitioner::LeastBusy).credits(2, 0).build().unwrap();
        let (mut inlets, mut outlets) = (river.inlets, river.outlets);
        let (mut quick, mut slow) = (outlets.remove(quick), outlets.remove(0));
        let quick = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            all(&mut quick).unwrap().len()
        });
        let (tell, told) = std::sync::mpsc::channel();
        let putting = std::thread::spawn(move || {
            (0..10_000).for_each(|number| inlets[0].put_record(&record(0, number)).unwrap());
            tell.send(()).unwrap();
            finish(&mut inlets[0]).unwrap();
        });
        // Nothing is taken from the slow one until the other has had most of it.
        told.recv_timeout(Duration::from_secs(10)).expect("the inlet waits for the quick one only");
        let (slows, quicks) = (all(&mut slow).unwrap().len(), quick.join().unwrap());
        putting.join().unwrap();
        assert_eq!(slows + quicks, 10_000);
        assert!(slows < 100, "{slows}");
    }
}

#[test]
fn the_other_end_learns_of_a_disconnect() {
    let mut one = river().build().unwrap();
    one.inlets[0].put_record(&record(0, 1)).unwrap();
    one.inlets.clear();
    assert!(all(&mut one.outlets[0]).unwrap_err().to_string().contains("inlet 0 has gone"));
    let mut two = river().lanes(1).build().unwrap();
    two.outlets.clear();
    let error = (0..1000).find_map(|number| two.inlets[0].put_record(&record(0, number)).err());
    assert!(matches!(error, Some(Error::Gone(0))), "{error:?}");
    let mut three = river().partitioner(Partitioner::Own(Box::new(|_, _| 99))).build().unwrap();
    let error = three.inlets[0].put_record(&record(0, 1)).unwrap_err().to_string();
    assert_eq!(error, "the partitioner chose lane 99, and there are 16");
}

/// A split that was put again was dropped silently.
#[test]
fn a_split_that_is_put_twice_is_a_fault() {
    let mut one = river().inlets(2).build().unwrap();
    for inlet in &mut one.inlets {
        inlet.begin(0, 0);
        inlet.put_record(&record(0, 1)).unwrap();
        finish(inlet).unwrap();
    }
    let why = all(&mut one.outlets[0]).unwrap_err().to_string();
    assert!(
        why.contains("inlet 1 sent a part of split 0, which is closed or belongs to another inlet"),
        "{why}"
    );
    let mut two = river().inlets(2).splits(3).build().unwrap();
    for (split, inlet) in two.inlets.iter_mut().enumerate() {
        inlet.begin(split as u64, 0);
        inlet.put_record(&record(0, 1)).unwrap();
        finish(inlet).unwrap();
    }
    let why = all(&mut two.outlets[0]).unwrap_err().to_string();
    assert!(why.contains("split 2 was never whole"), "{why}");
}

/// Reads a link in a thread, as a node does.
fn read(link: Link) {
    std::thread::spawn(move || while let Ok(Some(_)) = link.accept() {});
}

/// Both sides of a stream.
fn stream(near: &Link, far: &Link) -> [Connection; 2] {
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| far.accept().unwrap().expect("a stream"));
        let opened = near.open(b"river").unwrap();
        let (_, out, incoming) = accepted.join().unwrap();
        [Connection::Stream(opened.0, opened.1), Connection::Stream(out, incoming)]
    })
}

#[test]
fn the_same_goes_over_links_with_sockets() {
    let city = City::new();
    let terms = Terms { block_bytes: LINK as u32, ..Terms::default() };
    let (far, near) = city.link(terms);
    // The end messages of all lanes of an outlet take more than one block.
    let config = |name| {
        let builder = river().named(name).inlets(2).outlets(2).lanes(400).batch_bytes(10_000).checked();
        builder.partitioner(Partitioner::Hash).splits(4).ordered().config().unwrap()
    };
    // Each side makes its own configuration from the same description.
    let (here, there) = (config(5), config(5));
    let mut to_outlets: Vec<Vec<_>> = (0..2).map(|_| Vec::new()).collect();
    let mut at_outlets: Vec<Vec<_>> = (0..2).map(|_| Vec::new()).collect();
    for inlet in &mut to_outlets {
        for outlet in &mut at_outlets {
            let [ours, theirs] = stream(&near, &far);
            inlet.push(ours);
            outlet.push(theirs);
        }
    }
    [near, far].into_iter().for_each(read);
    let outlets: Vec<Outlet> =
        at_outlets.into_iter().map(|streams| there.outlet_over(streams).unwrap()).collect();
    let taking: Vec<_> =
        outlets.into_iter().map(|mut outlet| std::thread::spawn(move || all(&mut outlet).unwrap())).collect();
    let putting = to_outlets.into_iter().enumerate().map(|(i, streams)| {
        let here = Arc::clone(&here);
        std::thread::spawn(move || {
            let mut inlet = here.inlet_over(i, streams).unwrap();
            for split in [i as u64, i as u64 + 2] {
                inlet.begin(split, 0);
                (0..50_000).try_for_each(|n| inlet.put_record(&record(split as u8, n))).unwrap();
                inlet.end().unwrap();
            }
            finish(&mut inlet).unwrap();
        })
    });
    putting.collect::<Vec<_>>().into_iter().for_each(|inlet| inlet.join().unwrap());
    let got: Vec<Vec<Vec<u8>>> = taking.into_iter().map(|outlet| outlet.join().unwrap()).collect();
    assert!(got.iter().all(|records| records.len() > 90_000), "both got about half");
    assert!(got.iter().all(|records| records.is_sorted_by_key(|record| record[0])), "in the order of splits");
    let mut all: Vec<Vec<u8>> = got.concat();
    all.sort();
    let expected = (0..4u8).flat_map(|split| (0..50_000).map(move |n| record(split, n).to_vec()));
    assert!(all.into_iter().eq(expected), "each record once");
}

/// The ends of a river on two nodes with a link between them. Each node reaches itself in memory.
fn two_nodes(city: &City, config: impl Fn() -> Arc<RiverConfig>) -> [(Inlet, Outlet); 2] {
    let (far, near) = city.link(Terms { block_bytes: LINK as u32, ..Terms::default() });
    let ([there, at_there], [here, at_here]) = (stream(&near, &far), stream(&far, &near));
    [near, far].into_iter().for_each(read);
    let nodes = [
        (vec![Connection::Here, there], vec![Connection::Here, at_here]),
        (vec![here, Connection::Here], vec![at_there, Connection::Here]),
    ];
    let mut index = 0..;
    let building = nodes.map(|(to, from)| {
        let (config, node) = (config(), index.next().expect("it has no end"));
        std::thread::spawn(move || config.node(node, to, from).unwrap())
    });
    building.map(|node| node.join().unwrap())
}

#[test]
fn a_node_reaches_itself_in_memory() {
    let city = City::new();
    let nodes = two_nodes(&city, || {
        let builder = river().inlets(2).outlets(2).lanes(2).partitioner(by_first()).credits(2, 1);
        builder.splits(4).ordered().proved().config().unwrap()
    });
    let nodes = nodes.into_iter().enumerate().map(|(node, (mut inlet, mut outlet))| {
        let putting = std::thread::spawn(move || {
            for split in [node as u64, node as u64 + 2] {
                inlet.begin(split, 0);
                (0..10_000u32).try_for_each(|n| inlet.put_record(&record(n as u8 % 2, n))).unwrap();
                inlet.end().unwrap();
            }
            finish(&mut inlet).unwrap();
            inlet.proof().records
        });
        (putting, std::thread::spawn(move || all(&mut outlet).unwrap()))
    });
    for (lane, (putting, taking)) in nodes.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(putting.join().unwrap(), 20_000);
        let of_split: Vec<Vec<u8>> =
            (0..5_000).map(|i| record(lane as u8, 2 * i + lane as u32).to_vec()).collect();
        assert!(
            taking.join().unwrap() == [&of_split[..]; 4].concat(),
            "lane {lane}: all of every split, in order"
        );
    }
}

/// An inlet that has finished with one outlet, and waits for credits of another, learns that the first has
/// disconnected. The other must then learn it too, even if it comes after one that no longer listens.
#[test]
fn a_disconnect_is_reported_to_all_unfinished_ends() {
    let city = City::new();
    let [(first, mut outlet_0), (mut second, mut outlet_1)] = two_nodes(&city, || {
        let builder = river().inlets(2).outlets(2).lanes(2).partitioner(by_first()).credits(2, 0);
        builder.batch_bytes(10 * RECORD).splits(2).ordered().proved().config().unwrap()
    });
    let waiting = std::thread::spawn(move || {
        second.begin(0, 0);
        second.put_record(&record(0, 1)).unwrap();
        (0..50).try_for_each(|n| second.put_record(&record(1, n))).unwrap();
        finish(&mut second).unwrap_err().to_string()
    });
    // The record leaves when all of it has arrived, and the end with it.
    assert_eq!(outlet_0.get_record().unwrap(), Some(&record(0, 1)[..]));
    drop(outlet_0);
    let gone = waiting.join().unwrap();
    assert!(gone.contains("outlet 0"), "{gone}");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(all(&mut outlet_1).unwrap_err().to_string()));
    let told = told.recv_timeout(std::time::Duration::from_secs(10)).expect("it waits for nobody");
    assert!(told.contains("inlet 1 has gone"), "{told}");
    drop(first);
}

#[test]
fn a_link_that_is_cut_ends_both_sides_in_one_line() {
    let city = City::new();
    let terms = Terms { block_bytes: LINK as u32, ..Terms::default() };
    let (tap, (far, near)) = city.cuttable_link(terms);
    let config = || river().lanes(4).batch_bytes(10_000).checked().config().unwrap();
    let [ours, theirs] = stream(&near, &far);
    [near, far].into_iter().for_each(read);
    let mut outlet = config().outlet_over(vec![theirs]).unwrap();
    let taking = std::thread::spawn(move || all(&mut outlet).unwrap_err().to_string());
    let mut inlet = config().inlet_over(0, vec![ours]).unwrap();
    (0..10_000).try_for_each(|n| inlet.put_record(&record(0, n))).unwrap();
    tap.cut();
    let error = (0..10_000_000).find_map(|n| inlet.put_record(&record(0, n)).err()).expect("it is cut");
    assert!(matches!(error, Error::Link(0, _) | Error::Gone(0)), "{error}");
    assert!(taking.join().unwrap().contains("inlet 0 has gone"));
}
