use crate::*;
use kvcsa::{AppendParams, Canceller, End, Reuse, Sampler, SessionParams, StepParams, TextStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn text_goes_in_and_comes_out() {
    let (_, model) = open();
    let text = "Call me Ishmael. \u{1F40B}";
    let ids = model.tokenize(text).unwrap();
    assert_eq!(model.detokenize(&ids).unwrap(), text.as_bytes());
    let one_by_one: Vec<u8> = ids
        .iter()
        .flat_map(|&id| model.token_text(id).unwrap().to_vec())
        .collect();
    assert_eq!(one_by_one, text.as_bytes());
    let mut stream = TextStream::new(&model).unwrap();
    let mut shown = String::new();
    for &id in &ids {
        shown += stream.push(id).unwrap();
    }
    shown += stream.finish().unwrap();
    assert_eq!((shown.as_str(), stream.stopped()), (text, None));
    assert_eq!(model.plan().unwrap().len(), model.info().n_layers as usize);
    assert_eq!(
        model.prompt(text).unwrap().len(),
        ids.len() + model.info().bos_token.iter().count()
    );
}

#[test]
fn a_stop_string_ends_the_text() {
    let (pool, model) = open();
    let prompt = model.prompt("In the beginning").unwrap();
    let mut session = computed(&pool, &model, &prompt);
    let run = |session: &mut Session, stops: &[&str]| {
        let stream = TextStream::with_stops(session.model(), stops).unwrap();
        let mut out = String::new();
        let mut pieces = session.generate(&Sampler::greedy()).text(stream, 30);
        assert_eq!(pieces.end(), None);
        for piece in &mut pieces {
            let piece = piece.unwrap();
            assert!(!piece.is_empty());
            out += &piece;
        }
        assert!(pieces.next().is_none());
        (out, pieces.end())
    };
    let (free, end) = run(&mut session.fork(session.len()).unwrap(), &[]);
    assert_eq!(end, Some(End::Length));
    let stop: String = free.chars().skip(10).take(4).collect();
    let (cut, end) = run(&mut session, &["\u{2603}", &stop]);
    assert_eq!(end, Some(End::Stop(1)));
    assert_eq!(cut, free[..free.find(&stop).unwrap()]);
}

#[test]
fn generated_tokens_are_those_of_the_single_calls() {
    let (pool, model) = open();
    let mut session = computed(&pool, &model, &text(30));
    let mut by_hand = session.fork(30).unwrap();
    let sampler = Sampler::greedy()
        .temperature(0.8)
        .top_k(40)
        .top_p(0.95)
        .min_p(0.01)
        .seed(5);
    let tokens: Vec<i32> = session
        .generate(&sampler)
        .take(6)
        .collect::<kvcsa::Result<_>>()
        .unwrap();
    for &token in &tokens {
        assert_eq!(by_hand.sample(&sampler).unwrap(), token);
        assert_eq!(
            sampler
                .sample(&by_hand.logits().unwrap(), by_hand.len())
                .unwrap(),
            token
        );
        by_hand.compute(&[token]).unwrap();
    }
    // The last one was not computed.
    assert_eq!(session.len() + 1, by_hand.len());
}

#[test]
fn all_logits_come_in_order() {
    type Rows = Mutex<Vec<(u64, Vec<f32>)>>;
    let (pool, model) = open();
    let rows = Arc::new(Rows::default());
    let keep = |rows: &Arc<Rows>| {
        let rows = Arc::clone(rows);
        move |position, row: &[f32]| rows.lock().unwrap().push((position, row.to_vec()))
    };
    let mut session = Session::new(&pool, &model).unwrap();
    session
        .append_with(&text(10), AppendParams::new().all_logits(keep(&rows)))
        .unwrap();
    session
        .append_with(
            &text(7),
            AppendParams::new().some_logits([2, 4], keep(&rows)),
        )
        .unwrap();
    assert_eq!(Arc::strong_count(&rows), 3);
    session.step().unwrap();
    assert_eq!(
        Arc::strong_count(&rows),
        1,
        "functions live until their append is computed"
    );
    let rows = rows.lock().unwrap();
    let positions: Vec<u64> = rows.iter().map(|r| r.0).collect();
    assert_eq!(positions, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14]);
    let mut short = computed(&pool, &model, &text(10));
    assert_eq!(rows[9].1, short.logits().unwrap());
    short.compute(&text(7)).unwrap();
    assert_eq!(short.logits().unwrap(), session.logits().unwrap());

    session
        .append_with(&text(2), AppendParams::new().no_logits())
        .unwrap();
    session.step().unwrap();
    assert!(session.logits().is_err());
}

#[test]
fn functions_for_logits_go_with_the_queue() {
    let (pool, model) = open();
    let alive = Arc::new(());
    let held = |alive: &Arc<()>| {
        let alive = Arc::clone(alive);
        AppendParams::new().all_logits(move |_, _| drop(Arc::clone(&alive)))
    };
    let mut session = Session::new(&pool, &model).unwrap();
    assert!(session.append_with(&[-5], held(&alive)).is_err());
    assert_eq!(Arc::strong_count(&alive), 1);
    session.append_with(&text(3), held(&alive)).unwrap();
    session.erase().unwrap();
    assert_eq!(Arc::strong_count(&alive), 1);
    session.append_with(&text(3), held(&alive)).unwrap();
    session.canceller().cancel();
    assert!(session.step().is_err());
    assert_eq!(Arc::strong_count(&alive), 1);
    session.append_with(&text(3), held(&alive)).unwrap();
    drop(session);
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn steps_can_be_short() {
    let (pool, model) = open();
    let mut session =
        Session::with_params(&pool, &model, &SessionParams::new().chunk_tokens(8)).unwrap();
    assert_eq!(session.append(&text(40)).unwrap(), 40);
    let result = session.step_with(StepParams::new().max_rows(16)).unwrap();
    assert_eq!((result.n_computed, result.n_queued), (16, 24));
    let result = session
        .step_with(StepParams::new().deadline(Duration::from_nanos(1)))
        .unwrap();
    assert!(result.n_queued >= 16 && result.result.is_ok(), "{result:?}");
    session.step().unwrap();
    let whole = computed(&pool, &model, &text(40));
    assert_eq!(session.logits().unwrap(), whole.logits().unwrap());
}

#[test]
fn rewind_sync_and_fork_give_the_bits_of_a_fresh_run() {
    let (pool, model) = open();
    let (a, b) = (text(60), [text(40), vec![301; 9]].concat());
    let fresh = |tokens: &[i32]| {
        let (pool, _) = open();
        computed(&pool, &model, tokens).logits().unwrap()
    };
    let mut session = computed(&pool, &model, &a);
    assert_eq!(session.common_prefix(&b).unwrap(), 40);
    let mut fork = session
        .fork_with(50, &SessionParams::new().private(true))
        .unwrap();
    fork.step().unwrap();
    assert_eq!(fork.logits().unwrap(), fresh(&a[..50]));
    session.rewind(30).unwrap();
    session.step().unwrap();
    assert_eq!(session.logits().unwrap(), fresh(&a[..30]));
    let report = session.sync(&b).unwrap();
    assert_eq!((report.n_kept, report.how), (30, Reuse::Exact));
    assert_eq!(
        report.n_kept + report.n_adopted + report.n_compute,
        b.len() as u64
    );
    session.step().unwrap();
    assert_eq!(session.logits().unwrap(), fresh(&b));
    assert_eq!(session.tokens(0).unwrap(), b);
    session.erase_secure().unwrap();
    assert!(session.is_empty());
    pool.check().unwrap();
}

#[test]
fn prefixes_are_pinned_and_forgotten() {
    let (pool, model) = open();
    let tokens = text(model.info().block_tokens as usize + 20);
    let prefixes = pool.prefixes(&model);
    assert!(prefixes.pin(&tokens).unwrap().is_none());
    drop(computed(&pool, &model, &tokens));
    assert!(prefixes.matching(&tokens).unwrap() >= model.info().block_tokens as usize);
    assert_eq!(prefixes.clone().salt(3).matching(&tokens).unwrap(), 0);

    let pinned = prefixes.pin(&tokens).unwrap().unwrap();
    assert_eq!(
        pinned.tokens().len() % model.info().block_tokens as usize,
        0
    );
    assert_eq!(pool.stats().unwrap().n_pinned_blocks, 1);
    pool.trim(0).unwrap();
    assert!(prefixes.matching(&tokens).unwrap() > 0);
    drop(pinned);
    assert_eq!(pool.stats().unwrap().n_pinned_blocks, 0);

    prefixes.pin(&tokens).unwrap().unwrap().leave_pinned();
    assert_eq!(pool.stats().unwrap().n_pinned_blocks, 1);
    let again = prefixes.pin(&tokens).unwrap().unwrap();
    assert!(prefixes.forget_all().unwrap() > 0);
    assert!(again.unpin().is_err(), "it was forgotten meanwhile");
    assert_eq!(prefixes.matching(&tokens).unwrap(), 0);

    let private = SessionParams::new().private(true);
    let mut session = Session::with_params(&pool, &model, &private).unwrap();
    session.compute(&tokens).unwrap();
    assert_eq!(prefixes.matching(&tokens).unwrap(), 0);
    assert!(session.publish().unwrap() > 0);
    assert!(prefixes.matching(&tokens).unwrap() > 0);
    prefixes.forget(&tokens).unwrap();
    assert_eq!(pool.forget_all().unwrap(), 0);
}

#[test]
fn spans_are_hidden_and_weighed() {
    let (pool, model) = open();
    let span = u64::from(model.info().span_tokens);
    let params = SessionParams::new().track_mass(true);
    let mut session = Session::with_params(&pool, &model, &params).unwrap();
    let tokens = text(model.info().block_tokens as usize * 2);
    session.compute(&tokens).unwrap();
    let mass = session.take_mass().unwrap();
    assert_eq!(mass.len() as u64, session.len() / span);
    assert!(mass.iter().sum::<f64>() > 0.0);
    assert_eq!(session.mass().unwrap().iter().sum::<f64>(), 0.0);
    let mut shown = session.fork(session.len()).unwrap();
    session.hide(0..4 * span).unwrap();
    session.compute(&[301]).unwrap();
    shown.compute(&[301]).unwrap();
    assert_ne!(session.logits().unwrap(), shown.logits().unwrap());
    assert!(session.hide(1..span).is_err());
    session.show(..).unwrap();
    let (step, total) = session.layer_work(0).unwrap();
    assert!(step.n_rows == 1 && total.n_rows as usize > tokens.len());
}

#[test]
fn handles_outlive_their_parents() {
    let canceller: Canceller;
    {
        let mut session = {
            let (pool, model) = open();
            Session::new(&pool, &model).unwrap()
        };
        canceller = session.canceller();
        session.compute(&text(5)).unwrap();
        assert_eq!(session.pool().stats().unwrap().n_sessions, 1);
        assert!(canceller.cancel());
    }
    assert!(!canceller.cancel(), "the session is gone");
}
