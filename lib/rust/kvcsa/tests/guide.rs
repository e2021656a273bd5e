//! The code of docs/guide-rust.md as it stands there; test/check_rust.sh compares.

use kvcsa::{
    Compare, Comparison, Mode, Model, Pool, PoolParams, Sampler, Session, SessionParams, Setting,
    Snapshot, SnapshotParams, TextStream,
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
