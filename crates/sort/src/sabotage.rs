//! What a canary does to the engine: one mechanism, broken on purpose.
//!
//! Model: built with the feature `sabotage`, a process reads once from its environment which mechanism is
//! broken in it. Built without, nothing is ever broken and no code is left of the question.
//! Invariant: nothing here is compiled into a build that users get; what notices a sabotage is the engine's own proof,
//! but for what another process proved, which a test notices.

/// A mechanism that can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "sabotage"), allow(dead_code))] // Named where they would act.
pub(crate) enum Kind {
    /// A record is gathered in place of its neighbour.
    DoubleRecord,
    /// A bit of a page flips between its hash and the disk.
    FlipPage,
    /// What an earlier run left is not found.
    IgnoreManifest,
    /// Bytes of the output are proved before they are there.
    EarlyProof,
    /// A record is counted and goes to no range.
    DropRecord,
    /// Two records of a bucket change places.
    SwapOrder,
    /// The tags of a shuffle are of places among pages.
    TagOfPlace,
    /// A partial output is gone on from whatever is in it.
    TrustPartial,
}

/// Whether this mechanism is broken.
#[cfg(feature = "sabotage")]
pub(crate) fn breaks(kind: Kind) -> bool {
    static BROKEN: std::sync::OnceLock<Option<Kind>> = std::sync::OnceLock::new();
    let named = || {
        let name = std::env::var("THALWEG_SABOTAGE").ok()?;
        Some(match name.as_str() {
            "double-record" => Kind::DoubleRecord,
            "flip-page" => Kind::FlipPage,
            "ignore-manifest" => Kind::IgnoreManifest,
            "early-proof" => Kind::EarlyProof,
            "drop-record" => Kind::DropRecord,
            "swap-order" => Kind::SwapOrder,
            "tag-of-place" => Kind::TagOfPlace,
            "trust-partial" => Kind::TrustPartial,
            // Another crate's; whoever breaks nothing fails the canary that asked for it.
            _ => return None,
        })
    };
    *BROKEN.get_or_init(named) == Some(kind)
}

/// Whether this mechanism is broken: it never is.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) const fn breaks(_: Kind) -> bool {
    false
}

/// Whether this mechanism breaks now: it does once, the first time that it is asked.
#[inline(always)]
pub(crate) fn strikes(kind: Kind) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering};
    static SPENT: AtomicBool = AtomicBool::new(false);
    breaks(kind) && !SPENT.swap(true, Ordering::Relaxed)
}
