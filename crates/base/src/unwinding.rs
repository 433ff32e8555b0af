//! Reports a panic of a thread to the threads that wait for it.
//!
//! Model: a guard on the stack of the thread. If the stack is unwound, the guard calls a function.
//! Invariant: without a panic nothing happens.
//! Non-goals: recovery, which is left to the code that started the thread.

/// Calls this function if it is dropped by a panic.
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
    fn only_a_panic_is_reported() {
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
