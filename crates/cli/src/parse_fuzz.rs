//! For any input the parser returns arguments or one line; it never panics and never loops.
//! Seeded mutations of the corpus `fuzz/corpus/flags` (a file holds one argument per line), for use without a fuzzer.

use std::path::Path;

use thalweg_base::rng::Rng;

use crate::fuzz::flags;

const ROUNDS: u64 = 20_000;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/flags");
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    // These tests read only their own corpus, which holds no records.
    #[allow(clippy::disallowed_methods)]
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn mutations_of_the_corpus_are_answered() {
    let corpus = corpus();
    for seed in 0..ROUNDS {
        let mut rng = Rng::new(seed);
        let mut pick = |below: usize| rng.below(below.max(1) as u64) as usize;
        let mut typed = corpus[pick(corpus.len())].clone();
        for _ in 0..=pick(4) {
            let at = pick(typed.len());
            match pick(5) {
                0 if !typed.is_empty() => typed[at] = pick(256) as u8,
                1 => typed.insert(at, b"\n-=:,%\0k9"[pick(9)]),
                2 => typed.truncate(at),
                3 => {
                    let other = &corpus[pick(corpus.len())];
                    typed.extend_from_slice(&other[pick(other.len())..]);
                }
                _ if !typed.is_empty() => drop(typed.remove(at)),
                _ => {}
            }
        }
        flags(&typed);
    }
}
