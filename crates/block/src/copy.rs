//! Copies short byte strings without a function call, which would cost more than copying a record of a few bytes.

/// The length that is copied instead of a shorter one.
const START_BYTES: usize = 16;

/// Copies `from` to `to`, which must be as long.
#[inline(always)]
pub fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    match from.len() {
        17..=32 => ends::<16>(to, from),
        8..=16 => ends::<8>(to, from),
        4..=7 => ends::<4>(to, from),
        0..=3 => to.iter_mut().zip(from).for_each(|(to, from)| *to = *from),
        _ => to.copy_from_slice(from),
    }
}

/// Copies the first `len` bytes of `from` to the start of `to`, and overwrites some bytes after them: copying a
/// constant length avoids a branch that is hard to predict.
#[inline(always)]
pub fn copy_start(to: &mut [u8], from: &[u8], len: usize) {
    match (to.first_chunk_mut::<START_BYTES>(), from.first_chunk()) {
        (Some(to), Some(from)) if len <= START_BYTES => *to = *from,
        _ => copy(&mut to[..len], &from[..len]),
    }
}

/// Copies the first and the last `N` bytes, which overlap or touch.
#[inline(always)]
fn ends<const N: usize>(to: &mut [u8], from: &[u8]) {
    let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) else { return };
    if let Some(to) = to.first_chunk_mut() {
        *to = *first;
    }
    if let Some(to) = to.last_chunk_mut() {
        *to = *last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_copied_into_an_exact_buffer() {
        let from: Vec<u8> = (1..=200).collect();
        for len in 0..=100 {
            for (behind, room) in [(0, 0), (1, 40), (40, 1), (40, 40)] {
                let mut to = vec![0; len + room];
                copy_start(&mut to, &from[..len + behind], len);
                assert_eq!(to[..len], from[..len], "{len} bytes, {behind} and {room} behind");
            }
        }
    }

    #[test]
    fn every_length_is_copied_whole_and_nothing_else() {
        let from: Vec<u8> = (1..=200).collect();
        for len in 0..=from.len() {
            let mut to = vec![0; len + 2];
            copy(&mut to[1..=len], &from[..len]);
            assert_eq!((&to[1..=len], to[0], to[len + 1]), (&from[..len], 0, 0), "{len} bytes");
        }
    }
}
