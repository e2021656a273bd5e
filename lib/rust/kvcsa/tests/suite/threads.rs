use crate::*;
use kvcsa::{
    Canceller, Chunk, Compare, Prefix, Prefixes, Sampler, Setting, Snapshot, Status, StepParams,
    TextStream,
};
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;

/// Does not compile if the type is `Sync`: then both implementations fit, and the compiler cannot
/// know which is meant.
macro_rules! assert_not_sync {
    ($($t:ty),*) => {
        $(const _: fn() = || {
            trait Either<A> {
                fn which() {}
            }
            impl<T: ?Sized> Either<()> for T {}
            #[allow(dead_code)]
            struct AlsoSync;
            impl<T: ?Sized + Sync> Either<AlsoSync> for T {}
            <$t as Either<_>>::which();
        };)*
    };
}
assert_not_sync!(Session, Chunk<'static>, TextStream, Compare);

#[test]
fn types_are_for_the_threads_that_the_header_names() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    shared::<Model>();
    shared::<Pool>();
    shared::<Prefixes>();
    shared::<Prefix>();
    shared::<Canceller>();
    shared::<Sampler>();
    shared::<Setting>();
    shared::<Snapshot>();
    shared::<kvcsa::Error>();
    shared::<kvcsa::Rows<'static>>();
    shared::<kvcsa::RowsMut<'static>>();
    shared::<kvcsa::ChunkRows<'static>>();
    shared::<kvcsa::ChunkQueries<'static>>();
    shared::<kvcsa::ChunkAttention<'static>>();
    sent::<Session>();
    sent::<Chunk<'static>>();
    sent::<TextStream>();
    sent::<Compare>();
    sent::<ModelParams>();
    sent::<PoolParams>();
    sent::<kvcsa::PlanParams>();
    sent::<kvcsa::AppendParams>();
    sent::<kvcsa::SessionParams>();
}

#[test]
fn threads_with_sessions_of_one_pool_equal_one_thread() {
    let (pool, model) = open();
    let run = |pool: &Pool, n: i32| {
        let mut session = Session::new(pool, &model).unwrap();
        session
            .compute(&[text(140), vec![300 + n; 5]].concat())
            .unwrap();
        let tokens = session.generate(&Sampler::greedy()).take(4);
        (
            tokens.collect::<kvcsa::Result<Vec<_>>>().unwrap(),
            session.logits().unwrap(),
        )
    };
    let together: Vec<_> = thread::scope(|s| {
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let (pool, run) = (&pool, &run);
                s.spawn(move || run(pool, n))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (n, result) in together.iter().enumerate() {
        let (alone, _) = open();
        assert_eq!(*result, run(&alone, n as i32));
    }
    pool.check().unwrap();
}

#[test]
fn a_session_moves_between_threads() {
    let (pool, model) = open();
    let mut session = computed(&pool, &model, &text(20));
    let session = thread::spawn(move || {
        session.compute(&[301]).unwrap();
        session
    })
    .join()
    .unwrap();
    assert_eq!(session.len(), 21);
}

#[test]
fn several_sessions_in_one_step() {
    let (pool, model) = open();
    let mut a = Session::new(&pool, &model).unwrap();
    let mut b = Session::new(&pool, &model).unwrap();
    a.append(&text(30)).unwrap();
    b.append(&text(50)[20..]).unwrap();
    let mut seen = [0; 2];
    let params = StepParams::new().progress(|now| {
        seen[now.session] += 1;
        ControlFlow::Continue(())
    });
    let results = pool.step_with(&mut [&mut a, &mut b], params).unwrap();
    assert!(results
        .iter()
        .all(|r| r.result.is_ok() && r.n_computed == 30));
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    assert_eq!(
        a.logits().unwrap(),
        computed(&pool, &model, &text(30)).logits().unwrap()
    );
}

#[test]
fn another_thread_cancels() {
    let (pool, model) = open();
    let mut session = computed(&pool, &model, &text(20));
    let logits = session.logits().unwrap();
    session.append(&text(2000)).unwrap();
    let canceller = session.canceller();
    let (begun, wait) = mpsc::channel();
    let result = thread::scope(|s| {
        s.spawn(move || {
            wait.recv().unwrap();
            assert!(canceller.cancel());
        });
        // The step waits here for the other thread, so that the cancel comes while it runs.
        let other = session.canceller();
        let mut calls = 0;
        session.step_with(StepParams::new().progress(move |_| {
            calls += 1;
            if calls == 1 {
                begun.send(()).unwrap();
            }
            assert!(calls < 100_000 && format!("{other:?}").contains("true"));
            thread::yield_now();
            ControlFlow::Continue(())
        }))
    })
    .unwrap();
    assert_eq!(result.result.unwrap_err().status(), Status::Cancelled);
    assert_eq!((session.len(), session.stats().unwrap().n_queued), (20, 0));
    assert_eq!(session.logits().unwrap(), logits);
}

#[test]
fn a_progress_function_cancels() {
    let (pool, model) = open();
    let mut session = Session::new(&pool, &model).unwrap();
    session.append(&text(100)).unwrap();
    let params = StepParams::new().progress(|_| ControlFlow::Break(()));
    let result = session.step_with(params).unwrap();
    assert_eq!(result.result.unwrap_err().status(), Status::Cancelled);
    assert!(session.is_empty());
}
