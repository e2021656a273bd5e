//! The five-minute tour of docs/guide-rust.md: open, share a prefix, fork, save, restore, measure.

use kvcsa::{
    Compare, Comparison, Message, Mode, Model, Pool, Sampler, Session, SessionParams, Setting,
    Snapshot, SnapshotParams, TextStream,
};
use std::path::{Path, PathBuf};

const SYSTEM: &str =
    "You keep the books of an inn by the harbour, and you answer what guests and sailors ask you. \
     Be brief and civil. The inn has nine rooms; three of them look upon the sea, and cost a \
     shilling more. Supper is at seven, when the bell is rung; there is chowder every day, clam or \
     cod as the guest may choose, and bread. The door is shut at eleven. Whoever comes later knocks \
     at the window of the kitchen. Harpoons are left with the landlord and are given back in the \
     morning. Nobody smokes in bed. Ships that lie in the harbour are written on the slate beside \
     the door: their names, their captains, the day they sail and whether they want hands.";

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models/tiny")
}

fn ask(model: &Model, question: &str) -> kvcsa::Result<Vec<i32>> {
    model.chat_prompt(&[
        Message {
            role: "system",
            text: SYSTEM,
        },
        Message {
            role: "user",
            text: question,
        },
    ])
}

#[test]
fn five_minutes() -> kvcsa::Result<()> {
    // Open.
    let model = Model::open(model())?;
    let pool = Pool::new()?;
    let greedy = Sampler::greedy();

    // Share a prefix: the second conversation begins like the first, and takes its blocks.
    let mut first = Session::new(&pool, &model)?;
    first.compute(&ask(&model, "Is there a room that looks upon the sea?")?)?;
    let mut second = Session::new(&pool, &model)?;
    let prompt = ask(&model, "When is supper?")?;
    second.append(&prompt)?;
    let reuse = second.reuse()?;
    assert!(reuse.n_adopted > 100, "{reuse:?}");
    assert_eq!(
        reuse.n_kept + reuse.n_adopted + reuse.n_compute,
        prompt.len() as u64
    );
    second.step()?;
    let pinned = pool
        .prefixes(&model)
        .pin(&prompt)?
        .expect("the prefix is known");
    assert!(pinned.tokens().len() as u64 >= model.info().block_tokens.into());

    // Fork: two answers, and the trunk stays as it was.
    let before = second.len();
    let mut branch = second.fork(before)?;
    let stream = TextStream::new(&model)?;
    let answer: String = branch
        .generate(&greedy)
        .text(stream, 20)
        .collect::<kvcsa::Result<_>>()?;
    assert!(!answer.is_empty());
    assert_eq!(second.len(), before);
    let warm = Sampler::greedy().temperature(1.0).seed(7);
    let other: Vec<i32> = second
        .fork(before)?
        .generate(&warm)
        .take(20)
        .collect::<kvcsa::Result<_>>()?;
    assert_eq!(other.len(), 20);

    // Save, and restore where nothing is known: the same bits.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tour");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for snapshots");
    let snapshot = Snapshot::at(&folder).with(
        SnapshotParams::new()
            .name("supper")
            .window(true)
            .logits(true),
    );
    let saved = snapshot.save(&mut branch)?;
    assert_eq!(saved.n_tokens, branch.len());
    let elsewhere = Pool::new()?;
    let mut restored = Session::new(&elsewhere, &model)?;
    let loaded = snapshot.load(&mut restored)?;
    assert_eq!((loaded.n_tokens, loaded.exact), (branch.len(), true));
    assert_eq!(restored.tokens(0)?, branch.tokens(0)?);
    assert_eq!(restored.logits()?, branch.logits()?);
    let next = |s: &mut Session| {
        s.generate(&greedy)
            .take(8)
            .collect::<kvcsa::Result<Vec<i32>>>()
    };
    assert_eq!(next(&mut restored)?, next(&mut branch)?);
    snapshot.remove()?;

    // Measure: what it costs, and what a cheaper setting does to what the model says.
    let cost = model.cost(before)?;
    let stats = second.stats()?;
    assert_eq!(cost.n_tokens, before);
    assert!(stats.shared_bytes > 0 && stats.block_bytes > 0);
    let exact = Setting::new(&pool, &model);
    let fast = Setting::new(&pool, &model)
        .session(SessionParams::new().mode(Mode::Fast))
        .append_tokens(64)
        .hit_tokens(64);
    let (mut same, mut changed) = (Compare::new()?, Compare::new()?);
    Comparison::new(&exact)
        .test(&exact, &mut same)
        .test(&fast, &mut changed)
        .text(&prompt)?;
    let (same, changed) = (same.result()?, changed.result()?);
    assert_eq!((same.n_equal_rows, same.kl_max), (same.n_rows, 0.0));
    assert!(
        changed.n_rows > 0 && changed.n_equal_rows < changed.n_rows,
        "{changed:?}"
    );
    pool.check()
}
