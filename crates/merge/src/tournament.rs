//! A tournament tree of losers: finds the first of n players. After one player changes, this takes log2(n)
//! comparisons.
//!
//! ```text
//!            winner
//!         [ loser 1 ]          a node holds the loser of its match; the winner's next
//!     [ loser 2 ] [ loser 3 ]  record plays only against the losers on its path to the root
//!     p0     p1   p2     p3    (Knuth, volume 3, 5.4.1)
//! ```

/// The players by number. The caller compares them.
#[derive(Debug)]
pub(crate) struct Tournament {
    /// The losers at node 1 and up; the leaf of player p is node `players + p`.
    losers: Vec<u32>,
    winner: u32,
}

impl Tournament {
    /// Plays all matches; `first` returns whether one player comes before another.
    pub(crate) fn new(players: usize, first: impl Fn(usize, usize) -> bool) -> Tournament {
        assert!(players > 0, "somebody has to win");
        let mut winners: Vec<u32> = (0..players as u32).chain(0..players as u32).collect();
        let mut losers = vec![0; players];
        for node in (1..players).rev() {
            let (a, b) = (winners[2 * node], winners[2 * node + 1]);
            (winners[node], losers[node]) = if first(b as usize, a as usize) { (b, a) } else { (a, b) };
        }
        Tournament { winner: winners[1], losers }
    }

    /// The first player.
    #[inline(always)]
    pub(crate) fn winner(&self) -> usize {
        self.winner as usize
    }

    /// The winner has changed and plays again.
    #[inline(always)]
    pub(crate) fn replay(&mut self, first: impl Fn(usize, usize) -> bool) {
        let mut winner = self.winner;
        let mut node = (self.losers.len() + winner as usize) / 2;
        while node > 0 {
            let other = self.losers[node];
            if first(other as usize, winner as usize) {
                self.losers[node] = std::mem::replace(&mut winner, other);
            }
            node /= 2;
        }
        self.winner = winner;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn players_win_in_order_and_ties_go_to_the_lower_number(
            mut queues in prop::collection::vec(prop::collection::vec(0u8..9, 0..12), 1..20),
        ) {
            queues.iter_mut().for_each(|queue| queue.sort_unstable());
            let mut expected: Vec<(u8, usize)> =
                queues.iter().enumerate().flat_map(|(i, queue)| queue.iter().map(move |&v| (v, i))).collect();
            expected.sort_unstable();
            let mut queues: Vec<_> = queues.into_iter().map(|queue| queue.into_iter().peekable()).collect();
            let mut heads: Vec<u16> = queues.iter_mut().map(|q| q.peek().map_or(u16::MAX, |&v| v.into())).collect();
            let mut tournament = Tournament::new(queues.len(), |a, b| (heads[a], a) < (heads[b], b));
            let mut won = Vec::new();
            while heads[tournament.winner()] != u16::MAX {
                let winner = tournament.winner();
                won.push((queues[winner].next().unwrap(), winner));
                heads[winner] = queues[winner].peek().map_or(u16::MAX, |&v| v.into());
                tournament.replay(|a, b| (heads[a], a) < (heads[b], b));
            }
            prop_assert_eq!(won, expected);
        }
    }
}
