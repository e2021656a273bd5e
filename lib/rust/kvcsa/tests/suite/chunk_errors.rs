//! Plans, chunks and rows that are not right.

use crate::network::*;
use crate::{open, text};
use kvcsa::{
    CacheRows, ChunkAttention, ChunkQueries, ChunkRows, Format, Model, ModelParams, PlanParams,
    PlanRow, Pool, Rows, RowsMut, Session, SessionParams, Status,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::Arc;

fn refused<T: std::fmt::Debug>(result: kvcsa::Result<T>, text: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.status(), Status::Arg, "{error}");
    assert!(error.text().contains(text), "{error}");
}

#[test]
fn a_plan_makes_a_model() {
    let model = Model::from_plan(&plan(), params().max_tokens(5000)).unwrap();
    let info = model.info();
    assert_eq!(
        (info.architecture.as_str(), info.n_layers),
        ("two layers", 2)
    );
    let sizes = (
        info.max_context_tokens,
        info.block_tokens,
        info.vocab_tokens,
    );
    assert_eq!(sizes, (5000, 16, 1000));
    // What follows from other fields is filled in: keys and values of two heads in four bytes.
    let rows = model.plan().unwrap();
    assert_eq!(rows[1].entry_bytes, 2 * 2 * 32 * 4);
    assert_eq!(
        Model::from_plan(&rows, params()).unwrap().plan().unwrap(),
        rows
    );
    assert_eq!(model.cost(1600).unwrap().resident_bytes, 1600 * 2 * 512);
    let estimate = model.estimate(&cache_only(), 1600, 2, 800).unwrap();
    assert_eq!(estimate.n_blocks, 150);
    let plain = Model::from_plan(&plan(), PlanParams::new()).unwrap();
    assert_eq!(plain.info().architecture, "plan");
}

#[test]
fn a_wrong_plan_is_told() {
    let mut rows = plan();
    rows[1].kv_owner = Some(5);
    let error = Model::from_plan(&rows, params()).unwrap_err();
    assert_eq!(error.status(), Status::Format);
    assert!(error.text().contains("layer 1: kv_owner is 5"), "{error}");
    let error = Model::from_plan(&[], params()).unwrap_err();
    assert_eq!(error.status(), Status::Arg);
    refused(Model::from_plan(&plan(), params().name("a\0b")), "NUL");
    refused(
        Model::from_plan(&plan(), params().block_tokens(3)),
        "block_tokens",
    );
    let unknown = [PlanRow::attention(0, 1, 32, Format::Other(99))];
    let error = Model::from_plan(&unknown, params()).unwrap_err();
    assert_eq!(error.status(), Status::Format);
}

#[test]
fn memory_of_a_plan_is_the_hosts() {
    struct Counting(Arc<AtomicIsize>);
    // SAFETY: the system's allocator, called as it is, and a counter.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            self.0.fetch_add(layout.size() as isize, Ordering::Relaxed);
            System.alloc(layout)
        }
        unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
            self.0.fetch_sub(layout.size() as isize, Ordering::Relaxed);
            System.dealloc(place, layout);
        }
    }
    let held = Arc::new(AtomicIsize::new(0));
    let params = params().allocator(Counting(Arc::clone(&held)));
    let model = Model::from_plan(&plan(), params).unwrap();
    assert!(held.load(Ordering::Relaxed) > 0);
    drop(model);
    assert_eq!(held.load(Ordering::Relaxed), 0);
}

#[test]
fn sessions_are_for_one_of_both() {
    let (pool, model) = cache();
    assert!(Session::new(&pool, &model).is_err());
    let mut session = session(&pool, &model);
    session.append(&text(3)).unwrap();
    assert!(session.step().is_err());
    assert!(session.logits().is_err());
    go_on(&mut session, &[301], 0, Order::Rows);

    let (pool, whole) = open();
    assert!(Session::with_params(&pool, &whole, &cache_only()).is_err());
    let mut computes = Session::new(&pool, &whole).unwrap();
    computes.append(&text(3)).unwrap();
    assert_eq!(computes.begin_chunk(0).unwrap_err().status(), Status::Arg);
    computes.step().unwrap();

    // The plan of a checkpoint serves too.
    let params = ModelParams::new().plan_only(true);
    let plan = Model::open_with(crate::tiny(), params).unwrap();
    let mut other = Session::with_params(&pool, &plan, &cache_only()).unwrap();
    other.append(&text(3)).unwrap();
    assert_eq!(other.begin_chunk(0).unwrap().unwrap().tokens(), text(3));
}

#[test]
fn rows_are_measured_before_they_are_read() {
    let (pool, model) = cache();
    let mut session = session(&pool, &model);
    session.append(&text(10)).unwrap();
    let mut chunk = session.begin_chunk(0).unwrap().unwrap();
    let all = vec![1.0; 10 * 2 * 32];
    let short = &all[..all.len() - 1];
    let whole = ChunkRows::new().key(&all).value(&all);
    refused(
        chunk.write(0, &whole.key(short)),
        "key has 639 floats, must have 640",
    );
    refused(chunk.write(0, &whole.value(short)), "value has 639 floats");
    let sparse = Rows::new(&all).row_stride(65);
    refused(
        chunk.write(0, &whole.key(sparse)),
        "must have 649 for [10, 2, 32]",
    );
    for stride in [usize::MAX, usize::MAX / 2, usize::MAX / 9, 1 << 62] {
        let wild = Rows::new(&all);
        refused(
            chunk.write(0, &whole.key(wild.row_stride(stride))),
            "key has",
        );
        refused(
            chunk.write(0, &whole.value(wild.head_stride(stride))),
            "value has",
        );
    }
    refused(chunk.write(9, &whole), "layer");
    refused(chunk.write(0, &ChunkRows::new().key(&all)), "value");
    refused(chunk.write(0, &whole.window(&vec![0.0; 320])), "window");
    chunk.write(0, &whole).unwrap();

    let query = vec![1.0; 10 * 4 * 32];
    let mut out = query.clone();
    let attention = ChunkAttention::new(4, &query);
    let last = out.len() - 1;
    refused(
        chunk.attend(0, &attention, &mut out[..last]),
        "out has 1279 floats",
    );
    let long = ChunkAttention::new(u32::MAX, &query);
    refused(chunk.attend(0, &long, &mut out), "out has");
    let longer = ChunkAttention::new(6, &query);
    refused(
        chunk.attend(0, &longer, &mut vec![0.0; 1920]),
        "query has 1280 floats",
    );
    refused(
        chunk.attend(0, &attention.sink(&[0.0; 3]), &mut out),
        "sink has 3 logits",
    );
    let overlap = RowsMut::new(&mut out).row_stride(32).head_stride(64);
    refused(chunk.attend(0, &attention, overlap), "overlap");
    let three = ChunkAttention::new(3, &query);
    refused(chunk.attend(0, &three, &mut out), "n_heads");
    refused(chunk.attend(1, &attention, &mut out), "");
    chunk.attend(0, &attention, &mut out).unwrap();
    assert!(out.iter().all(|x| (x - 1.0).abs() < 1e-5));

    let queries = ChunkQueries::new(&query, &query);
    refused(chunk.select(0, &queries, None), "");
    // A layer is missing.
    assert_eq!(chunk.commit().unwrap_err().status(), Status::Arg);
    assert_eq!((session.len(), session.stats().unwrap().n_queued), (0, 10));
}

#[test]
fn a_pool_without_a_device_takes_no_pointers_of_one() {
    let (pool, model) = cache();
    let mut session = session(&pool, &model);
    session.append(&text(2)).unwrap();
    let mut chunk = session.begin_chunk(0).unwrap().unwrap();
    let mut all = vec![1.0; 2 * 4 * 32];
    // SAFETY: the host's memory, which is not looked at without a device.
    let (device, out) = unsafe {
        let place: *mut f32 = all.as_mut_ptr();
        (Rows::on_device(place, 128), RowsMut::on_device(place, 256))
    };
    let both = ChunkRows::new().key(device).value(device);
    let error = chunk.write(0, &both).unwrap_err();
    assert_eq!(error.status(), Status::Unsupported);
    let host = vec![1.0; 256];
    refused(chunk.write(0, &both.value(&host)), "some are not");
    let attention = ChunkAttention::new(4, &host);
    refused(chunk.attend(0, &attention, out), "some are not");
}

#[test]
fn read_rows_are_there() {
    let (pool, model) = cache();
    let mut session = session(&pool, &model);
    go_on(&mut session, &text(20), 0, Order::Rows);
    let read = |layer, what, rows| session.read_rows(layer, what, rows);
    assert_eq!(read(1, CacheRows::Values, 3..5).unwrap().len(), 2 * 64);
    assert!(read(0, CacheRows::Keys, 5..5)
        .unwrap_or_default()
        .is_empty());
    refused(read(0, CacheRows::Keys, 3..21), "");
    refused(read(0, CacheRows::Keys, u64::MAX - 1..u64::MAX), "");
    refused(read(0, CacheRows::Keys, 0..u64::MAX), "too many");
    refused(read(9, CacheRows::Keys, 0..1), "layer");
    refused(read(0, CacheRows::Window, 0..1), "");
    refused(read(0, CacheRows::IndexKeys, 0..1), "");
    refused(read(0, CacheRows::Pending, 0..1), "");
    refused(read(0, CacheRows::Other(77), 0..1), "");
    // More than there can be is refused without touching the memory for it.
    assert!(read(0, CacheRows::Keys, 0..1 << 31).is_err());
    let mut place = vec![0.0; 64];
    session
        .read_rows_into(0, CacheRows::Keys, 7..8, &mut place)
        .unwrap();
    assert_eq!(place, read(0, CacheRows::Keys, 7..8).unwrap());
    refused(
        session.read_rows_into(0, CacheRows::Keys, 7..9, &mut place),
        "",
    );
}

#[test]
fn a_forgotten_chunk_stays_open() {
    let (pool, model) = cache();
    let mut session = session(&pool, &model);
    session.append(&text(20)).unwrap();
    std::mem::forget(session.begin_chunk(0).unwrap());
    assert_eq!(session.begin_chunk(0).unwrap_err().status(), Status::Busy);
    assert_eq!(session.rewind(0).unwrap_err().status(), Status::Busy);
    assert_eq!(session.len(), 0);
    drop(session);
    assert_eq!(pool.stats().unwrap().n_sessions, 0);
    pool.check().unwrap();
}

#[test]
fn a_full_pool_keeps_the_queue() {
    let budget = kvcsa::PoolParams::new().budget_bytes(4 * 16 * 1024);
    let pool = Pool::with_params(budget).unwrap();
    let model = Model::from_plan(&plan(), params()).unwrap();
    let params: SessionParams = cache_only();
    let mut session = Session::with_params(&pool, &model, &params).unwrap();
    assert_eq!(
        session.append(&text(200)).unwrap_err().status(),
        Status::Full
    );
    go_on(&mut session, &text(60), 0, Order::Rows);
}
