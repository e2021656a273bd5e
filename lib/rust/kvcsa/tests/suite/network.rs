//! A small network in plain Rust, once around the library's cache and once without it.

use kvcsa::{
    CacheRows, Chunk, ChunkAttention, ChunkRows, Format, Model, PlanParams, PlanRow, Pool,
    PoolParams, Result, Rows, RowsMut, Session, SessionParams,
};

pub const LAYERS: usize = 2;
pub const KV_HEADS: usize = 2;
pub const HEADS: usize = 4;
pub const WIDTH: usize = 32;
const CHANNELS: usize = HEADS * WIDTH;

/// Queries, keys, values.
type Projected = (Vec<f32>, Vec<f32>, Vec<f32>);

pub fn plan() -> Vec<PlanRow> {
    (0..LAYERS as i32)
        .map(|layer| PlanRow::attention(layer, KV_HEADS as u32, WIDTH as u32, Format::F32))
        .collect()
}

pub fn params() -> PlanParams {
    PlanParams::new()
        .name("two layers")
        .identity(1)
        .block_tokens(16)
        .vocab_tokens(1000)
}

pub fn cache() -> (Pool, Model) {
    let pool = Pool::with_params(PoolParams::new().n_threads(1)).unwrap();
    (pool, Model::from_plan(&plan(), params()).unwrap())
}

pub fn cache_only() -> SessionParams {
    SessionParams::new().cache_only(true)
}

pub fn session(pool: &Pool, model: &Model) -> Session {
    Session::with_params(pool, model, &cache_only()).unwrap()
}

/// Numbers in -1 .. 1 that follow no pattern.
pub fn noise(seed: u64) -> f32 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn embed(token: i32, position: u64) -> Vec<f32> {
    let seed = (token as u64) << 32 | position << 8;
    (0..CHANNELS as u64).map(|c| noise(seed + c)).collect()
}

/// Part `part` of what a layer makes of rows of channels.
fn project(layer: usize, part: u64, x: &[Vec<f32>], n: usize) -> Vec<f32> {
    let mut out = vec![0.0; x.len() * n];
    for to in 0..n {
        let seed = (layer as u64) << 40 | part << 32 | to as u64;
        let weights: Vec<f32> = (0..CHANNELS as u64)
            .map(|c| noise(seed | c << 16))
            .collect();
        for (row, x) in x.iter().enumerate() {
            let sum: f32 = x.iter().zip(&weights).map(|(x, w)| x * w).sum();
            out[row * n + to] = sum * 0.3;
        }
    }
    out
}

fn project_all(layer: usize, x: &[Vec<f32>]) -> Projected {
    let part = |part, n| project(layer, part, x, n);
    let kv = KV_HEADS * WIDTH;
    (part(0, CHANNELS), part(1, kv), part(2, kv))
}

/// Softmax over rows of keys, in the order of the definition; a sink counts in the denominator.
pub fn attention(
    query: &[f32],
    keys: &[&[f32]],
    values: &[&[f32]],
    scale: f32,
    sink: Option<f32>,
) -> Vec<f32> {
    let dot = |key: &&[f32]| -> f64 {
        let products = query.iter().zip(*key);
        products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
    };
    let mut logits: Vec<f64> = keys.iter().map(|k| dot(k) * f64::from(scale)).collect();
    logits.extend(sink.map(f64::from));
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|l| (l - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; values.first().map_or(0, |v| v.len())];
    for (value, weight) in values.iter().zip(&weights) {
        for (to, v) in out.iter_mut().zip(*value) {
            *to += f64::from(*v) * weight / sum;
        }
    }
    out.iter().map(|x| *x as f32).collect()
}

/// Head `head` of each of the first `n` rows of `heads` heads.
pub fn head_of(rows: &[f32], n: usize, heads: usize, head: usize) -> Vec<&[f32]> {
    let all = rows.chunks(WIDTH).skip(head).step_by(heads);
    all.take(n).collect()
}

/// What the network makes of these tokens, row by row, without any cache.
pub fn reference(tokens: &[i32]) -> Vec<Vec<f32>> {
    let mut x = embedded(tokens);
    for layer in 0..LAYERS {
        let (q, k, v) = project_all(layer, &x);
        for (row, x) in x.iter_mut().enumerate() {
            for head in 0..HEADS {
                let query = &q[row * CHANNELS + head * WIDTH..][..WIDTH];
                let kv_head = head / (HEADS / KV_HEADS);
                let keys = head_of(&k, row + 1, KV_HEADS, kv_head);
                let values = head_of(&v, row + 1, KV_HEADS, kv_head);
                let scale = (WIDTH as f32).powf(-0.5);
                let out = attention(query, &keys, &values, scale, None);
                let place = &mut x[head * WIDTH..][..WIDTH];
                place.iter_mut().zip(out).for_each(|(x, o)| *x += o);
            }
        }
    }
    x
}

/// How rows lie in the memory that is given to the library.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// One row after the other.
    Rows,
    /// One head after the other, with gaps that hold no number.
    Heads,
}

/// Rows in memory, with the strides that they are found by.
struct Arranged {
    data: Vec<f32>,
    row_stride: usize,
    head_stride: usize,
}

impl Arranged {
    fn new(rows: &[f32], heads: usize, order: Order) -> Self {
        let n = rows.len() / (heads * WIDTH);
        let (row_stride, head_stride) = match order {
            Order::Rows => (heads * WIDTH, WIDTH),
            Order::Heads => (WIDTH, n * WIDTH + 3),
        };
        // Not one float more than the last row needs.
        let len = (n - 1) * row_stride + (heads - 1) * head_stride + WIDTH;
        let mut data = vec![f32::NAN; len];
        for (i, part) in rows.chunks(WIDTH).enumerate() {
            let at = i / heads * row_stride + i % heads * head_stride;
            data[at..at + WIDTH].copy_from_slice(part);
        }
        Arranged {
            data,
            row_stride,
            head_stride,
        }
    }

    fn rows(&self) -> Rows<'_> {
        Rows::new(&self.data)
            .row_stride(self.row_stride)
            .head_stride(self.head_stride)
    }

    fn rows_mut(&mut self) -> RowsMut<'_> {
        RowsMut::new(&mut self.data)
            .row_stride(self.row_stride)
            .head_stride(self.head_stride)
    }

    fn at(&self, row: usize, head: usize) -> &[f32] {
        &self.data[row * self.row_stride + head * self.head_stride..][..WIDTH]
    }
}

/// Compute the rows of a chunk; what the network makes of them.
pub fn compute(chunk: &mut Chunk<'_>, order: Order) -> Result<Vec<Vec<f32>>> {
    let tokens = chunk.tokens().iter().zip(chunk.position()..);
    let mut x: Vec<_> = tokens.map(|(t, p)| embed(*t, p)).collect();
    for layer in 0..LAYERS {
        let (q, k, v) = project_all(layer, &x);
        let [k, v] = [k, v].map(|rows| Arranged::new(&rows, KV_HEADS, order));
        let q = Arranged::new(&q, HEADS, order);
        let rows = ChunkRows::new().key(k.rows()).value(v.rows());
        chunk.write(layer as u32, &rows)?;
        let mut out = Arranged::new(&vec![0.0; x.len() * CHANNELS], HEADS, order);
        let attention = ChunkAttention::new(HEADS as u32, q.rows());
        chunk.attend(layer as u32, &attention, out.rows_mut())?;
        for (row, x) in x.iter_mut().enumerate() {
            for head in 0..HEADS {
                let place = x[head * WIDTH..][..WIDTH].iter_mut();
                place.zip(out.at(row, head)).for_each(|(x, o)| *x += o);
            }
        }
    }
    Ok(x)
}

/// Compute and commit all that is queued, at most `max_rows` at a time; the position of the first
/// row, and what the network makes of the rows.
pub fn run(session: &mut Session, max_rows: u32, order: Order) -> (usize, Vec<Vec<f32>>) {
    let (mut first, mut all) = (None, Vec::new());
    while let Some(mut chunk) = session.begin_chunk(max_rows).unwrap() {
        assert!(!chunk.is_replay() && (max_rows == 0 || chunk.tokens().len() <= max_rows as usize));
        first = first.or(Some(chunk.position() as usize));
        all.extend(compute(&mut chunk, order).unwrap());
        chunk.commit().unwrap();
    }
    (first.unwrap_or(0), all)
}

/// Sums are made in another order, so the last bits may differ.
pub fn assert_near(ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len());
    for (a, b) in ours.iter().zip(theirs) {
        assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{a} is not {b}");
    }
}

/// Append tokens and compute them; the network has to make of them what it makes without a cache.
/// The answer is how many of them came from a known prefix.
pub fn go_on(session: &mut Session, tokens: &[i32], max_rows: u32, order: Order) -> usize {
    let before = session.len() as usize;
    let length = session.append(tokens).unwrap() as usize;
    let (first, rows) = run(session, max_rows, order);
    assert_eq!(
        (session.len() as usize, first + rows.len()),
        (length, length)
    );
    let expected = reference(&session.tokens(0).unwrap());
    for (ours, theirs) in rows.iter().zip(&expected[first..]) {
        assert_near(ours, theirs);
    }
    // What is stored is what was written: formats of floats lose nothing.
    let x = project_all(0, &embedded(&session.tokens(0).unwrap()));
    assert_eq!(
        session
            .read_rows(0, CacheRows::Keys, 0..length as u64)
            .unwrap(),
        x.1
    );
    assert_eq!(
        session
            .read_rows(0, CacheRows::Values, 0..length as u64)
            .unwrap(),
        x.2
    );
    first - before
}

fn embedded(tokens: &[i32]) -> Vec<Vec<f32>> {
    let all = tokens.iter().zip(0..);
    all.map(|(token, position)| embed(*token, position))
        .collect()
}
