//! What a thread that panics still owes to those who wait for it.
//!
//! Model: a guard on the stack of a thread that works with others. If it is unwound, it says so to them.
//! Invariant: without a panic nothing is done.
//! Non-goals: going on after a panic, which is for whoever gave the thread its work.

/// Does this if it is dropped by a panic.
pub struct OnPanic<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_is_told_and_an_end_is_not() {
        let told = Cell::new(0);
        let tell = || told.set(told.get() + 1);
        drop(OnPanic(tell));
        assert_eq!(told.get(), 0);
        let panics = || {
            let _guard = OnPanic(tell);
            panic!("on purpose");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(told.get(), 1);
    }
}
