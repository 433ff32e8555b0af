//! Tables of a program, compared with an ordered map, and read while other threads write.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg::Table;
use thalweg::table::{Condition, Error, Record, Records};
use thalweg_base::rng::Rng;

fn key(number: u64) -> Vec<u8> {
    format!("key:{number:05}").into_bytes()
}

fn all(records: Records<'_>) -> Vec<Record> {
    records.collect::<Result<_, _>>().unwrap()
}

#[test]
fn a_table_is_an_ordered_map() {
    let table = Table::in_memory(64 << 20).unwrap();
    let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
    let mut rng = Rng::new(22);
    for _ in 0..20_000 {
        let key = key(rng.below(3000));
        let value = vec![b'a' + rng.below(4) as u8; rng.below(30) as usize];
        let before = model.get(&key).cloned();
        let (done, after) = match rng.below(6) {
            0 => (table.insert(&key, &value).unwrap(), before.is_none().then_some(Some(value))),
            1 => (table.update(&key, &value).unwrap(), before.is_some().then_some(Some(value))),
            2 => (table.delete(&key).unwrap(), before.is_some().then_some(None)),
            3 => {
                // Half of these expect what is there.
                let expected = if rng.one_in(2) { before.as_deref() } else { Some(&b"a"[..]) };
                let done = table.compare_and_set(&key, expected, Some(&value)).unwrap();
                (done, (before.as_deref() == expected).then_some(Some(value)))
            }
            _ => {
                table.upsert(&key, &value).unwrap();
                (true, Some(Some(value)))
            }
        };
        assert_eq!(done, after.is_some());
        match after {
            Some(Some(value)) => drop(model.insert(key.clone(), value)),
            Some(None) => drop(model.remove(&key)),
            None => {}
        }
        assert_eq!(table.get(&key).unwrap().as_ref(), model.get(&key));
    }
    let condition = Condition::parse(b"1:1=b").unwrap();
    for _ in 0..300 {
        let (a, b) = (rng.below(3000), rng.below(3000));
        let (low, high) = (key(a.min(b)), key(a.max(b)));
        let ends = match rng.below(3) {
            0 => (Bound::Included(low), Bound::Excluded(high)),
            1 => (Bound::Excluded(low.clone()), Bound::Included([low, vec![0]].concat().max(high))),
            _ => (Bound::Unbounded, Bound::Included(high)),
        };
        let expected: Vec<_> = model.range(ends.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(all(table.range(ends.clone())), expected);
        let descending = all(table.range(ends.clone()).descending());
        assert!(descending.iter().eq(expected.iter().rev()));
        assert_eq!(table.count(ends.clone(), None).unwrap(), expected.len() as u64);
        let few = all(table.range(ends.clone()).limit(5).keys_only());
        assert!(few.into_iter().eq(expected.iter().take(5).map(|(key, _)| (key.clone(), Vec::new()))));
        let found = all(table.find(ends.clone(), condition.clone()));
        assert!(found.iter().eq(expected.iter().filter(|(_, value)| value.get(1) == Some(&b'b'))));
        assert_eq!(table.count(ends, Some(condition.clone())).unwrap(), found.len() as u64);
    }
}

#[test]
fn a_range_returns_what_is_there_throughout_while_others_write() {
    let table = Table::in_memory(64 << 20).unwrap();
    // Even numbers stay; odd ones come and go.
    (0..4000).step_by(2).for_each(|number| assert!(table.insert(key(number), b"stays").unwrap()));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (table, is_over) = (&table, &is_over);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                while !is_over.load(Ordering::Relaxed) {
                    let key = key(2 * rng.below(2000) + 1);
                    if !table.insert(&key, b"new").unwrap() {
                        table.delete(&key).unwrap();
                    }
                }
            });
        }
        for turn in 0..30 {
            let records = table.range(..).keys_only();
            let records = all(if turn % 2 == 0 { records } else { records.descending() });
            let mut keys: Vec<_> = records.into_iter().map(|(key, _)| key).collect();
            if turn % 2 == 1 {
                keys.reverse();
            }
            assert!(keys.is_sorted_by(|a, b| a < b));
            let even = keys.iter().filter(|key| key.last().is_some_and(|digit| digit % 2 == 0)).count();
            assert_eq!(even, 2000);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_full_table_refuses_and_loses_nothing() {
    let table = Table::in_memory(2 << 20).unwrap();
    let mut inserted = 0;
    let why = loop {
        match table.insert(key(inserted), [7; 1000]) {
            Ok(is_new) => assert!(is_new),
            Err(why) => break why,
        }
        inserted += 1;
    };
    assert_eq!(why, Error::MemoryFull(2 << 20));
    assert!(why.to_string().contains("2097152 bytes of memory"), "{why}");
    let (used, limit) = table.memory().unwrap();
    assert!(used <= limit && inserted > 1500, "{used} of {limit}, {inserted} records");
    assert_eq!(table.count(.., None).unwrap(), inserted);
    assert_eq!(table.compare_and_set(key(0), Some(&[7; 1000]), None), Ok(true));
    assert_eq!(table.insert(key(inserted), [7; 1000]), Ok(true), "what is removed makes room");
    assert_eq!(table.insert([0; 2048], b""), Err(Error::LongKey(2048)));
    assert_eq!(table.upsert(b"k", vec![0; 1 << 20]), Err(Error::LongValue(1 << 20)));
    assert_eq!(Table::in_memory(1000).err(), Some(Error::LittleMemory { given: 1000, least: 1 << 20 }));
}
