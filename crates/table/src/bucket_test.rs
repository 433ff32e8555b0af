//! Compares a bucket with an ordered map.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use thalweg_base::rng::Rng;

use super::*;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// All records after a place in order, and all records before it, backwards.
fn from(bucket: &Bucket, slab: &Slab, place: Place) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut ahead, mut back) = (place, place);
    let ahead = std::iter::from_fn(|| bucket.next(slab, &mut ahead).map(|record| record.key.to_vec()));
    let ahead = ahead.collect();
    let back = std::iter::from_fn(|| bucket.previous(slab, &mut back).map(|record| record.key.to_vec()));
    (ahead, back.collect())
}

fn agrees(bucket: &Bucket, slab: &Slab, model: &Model, probes: &[Vec<u8>]) {
    assert_eq!(bucket.len(), model.len());
    let (ahead, back) = from(bucket, slab, bucket.first());
    assert!(ahead.iter().eq(model.keys()) && back.is_empty());
    let (ahead, back) = from(bucket, slab, bucket.last());
    assert!(back.iter().eq(model.keys().rev()) && ahead.is_empty());
    for (key, value) in model {
        assert_eq!(bucket.get(slab, key).map(|record| record.value), Some(&value[..]));
    }
    for low in probes {
        let place = bucket.seek(slab, low, false);
        let (ahead, back) = from(bucket, slab, place);
        assert!(ahead.iter().eq(model.range(low.clone()..).map(|(key, _)| key)), "from {low:?}");
        assert!(back.iter().eq(model.range(..low.clone()).rev().map(|(key, _)| key)), "before {low:?}");
        let high = probes.last().expect("there are probes");
        let expected = if low <= high { model.range(low.clone()..=high.clone()).count() } else { 0 };
        assert_eq!(bucket.count(slab, place, bucket.seek(slab, high, true)), expected, "{low:?} to {high:?}");
        let mut place = bucket.first();
        bucket.skip(&mut place, expected);
        assert_eq!(bucket.count(slab, bucket.first(), place), expected);
    }
}

/// Keys with common prefixes of several lengths; some are prefixes of others, and some contain zeros.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let shared =
        prop_oneof![Just(&b""[..]), Just(&b"key:"[..]), Just(&b"key:0000"[..]), Just(&b"key:0000\0\0"[..])];
    (shared, vec(prop_oneof![Just(0u8), Just(b'0'), Just(b'1'), any::<u8>()], 0..6))
        .prop_map(|(shared, rest)| [shared, &rest].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_bucket_takes_the_records_of_the_next_one(
        keys in vec(key(), 0..1500),
        at in key(),
        removed in 1..5usize,
        was_larger in any::<bool>(),
        more in vec(key(), 0..300),
        probes in vec(key(), 1..8),
    ) {
        let mut slab = Slab::new(64 << 20);
        let mut model = Model::new();
        let mut buckets = [Bucket::new(&mut slab).unwrap(), Bucket::new(&mut slab).unwrap()];
        for (i, key) in keys.iter().enumerate() {
            let bucket = &mut buckets[usize::from(*key >= at)];
            bucket.put(&mut slab, key, b"v", None).unwrap();
            model.insert(key.clone(), b"v".to_vec());
            // So that some nodes have few keys.
            if i.is_multiple_of(removed) {
                bucket.remove(&mut slab, key);
                model.remove(key);
            }
        }
        let [mut bucket, next] = buckets;
        if was_larger {
            // It had these keys too, and removed them from the end, as after a split.
            let mut above: Vec<&Vec<u8>> = keys.iter().filter(|key| **key >= at).collect();
            above.sort();
            above.iter().for_each(|key| _ = bucket.put(&mut slab, key, b"old", None).unwrap());
            above.iter().rev().for_each(|key| _ = bucket.remove(&mut slab, key));
        }
        prop_assert!(bucket.append(&mut slab, next, &at).is_none());
        agrees(&bucket, &slab, &model, &probes);
        for key in more {
            prop_assert_eq!(bucket.put(&mut slab, &key, b"w", None).unwrap(), model.insert(key.clone(), b"w".to_vec()).is_some());
            prop_assert_eq!(bucket.remove(&mut slab, &key), model.remove(&key).is_some());
        }
        agrees(&bucket, &slab, &model, &probes);
        bucket.clear(&mut slab);
        prop_assert_eq!(slab.used(), 0);
    }

    #[test]
    fn a_bucket_is_an_ordered_map(
        steps in vec((key(), vec(any::<u8>(), 0..20), 0..10u8), 1..1200),
        probes in vec(key(), 1..8),
        phases in 1..4u8,
    ) {
        let mut slab = Slab::new(64 << 20);
        let mut bucket = Bucket::new(&mut slab).unwrap();
        let mut model = Model::new();
        for phase in 0..phases {
            // Every other phase mostly removes, so that nodes are merged.
            let removes = if phase % 2 == 0 { 2 } else { 9 };
            for (key, value, dice) in &steps {
                if *dice < removes {
                    prop_assert_eq!(bucket.remove(&mut slab, key), model.remove(key).is_some());
                } else {
                    let was = model.insert(key.clone(), value.clone()).is_some();
                    prop_assert_eq!(bucket.put(&mut slab, key, value, None), Ok(was));
                }
            }
            agrees(&bucket, &slab, &model, &probes);
        }
        bucket.clear(&mut slab);
        prop_assert_eq!(slab.used(), 0);
    }
}

#[test]
fn a_large_bucket_grows_and_shrinks() {
    const RECORDS: u64 = 300_000;
    let mut slab = Slab::new(1 << 30);
    let mut bucket = Bucket::new(&mut slab).unwrap();
    let empty = slab.used();
    let key = |i: u64| format!("key:{:012}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_000_007);
    for i in 0..RECORDS {
        assert_eq!(bucket.put(&mut slab, key(i).as_bytes(), &[b'v'; 8], None), Ok(false), "{i}");
    }
    assert!(bucket.height >= 2, "{}", bucket.height);
    let mut keys: Vec<String> = (0..RECORDS).map(key).collect();
    keys.sort();
    let mut place = bucket.first();
    for key in &keys {
        assert_eq!(bucket.next(&slab, &mut place).map(|record| record.key), Some(key.as_bytes()));
    }
    for i in 0..RECORDS {
        assert!(bucket.remove(&mut slab, key(i).as_bytes()), "{i}");
        assert!(!bucket.remove(&mut slab, key(i).as_bytes()), "{i}");
    }
    assert_eq!((bucket.len(), bucket.height), (0, 0));
    assert_eq!(slab.used(), empty);
}

/// A record of 100 bytes, key and value, takes at most 140 bytes of memory, in random and in ascending order.
#[test]
fn a_record_takes_little_more_than_its_bytes() {
    const RECORDS: usize = 1_000_000;
    for ascending in [false, true] {
        let mut slab = Slab::new(1 << 30);
        let mut bucket = Bucket::new(&mut slab).unwrap();
        let mut rng = Rng::new(22);
        for i in 0..RECORDS {
            let number = if ascending { i as u64 } else { rng.next_u64() };
            let key = &format!("{number:020}")[..];
            bucket.put(&mut slab, key.as_bytes(), &[b'v'; 80], None).unwrap();
        }
        let bytes = slab.used() as f64 / bucket.len() as f64;
        assert!(bytes <= 130.0, "{bytes} bytes a record, ascending: {ascending}");
    }
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let mut slab = Slab::new(200 << 10);
    let mut bucket = Bucket::new(&mut slab).unwrap();
    let mut model = Model::new();
    let mut refused = 0;
    for i in 0..5000u32 {
        let key = i.wrapping_mul(2_654_435_761).to_be_bytes();
        let value = vec![1; (i % 300) as usize];
        match bucket.put(&mut slab, &key, &value, None) {
            Ok(_) => drop(model.insert(key.to_vec(), value)),
            Err(Full) => refused += 1,
        }
    }
    assert!(refused > 1000 && model.len() > 500, "{refused} refused, {} kept", model.len());
    agrees(&bucket, &slab, &model, &[b"".to_vec(), vec![0x80; 4], vec![0xff; 5]]);
}

#[test]
fn a_bucket_without_memory_to_take_the_next_one_leaves_it_as_it_was() {
    let key = |i: u32| i.to_be_bytes().to_vec();
    let mut slab = Slab::new(1 << 20);
    let mut buckets = [Bucket::new(&mut slab).unwrap(), Bucket::new(&mut slab).unwrap()];
    (0..1000).for_each(|i| _ = buckets[(i / 500) as usize].put(&mut slab, &key(i), b"v", None).unwrap());
    let free = slab.limit() - slab.used();
    slab.take(free).unwrap();
    let [mut bucket, next] = buckets;
    let next = bucket.append(&mut slab, next, &key(500)).expect("there is no memory");
    assert_eq!((bucket.len(), next.len(), slab.used()), (500, 500, slab.limit()));
    slab.give(free);
    assert!(bucket.append(&mut slab, next, &key(500)).is_none());
    assert_eq!(
        (bucket.len(), bucket.get(&slab, &key(999)).map(|record| record.value)),
        (1000, Some(&b"v"[..]))
    );
}

/// An inner node that becomes the last one gets separators without the common prefix of its old range.
#[test]
fn buckets_with_several_inner_nodes_are_joined_at_any_key() {
    const RECORDS: u64 = 20_000;
    const OTHERS: u64 = 300;
    let sorted = |i: u64| format!("common{i:06}").into_bytes();
    for (cut, descends) in (3_000..RECORDS).step_by(305).flat_map(|cut| [(cut, false), (cut, true)]) {
        let mut slab = Slab::new(64 << 20);
        let mut bucket = Bucket::new(&mut slab).unwrap();
        (0..RECORDS).for_each(|i| _ = bucket.put(&mut slab, &sorted(i), b"v", None).unwrap());
        let gone = |i| if descends { RECORDS - 1 - (i - cut) } else { i };
        (cut..RECORDS).for_each(|i| assert!(bucket.remove(&mut slab, &sorted(gone(i)))));
        let mut next = Bucket::new(&mut slab).unwrap();
        let other = |i: u64| format!("other{i:06}").into_bytes();
        (0..OTHERS).for_each(|i| _ = next.put(&mut slab, &other(i), b"v", None).unwrap());
        assert!(bucket.append(&mut slab, next, &sorted(cut)).is_none());
        let all = (0..cut).map(sorted).chain((0..OTHERS).map(other));
        all.for_each(|key| {
            assert!(bucket.get(&slab, &key).is_some(), "{}, cut at {cut} {descends}", key.escape_ascii())
        });
    }
}
