#!/bin/bash
# `kvcsa plan` with several models, and `kvcsa cost`, as a user runs them: test/check_cost.sh BUILD. The golden table through the command,
# figures in text and JSON, wrong usage.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build}
kv=$build/kvcsa
tiny=examples/models/tiny
configs=test/data/configs
v41=test/data/v41-flash-config.json
. test/support/command_checks.sh

# good NAME ARGUMENT...: status 0 and nothing on stderr; the output stays for says and holds
good() {
    local name=$1
    shift
    if "$kv" "$@" >"$dir/out" 2>"$dir/err" </dev/null && [ ! -s "$dir/err" ]; then ok "$name"; else not_ok "$name"; fi
}
# bad NAME STATUS MESSAGE ARGUMENT...: nothing on stdout
bad() {
    local name=$1 status=$2 message=$3
    shift 3
    "$kv" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    if [ $? -eq "$status" ] && [ ! -s "$dir/out" ] && grep -qF -- "$message" "$dir/err"; then ok "$name"; else not_ok "$name"; fi
}
says() { if grep -qE -- "$2" "$dir/out"; then ok "$1"; else not_ok "$1"; fi; }
# holds NAME EXPRESSION FALLBACK-PATTERN: python over the JSON j; a pattern where there is no python
holds() {
    if command -v python3 >/dev/null; then
        if python3 -c "import json,sys; j=json.load(open(sys.argv[1],encoding='utf-8')); sys.exit(not ($2))" "$dir/out" \
            2>>"$dir/err"; then ok "$1"; else not_ok "$1"; fi
    elif grep -q -- "$3" "$dir/out"; then ok "$1 (without python3: by pattern)"; else not_ok "$1"; fi
}

# ---------------------------------------------------------------- plan
good "plan of a family that does not run" plan "$configs/llama3-8b.json"
says "says so" 'cost only'
says "heads, keys and values" '8 x 128\+128 ch 4096 B'
says "every entry is attended" 'own +all'
says "the three factors" 'rate = 4096 B of an entry x 1 entries per token x 32 layers'
good "plan with a state" plan "$configs/minimax-text-01.json"
says "has a column for it" 'state$'
good "plan as JSON" plan "$configs/minimax-text-01.json" --json
holds "its new fields" \
    'j["cost_only"] and j["kv_layers"] == 10 and j["state"] == 70 * 4194304 == j["const"] and j["layers"][0]["state_heads"] == 64
     and j["layers"][7]["kv_heads"] == 8 and j["layers"][7]["value"] == "own" and j["layers"][7]["select"] == "all"' '"kv_layers": 10'
good "changed plan" plan "$v41@entry_format=mxfp8" --json
holds "other entries" 'j["rate"] == 1490 and not j["cost_only"]' '"rate": 1490'
good "changed by JSON" plan "$v41@{\"entry_format\": \"bf16\", \"index_format\": \"bf16\"}" --json
holds "other entries and keys" 'j["rate"] == 3200' '"rate": 3200'
cp "$v41" "$dir/a@b=c.json"
good "a file with @ in its name" plan "$dir/a@b=c.json" --json
holds "is itself" 'j["rate"] == 890' '"rate": 890,'
good "and can be changed" plan "$dir/a@b=c.json@entry_format=mxfp8" --json
holds "behind the last @" 'j["rate"] == 1490' '"rate": 1490'
bad "change without a value" 2 "KEY=VALUE" plan "$v41@entry_format"
bad "unknown key" 1 "KVCSA_ERR_ARG" plan "$v41@no_such_key=1"
bad "unknown format" 1 "KVCSA_ERR_ARG" plan "$v41@entry_format=bf17"
bad "two models" 2 "one word too many without --compare" plan "$v41" "$tiny"
bad "devices of one model" 2 "--devices belongs to --compare" plan "$v41" --devices 4
bad "no model" 2 "which model" plan --compare

# ---------------------------------------------------------------- plan --compare
good "compare" plan "$v41" "$configs/deepseek-67b.json@max_tokens=131072" "$configs/llama3-8b.json" "$tiny" --compare -n 131072
says "factors of the first" '^v41-flash-config +DeepseekV41 +40  +356 x +0\.625 x +4 = +890 +2,703,360 +1$'
says "437 times" '^deepseek-67b@max_tokens=131072 +Llama +95\* +4096 x +1 x +95 = +389,120 +0 +437\.2$'
says "figures at a length" '^v41-flash-config +119 MB +35\.0 MB +76\.3% +117 MB +477 MB +119 MB$'
says "a length that is too long" '^llama3-8b .*its limit is 8,192 tokens; @max_tokens=131072'
says "cost only is marked" '^\*: cost only'
good "compare as JSON" plan "$v41" "$configs/llama3-8b.json" --compare --devices 16 --users 32 --json
holds "what a device holds" \
    'j["n_tokens"] == 4096 and j["n_devices"] == 16 and j["n_users"] == 32 and len(j["models"]) == 2
     and j["models"][0]["device_resident_tp"] == 32 * j["models"][0]["resident"]
     and j["models"][0]["device_resident_dp"] == 2 * j["models"][0]["resident"]
     and j["models"][1]["device_resident_tp"] == 32 * 4096 * 16384 and j["models"][1]["device_rate_tp"] == 16384
     and j["models"][1]["ratio"] == round(131072 / 890, 6) and abs(j["models"][0]["index_share"] - 1810432 / 10117120) < 1e-8' \
    '"device_rate_tp": 16384'
good "the shortest limit is the length" plan "$configs/gpt2-xl.json" "$v41" --compare --json
holds "of all" 'j["n_tokens"] == 1024' '"n_tokens": 1024'
bad "compare with a missing file" 1 "KVCSA_ERR_IO" plan "$v41" "$dir/nothing" --compare
bad "users beyond 64 bits" 2 "must be a number" plan "$v41" --compare --users 99999999999999999999

# The golden table: every row in one comparison.
words=()
while IFS=, read -r id _ _ _ _ config plan _; do
    [ "$id" = id ] || words+=("$configs/$config${plan:+@${plan//;/,}}")
done <"$configs/golden.csv"
good "compare ${#words[@]} models" plan "${words[@]}" --compare --json
if command -v python3 >/dev/null; then
    if python3 - "$configs/golden.csv" "$dir/out" >"$dir/err" <<'PY'; then ok "rate and const of every golden row"; else not_ok "golden rows"; fi
import csv, json, sys
rows = list(csv.DictReader(open(sys.argv[1])))
models = json.load(open(sys.argv[2]))["models"]
bad = [r["id"] for r, m in zip(rows, models)
       if (float(r["rate"]), int(r["const"])) != (m["rate"], m["const"])
       or abs(m["entry_bytes"] * m["sequence_factor"] * m["kv_layers"] - m["rate"]) > 1e-6 * m["rate"]]
print(bad, len(rows), len(models))
sys.exit(bool(bad) or len(rows) != len(models) or len(rows) != 42)
PY
fi

# ---------------------------------------------------------------- cost
good "cost" cost "$v41" -n 1048576 --users 30 --tps 50
says "resident" 'resident +28\.1 GB'
says "read by a step" 'read +5\.73 GB'
says "bandwidth" 'bandwidth +287 GB/s'
says "distinct experts" 'experts +144\.6'
says "weights" 'weights +109 GB'
good "cost as JSON" cost "$v41" -n 1048576 --users 30 --tps 50 --device-bytes 100G --json
holds "bytes" \
    'j["serving"]["read"] == 30 * 191021056 and j["serving"]["resident"] == 30 * (890 * 2**20 + 2703360)
     and j["serving"]["max_users"] == 100 * 2**30 // (890 * 2**20 + 2703360) and j["serving"]["read_per_second"] == 1500 * 191021056
     and "resume" not in j and "agent" not in j' '"read": 5730631680'
good "four devices" cost "$v41" -n 128000 --users 4 --devices 4 --shared 64000 --json
holds "each has all" 'j["serving"]["device_rate"] == 890 and j["serving"]["resident"] == 4 * j["serving"]["device_resident"]' '"device_rate": 890'
good "sequences spread" cost "$v41" -n 128000 --users 4 --devices 4 --attention dp
says "says how" 'sequences spread \(DP\)'
good "load or recompute" cost "$v41" -n 50000 --resume --tier-speed 5e9 --flops-per-token 16e9 --flops 400e12 --tier-bytes 1e12 --replay 128
says "load" 'load +8\.9 ms   44\.5 MB at 5\.00 GB/s'
says "replay" 'replay +5\.12 ms'
says "recompute" 'recompute +2 s'
says "ratio" 'ratio +142\.7 x'
says "parked" 'parked +22471 '
agent=(cost --agent --calls 50 --context 50000 --generated 200)
flash=(--hit-price 0.003 --miss-price 0.15 --output-price 0.60)
good "an agent without a model" "${agent[@]}" --tool 1000 "${flash[@]}"
says "hits" 'hits +3,871,000 +0\.01161 +35\.8 %'
says "in money" 'all +0\.03246$'
good "generated text that is not read again" "${agent[@]}" --forget-generated "${flash[@]}"
says "hits of a fixed context" 'hits +2,450,000 +0\.00735 +35\.3 %'
says "without a cache" 'without cache +0\.381  18\.3 x'
good "everything at once" "${agent[@]}" "${flash[@]}" "$v41" -n 50000 --resume --tier-speed 5e9 --flops-per-token 16e9 --flops 4e14 --json
holds "three parts" \
    'j["resume"]["n_bytes"] == 44500000 and j["agent"]["n_output_tokens"] == 10000 and j["serving"]["read"] == 21263136
     and abs(j["agent"]["cost"] - 0.021585) < 1e-9' '"n_bytes": 44500000'
good "loading never pays" cost "$v41" -n 100 --resume --tier-speed 5e9 --flops-per-token 16e9 --flops 400e12 --replay 128
says "never" 'break even +never'
good "the same as JSON" cost "$v41" -n 100 --resume --tier-speed 5e9 --flops-per-token 16e9 --flops 400e12 --replay 128 --json
holds "infinity is null" 'j["resume"]["break_even_bytes_per_second"] is None' '"break_even_bytes_per_second": null'
good "default length" cost "$configs/gpt2-xl.json" --json
holds "is the model's if that is less" 'j["serving"]["n_tokens"] == 1024 and j["cost_only"]' '"n_tokens": 1024'
bad "no model" 2 "which model" cost
bad "resume without a model" 2 "which model" cost --agent --resume
bad "two models" 2 "one word too many" cost "$v41" "$tiny"
bad "beyond the limit" 1 "KVCSA_ERR_LIMIT" cost "$tiny" -n 8193
bad "no users" 1 "n_users is 0" cost "$tiny" --users 0
bad "more shared than there is" 1 "n_shared_tokens is 5000" cost "$tiny" -n 100 --shared 5000
bad "too many users" 1 "KVCSA_ERR_LIMIT" cost "$tiny" --users 9999999999999999
bad "unknown way" 2 'must be tp or dp' cost "$tiny" --attention both
bad "agent without prices" 2 "--agent wants --hit-price" "${agent[@]}"
bad "agent without calls" 2 "--agent wants --calls" cost --agent "${flash[@]}"
bad "price that is none" 2 '"nan"' "${agent[@]}" --hit-price nan --miss-price 1 --output-price 1
bad "negative price" 2 '"-1"' "${agent[@]}" --hit-price -1 --miss-price 1 --output-price 1
bad "price without an agent" 2 "--hit-price belongs to --agent" cost "$tiny" --hit-price 1
bad "calls without an agent" 2 "belong to --agent" cost "$tiny" --calls 1
bad "resume without a speed" 2 "--resume wants --tier-speed" cost "$tiny" --resume
bad "speed of 0" 1 "tier_bytes_per_second is 0" cost "$tiny" --resume --tier-speed 0 --flops-per-token 1 --flops 1
bad "replay without resume" 2 "--replay belongs to --resume" cost "$tiny" --replay 5
good "help" help cost
says "has examples" 'Examples:'

report
