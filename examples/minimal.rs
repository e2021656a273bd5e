//! The main job in Rust: open a model, read a text into a session, write on.
//!
//!     cargo run --offline --example minimal -- examples/models/tiny "In the beginning" 40
//!
//! Text goes to the standard output as it is made, never half a character; what it costs to the
//! standard error.
use kvcsa::{Model, Pool, Sampler, Session, TextStream};
use std::io::Write;
use std::process::ExitCode;

fn generate(path: &str, text: &str, n_tokens: usize) -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::open(path)?;
    let pool = Pool::new()?;
    let mut session = Session::new(&pool, &model)?;
    let prompt = model.prompt(text)?;
    session.compute(&prompt)?;
    let cost = model.cost(session.len())?;
    eprintln!(
        "{} tokens read; the cache holds {} bytes, {} more with each token",
        prompt.len(),
        cost.resident_bytes,
        cost.rate
    );
    let stream = TextStream::new(&model)?;
    let mut out = std::io::stdout();
    for piece in session.generate(&Sampler::greedy()).text(stream, n_tokens) {
        out.write_all(piece?.as_bytes())?;
        out.flush()?;
    }
    writeln!(out)?;
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let n_tokens = args.get(2).and_then(|n| n.parse().ok());
    let (path, text, n_tokens) = match (&args[..], n_tokens) {
        ([path, text, _], Some(n)) => (path, text, n),
        _ => {
            eprintln!("usage: minimal MODEL TEXT TOKENS");
            return ExitCode::from(2);
        }
    };
    match generate(path, text, n_tokens) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("minimal: {error}");
            ExitCode::FAILURE
        }
    }
}
