//! Tokens into text that can be shown at once, and iterators that generate both.

use crate::error::Result;
use crate::model::Model;
use crate::raw::{c_string, call, handle};
use crate::sampler::Sampler;
use crate::session::Session;
use kvcsa_sys as sys;
use std::cell::Cell;
use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::os::raw::c_char;
use std::ptr::{self, NonNull};

/// Turns generated tokens into text: never half a UTF-8 character, never the beginning of a stop
/// string that may still be completed, nothing at or after a stop string.
pub struct TextStream {
    raw: NonNull<sys::kvcsa_text_stream>,
    stopped: Option<usize>,
    model: Model,
    _one_thread: PhantomData<Cell<()>>,
}

// SAFETY: a stream may be used by one thread at a time, any.
unsafe impl Send for TextStream {}

impl Drop for TextStream {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the only reference.
        unsafe { sys::kvcsa_text_stream_release(&mut raw) };
    }
}

impl fmt::Debug for TextStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextStream")
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

impl TextStream {
    /// A stream without stop strings.
    pub fn new(model: &Model) -> Result<Self> {
        Self::with_stops(model, &[] as &[&str])
    }

    /// A stream that ends at the first of these strings.
    pub fn with_stops(model: &Model, stops: &[impl AsRef<str>]) -> Result<Self> {
        let stops = stops
            .iter()
            .map(|s| c_string(s.as_ref(), "a stop string"))
            .collect::<Result<Vec<_>>>()?;
        let raw: Vec<*const c_char> = stops.iter().map(|s| s.as_ptr()).collect();
        let mut out = ptr::null_mut();
        // SAFETY: as many strings as said; they are copied.
        let made = call(|err| unsafe {
            let list = raw.as_ptr();
            sys::kvcsa_text_stream_create(model.raw(), list, raw.len(), &mut out, err)
        });
        let stream = made.and_then(|()| {
            Ok(TextStream {
                raw: handle(out)?,
                stopped: None,
                model: model.clone(),
                _one_thread: PhantomData,
            })
        });
        model.done(stream)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Add a token; the answer is the text that is ready, which may be empty. Special tokens add
    /// none.
    pub fn push(&mut self, token: i32) -> Result<&str> {
        let (mut text, mut n, mut stopped) = (ptr::null(), 0, -1);
        // SAFETY: handle and places are there.
        self.model.done(call(|err| unsafe {
            let raw = self.raw.as_ptr();
            sys::kvcsa_text_stream_push(raw, token, &mut text, &mut n, &mut stopped, err)
        }))?;
        if self.stopped.is_none() {
            self.stopped = usize::try_from(stopped).ok();
        }
        Ok(self.text(text, n))
    }

    /// End of generation: what was held back.
    pub fn finish(&mut self) -> Result<&str> {
        let (mut text, mut n) = (ptr::null(), 0);
        // SAFETY: handle and places are there.
        self.model.done(call(|err| unsafe {
            sys::kvcsa_text_stream_finish(self.raw.as_ptr(), &mut text, &mut n, err)
        }))?;
        Ok(self.text(text, n))
    }

    /// Text of the stream, which lives until its next call.
    fn text(&self, text: *const c_char, n: usize) -> &str {
        if n == 0 {
            return "";
        }
        // SAFETY: n bytes, owned by the stream until its next call, which `&mut self` keeps away.
        let bytes = unsafe { std::slice::from_raw_parts(text.cast(), n) };
        // Invalid bytes were replaced by U+FFFD, so this does not fail.
        std::str::from_utf8(bytes).unwrap_or("\u{fffd}")
    }

    /// Index of the stop string that was met.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }
}

/// Tokens that a model goes on with.
///
/// Each one is chosen from the session's last logits, and computed when the one behind it is asked
/// for: after `take(n)` the session holds all but the last, which [`Session::compute`] appends if
/// it is wanted. It does not end by itself but after an error; the end token comes like any other.
///
/// ```no_run
/// # fn main() -> kvcsa::Result<()> {
/// # let (pool, model) = (kvcsa::Pool::new()?, kvcsa::Model::open("model")?);
/// # let mut session = kvcsa::Session::new(&pool, &model)?;
/// let greedy = kvcsa::Sampler::greedy();
/// let tokens: Vec<i32> = session.generate(&greedy).take(20).collect::<kvcsa::Result<_>>()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Generate<'s> {
    session: &'s mut Session,
    sampler: Sampler,
    last: Option<i32>,
    failed: bool,
}

impl<'s> Generate<'s> {
    pub(crate) fn new(session: &'s mut Session, sampler: Sampler) -> Self {
        Generate {
            session,
            sampler,
            last: None,
            failed: false,
        }
    }

    fn advance(&mut self) -> Result<i32> {
        if let Some(token) = self.last.take() {
            self.session.compute(&[token])?;
        }
        let token = self.session.sample(&self.sampler)?;
        self.last = Some(token);
        Ok(token)
    }

    /// Text instead of tokens, up to the end token, a stop string of the stream, or `max_tokens`.
    pub fn text(self, stream: TextStream, max_tokens: usize) -> Text<'s> {
        Text {
            eos: self.session.model().info().eos_token,
            tokens: self,
            stream,
            left: max_tokens,
            end: None,
        }
    }
}

impl Iterator for Generate<'_> {
    type Item = Result<i32>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let token = self.advance();
        self.failed = token.is_err();
        Some(token)
    }
}

impl FusedIterator for Generate<'_> {}

/// Why generated text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The model gave its end token.
    Token,
    /// The stop string with this index was met.
    Stop(usize),
    /// As many tokens as were asked for.
    Length,
    /// An error, which was the last item.
    Failed,
}

/// Text that a model goes on with, in pieces that can be shown at once; none is empty.
///
/// ```no_run
/// # fn main() -> kvcsa::Result<()> {
/// # let (pool, model) = (kvcsa::Pool::new()?, kvcsa::Model::open("model")?);
/// # let mut session = kvcsa::Session::new(&pool, &model)?;
/// let stream = kvcsa::TextStream::with_stops(&model, &["\n\n"])?;
/// for piece in session.generate(&kvcsa::Sampler::greedy()).text(stream, 200) {
///     print!("{}", piece?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Text<'s> {
    tokens: Generate<'s>,
    stream: TextStream,
    eos: Option<i32>,
    left: usize,
    end: Option<End>,
}

impl Text<'_> {
    /// Why it ended; `None` before.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    fn piece(&mut self) -> Result<String> {
        while self.end.is_none() {
            if self.left == 0 {
                self.end = Some(End::Length);
                break;
            }
            self.left -= 1;
            let token = self.tokens.advance()?;
            if Some(token) == self.eos {
                self.end = Some(End::Token);
                break;
            }
            let text = self.stream.push(token)?.to_string();
            if let Some(stop) = self.stream.stopped() {
                self.end = Some(End::Stop(stop));
            }
            if !text.is_empty() {
                return Ok(text);
            }
        }
        Ok(self.stream.finish()?.to_string())
    }
}

impl Iterator for Text<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        // Between a stop string and the end nothing is held back.
        if self.end.is_some() {
            return None;
        }
        match self.piece() {
            Ok(text) if text.is_empty() => None,
            Ok(text) => Some(Ok(text)),
            Err(error) => {
                self.end = Some(End::Failed);
                Some(Err(error))
            }
        }
    }
}

impl FusedIterator for Text<'_> {}
