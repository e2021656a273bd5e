//! Progress functions that are told two numbers.

use crate::hooks::PanicSlot;
use crate::raw::lock;
use std::ops::ControlFlow;
use std::os::raw::c_void;
use std::sync::Mutex;

/// `f(done, all)`; `Break` cancels.
pub(crate) type CountFn<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + Send + 'a;

/// Such a function during a call.
pub(crate) struct Counting<'a> {
    f: Mutex<Box<CountFn<'a>>>,
    panic: PanicSlot,
}

impl<'a> Counting<'a> {
    pub(crate) fn new(f: Box<CountFn<'a>>) -> Self {
        Counting {
            f: Mutex::new(f),
            panic: PanicSlot::default(),
        }
    }

    /// For the callback of the C interface, during the call.
    pub(crate) fn user(&self) -> *mut c_void {
        self as *const Counting<'_> as *mut c_void
    }

    pub(crate) fn resume(&self) {
        self.panic.resume();
    }
}

pub(crate) unsafe extern "C" fn on_count(user: *mut c_void, n_done: u64, n: u64) -> i32 {
    // SAFETY: the call gives back what `Counting::user` gave it, and does not outlive it.
    let counting = unsafe { &*(user as *const Counting<'_>) };
    if counting.panic.is_set() {
        return 1;
    }
    let f = || lock(&counting.f)(n_done, n);
    let answer = counting.panic.guard(ControlFlow::Break(()), f);
    i32::from(answer == ControlFlow::Break(()))
}
