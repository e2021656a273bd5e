use crate::*;
use kvcsa::{Snapshot, SnapshotParams, Status};
use std::error::Error;
use std::io::{self, Cursor, Read, Write};
use std::panic::{catch_unwind, AssertUnwindSafe};

#[test]
fn a_stream_holds_the_bytes_of_a_file() {
    let (pool, model) = open();
    let mut session = computed(&pool, &model, &text(150));
    let params = SnapshotParams::new().window(true).logits(true);
    let mut bytes = Vec::new();
    let info = session.write_snapshot(&mut bytes, &params).unwrap();
    assert_eq!(info.total_bytes, bytes.len() as u64);
    assert_eq!(session.snapshot_size(&params).unwrap(), bytes.len() as u64);
    assert!(info.has_window() && info.has_logits() && info.exact);
    let path = folder("stream").join("session.kvs");
    let snapshot = Snapshot::at(&path).with(params.clone());
    snapshot.save(&mut session).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(snapshot.inspect().unwrap().n_tokens, 150);

    let (other, _) = open();
    let mut loaded = Session::new(&other, &model).unwrap();
    // A reader that gives a little at a time is read to its end.
    struct Slow(Cursor<Vec<u8>>);
    impl Read for Slow {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let n = to.len().min(17);
            self.0.read(&mut to[..n])
        }
    }
    loaded
        .read_snapshot(Slow(Cursor::new(bytes.clone())), &params)
        .unwrap();
    assert_eq!(loaded.logits().unwrap(), session.logits().unwrap());

    // Half of it is refused, and the session goes on.
    let half = &bytes[..bytes.len() / 2];
    let error = loaded.read_snapshot(half, &params).unwrap_err();
    assert_eq!(error.status(), Status::Format);
    assert_eq!(loaded.logits().unwrap(), session.logits().unwrap());
    snapshot.remove().unwrap();
    assert_eq!(snapshot.load(&mut loaded).unwrap_err().status(), Status::Io);
}

#[test]
fn names_share_a_folder() {
    let (pool, model) = open();
    let place = folder("names");
    let at = |name: &str| Snapshot::at(&place).with(SnapshotParams::new().name(name));
    let mut session = computed(&pool, &model, &text(300));
    let first = at("a").save(&mut session).unwrap();
    let second = at("b").save(&mut session).unwrap();
    assert!(second.written_bytes < first.written_bytes && second.n_shared_records > 0);
    at("a").remove().unwrap();
    let mut loaded = Session::new(&pool, &model).unwrap();
    assert_eq!(at("b").load(&mut loaded).unwrap().n_tokens, 300);
    assert_eq!(
        at("no/slash").save(&mut session).unwrap_err().status(),
        Status::Arg
    );
    session.save(place.join("file")).unwrap();
    assert_eq!(loaded.load(place.join("file")).unwrap().n_tokens, 300);
}

struct Failing(i32);

impl Write for Failing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match self.0 {
            0 => panic!("the writer panics"),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {
            0 => panic!("the reader panics"),
            _ => Err(io::Error::new(io::ErrorKind::TimedOut, "the line is dead")),
        }
    }
}

#[test]
fn errors_of_a_stream_come_back() {
    const ENOSPC: i32 = 28;
    let (pool, model) = open();
    let mut session = computed(&pool, &model, &text(20));
    let params = SnapshotParams::new();
    let error = session
        .write_snapshot(Failing(ENOSPC), &params)
        .unwrap_err();
    assert_eq!((error.status(), error.detail()), (Status::Io, ENOSPC));
    let source = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
    assert_eq!(source.raw_os_error(), Some(ENOSPC));
    let error = session.read_snapshot(Failing(1), &params).unwrap_err();
    assert_eq!(error.source().unwrap().to_string(), "the line is dead");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
    assert_eq!(session.len(), 20);
}

#[test]
fn panics_of_a_stream_go_on() {
    let (pool, model) = open();
    let mut session = computed(&pool, &model, &text(20));
    let params = SnapshotParams::new();
    let write = AssertUnwindSafe(|| session.write_snapshot(Failing(0), &params));
    assert_eq!(
        catch_unwind(write).unwrap_err().downcast_ref(),
        Some(&"the writer panics")
    );
    let read = AssertUnwindSafe(|| session.read_snapshot(Failing(0), &params));
    assert_eq!(
        catch_unwind(read).unwrap_err().downcast_ref(),
        Some(&"the reader panics")
    );
    session.compute(&[301]).unwrap();
    assert_eq!(session.len(), 21);
}
