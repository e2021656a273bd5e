//! Models: configuration, cache plan, weights, tokenizer.

use crate::error::Result;
use crate::hooks::{Hooks, Level};
use crate::plan::{Cost, Estimate, PlanRow};
use crate::plan_params::PlanParams;
use crate::raw::{c_path, c_string, call, defaults, filled, handle, list};
use crate::session_params::SessionParams;
use kvcsa_sys as sys;
use std::alloc::GlobalAlloc;
use std::fmt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

record! {
    /// What a model is.
    pub struct ModelInfo from kvcsa_model_info {
        /// For example "DeepseekV41ForCausalLM".
        architecture: String,
        /// Names of the tensors that this version does not use, one per line; "" if none.
        skipped_names: String,
        /// Longest sequence that the model is made for.
        max_context_tokens: u64,
        /// Payload of the tensors in use.
        weight_bytes: u64,
        /// Payload of the tensors not in use (vision tower, draft stages).
        skipped_bytes: u64,
        /// Of the configuration, the tensor table and a sample of each tensor.
        fingerprint: u64,
        /// In use.
        n_tensors: u32,
        /// Tensors that are not in use.
        n_skipped_tensors: u32,
        /// Token ids are below this.
        vocab_tokens: u32,
        /// Layers of the network.
        n_layers: u32,
        /// Channels of the residual stream.
        hidden_size: u32,
        /// Tokens of one cache block.
        block_tokens: u32,
        /// Id of the start token.
        bos_token: Option<i32>,
        /// Id of the end token.
        eos_token: Option<i32>,
        /// Id of the padding token.
        pad_token: Option<i32>,
        /// Id of the image token, which is refused as input: this version reads text.
        image_token: Option<i32>,
        /// One routed expert of one layer; 0 = none, or not known.
        expert_bytes: u64,
        /// Routed, of a layer.
        n_experts: u32,
        /// Routed experts that one token uses.
        n_experts_per_token: u32,
        /// Layers with routed experts.
        n_moe_layers: u32,
        /// This version has the plan and computes its cost, and has no network for it.
        cost_only: bool,
        /// What [`Session::hide`](crate::Session::hide) and [`Session::mass`](crate::Session::mass)
        /// count in; 0 = no layer has an index.
        span_tokens: u32,
    }
}

/// How a model is opened.
///
/// ```no_run
/// # fn main() -> kvcsa::Result<()> {
/// let params = kvcsa::ModelParams::new()
///     .plan(r#"{"entry_format": "bf16"}"#)
///     .log(|level, text| eprintln!("{level:?}: {text}"));
/// let model = kvcsa::Model::open_with("model", params)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ModelParams {
    raw: sys::kvcsa_model_params,
    plan: Option<String>,
    hooks: Hooks,
}

// SAFETY: the pointers in `raw` are NULL until the call that opens a model.
unsafe impl Send for ModelParams {}

impl Default for ModelParams {
    fn default() -> Self {
        ModelParams {
            // SAFETY: the function of this struct, which is numbers and pointers.
            raw: unsafe { defaults(sys::kvcsa_model_params_default) },
            plan: None,
            hooks: Hooks::default(),
        }
    }
}

impl ModelParams {
    /// The library's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Read the configuration only: plan and cost work, weights and tokenizer are absent.
    pub fn plan_only(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_MODEL_PLAN_ONLY, on);
        self
    }

    /// Read the weights into memory instead of mapping the files, where these may be cut short
    /// while the model is open.
    pub fn read_weights(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_MODEL_READ, on);
        self
    }

    /// Tokens of a cache block; 0 = 128.
    pub fn block_tokens(mut self, n: u32) -> Self {
        self.raw.block_tokens = n;
        self
    }

    /// A JSON object that changes the cache plan, for example `{"entry_format": "bf16"}`.
    pub fn plan(mut self, json: impl Into<String>) -> Self {
        self.plan = Some(json.into());
        self
    }

    /// Where messages go; without it the library is silent. May be called from several threads.
    pub fn log(mut self, f: impl Fn(Level, &str) + Send + Sync + 'static) -> Self {
        self.hooks.log = Some(Box::new(f));
        self
    }

    /// Memory of the model comes from here.
    pub fn allocator(mut self, a: impl GlobalAlloc + Send + Sync + 'static) -> Self {
        self.hooks.allocator = Some(Box::new(a));
        self
    }
}

/// Set or clear a bit.
pub(crate) fn set(flags: &mut u32, bit: u32, on: bool) {
    *flags = if on { *flags | bit } else { *flags & !bit };
}

/// One message of a conversation.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// `system`, `user` or `assistant`.
    pub role: &'a str,
    /// Special tokens in it are encoded as plain text.
    pub text: &'a str,
}

struct Inner {
    raw: NonNull<sys::kvcsa_model>,
    info: ModelInfo,
    hooks: Arc<Hooks>,
}

// SAFETY: a model is immutable, and all its functions are for any thread.
unsafe impl Send for Inner {}
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the one reference that we hold.
        unsafe { sys::kvcsa_model_release(&mut raw) };
    }
}

/// An open model: immutable and shared. A clone is another reference to the same one.
///
/// Sessions and text streams keep their model alive.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("architecture", &self.0.info.architecture)
            .finish()
    }
}

impl Model {
    /// Open the folder of a checkpoint with default parameters.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, ModelParams::new())
    }

    /// Open the folder of a checkpoint. With [`ModelParams::plan_only`] it may also be a
    /// `config.json`, and of many other families too.
    ///
    /// Weights are mapped: a file that is cut short while the model is open ends the process with
    /// SIGBUS at the next touch, unless [`ModelParams::read_weights`] was set.
    pub fn open_with(path: impl AsRef<Path>, params: ModelParams) -> Result<Self> {
        let path = c_path(path.as_ref())?;
        let plan = params
            .plan
            .as_deref()
            .map(|p| c_string(p, "the plan"))
            .transpose()?;
        let hooks = Arc::new(params.hooks);
        let raw_hooks = hooks.raw();
        let mut raw = params.raw;
        raw.log = raw_hooks.log();
        raw.allocator = raw_hooks.allocator();
        raw.plan = plan.as_ref().map_or(ptr::null(), |p| p.as_ptr());
        let mut out = ptr::null_mut();
        // SAFETY: everything that `raw` points to lives until the call returns, hooks longer.
        let opened =
            call(|err| unsafe { sys::kvcsa_model_open(path.as_ptr(), &raw, &mut out, err) });
        Self::adopt(opened, out, hooks)
    }

    /// A model from a cache plan alone, for a network of your own: costs, estimates and sessions
    /// with [`SessionParams::cache_only`] work with it. ([`ModelParams::plan_only`] makes one from a
    /// `config.json`.)
    ///
    /// What follows from other fields may be 0: `entry_bytes`, `index_bytes`, `window_bytes`,
    /// `pending_bytes`. Each row is given in full, layer 0 first.
    pub fn from_plan(rows: &[PlanRow], params: PlanParams) -> Result<Self> {
        let name = params
            .name
            .as_deref()
            .map(|n| c_string(n, "the name"))
            .transpose()?;
        let hooks = Arc::new(params.hooks);
        let raw_hooks = hooks.raw();
        let mut raw = params.raw;
        raw.log = raw_hooks.log();
        raw.allocator = raw_hooks.allocator();
        raw.name = name.as_ref().map_or(ptr::null(), |n| n.as_ptr());
        let rows: Vec<sys::kvcsa_plan_row> = rows.iter().map(PlanRow::to_raw).collect();
        let mut out = ptr::null_mut();
        // SAFETY: everything that `raw` points to lives until the call returns, hooks longer; rows
        // are as many as said.
        let made = call(|err| unsafe {
            sys::kvcsa_model_from_plan(rows.as_ptr(), rows.len(), &raw, &mut out, err)
        });
        Self::adopt(made, out, hooks)
    }

    /// A model of the C interface becomes ours, if there is one.
    fn adopt(made: Result<()>, out: *mut sys::kvcsa_model, hooks: Arc<Hooks>) -> Result<Self> {
        if let Err(error) = made {
            hooks.panic.resume();
            return Err(error);
        }
        let mut inner = Inner {
            raw: handle(out)?,
            info: ModelInfo::from_raw(&crate::raw::Tagged::tagged()),
            hooks,
        };
        inner.hooks.panic.resume();
        // SAFETY: the model is open; its strings are copied.
        let info = filled(|i, err| unsafe { sys::kvcsa_model_get_info(out, i, err) })?;
        inner.info = ModelInfo::from_raw(&info);
        Ok(Model(Arc::new(inner)))
    }

    pub(crate) fn raw(&self) -> *mut sys::kvcsa_model {
        self.0.raw.as_ptr()
    }

    pub(crate) fn hooks(&self) -> &Arc<Hooks> {
        &self.0.hooks
    }

    /// A call, and then the panic of a function of ours that it called.
    pub(crate) fn done<T>(&self, result: Result<T>) -> Result<T> {
        self.0.hooks.panic.resume();
        result
    }

    /// What the model is.
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// What one layer keeps and reads.
    pub fn plan_row(&self, layer: u32) -> Result<PlanRow> {
        // SAFETY: handle and record are there.
        self.done(filled(|row, err| unsafe {
            sys::kvcsa_model_plan_row(self.raw(), layer, row, err)
        }))
        .map(|row| PlanRow::from_raw(&row))
    }

    /// What all layers keep and read.
    pub fn plan(&self) -> Result<Vec<PlanRow>> {
        (0..self.0.info.n_layers)
            .map(|layer| self.plan_row(layer))
            .collect()
    }

    /// The five cache figures of one sequence, from the plan alone.
    pub fn cost(&self, n_tokens: u64) -> Result<Cost> {
        // SAFETY: handle and record are there.
        self.done(filled(|cost, err| unsafe {
            sys::kvcsa_model_cost(self.raw(), n_tokens, cost, err)
        }))
        .map(|cost| Cost::from_raw(&cost))
    }

    /// Bytes that `n_sessions` sessions of `n_tokens` each will need, the first `n_shared_tokens`
    /// of which are the same.
    pub fn estimate(
        &self,
        params: &SessionParams,
        n_tokens: u64,
        n_sessions: u64,
        n_shared_tokens: u64,
    ) -> Result<Estimate> {
        // SAFETY: handle, parameters and record are there.
        self.done(filled(|estimate, err| unsafe {
            sys::kvcsa_model_estimate(
                self.raw(),
                params.raw(),
                n_tokens,
                n_sessions,
                n_shared_tokens,
                estimate,
                err,
            )
        }))
        .map(|estimate| Estimate::from_raw(&estimate))
    }

    /// Token ids of a text; special tokens in it are encoded as plain text. No token is added.
    pub fn tokenize(&self, text: impl AsRef<[u8]>) -> Result<Vec<i32>> {
        self.tokenize_flags(text.as_ref(), 0)
    }

    /// Likewise, but special tokens are cut out and get their ids.
    pub fn tokenize_special(&self, text: impl AsRef<[u8]>) -> Result<Vec<i32>> {
        self.tokenize_flags(text.as_ref(), sys::KVCSA_TOKENIZE_SPECIAL)
    }

    fn tokenize_flags(&self, text: &[u8], flags: u32) -> Result<Vec<i32>> {
        // SAFETY: text and array are as long as said.
        self.done(list(text.len() / 3 + 16, |ids, cap, n, err| unsafe {
            let bytes = text.as_ptr().cast();
            sys::kvcsa_model_tokenize(self.raw(), bytes, text.len(), flags, ids, cap, n, err)
        }))
    }

    /// The tokens of a text, behind the start token if the model has one.
    pub fn prompt(&self, text: impl AsRef<[u8]>) -> Result<Vec<i32>> {
        let mut ids: Vec<i32> = self.0.info.bos_token.into_iter().collect();
        ids.extend(self.tokenize(text)?);
        Ok(ids)
    }

    /// Token ids of a conversation in the model's chat format, ending where the assistant is to
    /// write.
    pub fn chat_prompt(&self, messages: &[Message<'_>]) -> Result<Vec<i32>> {
        let texts = messages
            .iter()
            .map(|m| Ok((c_string(m.role, "a role")?, c_string(m.text, "a message")?)))
            .collect::<Result<Vec<_>>>()?;
        let raw: Vec<sys::kvcsa_message> = texts
            .iter()
            .map(|(role, text)| sys::kvcsa_message {
                role: role.as_ptr(),
                text: text.as_ptr(),
            })
            .collect();
        let guess = messages.iter().map(|m| m.text.len() / 3 + 8).sum();
        // SAFETY: messages and array are as long as said.
        self.done(list(guess, |ids, cap, n, err| unsafe {
            sys::kvcsa_model_chat_prompt(self.raw(), raw.as_ptr(), raw.len(), ids, cap, n, err)
        }))
    }

    /// The bytes of one token; they need not be whole characters (see
    /// [`TextStream`](crate::TextStream)).
    pub fn token_text(&self, id: i32) -> Result<&[u8]> {
        let (mut text, mut n) = (ptr::null(), 0);
        // SAFETY: handle and places are there.
        self.done(call(|err| unsafe {
            sys::kvcsa_model_token_text(self.raw(), id, &mut text, &mut n, err)
        }))?;
        // SAFETY: owned by the model, which is borrowed.
        Ok(if n == 0 {
            &[]
        } else {
            unsafe { std::slice::from_raw_parts(text.cast(), n) }
        })
    }

    /// The bytes of a list of tokens.
    pub fn detokenize(&self, ids: &[i32]) -> Result<Vec<u8>> {
        // SAFETY: ids and array are as long as said.
        self.done(list(
            ids.len() * 6 + 16,
            |text: *mut u8, cap, n, err| unsafe {
                let text = text.cast();
                sys::kvcsa_model_detokenize(self.raw(), ids.as_ptr(), ids.len(), text, cap, n, err)
            },
        ))
    }
}
