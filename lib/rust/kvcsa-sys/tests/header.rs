//! The declarations against the header: a C compiler is asked for every size, offset, type, value
//! and prototype, and the version script for every name.

use kvcsa_sys::*;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write;
use std::fs;
use std::mem::{align_of, size_of, MaybeUninit};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::ptr::addr_of;

const SOURCES: &[&str] = &[
    include_str!("../src/api.rs"),
    include_str!("../src/chunk.rs"),
    include_str!("../src/compare.rs"),
    include_str!("../src/cost.rs"),
    include_str!("../src/hooks.rs"),
    include_str!("../src/model.rs"),
    include_str!("../src/pool.rs"),
    include_str!("../src/prefix.rs"),
    include_str!("../src/sampler.rs"),
    include_str!("../src/session.rs"),
    include_str!("../src/snapshot.rs"),
    include_str!("../src/status.rs"),
    include_str!("../src/synth.rs"),
    include_str!("../src/text_stream.rs"),
];

/// Lines "S struct size alignment" and "F struct field offset size", as the C program prints them.
fn layout_in_rust() -> BTreeSet<String> {
    fn size_of_place<T>(_: *const T) -> usize {
        size_of::<T>()
    }
    let mut lines = BTreeSet::new();
    macro_rules! layout {
        ($($s:ident { $($f:ident),* })*) => {
            $(
                lines.insert(format!("S {} {} {}", stringify!($s), size_of::<$s>(), align_of::<$s>()));
                let place = MaybeUninit::<$s>::uninit();
                $(
                    // SAFETY: the address alone is taken.
                    let field = unsafe { addr_of!((*place.as_ptr()).$f) };
                    let offset = field as usize - place.as_ptr() as usize;
                    let (s, f) = (stringify!($s), stringify!($f));
                    lines.insert(format!("F {s} {f} {offset} {}", size_of_place(field)));
                )*
            )*
        };
    }
    layout! {
        kvcsa_api { struct_size, version, abi, status_name, version_number, version_string, format_name, model_params_default, model_open, model_release, model_get_info, model_plan_row, model_cost, model_tokenize, model_token_text, model_detokenize, model_chat_prompt, text_stream_create, text_stream_push, text_stream_finish, text_stream_release, pool_params_default, pool_create, pool_release, pool_get_stats, pool_get_cpu, pool_get_backend, pool_check, pool_resize, pool_trim, session_params_default, session_create, session_release, append_params_default, session_append, step_params_default, pool_step, session_cancel, session_get_logits, session_length, session_get_tokens, session_get_stats, session_layer_work, session_hide, session_get_mass, session_get_reuse, session_common_prefix, session_fork, session_rewind, session_sync, session_erase, model_estimate, prefix_match, prefix_publish, prefix_pin, prefix_unpin, prefix_forget, snapshot_params_default, snapshot_size, snapshot_save, snapshot_load, snapshot_write, snapshot_read, snapshot_inspect, snapshot_remove, sampler_params_default, sample_logits, session_sample, compare_create, compare_release, compare_begin, compare_add, compare_add_greedy, compare_get_result, compare_get_rows, compare_get_greedy, setting_default, compare_text, compare_greedy, serving_params_default, model_serving_cost, resume_params_default, model_resume_cost, agent_params_default, agent_get_cost, synth_params_default, synth_checkpoint, plan_params_default, model_from_plan, chunk_begin, chunk_write, chunk_select, chunk_attend, chunk_commit, chunk_abandon, session_read_rows }
        kvcsa_error { status, detail, text }
        kvcsa_allocator { alloc, free, user }
        kvcsa_log { write, user }
        kvcsa_executor { run, user, width, reserved }
        kvcsa_trace_event { struct_size, position, n_tokens, n_bytes, kind, reason }
        kvcsa_trace { event, user }
        kvcsa_model_params { struct_size, allocator, log, flags, block_tokens, plan }
        kvcsa_model_info { struct_size, architecture, skipped_names, max_context_tokens, weight_bytes, skipped_bytes, fingerprint, n_tensors, n_skipped_tensors, vocab_tokens, n_layers, hidden_size, block_tokens, bos_token, eos_token, pad_token, image_token, expert_bytes, n_experts, n_experts_per_token, n_moe_layers, cost_only, span_tokens, reserved }
        kvcsa_plan_row { struct_size, layer, kv_owner, select_owner, select, candidates, ratio, entry_width, entry_format, entry_bytes, index_heads, index_width, index_format, index_bytes, select_entries, candidate_blocks, candidate_block_entries, window_tokens, window_format, window_bytes, pending_bytes, kv_heads, value_width, value_kind, value_format, pool_kind, state_heads, state_bytes, index_owner, cost_only }
        kvcsa_cost { struct_size, n_tokens, const_bytes, resident_bytes, read_bytes, persist_bytes, pending_bytes, block_tokens, block_bytes, index_part_bytes, main_part_bytes, rate_bytes_per_token, n_kv_layers, rate, entry_bytes, sequence_factor, written_bytes, state_bytes, index_read_bytes, window_read_bytes }
        kvcsa_plan_params { struct_size, allocator, log, name, identity, max_tokens, block_tokens, vocab_tokens }
        kvcsa_message { role, text }
        kvcsa_pool_params { struct_size, allocator, log, executor, budget_bytes, n_threads, flags, trace, evict, cpu_avoid, backend, ordinal, backend_dir, host_bytes }
        kvcsa_cpu_info { struct_size, detected, used, numerics, processor, kernels, why }
        kvcsa_backend_info { struct_size, backend, reference, numerics, memory_bytes, memory_free_bytes, entry_formats, paged_formats, name, device, kernels, features, why }
        kvcsa_pool_stats { struct_size, budget_bytes, used_bytes, reserved_bytes, window_bytes, slab_bytes, n_open_blocks, n_sealed_blocks, n_free_blocks, n_sessions, n_acquired, n_released, evictable_bytes, record_bytes, n_published_blocks, n_pinned_blocks, n_window_pages, n_copied_blocks, n_copied_pages, n_evicted_blocks, n_lookups, n_probes, n_hit_tokens, n_saved_bytes, n_saved_records, n_loaded_bytes, n_loaded_records, host_budget_bytes, host_used_bytes, host_slab_bytes, n_host_blocks, n_host_pages, n_moved_out_blocks, n_moved_in_blocks }
        kvcsa_session_params { struct_size, chunk_tokens, flags, salt, mode, reuse, decoder_replay, decoder_cut_layer, window_slack_tokens, window_store_tokens, select_entries, candidate_blocks }
        kvcsa_reuse { struct_size, n_kept, n_adopted, n_replay, n_compute, how, reason }
        kvcsa_append_params { struct_size, on_logits, user, rows, n_rows, logits, reuse, reserved }
        kvcsa_step_params { struct_size, progress, user, max_rows, deadline_ns }
        kvcsa_step_result { n_computed, n_queued, error }
        kvcsa_work { n_rows, n_replayed_rows, n_selections, n_keys_scored, n_candidate_blocks, n_entries_read, n_window_rows_read, n_entries_written, n_window_rows_written, n_blocks_touched, n_experts, read_bytes, index_read_bytes, written_bytes, reserved }
        kvcsa_session_stats { struct_size, n_tokens, n_queued, n_entries, entry_bytes, n_blocks, block_bytes, window_bytes, workspace_bytes, n_computed_rows, shared_bytes, n_replayed_rows, n_adopted_tokens, n_replay, n_exact_tokens, step, total }
        kvcsa_estimate { struct_size, block_bytes, window_bytes, used_bytes, slab_bytes, record_bytes, n_blocks }
        kvcsa_chunk_info { struct_size, position, n_queued, tokens, first_rows, n_rows, replay }
        kvcsa_rows { data, row_stride, head_stride }
        kvcsa_chunk_rows { struct_size, key, value, index_key, window, pending, flags, reserved }
        kvcsa_chunk_queries { struct_size, query, weights, ids, flags, reserved }
        kvcsa_chunk_attention { struct_size, query, out, out_row_stride, out_head_stride, sink, n_heads, scale, flags, reserved }
        kvcsa_snapshot_params { struct_size, name, flags, reserved }
        kvcsa_snapshot_info { struct_size, n_tokens, fingerprint, numerics, salt, total_bytes, n_records, written_bytes, n_written_records, n_shared_records, version, sections, block_tokens, exact }
        kvcsa_writer { write, user }
        kvcsa_reader { read, user }
        kvcsa_sampler_params { struct_size, seed, temperature, top_p, min_p, top_k }
        kvcsa_compare_row { position, kl, margin, max_difference, ref_log_prob, test_log_prob, ref_top, test_top, run, equal }
        kvcsa_compare_result { struct_size, n_rows, n_equal_rows, kl_mean, kl_median, kl_p99, kl_p999, kl_max, kl_max_position, kl_max_run, max_difference, n_flips, n_margin_01, n_flips_01, n_margin_10, n_flips_10, n_text_rows, ref_nll, test_nll, n_greedy, n_diverged, n_greedy_same, n_greedy_tokens, first_divergence }
        kvcsa_setting { struct_size, model, pool, session, append_tokens, hit_tokens, keep_first_tokens, keep_last_tokens, keep_fraction, flags, hidden, n_hidden }
        kvcsa_compare_progress { progress, user }
        kvcsa_serving_params { struct_size, n_tokens, n_users, n_shared_tokens, n_devices, attention, device_bytes, tokens_per_second, dense_bytes, expert_bytes, n_experts, n_experts_per_token, n_moe_layers, reserved }
        kvcsa_serving_cost { struct_size, resident_bytes, device_resident_bytes, read_bytes, device_read_bytes, parked_bytes, max_users, written_bytes, distinct_experts, weight_bytes, read_bytes_per_second, device_rate }
        kvcsa_resume_params { struct_size, n_tokens, tier_bytes_per_second, tier_bytes, flops_per_token, flops_per_second, n_replay_tokens, reserved }
        kvcsa_resume_cost { struct_size, n_bytes, load_seconds, replay_seconds, recompute_seconds, ratio, break_even_bytes_per_second, n_parked }
        kvcsa_agent_params { struct_size, n_calls, context_tokens, tool_tokens, generated_tokens, reread_generated, reserved, hit_price, miss_price, output_price }
        kvcsa_agent_cost { struct_size, n_hit_tokens, n_miss_tokens, n_output_tokens, hit_cost, miss_cost, output_cost, cost, uncached_cost }
        kvcsa_synth_params { struct_size, allocator, seed, shard_bytes, progress, user }
        kvcsa_synth_info { struct_size, total_bytes, n_tensors, n_shards }
    }
    lines
}

fn in_tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .join(path)
}

fn include_dir() -> PathBuf {
    env::var_os("KVCSA_INCLUDE_DIR").map_or_else(|| in_tree("include"), PathBuf::from)
}

/// All sources without comments, line breaks, and the commas that go with breaks.
fn source() -> String {
    let mut text = String::new();
    for line in SOURCES
        .iter()
        .flat_map(|s| s.lines())
        .filter(|l| !l.trim().starts_with("//"))
    {
        text.push_str(line.trim());
        text.push(' ');
    }
    text.replace("< ", "<").replace(", >", ">")
}

/// The parts of a list at its outermost commas.
fn split(list: &str) -> Vec<String> {
    let (mut parts, mut depth, mut part) = (Vec::new(), 0, String::new());
    for c in list.chars() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            _ => {}
        }
        part.push(c);
    }
    parts.push(part);
    parts
        .iter()
        .map(|p| p.trim().to_string())
        .filter(|p| !p.is_empty())
        .collect()
}

/// What stands behind `open` up to the bracket that closes it, and the rest.
fn inside(text: &str) -> (&str, &str) {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '{' => depth += 1,
            ')' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (&text[..at], &text[at + 1..]);
        }
    }
    panic!("no end of {text}");
}

/// "name: Type" -> (name, Type)
fn named(text: &str) -> (String, String) {
    let (name, ty) = text
        .split_once(':')
        .unwrap_or_else(|| panic!("no type in {text}"));
    (
        name.trim().trim_start_matches("pub ").to_string(),
        ty.trim().to_string(),
    )
}

/// A type of C that says the same.
fn c_type(ty: &str) -> String {
    let ty = ty.trim();
    if let Some(to) = ty.strip_prefix("*const ") {
        return format!("{} const *", c_type(to));
    }
    if let Some(to) = ty.strip_prefix("*mut ") {
        return format!("{} *", c_type(to));
    }
    if let Some(array) = ty.strip_prefix('[') {
        let (of, n) = array
            .trim_end_matches(']')
            .split_once(';')
            .expect("an array has a length");
        return format!("{}[{}]", c_type(of), n.trim());
    }
    if let Some(function) = ty.strip_prefix("Option<unsafe extern \"C\" fn(") {
        let (args, rest) = inside(function);
        return format!(
            "{} (*)({})",
            c_return(rest.trim_end_matches('>')),
            c_args(args)
        );
    }
    match ty {
        "i32" => "int32_t",
        "u32" => "uint32_t",
        "i64" => "int64_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "f32" => "float",
        "f64" => "double",
        "c_char" => "char",
        "c_void" => "void",
        other => other,
    }
    .to_string()
}

fn c_args(args: &str) -> String {
    let list: Vec<String> = split(args).iter().map(|a| c_type(&named(a).1)).collect();
    if list.is_empty() {
        "void".to_string()
    } else {
        list.join(", ")
    }
}

fn c_return(rest: &str) -> String {
    rest.trim()
        .strip_prefix("->")
        .map_or("void".to_string(), c_type)
}

/// (name, arguments, what is returned) of every function.
fn functions() -> Vec<(String, String, String)> {
    let source = source();
    let declared = source.split("pub fn ").skip(1).map(|text| {
        let (name, rest) = text.split_once('(').expect("a function has arguments");
        let (args, rest) = inside(rest);
        let returned = rest.split(';').next().unwrap_or_default();
        (name.to_string(), c_args(args), c_return(returned))
    });
    declared.collect()
}

/// Fields and their types of every struct that is not opaque.
fn structs() -> BTreeMap<String, Vec<(String, String)>> {
    let source = source();
    let all = source.split("pub struct ").skip(1).filter_map(|text| {
        let (name, rest) = text.split_once('{')?;
        let fields: Vec<_> = split(inside(rest).0).iter().map(|f| named(f)).collect();
        (!fields.iter().any(|f| f.0 == "_data")).then(|| (name.trim().to_string(), fields))
    });
    all.collect()
}

fn constants() -> BTreeMap<String, i64> {
    let source = source();
    let all = source.split("pub const ").skip(1).map(|text| {
        let (name, rest) = named(text.split(';').next().unwrap_or_default());
        let value = rest
            .split('=')
            .nth(1)
            .expect("a constant has a value")
            .trim();
        (
            name,
            value
                .parse()
                .unwrap_or_else(|_| panic!("{value} is no number")),
        )
    });
    all.collect()
}

/// A C program that compiles only if types and prototypes are the header's, and prints the layout
/// and the values.
fn program() -> String {
    let mut c = String::from("#include <kvcsa.h>\n#include <stdio.h>\n");
    for (name, args, returned) in functions() {
        writeln!(c, "{returned} {name}({args});").unwrap();
    }
    for (s, fields) in structs() {
        for (f, ty) in fields {
            let ty = c_type(&ty);
            writeln!(
                c,
                "_Static_assert(__builtin_types_compatible_p(__typeof__((({s} *)0)->{f}), {ty}), \"{s}.{f}\");"
            )
            .unwrap();
        }
    }
    c.push_str("int main(void)\n{\n");
    for (s, fields) in structs() {
        writeln!(
            c,
            "printf(\"S {s} %zu %zu\\n\", sizeof({s}), _Alignof({s}));"
        )
        .unwrap();
        for (f, _) in fields {
            let place = format!("offsetof({s}, {f}), sizeof((({s} *)0)->{f})");
            writeln!(c, "printf(\"F {s} {f} %zu %zu\\n\", {place});").unwrap();
        }
    }
    for name in constants().keys() {
        writeln!(c, "printf(\"C {name} %lld\\n\", (long long){name});").unwrap();
    }
    c.push_str("return 0;\n}\n");
    c
}

/// The answer of the compiler to a program, and where the result is.
fn compile(name: &str, text: &str) -> (Output, PathBuf) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&source, text).unwrap();
    let cc = env::var("CC").unwrap_or_else(|_| "cc".to_string());
    let out = Command::new(&cc)
        .args(["-std=gnu11", "-Wall", "-Werror", "-o"])
        .args([&binary, &source])
        .arg("-I")
        .arg(include_dir())
        .output()
        .unwrap_or_else(|e| panic!("cannot start {cc}: {e}"));
    (out, binary)
}

#[test]
fn layout_types_and_values_are_those_of_the_header() {
    let (out, binary) = compile("header", &program());
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let out = Command::new(binary).output().unwrap();
    let printed = String::from_utf8(out.stdout).unwrap();
    let (values, layout): (Vec<&str>, Vec<&str>) =
        printed.lines().partition(|l| l.starts_with("C "));
    let layout: BTreeSet<String> = layout.into_iter().map(String::from).collect();
    assert_eq!(layout, layout_in_rust());
    let ours: BTreeSet<String> = constants()
        .iter()
        .map(|(name, value)| format!("C {name} {value}"))
        .collect();
    assert_eq!(
        values
            .into_iter()
            .map(String::from)
            .collect::<BTreeSet<_>>(),
        ours
    );
    assert!(
        ours.len() > 100 && layout.len() > 300,
        "the sources were not read"
    );
}

#[test]
fn the_compiler_sees_a_wrong_declaration() {
    let right = program();
    for (from, to) in [
        (
            "kvcsa_status kvcsa_pool_check(kvcsa_pool *",
            "kvcsa_status kvcsa_pool_check(int",
        ),
        ("->n_free_blocks), uint64_t", "->n_free_blocks), int64_t"),
        (
            "kvcsa_status kvcsa_session_rewind(",
            "void kvcsa_session_rewind(",
        ),
    ] {
        let wrong = right.replace(from, to);
        assert_ne!(wrong, right, "{from} is not in the program");
        assert!(
            !compile("wrong", &wrong).0.status.success(),
            "{to} was accepted"
        );
    }
}

/// Names of the header behind `before`.
fn header_names(before: &str, prefix: &str) -> BTreeSet<String> {
    let header = fs::read_to_string(include_dir().join("kvcsa.h")).unwrap();
    let names = header.match_indices(before).filter_map(|(at, _)| {
        let rest = header[at + before.len()..].trim_start();
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
        rest.starts_with(prefix).then(|| rest[..end].to_string())
    });
    names.collect()
}

#[test]
fn nothing_of_the_header_is_missing() {
    let structs: BTreeSet<String> = structs().into_keys().collect();
    let opaque = [
        "kvcsa_model",
        "kvcsa_text_stream",
        "kvcsa_pool",
        "kvcsa_session",
        "kvcsa_compare",
    ];
    let theirs: BTreeSet<String> = header_names("typedef struct ", "kvcsa_")
        .into_iter()
        .filter(|s| !opaque.contains(&s.as_str()))
        .collect();
    assert_eq!(theirs, structs);

    // Constants stand in enums, where a name is followed by its value.
    let header = fs::read_to_string(include_dir().join("kvcsa.h")).unwrap();
    let theirs: BTreeSet<String> = header
        .match_indices(" = ")
        .filter_map(|(at, _)| {
            header[..at]
                .rsplit(|c: char| !(c.is_alphanumeric() || c == '_'))
                .next()
        })
        .filter(|name| name.starts_with("KVCSA_"))
        .map(String::from)
        .collect();
    let ours: BTreeSet<String> = constants()
        .into_keys()
        .filter(|n| n != "KVCSA_N_LAYER_GROUPS")
        .collect();
    assert_eq!(theirs, ours);
}

#[test]
fn every_exported_function_is_declared() {
    let map = fs::read_to_string(in_tree("lib/kvcsa.map")).unwrap();
    let exported: BTreeSet<String> = map
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| name.starts_with("kvcsa_"))
        .map(String::from)
        .collect();
    let declared: BTreeSet<String> = functions().into_iter().map(|f| f.0).collect();
    assert_eq!(declared, exported);
}

#[test]
fn the_library_runs_and_knows_its_statuses() {
    // SAFETY: plain calls that answer with static strings.
    unsafe {
        assert!(
            kvcsa_version_number() >= 400,
            "older than these declarations"
        );
        let name = std::ffi::CStr::from_ptr(kvcsa_status_name(KVCSA_ERR_FULL));
        assert_eq!(name.to_str(), Ok("KVCSA_ERR_FULL"));
    }
}

#[test]
fn the_table_has_every_function_of_the_library() {
    // SAFETY: a static table, or NULL.
    let api = unsafe { kvcsa_get_api(400).as_ref() }.expect("the library has a table");
    assert!(api.struct_size >= size_of::<kvcsa_api>());
    // SAFETY: plain calls.
    unsafe {
        assert_eq!(
            api.version_number.map(|f| f()),
            Some(kvcsa_version_number())
        );
        assert_eq!(api.version, kvcsa_version_number());
    }
    let members = structs()["kvcsa_api"].len() - 3;
    assert_eq!(
        members,
        functions().len() - 1,
        "all but the one that gives the table"
    );
}
