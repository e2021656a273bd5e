//! A network of the host's own around the library's cache.

use crate::network::*;
use crate::{folder, text};
use kvcsa::{CacheRows, Model, Pool, Snapshot, SnapshotParams, Status};
use std::thread;

#[test]
fn attention_is_that_of_plain_code() {
    for (max_rows, order) in [
        (0, Order::Rows),
        (1, Order::Heads),
        (7, Order::Heads),
        (16, Order::Rows),
    ] {
        let (pool, model) = cache();
        let mut session = session(&pool, &model);
        assert_eq!(go_on(&mut session, &text(37), max_rows, order), 0);
        assert_eq!(go_on(&mut session, &[301, 302], max_rows, order), 0);
        assert_eq!(session.tokens(37).unwrap(), [301, 302]);
        pool.check().unwrap();
    }
}

#[test]
fn a_known_prefix_is_adopted() {
    let (pool, model) = cache();
    let mut first = session(&pool, &model);
    go_on(&mut first, &text(50), 7, Order::Rows);
    let used = pool.stats().unwrap().used_bytes;
    let mut second = session(&pool, &model);
    let tokens = [&text(48)[..], &[301, 302, 303]].concat();
    assert_eq!(pool.prefixes(&model).matching(&tokens).unwrap(), 48);
    assert_eq!(go_on(&mut second, &tokens, 7, Order::Rows), 48);
    assert_eq!(second.reuse().unwrap().n_adopted, 48);
    assert!(pool.stats().unwrap().used_bytes < used + used / 2);

    // Other weights are another model, whatever the plan says.
    let other = Model::from_plan(&plan(), params().identity(2)).unwrap();
    let mut third = session(&pool, &other);
    assert_eq!(go_on(&mut third, &tokens, 7, Order::Rows), 0);
    let same = Model::from_plan(&plan(), params()).unwrap();
    let mut fourth = session(&pool, &same);
    assert_eq!(go_on(&mut fourth, &tokens, 7, Order::Rows), 48);
}

#[test]
fn forks_and_rewinds_go_on() {
    let (pool, model) = cache();
    let mut origin = session(&pool, &model);
    go_on(&mut origin, &text(40), 0, Order::Rows);
    let mut branch = origin.fork(40).unwrap();
    let mut earlier = origin.fork(21).unwrap();
    go_on(&mut branch, &[301, 302], 0, Order::Rows);
    go_on(&mut earlier, &[303], 0, Order::Rows);
    go_on(&mut origin, &[304, 305], 0, Order::Heads);
    origin.rewind(17).unwrap();
    go_on(&mut origin, &[306; 5], 0, Order::Rows);
    let lengths = [origin.len(), branch.len(), earlier.len()];
    assert_eq!(lengths, [22, 42, 22]);
    assert_eq!(
        branch.tokens(38).unwrap(),
        [&text(40)[38..], &[301, 302]].concat()
    );
    pool.check().unwrap();
}

#[test]
fn saved_sessions_go_on_elsewhere() {
    let (pool, model) = cache();
    let mut saved = session(&pool, &model);
    go_on(&mut saved, &text(37), 0, Order::Rows);
    let snapshot =
        Snapshot::at(folder("cache_only").join("a.kvs")).with(SnapshotParams::new().window(true));
    assert_eq!(snapshot.save(&mut saved).unwrap().n_tokens, 37);

    let (elsewhere, same) = cache();
    let mut loaded = session(&elsewhere, &same);
    snapshot.load(&mut loaded).unwrap();
    for layer in 0..LAYERS as u32 {
        let keys = |s: &kvcsa::Session| s.read_rows(layer, CacheRows::Keys, 0..37).unwrap();
        assert_eq!(keys(&loaded), keys(&saved));
    }
    go_on(&mut loaded, &[301, 302], 0, Order::Rows);
    assert_eq!(loaded.len(), 39);

    let other = Model::from_plan(&plan(), params().identity(2)).unwrap();
    let error = snapshot.load(&mut session(&elsewhere, &other)).unwrap_err();
    assert_eq!(error.status(), Status::Mismatch);
}

#[test]
fn a_dropped_chunk_leaves_no_trace() {
    let (pool, model) = cache();
    let mut session = session(&pool, &model);
    go_on(&mut session, &text(20), 0, Order::Rows);
    session.append(&text(50)[20..]).unwrap();
    for _ in 0..3 {
        let mut chunk = session.begin_chunk(9).unwrap().unwrap();
        assert_eq!((chunk.position(), chunk.n_queued()), (20, 21));
        assert_eq!(chunk.tokens(), &text(50)[20..29]);
        assert_eq!(chunk.entries(1).unwrap(), 20..29);
        assert_eq!(chunk.first_rows(), [0; LAYERS + 1]);
        let rows = compute(&mut chunk, Order::Rows).unwrap();
        assert_near(&rows[8], &reference(&text(29))[28]);
        let written = chunk.read_rows(1, CacheRows::Keys, 20..29).unwrap();
        assert_eq!(written.len(), 9 * KV_HEADS * WIDTH);
        drop(chunk);
        let stats = session.stats().unwrap();
        assert_eq!((session.len(), stats.n_queued), (20, 30));
    }
    assert_eq!(go_on(&mut session, &[301], 0, Order::Rows), 0);
    assert_eq!(session.len(), 51);
    pool.check().unwrap();
}

#[test]
fn a_cancelled_chunk_is_not_committed() {
    let (pool, model) = cache();
    let mut session = session(&pool, &model);
    go_on(&mut session, &text(20), 0, Order::Rows);
    let canceller = session.canceller();
    session.append(&text(10)).unwrap();
    let mut chunk = session.begin_chunk(4).unwrap().unwrap();
    compute(&mut chunk, Order::Rows).unwrap();
    assert!(canceller.cancel());
    assert_eq!(chunk.commit().unwrap_err().status(), Status::Cancelled);
    assert_eq!((session.len(), session.stats().unwrap().n_queued), (20, 0));

    session.append(&text(10)).unwrap();
    assert!(canceller.cancel());
    let error = session.begin_chunk(4).unwrap_err();
    assert_eq!(error.status(), Status::Cancelled);
    assert_eq!(session.stats().unwrap().n_queued, 0);
    go_on(&mut session, &[301, 302], 0, Order::Rows);
}

#[test]
fn sessions_of_one_pool_in_two_threads() {
    let (pool, model) = cache();
    let mut both = [session(&pool, &model), session(&pool, &model)];
    thread::scope(|s| {
        for (n, session) in both.iter_mut().enumerate() {
            s.spawn(move || go_on(session, &text(60)[n * 20..][..40], 5, Order::Rows));
        }
    });
    // A chunk may go to another thread, and be closed there.
    both[0].append(&[301]).unwrap();
    let mut chunk = both[0].begin_chunk(0).unwrap().unwrap();
    thread::scope(|s| {
        s.spawn(move || {
            compute(&mut chunk, Order::Rows).unwrap();
            chunk.commit().unwrap();
        });
    });
    assert_eq!((both[0].len(), both[1].len()), (41, 40));
    pool.check().unwrap();
}

#[test]
fn limits_of_a_plan_hold() {
    let model = Model::from_plan(&plan(), params().max_tokens(30)).unwrap();
    let pool = Pool::new().unwrap();
    let mut session = session(&pool, &model);
    assert_eq!(
        session.append(&text(31)).unwrap_err().status(),
        Status::Limit
    );
    assert_eq!(session.append(&[1000]).unwrap_err().status(), Status::Arg);
    go_on(&mut session, &text(30), 0, Order::Rows);
    assert!(session.begin_chunk(0).unwrap().is_none());
}
