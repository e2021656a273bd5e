//! How sessions are made.

use crate::model::set;
use crate::raw::defaults;
use kvcsa_sys as sys;

c_enum! {
    /// What [`Reuse`] and [`DecoderReplay`] are where they are `Default`.
    pub enum Mode: u32 {
        /// Reuse exact, decoder replay off: the bits of an undisturbed run.
        Exact = KVCSA_MODE_EXACT,
        /// Reuse bounded, decoder replay on: the model's own approximations.
        Fast = KVCSA_MODE_FAST,
    }
}

c_enum! {
    /// Use of prefixes that other sessions have computed, and how windows are rebuilt then.
    pub enum Reuse: u32 {
        /// Of an append: the session's; of a session: the mode's.
        Default = KVCSA_REUSE_DEFAULT,
        /// Compute every token. Windows after a rewind: exact.
        None = KVCSA_REUSE_NONE,
        /// W + (L-1)(W-1) tokens are run again, or a stored window is used: the same bits as
        /// computing everything.
        Exact = KVCSA_REUSE_EXACT,
        /// The last W tokens are run again through all layers: approximate. Blocks made after it
        /// stay private to the session.
        Bounded = KVCSA_REUSE_BOUNDED,
    }
}

c_enum! {
    /// Which tokens of an append the upper layers run. Approximate where it is on.
    pub enum DecoderReplay: u32 {
        /// The mode's.
        Default = KVCSA_DECODER_REPLAY_DEFAULT,
        /// All layers run all tokens.
        Off = KVCSA_DECODER_REPLAY_OFF,
        /// Layers from the cut on run the last window of an append only.
        On = KVCSA_DECODER_REPLAY_ON,
    }
}

/// How a session is made.
#[derive(Clone, Debug)]
pub struct SessionParams {
    raw: sys::kvcsa_session_params,
}

impl Default for SessionParams {
    fn default() -> Self {
        SessionParams {
            // SAFETY: the function of this struct, which is numbers.
            raw: unsafe { defaults(sys::kvcsa_session_params_default) },
        }
    }
}

impl SessionParams {
    /// The library's defaults: exact.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn raw(&self) -> &sys::kvcsa_session_params {
        &self.raw
    }

    /// Most rows computed at once, 0 = 128; does not change results.
    pub fn chunk_tokens(mut self, n: u32) -> Self {
        self.raw.chunk_tokens = n;
        self
    }

    /// Blocks are not published for other sessions.
    pub fn private(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_SESSION_PRIVATE, on);
        self
    }

    /// No entry is selected: every layer reads its window alone. Approximate.
    pub fn window_only(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_SESSION_WINDOW_ONLY, on);
        self
    }

    /// Count what each span of tokens contributes to attention, for
    /// [`Session::mass`](crate::Session::mass).
    pub fn track_mass(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_SESSION_TRACK_MASS, on);
        self
    }

    /// You compute ([`Session::begin_chunk`](crate::Session::begin_chunk)), steps do not; for models
    /// without weights, and for nothing else.
    pub fn cache_only(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_SESSION_CACHE_ONLY, on);
        self
    }

    /// Sessions of different salts never share; 0 is one of them.
    pub fn salt(mut self, salt: u64) -> Self {
        self.raw.salt = salt;
        self
    }

    /// Exact, or the model's own approximations.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.raw.mode = mode.raw();
        self
    }

    /// Use of known prefixes, and how windows are rebuilt.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.raw.reuse = reuse.raw();
        self
    }

    /// Layers from the cut on run the last window of an append only. Approximate.
    pub fn decoder_replay(mut self, replay: DecoderReplay) -> Self {
        self.raw.decoder_replay = replay.raw();
        self
    }

    /// Where decoder replay cuts; 0 = the first layer above the last that owns entries.
    pub fn decoder_cut_layer(mut self, layer: u32) -> Self {
        self.raw.decoder_cut_layer = layer;
        self
    }

    /// A rewind by so many tokens is free; at most 4096. Costs their window rows.
    pub fn window_slack_tokens(mut self, n: u32) -> Self {
        self.raw.window_slack_tokens = n;
        self
    }

    /// Keep a copy of the windows at every multiple of this, so that a hit there needs no replay.
    pub fn window_store_tokens(mut self, n: u32) -> Self {
        self.raw.window_store_tokens = n;
        self
    }

    /// Fewer entries are selected than the plan says. Approximate.
    pub fn select_entries(mut self, n: u32) -> Self {
        self.raw.select_entries = n;
        self
    }

    /// Fewer candidate blocks than the plan says. Approximate.
    pub fn candidate_blocks(mut self, n: u32) -> Self {
        self.raw.candidate_blocks = n;
        self
    }
}
