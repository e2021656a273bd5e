//! All functions as one table, for hosts that load the library by hand.

use crate::chunk::{
    kvcsa_chunk_attention, kvcsa_chunk_info, kvcsa_chunk_queries, kvcsa_chunk_rows,
};
use crate::compare::{
    kvcsa_compare, kvcsa_compare_progress, kvcsa_compare_result, kvcsa_compare_row, kvcsa_setting,
};
use crate::cost::{
    kvcsa_agent_cost, kvcsa_agent_params, kvcsa_resume_cost, kvcsa_resume_params,
    kvcsa_serving_cost, kvcsa_serving_params,
};
use crate::hooks::kvcsa_allocator;
use crate::model::{
    kvcsa_cost, kvcsa_message, kvcsa_model, kvcsa_model_info, kvcsa_model_params,
    kvcsa_plan_params, kvcsa_plan_row,
};
use crate::pool::{
    kvcsa_backend_info, kvcsa_cpu_info, kvcsa_pool, kvcsa_pool_params, kvcsa_pool_stats,
};
use crate::sampler::kvcsa_sampler_params;
use crate::session::{
    kvcsa_append_params, kvcsa_estimate, kvcsa_reuse, kvcsa_session, kvcsa_session_params,
    kvcsa_session_stats, kvcsa_step_params, kvcsa_step_result, kvcsa_work,
};
use crate::snapshot::{kvcsa_reader, kvcsa_snapshot_info, kvcsa_snapshot_params, kvcsa_writer};
use crate::status::{kvcsa_error, kvcsa_status};
use crate::synth::{kvcsa_synth_info, kvcsa_synth_params};
use crate::text_stream::kvcsa_text_stream;
use std::os::raw::c_char;

/// Every function of the library. New ones are added at the end; nothing is moved or taken out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_api {
    /// Of the library that filled it: members that lie beyond are not there.
    pub struct_size: usize,
    /// As kvcsa_version_number().
    pub version: u32,
    /// KVCSA_ABI of the library.
    pub abi: u32,
    /// As [`kvcsa_status_name`](crate::kvcsa_status_name).
    pub status_name: Option<unsafe extern "C" fn(status: kvcsa_status) -> *const c_char>,
    /// As [`kvcsa_version_number`](crate::kvcsa_version_number).
    pub version_number: Option<unsafe extern "C" fn() -> u32>,
    /// As [`kvcsa_version_string`](crate::kvcsa_version_string).
    pub version_string: Option<unsafe extern "C" fn() -> *const c_char>,
    /// As [`kvcsa_format_name`](crate::kvcsa_format_name).
    pub format_name: Option<unsafe extern "C" fn(format: u32) -> *const c_char>,
    /// As [`kvcsa_model_params_default`](crate::kvcsa_model_params_default).
    pub model_params_default:
        Option<unsafe extern "C" fn(params: *mut kvcsa_model_params, struct_size: usize)>,
    /// As [`kvcsa_model_open`](crate::kvcsa_model_open).
    pub model_open: Option<
        unsafe extern "C" fn(
            path: *const c_char,
            params: *const kvcsa_model_params,
            out: *mut *mut kvcsa_model,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_model_release`](crate::kvcsa_model_release).
    pub model_release: Option<unsafe extern "C" fn(model: *mut *mut kvcsa_model)>,
    /// As [`kvcsa_model_get_info`](crate::kvcsa_model_get_info).
    pub model_get_info: Option<
        unsafe extern "C" fn(
            model: *const kvcsa_model,
            info: *mut kvcsa_model_info,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_model_plan_row`](crate::kvcsa_model_plan_row).
    pub model_plan_row: Option<
        unsafe extern "C" fn(
            model: *const kvcsa_model,
            layer: u32,
            row: *mut kvcsa_plan_row,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_model_cost`](crate::kvcsa_model_cost).
    pub model_cost: Option<
        unsafe extern "C" fn(
            model: *const kvcsa_model,
            n_tokens: u64,
            cost: *mut kvcsa_cost,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_model_tokenize`](crate::kvcsa_model_tokenize).
    pub model_tokenize: Option<
        unsafe extern "C" fn(
            model: *const kvcsa_model,
            text: *const c_char,
            n_bytes: usize,
            flags: u32,
            ids: *mut i32,
            cap: usize,
            n_ids: *mut usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_model_token_text`](crate::kvcsa_model_token_text).
    pub model_token_text: Option<
        unsafe extern "C" fn(
            model: *const kvcsa_model,
            id: i32,
            text: *mut *const c_char,
            n_bytes: *mut usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_model_detokenize`](crate::kvcsa_model_detokenize).
    pub model_detokenize: Option<
        unsafe extern "C" fn(
            model: *const kvcsa_model,
            ids: *const i32,
            n_ids: usize,
            text: *mut c_char,
            cap: usize,
            n_bytes: *mut usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_model_chat_prompt`](crate::kvcsa_model_chat_prompt).
    pub model_chat_prompt: Option<
        unsafe extern "C" fn(
            model: *const kvcsa_model,
            messages: *const kvcsa_message,
            n_messages: usize,
            ids: *mut i32,
            cap: usize,
            n_ids: *mut usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_text_stream_create`](crate::kvcsa_text_stream_create).
    pub text_stream_create: Option<
        unsafe extern "C" fn(
            model: *mut kvcsa_model,
            stops: *const *const c_char,
            n_stops: usize,
            out: *mut *mut kvcsa_text_stream,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_text_stream_push`](crate::kvcsa_text_stream_push).
    pub text_stream_push: Option<
        unsafe extern "C" fn(
            stream: *mut kvcsa_text_stream,
            token: i32,
            text: *mut *const c_char,
            n_bytes: *mut usize,
            stopped: *mut i32,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_text_stream_finish`](crate::kvcsa_text_stream_finish).
    pub text_stream_finish: Option<
        unsafe extern "C" fn(
            stream: *mut kvcsa_text_stream,
            text: *mut *const c_char,
            n_bytes: *mut usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_text_stream_release`](crate::kvcsa_text_stream_release).
    pub text_stream_release: Option<unsafe extern "C" fn(stream: *mut *mut kvcsa_text_stream)>,
    /// As [`kvcsa_pool_params_default`](crate::kvcsa_pool_params_default).
    pub pool_params_default:
        Option<unsafe extern "C" fn(params: *mut kvcsa_pool_params, struct_size: usize)>,
    /// As [`kvcsa_pool_create`](crate::kvcsa_pool_create).
    pub pool_create: Option<
        unsafe extern "C" fn(
            params: *const kvcsa_pool_params,
            out: *mut *mut kvcsa_pool,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_pool_release`](crate::kvcsa_pool_release).
    pub pool_release: Option<unsafe extern "C" fn(pool: *mut *mut kvcsa_pool)>,
    /// As [`kvcsa_pool_get_stats`](crate::kvcsa_pool_get_stats).
    pub pool_get_stats: Option<
        unsafe extern "C" fn(
            pool: *mut kvcsa_pool,
            stats: *mut kvcsa_pool_stats,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_pool_get_cpu`](crate::kvcsa_pool_get_cpu).
    pub pool_get_cpu: Option<
        unsafe extern "C" fn(
            pool: *const kvcsa_pool,
            info: *mut kvcsa_cpu_info,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_pool_get_backend`](crate::kvcsa_pool_get_backend).
    pub pool_get_backend: Option<
        unsafe extern "C" fn(
            pool: *const kvcsa_pool,
            info: *mut kvcsa_backend_info,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_pool_check`](crate::kvcsa_pool_check).
    pub pool_check:
        Option<unsafe extern "C" fn(pool: *mut kvcsa_pool, err: *mut kvcsa_error) -> kvcsa_status>,
    /// As [`kvcsa_pool_resize`](crate::kvcsa_pool_resize).
    pub pool_resize: Option<
        unsafe extern "C" fn(
            pool: *mut kvcsa_pool,
            budget_bytes: u64,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_pool_trim`](crate::kvcsa_pool_trim).
    pub pool_trim: Option<
        unsafe extern "C" fn(
            pool: *mut kvcsa_pool,
            max_used_bytes: u64,
            freed_bytes: *mut u64,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_params_default`](crate::kvcsa_session_params_default).
    pub session_params_default:
        Option<unsafe extern "C" fn(params: *mut kvcsa_session_params, struct_size: usize)>,
    /// As [`kvcsa_session_create`](crate::kvcsa_session_create).
    pub session_create: Option<
        unsafe extern "C" fn(
            pool: *mut kvcsa_pool,
            model: *mut kvcsa_model,
            params: *const kvcsa_session_params,
            out: *mut *mut kvcsa_session,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_release`](crate::kvcsa_session_release).
    pub session_release: Option<unsafe extern "C" fn(session: *mut *mut kvcsa_session)>,
    /// As [`kvcsa_append_params_default`](crate::kvcsa_append_params_default).
    pub append_params_default:
        Option<unsafe extern "C" fn(params: *mut kvcsa_append_params, struct_size: usize)>,
    /// As [`kvcsa_session_append`](crate::kvcsa_session_append).
    pub session_append: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            tokens: *const i32,
            n_tokens: usize,
            params: *const kvcsa_append_params,
            out_pos: *mut u64,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_step_params_default`](crate::kvcsa_step_params_default).
    pub step_params_default:
        Option<unsafe extern "C" fn(params: *mut kvcsa_step_params, struct_size: usize)>,
    /// As [`kvcsa_pool_step`](crate::kvcsa_pool_step).
    pub pool_step: Option<
        unsafe extern "C" fn(
            pool: *mut kvcsa_pool,
            sessions: *const *mut kvcsa_session,
            n_sessions: usize,
            params: *const kvcsa_step_params,
            results: *mut kvcsa_step_result,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_cancel`](crate::kvcsa_session_cancel).
    pub session_cancel: Option<unsafe extern "C" fn(session: *mut kvcsa_session)>,
    /// As [`kvcsa_session_get_logits`](crate::kvcsa_session_get_logits).
    pub session_get_logits: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            logits: *mut f32,
            n_vocab: u32,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_length`](crate::kvcsa_session_length).
    pub session_length: Option<unsafe extern "C" fn(session: *const kvcsa_session) -> u64>,
    /// As [`kvcsa_session_get_tokens`](crate::kvcsa_session_get_tokens).
    pub session_get_tokens: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            from: u64,
            tokens: *mut i32,
            cap: usize,
            n_tokens: *mut usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_get_stats`](crate::kvcsa_session_get_stats).
    pub session_get_stats: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            stats: *mut kvcsa_session_stats,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_layer_work`](crate::kvcsa_session_layer_work).
    pub session_layer_work: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            layer: u32,
            step: *mut kvcsa_work,
            total: *mut kvcsa_work,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_hide`](crate::kvcsa_session_hide).
    pub session_hide: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            begin: u64,
            end: u64,
            hidden: i32,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_get_mass`](crate::kvcsa_session_get_mass).
    pub session_get_mass: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            mass: *mut f64,
            cap: usize,
            n_spans: *mut usize,
            reset: i32,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_get_reuse`](crate::kvcsa_session_get_reuse).
    pub session_get_reuse: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            reuse: *mut kvcsa_reuse,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_common_prefix`](crate::kvcsa_session_common_prefix).
    pub session_common_prefix: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            tokens: *const i32,
            n_tokens: usize,
            n_common: *mut usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_fork`](crate::kvcsa_session_fork).
    pub session_fork: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            position: u64,
            params: *const kvcsa_session_params,
            out: *mut *mut kvcsa_session,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_rewind`](crate::kvcsa_session_rewind).
    pub session_rewind: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            position: u64,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_sync`](crate::kvcsa_session_sync).
    pub session_sync: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            tokens: *const i32,
            n_tokens: usize,
            params: *const kvcsa_append_params,
            reuse: *mut kvcsa_reuse,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_erase`](crate::kvcsa_session_erase).
    pub session_erase: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            flags: u32,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_model_estimate`](crate::kvcsa_model_estimate).
    pub model_estimate: Option<
        unsafe extern "C" fn(
            model: *const kvcsa_model,
            params: *const kvcsa_session_params,
            n_tokens: u64,
            n_sessions: u64,
            n_shared_tokens: u64,
            estimate: *mut kvcsa_estimate,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_prefix_match`](crate::kvcsa_prefix_match).
    pub prefix_match: Option<
        unsafe extern "C" fn(
            pool: *mut kvcsa_pool,
            model: *const kvcsa_model,
            salt: u64,
            tokens: *const i32,
            n_tokens: usize,
            n_matched: *mut usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_prefix_publish`](crate::kvcsa_prefix_publish).
    pub prefix_publish: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            n_published: *mut u64,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_prefix_pin`](crate::kvcsa_prefix_pin).
    pub prefix_pin: Option<
        unsafe extern "C" fn(
            pool: *mut kvcsa_pool,
            model: *const kvcsa_model,
            salt: u64,
            tokens: *const i32,
            n_tokens: usize,
            n_pinned: *mut usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_prefix_unpin`](crate::kvcsa_prefix_unpin).
    pub prefix_unpin: Option<
        unsafe extern "C" fn(
            pool: *mut kvcsa_pool,
            model: *const kvcsa_model,
            salt: u64,
            tokens: *const i32,
            n_tokens: usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_prefix_forget`](crate::kvcsa_prefix_forget).
    pub prefix_forget: Option<
        unsafe extern "C" fn(
            pool: *mut kvcsa_pool,
            model: *const kvcsa_model,
            salt: u64,
            tokens: *const i32,
            n_tokens: usize,
            n_freed_bytes: *mut u64,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_snapshot_params_default`](crate::kvcsa_snapshot_params_default).
    pub snapshot_params_default:
        Option<unsafe extern "C" fn(params: *mut kvcsa_snapshot_params, struct_size: usize)>,
    /// As [`kvcsa_snapshot_size`](crate::kvcsa_snapshot_size).
    pub snapshot_size: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            params: *const kvcsa_snapshot_params,
            n_bytes: *mut u64,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_snapshot_save`](crate::kvcsa_snapshot_save).
    pub snapshot_save: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            path: *const c_char,
            params: *const kvcsa_snapshot_params,
            info: *mut kvcsa_snapshot_info,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_snapshot_load`](crate::kvcsa_snapshot_load).
    pub snapshot_load: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            path: *const c_char,
            params: *const kvcsa_snapshot_params,
            info: *mut kvcsa_snapshot_info,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_snapshot_write`](crate::kvcsa_snapshot_write).
    pub snapshot_write: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            writer: *const kvcsa_writer,
            params: *const kvcsa_snapshot_params,
            info: *mut kvcsa_snapshot_info,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_snapshot_read`](crate::kvcsa_snapshot_read).
    pub snapshot_read: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            reader: *const kvcsa_reader,
            params: *const kvcsa_snapshot_params,
            info: *mut kvcsa_snapshot_info,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_snapshot_inspect`](crate::kvcsa_snapshot_inspect).
    pub snapshot_inspect: Option<
        unsafe extern "C" fn(
            path: *const c_char,
            params: *const kvcsa_snapshot_params,
            info: *mut kvcsa_snapshot_info,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_snapshot_remove`](crate::kvcsa_snapshot_remove).
    pub snapshot_remove: Option<
        unsafe extern "C" fn(
            path: *const c_char,
            params: *const kvcsa_snapshot_params,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_sampler_params_default`](crate::kvcsa_sampler_params_default).
    pub sampler_params_default:
        Option<unsafe extern "C" fn(params: *mut kvcsa_sampler_params, struct_size: usize)>,
    /// As [`kvcsa_sample_logits`](crate::kvcsa_sample_logits).
    pub sample_logits: Option<
        unsafe extern "C" fn(
            logits: *const f32,
            n_vocab: u32,
            position: u64,
            params: *const kvcsa_sampler_params,
            token: *mut i32,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_session_sample`](crate::kvcsa_session_sample).
    pub session_sample: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            params: *const kvcsa_sampler_params,
            token: *mut i32,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_compare_create`](crate::kvcsa_compare_create).
    pub compare_create: Option<
        unsafe extern "C" fn(
            allocator: *const kvcsa_allocator,
            out: *mut *mut kvcsa_compare,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_compare_release`](crate::kvcsa_compare_release).
    pub compare_release: Option<unsafe extern "C" fn(compare: *mut *mut kvcsa_compare)>,
    /// As [`kvcsa_compare_begin`](crate::kvcsa_compare_begin).
    pub compare_begin: Option<
        unsafe extern "C" fn(compare: *mut kvcsa_compare, err: *mut kvcsa_error) -> kvcsa_status,
    >,
    /// As [`kvcsa_compare_add`](crate::kvcsa_compare_add).
    pub compare_add: Option<
        unsafe extern "C" fn(
            compare: *mut kvcsa_compare,
            position: u64,
            next_token: i32,
            reference: *const f32,
            test: *const f32,
            n_vocab: u32,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_compare_add_greedy`](crate::kvcsa_compare_add_greedy).
    pub compare_add_greedy: Option<
        unsafe extern "C" fn(
            compare: *mut kvcsa_compare,
            reference: *const i32,
            test: *const i32,
            n_tokens: usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_compare_get_result`](crate::kvcsa_compare_get_result).
    pub compare_get_result: Option<
        unsafe extern "C" fn(
            compare: *const kvcsa_compare,
            result: *mut kvcsa_compare_result,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_compare_get_rows`](crate::kvcsa_compare_get_rows).
    pub compare_get_rows: Option<
        unsafe extern "C" fn(
            compare: *const kvcsa_compare,
            from: u64,
            rows: *mut kvcsa_compare_row,
            cap: usize,
            n_rows: *mut usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_compare_get_greedy`](crate::kvcsa_compare_get_greedy).
    pub compare_get_greedy: Option<
        unsafe extern "C" fn(
            compare: *const kvcsa_compare,
            n_same: *mut u64,
            cap: usize,
            n_greedy: *mut usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_setting_default`](crate::kvcsa_setting_default).
    pub setting_default:
        Option<unsafe extern "C" fn(setting: *mut kvcsa_setting, struct_size: usize)>,
    /// As [`kvcsa_compare_text`](crate::kvcsa_compare_text).
    pub compare_text: Option<
        unsafe extern "C" fn(
            reference: *const kvcsa_setting,
            tests: *const kvcsa_setting,
            compares: *const *mut kvcsa_compare,
            n_tests: usize,
            tokens: *const i32,
            n_tokens: usize,
            first: u64,
            progress: *const kvcsa_compare_progress,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_compare_greedy`](crate::kvcsa_compare_greedy).
    pub compare_greedy: Option<
        unsafe extern "C" fn(
            reference: *const kvcsa_setting,
            tests: *const kvcsa_setting,
            compares: *const *mut kvcsa_compare,
            n_tests: usize,
            tokens: *const i32,
            n_tokens: usize,
            n_generate: usize,
            generated: *mut i32,
            progress: *const kvcsa_compare_progress,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_serving_params_default`](crate::kvcsa_serving_params_default).
    pub serving_params_default:
        Option<unsafe extern "C" fn(params: *mut kvcsa_serving_params, struct_size: usize)>,
    /// As [`kvcsa_model_serving_cost`](crate::kvcsa_model_serving_cost).
    pub model_serving_cost: Option<
        unsafe extern "C" fn(
            model: *const kvcsa_model,
            params: *const kvcsa_serving_params,
            cost: *mut kvcsa_serving_cost,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_resume_params_default`](crate::kvcsa_resume_params_default).
    pub resume_params_default:
        Option<unsafe extern "C" fn(params: *mut kvcsa_resume_params, struct_size: usize)>,
    /// As [`kvcsa_model_resume_cost`](crate::kvcsa_model_resume_cost).
    pub model_resume_cost: Option<
        unsafe extern "C" fn(
            model: *const kvcsa_model,
            params: *const kvcsa_resume_params,
            cost: *mut kvcsa_resume_cost,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_agent_params_default`](crate::kvcsa_agent_params_default).
    pub agent_params_default:
        Option<unsafe extern "C" fn(params: *mut kvcsa_agent_params, struct_size: usize)>,
    /// As [`kvcsa_agent_get_cost`](crate::kvcsa_agent_get_cost).
    pub agent_get_cost: Option<
        unsafe extern "C" fn(
            params: *const kvcsa_agent_params,
            cost: *mut kvcsa_agent_cost,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_synth_params_default`](crate::kvcsa_synth_params_default).
    pub synth_params_default:
        Option<unsafe extern "C" fn(params: *mut kvcsa_synth_params, struct_size: usize)>,
    /// As [`kvcsa_synth_checkpoint`](crate::kvcsa_synth_checkpoint).
    pub synth_checkpoint: Option<
        unsafe extern "C" fn(
            config: *const c_char,
            directory: *const c_char,
            params: *const kvcsa_synth_params,
            info: *mut kvcsa_synth_info,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_plan_params_default`](crate::kvcsa_plan_params_default).
    pub plan_params_default:
        Option<unsafe extern "C" fn(params: *mut kvcsa_plan_params, struct_size: usize)>,
    /// As [`kvcsa_model_from_plan`](crate::kvcsa_model_from_plan).
    pub model_from_plan: Option<
        unsafe extern "C" fn(
            rows: *const kvcsa_plan_row,
            n_rows: usize,
            params: *const kvcsa_plan_params,
            out: *mut *mut kvcsa_model,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_chunk_begin`](crate::kvcsa_chunk_begin).
    pub chunk_begin: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            max_rows: u32,
            info: *mut kvcsa_chunk_info,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_chunk_write`](crate::kvcsa_chunk_write).
    pub chunk_write: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            layer: u32,
            rows: *const kvcsa_chunk_rows,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_chunk_select`](crate::kvcsa_chunk_select).
    pub chunk_select: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            layer: u32,
            queries: *const kvcsa_chunk_queries,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_chunk_attend`](crate::kvcsa_chunk_attend).
    pub chunk_attend: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            layer: u32,
            attention: *const kvcsa_chunk_attention,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
    /// As [`kvcsa_chunk_commit`](crate::kvcsa_chunk_commit).
    pub chunk_commit: Option<
        unsafe extern "C" fn(session: *mut kvcsa_session, err: *mut kvcsa_error) -> kvcsa_status,
    >,
    /// As [`kvcsa_chunk_abandon`](crate::kvcsa_chunk_abandon).
    pub chunk_abandon: Option<unsafe extern "C" fn(session: *mut kvcsa_session)>,
    /// As [`kvcsa_session_read_rows`](crate::kvcsa_session_read_rows).
    pub session_read_rows: Option<
        unsafe extern "C" fn(
            session: *mut kvcsa_session,
            layer: u32,
            what: u32,
            first: u64,
            n: u64,
            out: *mut f32,
            cap: usize,
            err: *mut kvcsa_error,
        ) -> kvcsa_status,
    >,
}

extern "C" {
    /// The library as one table. It is there as long as the library is loaded.
    ///
    /// * `version`: KVCSA_VERSION_NUMBER of the header that the caller was compiled with: all members
    ///   that this header declares are there then. A caller that can do without the newest ones asks
    ///   again with the least version that it needs, and compares struct_size.
    /// * **Returns**: NULL if the library is older than `version`, or `version` than 0.4, which has the
    ///   first table.
    /// * **Thread**: any.
    /// * **Owner**: static.
    /// * **Since**: 0.4
    pub fn kvcsa_get_api(version: u32) -> *const kvcsa_api;
}
