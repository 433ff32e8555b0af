//! One lane's stretch of an output: records go in, proved blocks go to the sink.
//!
//! ```text
//! output  [ block 0 ][ block 1 | block 1 ][ block 2 ][ bl.
//! lane 0  [ own     ][ tail    ]
//! lane 1                       [ head    ][ own     ][ tail
//! ```
//!
//! Model: lanes write in parallel, each from the start of its stretch, in blocks of the whole output. A block that
//! contains the end of one stretch and the start of the next is assembled when all lanes are done ([`close`]).
//! Invariant: the proof is computed from the blocks that are passed on.

use thalweg_block::{Block, Pool, copy};
use thalweg_pump::Sink;
use thalweg_record::Prover;

/// Written bytes are added to the proof in steps of about this size, while they are in the cache.
const PROVE_STEP_BYTES: usize = 32 << 10;

/// A stretch that is being written.
pub struct Stretch<'a, K> {
    sink: K,
    pool: &'a Pool,
    prover: Prover,
    /// The offset of the next byte in the output.
    at: u64,
    /// The part of the stretch in the block in which the previous stretch ends, and how many more bytes belong to it.
    head: Vec<u8>,
    head_left: usize,
    block: Option<Block>,
    /// Bytes of the block that are already in the proof.
    proved: usize,
}

/// The parts of a stretch in blocks that it shares with its neighbours.
#[derive(Debug)]
pub struct Ends {
    head: Vec<u8>,
    tail: Option<Block>,
    prover: Prover,
    end: u64,
}

impl<'a, K: Sink<Error = thalweg_io::Error>> Stretch<'a, K> {
    /// A stretch that begins at byte `from`. `pool` must have two blocks more than the sink holds.
    pub fn new(sink: K, pool: &'a Pool, prover: Prover, from: u64) -> Stretch<'a, K> {
        let block_bytes = pool.block_size() as u64;
        let head_left = (from.next_multiple_of(block_bytes) - from) as usize;
        Stretch { sink, pool, prover, at: from, head: Vec::new(), head_left, block: None, proved: 0 }
    }

    /// Appends bytes.
    #[inline(always)]
    pub fn push(&mut self, bytes: &[u8]) -> thalweg_io::Result<()> {
        if let Some(block) = &mut self.block {
            let at = block.len();
            if at + bytes.len() < block.capacity() {
                block.set_len(at + bytes.len());
                copy(&mut block[at..], bytes);
                if at - self.proved >= PROVE_STEP_BYTES {
                    self.prove();
                }
                return Ok(());
            }
        }
        self.push_across(bytes)
    }

    #[inline(never)]
    fn push_across(&mut self, mut bytes: &[u8]) -> thalweg_io::Result<()> {
        let head = bytes.len().min(self.head_left);
        self.head.extend_from_slice(&bytes[..head]);
        self.head_left -= head;
        self.at += head as u64;
        bytes = &bytes[head..];
        while !bytes.is_empty() {
            let block = self.block.get_or_insert_with(|| {
                let mut block = self.pool.try_take().expect("the pool has room for the output");
                block.set_offset(self.at);
                block
            });
            let at = block.len();
            let now = bytes.len().min(block.capacity() - at);
            block.set_len(at + now);
            block[at..].copy_from_slice(&bytes[..now]);
            bytes = &bytes[now..];
            if block.len() == block.capacity() {
                self.prove();
                let block = self.block.take().expect("it is full");
                self.at += block.len() as u64;
                self.proved = 0;
                self.sink.put(block)?;
            }
        }
        Ok(())
    }

    /// Adds the new bytes of the block to the proof; the head comes first.
    fn prove(&mut self) {
        if self.proved == 0 && self.prover.proof().records == 0 && self.prover.unfinished() == 0 {
            self.prover.push(&self.head);
        }
        if let Some(block) = &self.block {
            self.prover.push(&block[self.proved..]);
            self.proved = block.len();
        }
    }

    /// Ends the stretch after everything passed on was written. Nothing follows the last stretch.
    pub fn finish(mut self, is_last: bool) -> thalweg_io::Result<Ends> {
        self.prove();
        let end = self.at + self.block.as_ref().map_or(0, |block| block.len() as u64);
        if is_last && let Some(block) = self.block.take() {
            self.sink.put(block)?;
        }
        self.sink.finish()?;
        Ok(Ends { head: self.head, tail: self.block, prover: self.prover, end })
    }
}

/// Assembles the blocks that stretches share, and passes them to `put`. Returns the proof of the whole output, and
/// its length.
pub fn close(
    ends: Vec<Ends>,
    mut put: impl FnMut(Block) -> thalweg_io::Result<()>,
) -> thalweg_io::Result<(Prover, u64)> {
    let mut whole: Option<Prover> = None;
    let mut open: Option<Block> = None;
    let mut bytes = 0;
    for Ends { head, tail, prover, end } in ends {
        if let Some(block) = open.as_mut().filter(|_| !head.is_empty()) {
            let at = block.len();
            block.set_len(at + head.len());
            block[at..].copy_from_slice(&head);
            if block.len() == block.capacity() {
                put(open.take().expect("it is full"))?;
            }
        }
        assert!(tail.is_none() || open.is_none(), "a stretch goes on where the one before ended");
        open = open.or(tail);
        match &mut whole {
            None => whole = Some(prover),
            Some(whole) => whole.join(&prover),
        }
        bytes = end;
    }
    if let Some(block) = open {
        put(block)?;
    }
    Ok((whole.expect("an output has at least one stretch"), bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thalweg_api::Proof;
    use thalweg_record::{Key, Layout};

    use super::*;

    /// Stores blocks at their offsets.
    struct Kept<'a>(&'a std::cell::RefCell<Vec<u8>>);

    impl Sink for Kept<'_> {
        type Error = thalweg_io::Error;

        fn put(&mut self, block: Block) -> thalweg_io::Result<()> {
            let at = block.offset() as usize;
            assert!(at.is_multiple_of(4096), "blocks begin where blocks begin");
            self.0.borrow_mut()[at..at + block.len()].copy_from_slice(&block);
            Ok(())
        }

        fn finish(&mut self) -> thalweg_io::Result<()> {
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn stretches_make_one_output_wherever_they_meet(
            lanes in prop::collection::vec(prop::collection::vec(0usize..2000, 0..12), 1..5),
        ) {
            let pool = Pool::new(4096, 12).unwrap();
            let mut byte = 0u8;
            let mut line = |len: usize| { byte = byte % 200 + 20; [vec![byte; len], vec![b'\n']].concat() };
            let lanes: Vec<Vec<Vec<u8>>> =
                lanes.into_iter().map(|lane| lane.into_iter().map(&mut line).collect()).collect();
            let expected = lanes.concat().concat();
            let kept = std::cell::RefCell::new(vec![0; expected.len()]);
            let prover = Prover::new(Layout::Lines, Key::new(Layout::Lines, &[]).unwrap(), true);
            let mut from = 0;
            let mut ends = Vec::new();
            for (i, lane) in lanes.iter().enumerate() {
                let mut stretch = Stretch::new(Kept(&kept), &pool, prover.clone(), from);
                for line in lane {
                    stretch.push(&line[..line.len() - 1]).unwrap();
                    stretch.push(b"\n").unwrap();
                    from += line.len() as u64;
                }
                ends.push(stretch.finish(i + 1 == lanes.len()).unwrap());
            }
            let (proved, bytes) = close(ends, |block| Kept(&kept).put(block)).unwrap();
            let mut whole = prover.clone();
            whole.push(&expected);
            prop_assert_eq!(proved.proof(), whole.proof() as &Proof);
            prop_assert_eq!(bytes, expected.len() as u64);
            prop_assert!(kept.into_inner() == expected);
            prop_assert_eq!(pool.free(), 12);
        }
    }
}
