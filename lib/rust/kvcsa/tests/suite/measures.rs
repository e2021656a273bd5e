use crate::*;
use kvcsa::{
    AgentParams, Attention, BackendInfo, Compare, Comparison, CpuInfo, CpuSet, Format,
    ResumeParams, Select, ServingParams, SessionParams, Setting, Status, Synth,
};
use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};

#[test]
fn a_plan_costs_what_it_says() {
    let (_, model) = open();
    let plan = model.plan().unwrap();
    assert!(plan
        .iter()
        .any(|row| row.select == Select::Own && row.entry_bytes > 0));
    let owners = plan.iter().filter(|row| row.entry_bytes > 0).count();
    let cost = model.cost(1000).unwrap();
    assert_eq!(cost.n_kv_layers as usize, owners);
    assert!(cost.const_bytes > 0 && cost.resident_bytes > cost.const_bytes);
    let params = SessionParams::new();
    let one = model.estimate(&params, 1000, 1, 0).unwrap();
    let two = model.estimate(&params, 1000, 2, 0).unwrap();
    assert_eq!(two.block_bytes, 2 * one.block_bytes);
    let bf16 = ModelParams::new()
        .plan_only(true)
        .plan(r#"{"entry_format": "bf16"}"#);
    let other = Model::open_with(tiny(), bf16).unwrap();
    assert!(other
        .plan()
        .unwrap()
        .iter()
        .any(|row| row.entry_format == Format::Bf16));
    assert!(other.cost(1000).unwrap().rate > cost.rate);
    assert_eq!(Format::Bf16.name(), "bf16");
    assert_eq!(Format::Other(9999).name(), "?");
}

#[test]
fn serving_resuming_and_agents_have_a_price() {
    let (_, model) = open();
    let params = ServingParams::new()
        .n_tokens(1000)
        .n_users(4)
        .attention(Attention::Dp);
    let cost = model.serving_cost(&params).unwrap();
    assert_eq!(
        cost.resident_bytes,
        4 * model.cost(1000).unwrap().resident_bytes
    );
    let unknown = params.attention(Attention::Other(77));
    assert_eq!(
        model.serving_cost(&unknown).unwrap_err().status(),
        Status::Unsupported
    );
    let resume = ResumeParams::new()
        .n_tokens(1000)
        .tier_bytes_per_second(1e9)
        .flops_per_token(1e9)
        .flops_per_second(1e12);
    let cost = model.resume_cost(&resume).unwrap();
    assert_eq!(cost.recompute_seconds, 1.0);
    assert!(cost.ratio > 1.0);
    let agent = AgentParams::new()
        .n_calls(10)
        .context_tokens(1000)
        .tool_tokens(100)
        .generated_tokens(10)
        .miss_price(1.0);
    let read = agent.cost().unwrap();
    assert!(read.n_hit_tokens > 0 && read.uncached_cost > read.cost);
    assert_ne!(agent.reread_generated(false).cost().unwrap(), read);
}

#[test]
fn pools_say_what_computes() {
    let params = PoolParams::new().cpu_avoid(CpuSet::AVX512 | CpuSet::DOTPROD);
    let (pool, _) = open_with(params, ModelParams::new());
    let cpu = pool.cpu().unwrap();
    assert!(!cpu.used.contains(CpuSet::AVX512) && !cpu.why.is_empty());
    assert!(CpuInfo::of_defaults().unwrap().detected.contains(cpu.used));
    let backend = pool.backend().unwrap();
    assert!(backend.reads_entries(Format::Fp4E4m3G16) && !backend.reads_entries(Format::None));
    assert!(!backend.reads_entries(Format::Other(64)));
    assert!(!BackendInfo::of_defaults().unwrap().name.is_empty());
}

#[test]
fn rows_of_any_engine_are_compared() {
    let mut compare = Compare::new().unwrap();
    let row = [0.0, 1.0, 2.0, f32::NEG_INFINITY];
    compare.add(0, Some(1), &row, &row).unwrap();
    compare.begin().unwrap();
    compare
        .add(1, None, &row, &[2.0, 1.0, 0.0, f32::NEG_INFINITY])
        .unwrap();
    compare.add_greedy(&[1, 2, 3], &[1, 2, 4]).unwrap();
    assert_eq!(
        compare.add(2, None, &row, &row[..3]).unwrap_err().status(),
        Status::Arg
    );
    let nan = [f32::NAN; 4];
    assert_eq!(
        compare.add(2, None, &row, &nan).unwrap_err().status(),
        Status::Arg
    );
    let result = compare.result().unwrap();
    assert_eq!(
        (result.n_rows, result.n_equal_rows, result.n_flips),
        (2, 1, 1)
    );
    assert_eq!((result.n_greedy, result.first_divergence), (1, 2));
    let rows = compare.rows(1).unwrap();
    assert_eq!((rows.len(), rows[0].position, rows[0].run), (1, 1, 1));
    assert!(rows[0].kl > 0.0 && rows[0].ref_log_prob.is_nan() && !rows[0].equal);
    assert_eq!(compare.greedy().unwrap(), [2]);
    assert!(compare.rows(3).is_err());
}

#[test]
fn settings_are_compared_on_a_text() {
    let (pool, model) = open();
    let tokens = text(200);
    let exact = Setting::new(&pool, &model);
    let span = u64::from(model.info().span_tokens);
    let hiding = Setting::new(&pool, &model)
        .hide(0..8 * span)
        .append_tokens(64);
    let mut rows = Compare::new().unwrap();
    let mut seen = Vec::new();
    Comparison::new(&exact)
        .test(&hiding, &mut rows)
        .from_position(100)
        .progress(|done, n| {
            seen.push((done, n));
            ControlFlow::Continue(())
        })
        .text(&tokens)
        .unwrap();
    let (done, n) = *seen.last().unwrap();
    assert!(done <= n && n > 0);
    let result = rows.result().unwrap();
    assert!(
        result.n_rows > 0 && result.n_equal_rows < result.n_rows,
        "{result:?}"
    );
    assert!(rows.rows(0).unwrap().iter().all(|r| r.position >= 100));

    let mut same = Compare::new().unwrap();
    let runs = Comparison::new(&exact)
        .test(&exact, &mut same)
        .greedy(&tokens[..20], 5)
        .unwrap();
    assert_eq!(runs[0], runs[1]);
    assert_eq!(same.greedy().unwrap(), [5]);

    let cancel = Comparison::new(&exact)
        .test(&exact, &mut same)
        .progress(|_, _| ControlFlow::Break(()));
    assert_eq!(
        cancel.text(&tokens).unwrap_err().status(),
        Status::Cancelled
    );
    let panic = Comparison::new(&exact)
        .test(&exact, &mut same)
        .progress(|_, _| panic!("in compare"));
    let thrown = catch_unwind(AssertUnwindSafe(|| panic.text(&tokens))).unwrap_err();
    assert_eq!(thrown.downcast_ref(), Some(&"in compare"));
}

#[test]
fn a_checkpoint_is_made_up() {
    let config = tiny().join("../../../test/data/synth-small.json");
    let info = Synth::new().seed(3).describe(&config).unwrap();
    let place = folder("synth").join("model");
    let cancelled = Synth::new()
        .progress(|_, _| ControlFlow::Break(()))
        .write(&config, &place);
    assert_eq!(cancelled.unwrap_err().status(), Status::Cancelled);
    assert!(!place.join("config.json").exists());
    let mut last = (0, 0);
    let written = Synth::new()
        .seed(3)
        .progress(|done, n| {
            last = (done, n);
            ControlFlow::Continue(())
        })
        .write(&config, &place)
        .unwrap();
    assert_eq!(written, info);
    assert!(last.0 > 0 && last.0 <= last.1, "{last:?}");
    assert!(Model::open(&place).unwrap().info().weight_bytes > 0);
    assert_eq!(
        Synth::new().write(&config, &place).unwrap_err().status(),
        Status::Arg
    );
}
