//! A network of the host's own with windows, entries of two tokens and a selection.

use crate::network::{assert_near, attention, cache_only, noise, WIDTH};
use crate::text;
use kvcsa::{
    CacheRows, Chunk, ChunkAttention, ChunkQueries, ChunkRows, Format, Model, PlanParams, PlanRow,
    Pool, Pooling, Select, Session, Status, ValueKind,
};

const WINDOW: usize = 8;
const PICKED: usize = 4;
const HEADS: usize = 3;
const SINK: [f32; HEADS] = [0.5, -0.5, 1.5];

/// A layer that makes a selection, and one that inherits it.
fn plan() -> Vec<PlanRow> {
    let mut own = PlanRow::default();
    own.kv_owner = Some(0);
    own.index_owner = Some(0);
    own.select_owner = Some(0);
    own.select = Select::Own;
    own.ratio = 2;
    own.pool_kind = Pooling::Gated;
    own.kv_heads = 1;
    own.entry_width = WIDTH as u32;
    own.entry_format = Format::Bf16;
    own.value_width = WIDTH as u32;
    own.value_kind = ValueKind::Alias;
    own.index_heads = 2;
    own.index_width = WIDTH as u32;
    own.index_format = Format::Fp4E8m0G32;
    own.select_entries = PICKED as u32;
    own.window_tokens = WINDOW as u32;
    own.window_format = Format::Fp8E8m0G32;
    let mut inherits = own.clone();
    inherits.layer = 1;
    inherits.select = Select::Inherited;
    vec![own, inherits]
}

/// Rows `first ..` of `heads` heads. Here they depend on the position alone.
fn rows(seed: u64, first: u64, n: usize, heads: usize) -> Vec<f32> {
    let begin = first * (heads * WIDTH) as u64;
    let all = begin..begin + (n * heads * WIDTH) as u64;
    all.map(|i| noise(seed << 32 | i)).collect()
}

/// Pending rows of layer 0: as many channels as the plan says.
fn pending(model: &Model, first: u64, n: usize) -> Vec<f32> {
    let channels = model.plan_row(0).unwrap().pending_bytes as usize / 4;
    let begin = first * channels as u64;
    let all = begin..begin + (n * channels) as u64;
    all.map(|i| noise(9 << 32 | i)).collect()
}

/// Write what a layer makes of a chunk.
fn write(chunk: &mut Chunk<'_>, layer: u32) {
    let (first, n) = (chunk.position(), chunk.tokens().len());
    let entries = chunk.entries(layer).unwrap();
    let count = (entries.end - entries.start) as usize;
    let window = rows(u64::from(layer) + 1, first, n, 1);
    let pending = pending(chunk.model(), first, n);
    let key = rows(3, entries.start, count, 1);
    let index_key = rows(4, entries.start, count, 1);
    let mut written = ChunkRows::new().window(&window);
    if layer == 0 {
        written = written.pending(&pending);
        if !chunk.is_replay() {
            written = written.key(&key).index_key(&index_key);
        }
    }
    chunk.write(layer, &written).unwrap();
}

/// At most so many entries of the past, ascending, -1 behind them.
fn assert_selection(ids: &[i32], position: usize) {
    let there = (position + 1) / 2;
    let n = ids.iter().filter(|id| **id >= 0).count();
    assert_eq!(n, PICKED.min(there), "{ids:?} at {position}");
    assert!(ids[..n].windows(2).all(|w| w[0] < w[1]), "{ids:?}");
    assert!(ids[..n].iter().all(|id| (*id as usize) < there), "{ids:?}");
    assert!(ids[n..].iter().all(|id| *id == -1), "{ids:?}");
}

/// Attention of a chunk has to be softmax over what can be read back.
fn check_attention(chunk: &mut Chunk<'_>, layer: u32, windows: &[f32], ids: &[i32]) -> usize {
    let (first, n) = (chunk.position(), chunk.tokens().len());
    let query = rows(6, first, n, HEADS);
    let mut out = vec![f32::NAN; query.len()];
    let params = ChunkAttention::new(HEADS as u32, &query)
        .sink(&SINK)
        .scale(0.25);
    chunk.attend(layer, &params, &mut out).unwrap();
    let end = (first + n as u64) / 2;
    let keys = chunk.read_rows(layer, CacheRows::Keys, 0..end).unwrap();
    let wanted = chunk.first_rows()[layer as usize + 1] as usize;
    let mut count = 0;
    for (row, at) in (first as usize..first as usize + n).enumerate() {
        if at < wanted {
            let left = &out[row * HEADS * WIDTH..][..HEADS * WIDTH];
            assert!(left.iter().all(|x| x.is_nan()), "{at} was not wanted");
            continue;
        }
        let picked = &ids[row * PICKED..][..PICKED];
        assert_selection(picked, at);
        let mut seen: Vec<&[f32]> = picked
            .iter()
            .filter(|id| **id >= 0)
            .map(|id| &keys[*id as usize * WIDTH..][..WIDTH])
            .collect();
        let oldest = (at + 1).saturating_sub(WINDOW);
        seen.extend(windows.chunks(WIDTH).take(at + 1).skip(oldest));
        for (head, sink) in SINK.iter().enumerate() {
            let here = (row * HEADS + head) * WIDTH;
            let plain = attention(&query[here..][..WIDTH], &seen, &seen, 0.25, Some(*sink));
            assert_near(&out[here..][..WIDTH], &plain);
        }
        count += 1;
    }
    count
}

/// Compute all that is queued; rows that were checked, and rows of replays.
fn run(session: &mut Session, max_rows: u32, windows: &[Vec<f32>]) -> (usize, usize) {
    let (mut checked, mut replayed) = (0, 0);
    while let Some(mut chunk) = session.begin_chunk(max_rows).unwrap() {
        let (first, n) = (chunk.position(), chunk.tokens().len());
        let mut ids = vec![0; n * PICKED];
        for layer in 0..2 {
            write(&mut chunk, layer);
            if layer == 0 {
                let query = rows(5, first, n, 2);
                let weights = vec![1.0; n * 2];
                let queries = ChunkQueries::new(&query, &weights);
                chunk.select(0, &queries, Some(&mut ids)).unwrap();
            }
            checked += check_attention(&mut chunk, layer, &windows[layer as usize], &ids);
        }
        if chunk.is_replay() {
            replayed += n;
        }
        chunk.commit().unwrap();
    }
    (checked, replayed)
}

/// Window rows of each layer as the cache holds them.
fn stored_windows(model: &Model, n: usize) -> Vec<Vec<f32>> {
    let pool = Pool::new().unwrap();
    let mut alone = Session::with_params(&pool, model, &cache_only()).unwrap();
    let mut windows = vec![Vec::new(); 2];
    alone.append(&text(n)).unwrap();
    loop {
        let mut chunk = match alone.begin_chunk(WINDOW as u32 - 1).unwrap() {
            Some(chunk) => chunk,
            None => return windows,
        };
        let positions = chunk.position()..chunk.position() + chunk.tokens().len() as u64;
        write(&mut chunk, 0);
        write(&mut chunk, 1);
        chunk.commit().unwrap();
        for (layer, all) in windows.iter_mut().enumerate() {
            let rows = alone.read_rows(layer as u32, CacheRows::Window, positions.clone());
            all.extend(rows.unwrap());
        }
    }
}

#[test]
fn a_window_and_selected_entries_share_one_softmax() {
    let pool = Pool::new().unwrap();
    let model = Model::from_plan(&plan(), PlanParams::new().block_tokens(16)).unwrap();
    let windows = stored_windows(&model, 60);
    // FP8 with a scale per 32 channels: off by less than a sixteenth of the largest.
    for (layer, stored) in windows.iter().enumerate() {
        let written = rows(layer as u64 + 1, 0, 60, 1);
        let off = stored.iter().zip(&written).map(|(a, b)| (a - b).abs());
        assert!(off.fold(0.0, f32::max) < 0.07);
    }
    let mut session = Session::with_params(&pool, &model, &cache_only()).unwrap();
    session.append(&text(45)).unwrap();
    assert_eq!(run(&mut session, 11, &windows), (90, 0));
    // 45 tokens are 22 entries, and one that waits for its second token.
    let waiting = session.read_rows(0, CacheRows::Pending, 44..45).unwrap();
    assert_eq!(waiting, pending(&model, 44, 1));
    assert_eq!(
        session
            .read_rows(1, CacheRows::IndexKeys, 0..22)
            .unwrap()
            .len(),
        22 * WIDTH
    );

    // Windows that a rewind has lost are made anew, from rows that are computed again.
    session.rewind(21).unwrap();
    session.append(&text(29)).unwrap();
    let (checked, replayed) = run(&mut session, 0, &windows);
    assert!(
        checked >= 2 * 29 && replayed >= WINDOW - 1,
        "{checked} {replayed}"
    );

    // So are those behind a known prefix.
    let mut second = Session::with_params(&pool, &model, &cache_only()).unwrap();
    second.append(&text(50)).unwrap();
    let (checked, replayed) = run(&mut second, 0, &windows);
    assert!(second.reuse().unwrap().n_adopted >= 32 && replayed >= WINDOW - 1);
    assert!(checked >= 2 * 2, "{checked}");
    pool.check().unwrap();
}

#[test]
fn a_window_alone() {
    let mut row = PlanRow::default();
    row.window_tokens = WINDOW as u32;
    row.window_format = Format::Fp8E8m0G32;
    row.window_bytes = 33;
    let (pool, params) = (Pool::new().unwrap(), PlanParams::new());
    let model = Model::from_plan(&[row], params).unwrap();
    let mut session = Session::with_params(&pool, &model, &cache_only()).unwrap();
    session.append(&text(20)).unwrap();
    loop {
        let mut chunk = match session.begin_chunk(7).unwrap() {
            Some(chunk) => chunk,
            None => break,
        };
        let (first, n) = (chunk.position(), chunk.tokens().len());
        assert!(chunk.entries(0).unwrap().is_empty());
        // Numbers that FP8 has.
        let window: Vec<f32> = rows(1, first, n, 1).iter().map(|x| x.signum()).collect();
        let query = rows(6, first, n, 1);
        let mut out = vec![0.0; query.len()];
        // The plan does not name the width, yet what is too short is not let through.
        let short = &query[1..];
        let error = chunk.write(0, &ChunkRows::new().window(short));
        assert_eq!(error.unwrap_err().status(), Status::Arg);
        chunk.write(0, &ChunkRows::new().window(&window)).unwrap();
        let error = chunk.attend(0, &ChunkAttention::new(1, short), &mut out);
        assert_eq!(error.unwrap_err().status(), Status::Arg);
        let attention_of = ChunkAttention::new(1, &query);
        let error = chunk.attend(0, &attention_of, &mut out[1..]);
        assert_eq!(error.unwrap_err().status(), Status::Arg);
        chunk.attend(0, &attention_of, &mut out).unwrap();
        let all: Vec<f32> = rows(1, 0, 20, 1).iter().map(|x| x.signum()).collect();
        for (row, at) in (first as usize..first as usize + n).enumerate() {
            let seen = all.chunks(WIDTH).take(at + 1);
            let seen: Vec<_> = seen.skip((at + 1).saturating_sub(WINDOW)).collect();
            let scale = (WIDTH as f32).powf(-0.5);
            let plain = attention(&query[row * WIDTH..][..WIDTH], &seen, &seen, scale, None);
            assert_near(&out[row * WIDTH..][..WIDTH], &plain);
        }
        chunk.commit().unwrap();
    }
    let last = session.read_rows(0, CacheRows::Window, 19..20).unwrap();
    let written: Vec<f32> = rows(1, 19, 1, 1).iter().map(|x| x.signum()).collect();
    assert_eq!(last[..WIDTH], written[..]);
}
