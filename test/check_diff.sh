#!/bin/bash
# `kvcsa diff` as a user runs it, on the tiny model and a few hundred tokens: test/check_diff.sh BUILD. What saves nothing prints
# exactly 0 everywhere; what loses something is seen; JSON, CSV and pictures are well-formed; wrong usage is told.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build}
kv=$build/kvcsa
tiny=examples/models/tiny
text=test/data/heldout.txt
. test/support/command_checks.sh

diff_() { "$kv" diff "$tiny" -f "$text" -q "$@" >"$dir/out" 2>"$dir/err" </dev/null; }
# wrong NAME STATUS MESSAGE OPTION...: nothing on stdout
wrong() {
    local name=$1 status=$2 message=$3
    shift 3
    diff_ "$@"
    if [ $? -eq "$status" ] && [ ! -s "$dir/out" ] && grep -qF -- "$message" "$dir/err"; then ok "$name"; else not_ok "$name"; fi
}
# holds NAME EXPRESSION FALLBACK-PATTERN: python over the JSON j and its settings s by name; a pattern where there is no python
holds() {
    if command -v python3 >/dev/null; then
        if python3 -c "
import json, sys
j = json.load(open(sys.argv[1], encoding='utf-8'))
s = {t['setting']: t for t in j['settings']}
KL = ('kl_mean', 'kl_median', 'kl_p99', 'kl_p999', 'kl_max', 'max_difference')
def nothing(t):
    return (all(t[k] == 0 for k in KL + ('flips', 'margin_01_flips', 'margin_10_flips')) and t['rows'] == t['equal_rows'] > 0
            and t['ref_nll'] == t['nll'] and t['bits_per_byte'] == t['ref_bits_per_byte'] and not any(t['by_position']['kl_mean'])
            and ('greedy' not in t or t['greedy']['diverged'] == 0 and t['greedy']['first_divergence'] is None
                 and t['greedy']['same_tokens'] == t['greedy']['tokens'] > 0 and set(t['greedy']['survival']) == {1}))
sys.exit(not ($2))" "$dir/out" 2>>"$dir/err"; then ok "$1"; else not_ok "$1"; fi
    elif grep -q -- "$3" "$dir/out"; then ok "$1 (without python3: by pattern)"; else not_ok "$1"; fi
}
says() { if grep -qE -- "$2" "$dir/out"; then ok "$1"; else not_ok "$1"; fi; }

# ---------------------------------------------------------------- wrong usage
wrong "no setting" 2 "--set SETTING"
wrong "unknown setting gets a hint" 2 'there is no setting "bouned"; did you mean bounded?' --set bouned:64
wrong "unknown setting far from all" 2 'there is no setting "zigzag"' --set zigzag
wrong "unknown format gets a hint" 2 'there is no format "bf17"; did you mean' --set entries:bf17
wrong "format of plans only" 2 'there is no format "int6"' --set entries:int6
wrong "argument missing" 2 "write keep:FIRST:LAST" --set keep:16
wrong "argument too many" 2 "write window" --set window:3
wrong "number that is none" 2 'K is "x"' --set top:x
wrong "nothing selected" 2 'K is "0"' --set top:0
wrong "number beyond 32 bits" 2 'N is "4294967296"' --set chunk:4294967296
wrong "share above one" 2 'F is "1.5"' --set mass:1.5
wrong "share that is no number" 2 'F is "nan"' --set mass:nan
wrong "a part twice" 2 "top stands there twice" --set top:4+top:5
wrong "two ways to rebuild windows" 2 "exclude each other" --set replay:64+bounded:64
wrong "exact and more" 2 "exact stands alone" --set exact+window
wrong "word behind a hit" 2 '"chains" must be chain' --set bounded:64:chains
wrong "hits inside an append" 2 "a hit every 64 tokens, but appends of 48" --set bounded:64+append:48
wrong "appends that do not fit each other" 2 "do not divide the 256 of decoder" --set decoder --set bounded:100
wrong "drop inside a span" 2 "must be multiples of" --set drop:3:64
wrong "drops that overlap" 2 "two drops overlap" --set drop:0:64+drop:32:end
wrong "empty setting" 2 'there is no setting ""' --set ""
wrong "nothing left of the text" 1 "the text is empty" --set exact --skip 100000
wrong "context of one token" 2 "2..8192" --set exact --context 1
wrong "nothing to compare" 2 "--first is 64" --set exact --context 64 --first 64
wrong "prompts that do not fit" 2 "do not fit" --set exact --limit 100 --greedy 10 --prompt 500
wrong "prompt without greedy" 2 "--prompt belongs to --greedy" --set exact --prompt 5
wrong "noise and settings" 2 "the noise floor alone" --set exact --noise
wrong "bad reference" 2 'there is no setting "exactly"' --set window --ref exactly
wrong "picture in no folder" 1 "$dir/none/x.svg" --set exact --limit 40 --plot "$dir/none/x.svg"
wrong "rows in no folder" 1 "$dir/none/x.csv" --set exact --limit 40 --rows "$dir/none/x.csv"
echo "1 2 three" >"$dir/ids"
"$kv" diff "$tiny" --ids "$dir/ids" --set exact >"$dir/out" 2>"$dir/err"
if [ $? -eq 1 ] && grep -q "number 3 is not a token id" "$dir/err"; then ok "ids that are none"; else not_ok "ids that are none"; fi
"$kv" diff "$tiny" -f /dev/null --set exact >"$dir/out" 2>"$dir/err"
if [ $? -eq 1 ] && grep -q "empty" "$dir/err"; then ok "empty text"; else not_ok "empty text"; fi

# ---------------------------------------------------------------- what saves nothing
diff_ --limit 450 --context 300 --json --greedy 12 --prompts 2 --prompt 150 --set exact --set replay:128 --set append:32+chunk:17 \
    --set entries:fp4-as-f32 --set top:32 --set mass:1
holds "what saves nothing changes nothing, exactly" 'len(s) == 6 and all(nothing(t) for t in j["settings"])' '"kl_max": 0,'
holds "noise floor is exactly 0" 'nothing(j["noise"])' '"kl_max": 0,'
holds "every row is compared once" 'j["tokens"] == 450 and j["windows"] == 2
      and all(t["rows"] == 452 and t["text_rows"] == 450 for t in j["settings"])' '"rows": 452,'
holds "bytes per token" 's["exact"]["bytes_per_token"] == 79.5 < s["entries:fp4-as-f32"]["bytes_per_token"]' '"bytes_per_token": 79.5,'
cp "$dir/out" "$dir/exact.json"
"$kv" score "$tiny" -f "$text" --limit 450 --context 300 --json -q >"$dir/score.json" 2>"$dir/err"
if command -v python3 >/dev/null; then
    if python3 -c "
import json, sys
d, s = (json.load(open(f)) for f in sys.argv[1:])
sys.exit(not abs(d['noise']['bits_per_byte'] - s['bits_per_byte']) < 1e-7)" "$dir/exact.json" "$dir/score.json"
    then ok "bits per byte are those of score"; else not_ok "bits per byte are those of score"; fi
fi
diff_ --limit 300 --json --ref window+append:32 --set window --set exact
holds "another reference" 'nothing(j["noise"]) and nothing(s["window"]) and s["exact"]["kl_mean"] > 0' '"reference": "window+append:32"'

# ---------------------------------------------------------------- what another program computed
golden=test/golden/measure/bounded.json # KL of each row on T1, by the independent reference
sed 's/.*"tokens": \[\([^]]*\)\].*/\1/; s/,/ /g' $golden >"$dir/ids"
# Portable, for with numerics 1 no code of this text rounds another way than the reference's: test/golden/measure/README.md.
limit=1e-4
for list in first chain; do
    set=bounded:20+append:20
    [ $list = chain ] && set=bounded:20:chain+append:20
    sed "s/.*\"$list\": \[\[\([^a-z]*\)\]\].*/\1/" $golden | sed 's/\], \[/\n/g' | tr -d ' ' >"$dir/golden"
    "$kv" diff test/data/t1 --portable --ids "$dir/ids" --context 100 -q --set $set --rows "$dir/kl.csv" >"$dir/out" 2>"$dir/err" </dev/null &&
        grep "^$set," "$dir/kl.csv" | awk -F, 'NR == FNR { want[$1] = $2; next }
            $3 in want { n++; d = $4 - want[$3]; if (d > limit || d < -limit || $4 < 0.005) bad = 1 }
            END        { exit n != 80 || bad }' limit="$limit" "$dir/golden" - &&
        ok "bounded replay ($list) prints what the reference does, within $limit nat in all 80 rows" ||
        not_ok "bounded replay ($list) prints what the reference does, within $limit nat in all 80 rows"
done

# ---------------------------------------------------------------- what loses something
diff_ --limit 640 --context 320 --first 64 --json --rows "$dir/rows.csv" --plot "$dir/plot.svg" --set window --set bounded:64 --set decoder \
    --set top:4 --set candidates:2 --set entries:int3 --set keep:16:64 --set mass:0.25+append:32 --set drop:64:end --set drop:128:144+entries:f32
holds "what loses something is seen" 'len(s) == 10 and all(t["kl_mean"] > 0 and t["kl_max"] >= t["kl_p999"] >= t["kl_p99"] >= t["kl_median"] >= 0
      and t["rows"] > t["equal_rows"] for t in j["settings"])' '"kl_mean": [1-9.]'
holds "losing all entries changes answers" 's["window"]["margin_10_flips"] > 0 and s["window"]["kl_mean"] > s["bounded:64"]["kl_mean"]
      and s["window"]["nll"] != s["window"]["ref_nll"]' '"margin_10_flips": [1-9]'
holds "decoder replay has rows of last windows only" '0 < s["decoder"]["rows"] < s["window"]["rows"]' '"rows"'
holds "bytes that are kept" 's["window"]["bytes_per_token"] == 0 and s["drop:64:end"]["bytes_per_token"] == 79.5 * 64 / 320
      and s["keep:16:64"]["bytes_per_token"] == 79.5 * 80 / 320 and s["mass:0.25+append:32"]["bytes_per_token"] == 79.5 / 4
      and s["entries:int3"]["bytes_per_token"] < 79.5' '"bytes_per_token": 0,'
holds "noise floor is 0 beside them" 'nothing(j["noise"])' '"noise"'
n=$(wc -l <"$dir/rows.csv")
if command -v python3 >/dev/null && [ "$n" -ne "$(python3 -c "
import json, sys
j = json.load(open(sys.argv[1]))
print(1 + sum(t['rows'] for t in j['settings'] + [j['noise']]))" "$dir/out")" ]; then not_ok "a line for every row"; else ok "a line for every row"; fi
well_formed() {
    if command -v xmllint >/dev/null; then
        xmllint --noout "$1" 2>"$dir/err"
    elif command -v python3 >/dev/null; then
        python3 -c "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])" "$1" 2>"$dir/err"
    else
        grep -q '</svg>' "$1"
    fi
}
if well_formed "$dir/plot.svg" && [ "$(grep -c '>mass:0.25+append:32<' "$dir/plot.svg")" -eq 2 ] && ! grep -qiE '<script|nan|inf' "$dir/plot.svg"
then ok "the picture is well-formed and names its lines"; else not_ok "the picture is well-formed and names its lines"; fi

# ---------------------------------------------------------------- tables
diff_ --limit 300 --context 200 --greedy 8 --prompts 3 --prompt 100 --set replay:64 --set window
says "noise floor stands first, as 0" "^noise floor +79.5 +0 +0 +0 +0 +0  - +all$"
says "what changed nothing" "^Same bits as the reference: replay:64\.$"
says "what changed answers" "window \([0-9.]+%, [0-9]+\)\.$"
says "greedy runs" "^Greedy continuations of 3 prompts of 100 tokens, 8 tokens each"
"$kv" tokenize "$tiny" -f "$text" --ids 2>/dev/null | tr ' ' '\n' | head -n 99 | sed '1i 0' >"$dir/ids"
"$kv" diff "$tiny" --ids "$dir/ids" --set window --json -q >"$dir/a" 2>"$dir/err"
diff_ --limit 99 --set window --json
if diff <(grep '"kl_' "$dir/a") <(grep '"kl_' "$dir/out") >"$dir/err"; then ok "ids and their text are the same"; else not_ok "ids and their text are the same"; fi
diff_ --skip 40 --limit 60 --first 5 --context 50 --json --noise
holds "part of a text" 'j["tokens"] == 60 and j["skipped"] == 40 and j["windows"] == 2 and j["noise"]["rows"] == 52' '"rows": 52,'
diff_ --limit 100 --noise
says "noise floor alone" "^noise floor +79.5 +0 "
if "$kv" help diff | grep -q "Examples:"; then ok "help has an example"; else not_ok "help has an example"; fi

report
