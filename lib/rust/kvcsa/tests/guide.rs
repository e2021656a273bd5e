//! The code of docs/guide-rust.md as it stands there; test/check_rust.sh compares.

use kvcsa::{
    ChunkAttention, ChunkRows, Compare, Comparison, Format, Mode, Model, PlanParams, PlanRow, Pool,
    PoolParams, Sampler, Session, SessionParams, Setting, Snapshot, SnapshotParams, TextStream,
};
use std::path::Path;

#[test]
fn five_minutes() -> kvcsa::Result<()> {
    // The paths of the guide begin at the root of the tree, what it writes goes elsewhere.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guide");
    std::fs::create_dir_all(&place).expect("a folder");
    std::env::set_current_dir(root).expect("the root of the tree");

    let model = Model::open("examples/models/tiny")?;
    let pool = Pool::with_params(PoolParams::new().budget_bytes(64 << 20))?;
    let mut session = Session::new(&pool, &model)?;
    session.compute(&model.prompt("Call me Ishmael. Some years ago, never mind how long")?)?;
    let stream = TextStream::with_stops(&model, &["\n\n"])?;
    for piece in session.generate(&Sampler::greedy()).text(stream, 40) {
        print!("{}", piece?);
    }
    assert!(session.len() > 20);

    let mut second = Session::new(&pool, &model)?;
    second.append(&session.tokens(0)?)?;
    println!(
        "{} of {} tokens are there",
        second.reuse()?.n_adopted,
        session.len()
    );
    second.step()?;
    let pinned = pool.prefixes(&model).pin(&session.tokens(0)?)?;
    assert_eq!(second.logits()?, session.logits()?);
    assert_eq!(
        pinned.is_some(),
        session.len() >= model.info().block_tokens.into()
    );

    let mut branch = session.fork(session.len())?;
    branch.compute(&model.tokenize(" Then")?)?;
    session.rewind(10)?;
    assert!(branch.len() > 20 && session.len() == 10);

    std::env::set_current_dir(place).expect("a folder");
    let snapshot = Snapshot::at("branch.kvs").with(SnapshotParams::new().window(true));
    let saved = snapshot.save(&mut branch)?;
    let mut restored = Session::new(&pool, &model)?;
    snapshot.load(&mut restored)?;
    println!("{} bytes for {} tokens", saved.total_bytes, restored.len());
    snapshot.remove()?;
    assert_eq!(restored.tokens(0)?, branch.tokens(0)?);

    let cost = model.cost(1_000)?;
    println!(
        "{} bytes, {} more with each token",
        cost.resident_bytes, cost.rate
    );
    let exact = Setting::new(&pool, &model);
    let fast = Setting::new(&pool, &model).session(SessionParams::new().mode(Mode::Fast));
    let mut rows = Compare::new()?;
    Comparison::new(&exact)
        .test(&fast, &mut rows)
        .text(&branch.tokens(0)?)?;
    println!("{} nat at most", rows.result()?.kl_max);
    assert!(rows.result()?.n_rows > 0);
    Ok(())
}

/// Four heads on two, of 64 channels. What it computes is of no use.
struct Network;

impl Network {
    const IDENTITY: u64 = 0x00c0_ffee;

    fn embed(&self, tokens: &[i32], position: u64) -> Vec<f32> {
        let rows = tokens.iter().zip(position..);
        rows.flat_map(|(token, at)| vec![(*token as f32 + at as f32).sin(); 4 * 64])
            .collect()
    }

    fn project(&self, layer: u32, rows: &[f32]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let key: Vec<f32> = rows.iter().step_by(2).map(|x| x + layer as f32).collect();
        (rows.to_vec(), key.clone(), key)
    }

    fn finish(&self, _layer: u32, rows: &mut [f32], out: &[f32]) {
        rows.iter_mut().zip(out).for_each(|(x, o)| *x += o);
    }
}

#[test]
fn a_network_of_your_own() -> kvcsa::Result<()> {
    let (network, tokens) = (Network, [3, 1, 4, 1, 5, 9, 2, 6]);
    let pool = Pool::new()?;

    let layers = [0, 1].map(|n| PlanRow::attention(n, 2, 64, Format::Bf16));
    let model = Model::from_plan(&layers, PlanParams::new().identity(Network::IDENTITY))?;
    let cache_only = SessionParams::new().cache_only(true);
    let mut session = Session::with_params(&pool, &model, &cache_only)?;
    session.append(&tokens)?;
    while let Some(mut chunk) = session.begin_chunk(0)? {
        let mut rows = network.embed(chunk.tokens(), chunk.position());
        for layer in 0..2 {
            let (query, key, value) = network.project(layer, &rows);
            chunk.write(layer, &ChunkRows::new().key(&key).value(&value))?;
            let mut out = vec![0.0; query.len()];
            chunk.attend(layer, &ChunkAttention::new(4, &query), &mut out)?;
            network.finish(layer, &mut rows, &out);
        }
        chunk.commit()?;
    }

    assert_eq!(session.tokens(0)?, tokens);
    Ok(())
}
