use crate::*;
use kvcsa::{AppendParams, Level, StepParams, TraceKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// What a call throws.
fn thrown<T: std::fmt::Debug>(f: impl FnOnce() -> T) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("it did not panic");
    payload
        .downcast_ref::<&str>()
        .map_or("?".to_string(), |s| s.to_string())
}

#[test]
fn a_panic_in_progress_cancels_and_goes_on() {
    let (pool, model) = open();
    let mut session = computed(&pool, &model, &text(20));
    let logits = session.logits().unwrap();
    session.append(&text(60)).unwrap();
    let mut calls = 0;
    let said = thrown(|| {
        session.step_with(StepParams::new().progress(|_| {
            calls += 1;
            panic!("in progress")
        }))
    });
    assert_eq!((said.as_str(), calls), ("in progress", 1));
    assert_eq!((session.len(), session.stats().unwrap().n_queued), (20, 0));
    assert_eq!(session.logits().unwrap(), logits);
    session.compute(&text(60)).unwrap();
    pool.check().unwrap();
}

#[test]
fn a_panic_in_logits_cancels_and_goes_on() {
    let (pool, model) = open();
    let mut session = Session::new(&pool, &model).unwrap();
    session.compute(&text(5)).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    // Many chunks, so that most of them are never begun.
    let params = AppendParams::new().all_logits(move |_, _| {
        seen.fetch_add(1, Ordering::Relaxed);
        panic!("in logits")
    });
    session.append_with(&text(1000), params).unwrap();
    assert_eq!(thrown(|| session.step()), "in logits");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!((session.len(), session.stats().unwrap().n_queued), (5, 0));
    assert_eq!(Arc::strong_count(&calls), 1);
    session.compute(&text(10)).unwrap();
}

#[test]
fn events_are_traced_and_a_panic_goes_on() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let (seen, fail) = (Arc::clone(&events), Arc::new(AtomicBool::new(false)));
    let now = Arc::clone(&fail);
    let params = PoolParams::new().trace(move |event| {
        seen.lock().unwrap().push(event.clone());
        assert!(!now.load(Ordering::Relaxed), "in trace");
    });
    let (pool, model) = open_with(params, ModelParams::new());
    let mut session = computed(&pool, &model, &text(150));
    let kinds: Vec<TraceKind> = events.lock().unwrap().iter().map(|e| e.kind).collect();
    assert!(
        kinds.contains(&TraceKind::Miss) && kinds.contains(&TraceKind::Publish),
        "{kinds:?}"
    );
    fail.store(true, Ordering::Relaxed);
    assert_eq!(thrown(|| session.compute(&text(150))), "in trace");
    fail.store(false, Ordering::Relaxed);
    session.compute(&text(10)).unwrap();
    pool.check().unwrap();
}

#[test]
fn messages_are_logged_and_a_panic_goes_on() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&lines);
    let log = move |level: Level, text: &str| {
        seen.lock().unwrap().push((level, text.to_string()));
    };
    let model = Model::open_with(tiny(), ModelParams::new().log(log)).unwrap();
    let (level, said) = lines.lock().unwrap()[0].clone();
    assert!(
        level == Level::Info && said.contains("tensors in use"),
        "{level:?} {said}"
    );
    drop(model);
    assert_eq!(
        Arc::strong_count(&lines),
        1,
        "the function went with the model"
    );
    let params = ModelParams::new().log(|_, _| panic!("in log"));
    assert_eq!(thrown(|| Model::open_with(tiny(), params)), "in log");
}

#[test]
fn functions_of_a_model_live_as_long_as_its_pool() {
    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let log = move |_: Level, _: &str| drop(Arc::clone(&held));
    let (pool, model) = open_with(PoolParams::new(), ModelParams::new().log(log));
    drop(computed(&pool, &model, &text(5)));
    drop(model);
    assert_eq!(Arc::strong_count(&alive), 2);
    drop(pool);
    assert_eq!(Arc::strong_count(&alive), 1);
}

/// Runs task 0 twice, and leaves out the last.
fn careless(n: u32, task: &(dyn Fn(u32) + Sync)) {
    thread::scope(|s| {
        s.spawn(|| task(0));
        (0..n.saturating_sub(1)).for_each(task);
        task(n);
    });
}

#[test]
fn an_executor_computes_the_same_bits() {
    let (pool, model) = open();
    let want = computed(&pool, &model, &text(100)).logits().unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&runs);
    let params = PoolParams::new().executor(4, move |n, task| {
        seen.fetch_add(1, Ordering::Relaxed);
        careless(n, task);
    });
    let (pool, _) = open_with(params, ModelParams::new());
    assert_eq!(computed(&pool, &model, &text(100)).logits().unwrap(), want);
    assert!(runs.load(Ordering::Relaxed) > 0);

    let fail = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&fail);
    let params = PoolParams::new().executor(4, move |n, task| {
        assert!(!now.load(Ordering::Relaxed), "in executor");
        careless(n, task);
    });
    let (pool, _) = open_with(params, ModelParams::new());
    let mut session = computed(&pool, &model, &text(20));
    fail.store(true, Ordering::Relaxed);
    session.append(&text(80)).unwrap();
    assert_eq!(thrown(|| session.step()), "in executor");
    fail.store(false, Ordering::Relaxed);
    session.sync(&text(100)).unwrap();
    session.step().unwrap();
    assert_eq!(session.logits().unwrap(), want);
}

#[derive(Clone, Default)]
struct Counted {
    bytes: Arc<AtomicIsize>,
    calls: Arc<AtomicUsize>,
    mode: Arc<AtomicUsize>, // 0 = works, 1 = there is none, 2 = panics, 3 = panics when it frees
}

// SAFETY: the system's allocator, counted.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.mode.load(Ordering::Relaxed) {
            0 | 3 => {}
            1 => return std::ptr::null_mut(),
            _ => panic!("in alloc"),
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes
            .fetch_add(layout.size() as isize, Ordering::Relaxed);
        System.alloc(layout)
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        self.bytes
            .fetch_sub(layout.size() as isize, Ordering::Relaxed);
        System.dealloc(ptr, layout);
        assert!(self.mode.load(Ordering::Relaxed) != 3, "in dealloc");
    }
}

#[test]
fn an_allocator_gets_everything_back() {
    let counted = Counted::default();
    let (pool, model) = open_with(
        PoolParams::new().allocator(counted.clone()),
        ModelParams::new().allocator(counted.clone()),
    );
    let mut session = computed(&pool, &model, &text(150));
    assert!(counted.bytes.load(Ordering::Relaxed) > 0);
    counted.mode.store(1, Ordering::Relaxed);
    let error = session
        .append(&text(4000))
        .and_then(|_| session.step())
        .unwrap_err();
    assert_eq!(error.status(), kvcsa::Status::NoMemory);
    counted.mode.store(2, Ordering::Relaxed);
    let mut other = None;
    assert_eq!(
        thrown(|| other = Some(Session::new(&pool, &model))),
        "in alloc"
    );
    assert!(other.is_none());
    counted.mode.store(0, Ordering::Relaxed);
    let fork = Session::new(&pool, &model).unwrap();
    drop(pool);
    drop(model);
    drop((session, fork));
    assert!(counted.calls.load(Ordering::Relaxed) > 10);
    assert_eq!(counted.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn drop_never_panics() {
    let counted = Counted::default();
    let (pool, model) = open_with(
        PoolParams::new().allocator(counted.clone()),
        ModelParams::new(),
    );
    let session = computed(&pool, &model, &text(150));
    counted.mode.store(3, Ordering::Relaxed);
    drop((session, pool));
    assert_eq!(counted.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn drop_during_a_panic_does_not_abort() {
    let said = thrown(|| {
        let params = PoolParams::new().trace(|_| panic!("in trace"));
        let (pool, model) = open_with(params, ModelParams::new());
        let mut session = Session::new(&pool, &model).unwrap();
        session.append(&text(3)).ok();
    });
    assert_eq!(said, "in trace");
}
