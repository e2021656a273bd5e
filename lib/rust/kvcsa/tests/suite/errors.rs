use crate::*;
use kvcsa::{sys, AppendParams, Error, Message, Sampler, Snapshot, Status, StepParams, TextStream};
use std::io;

fn status<T: std::fmt::Debug>(result: kvcsa::Result<T>) -> Status {
    result.unwrap_err().status()
}

#[test]
fn unknown_values_are_kept() {
    for raw in [-1, -13, -14, -1000, 5] {
        assert_eq!(Status::from_raw(raw).raw(), raw);
    }
    assert_eq!(Status::from_raw(-99), Status::Other(-99));
    assert_eq!(Status::from_raw(sys::KVCSA_ERR_FULL), Status::Full);
    assert_eq!(Status::Full.to_string(), "KVCSA_ERR_FULL");
    assert_eq!(Status::Other(-99).to_string(), "KVCSA_ERR_? -99");
}

#[test]
fn errors_say_why() {
    let error = Model::open("nothing/here").unwrap_err();
    assert_eq!(error.status(), Status::Io);
    assert_eq!(
        io::Error::from_raw_os_error(error.detail()).kind(),
        io::ErrorKind::NotFound
    );
    assert!(error.text().contains("nothing/here"), "{error}");
    assert!(error.to_string().ends_with("(KVCSA_ERR_IO)"), "{error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
    assert_eq!(status(Model::open("a\0b")), Status::Arg);
    assert_eq!(
        status(Model::open_with(
            tiny(),
            ModelParams::new().plan("{\"no_such_key\": 1}")
        )),
        status(Model::open_with(
            tiny(),
            ModelParams::new().plan("{\"nor_this\": 1}")
        )),
    );
    assert_eq!(
        status(Pool::with_params(PoolParams::new().backend_dir("relative"))),
        Status::Arg
    );
}

#[test]
fn wrong_calls_change_nothing() {
    let (pool, model) = open();
    let mut session = computed(&pool, &model, &text(20));
    let logits = session.logits().unwrap();
    assert_eq!(status(session.append(&[1, -1])), Status::Arg);
    assert_eq!(status(session.rewind(21)), Status::Arg);
    assert_eq!(status(session.fork(21)), Status::Arg);
    assert_eq!(status(session.tokens(21)), Status::Arg);
    assert_eq!(status(session.logits_into(&mut [0.0; 3])), Status::Arg);
    assert_eq!(status(session.mass()), Status::Arg);
    assert_eq!(status(session.layer_work(10_000)), Status::Arg);
    assert_eq!(status(model.plan_row(10_000)), Status::Arg);
    assert_eq!(status(model.token_text(-1)), Status::Arg);
    assert_eq!(status(TextStream::with_stops(&model, &[""])), Status::Arg);
    assert_eq!(
        status(model.chat_prompt(&[Message {
            role: "owner",
            text: ""
        }])),
        Status::Arg
    );
    assert_eq!(
        status(model.chat_prompt(&[Message {
            role: "user",
            text: "\0"
        }])),
        Status::Arg
    );
    assert_eq!(
        status(Sampler::greedy().temperature(-1.0).sample(&[0.0, 1.0], 0)),
        Status::Arg
    );
    assert_eq!(status(Snapshot::at("nothing").inspect()), Status::Io);
    let rows = AppendParams::new().some_logits([3, 1], |_, _| {});
    assert_eq!(status(session.append_with(&text(5), rows)), Status::Arg);
    assert_eq!((session.len(), session.stats().unwrap().n_queued), (20, 0));
    assert_eq!(session.logits().unwrap(), logits);
}

#[test]
fn a_session_is_stepped_in_its_pool() {
    let (pool, model) = open();
    let (other, _) = open();
    let mut session = Session::new(&pool, &model).unwrap();
    session.append(&text(3)).unwrap();
    assert_eq!(status(other.step(&mut [&mut session])), Status::Arg);
    pool.step(&mut [&mut session]).unwrap();
    assert_eq!(session.len(), 3);
    assert_eq!(pool.step_with(&mut [], StepParams::new()).unwrap().len(), 0);
}

#[test]
fn a_full_pool_says_so() {
    let (pool, model) = open_with(PoolParams::new().budget_bytes(1 << 16), ModelParams::new());
    let mut session = Session::new(&pool, &model).unwrap();
    let error: Error = session.append(&text(100_000)).unwrap_err();
    assert!(
        [Status::Full, Status::Limit].contains(&error.status()),
        "{error}"
    );
    session.compute(&text(4)).unwrap();
    assert_eq!(status(pool.resize(1)), Status::Full);
}

#[test]
fn a_plan_has_no_tokenizer() {
    let plan = ModelParams::new().plan_only(true);
    let model = Model::open_with(tiny(), plan).unwrap();
    assert_eq!(status(model.tokenize("a")), Status::Unsupported);
    assert_eq!(
        status(Session::new(&Pool::new().unwrap(), &model)),
        Status::Unsupported
    );
    assert!(model.cost(1000).unwrap().resident_bytes > 0);
}
