#!/bin/bash
# What `make measure` runs: test/measure.sh BUILD. Compares settings of the tiny model with `kvcsa diff`, asks for facts and bytes
# with `kvcsa needle` and `kvcsa need`, and writes what they print into docs/measurements.md, between "<!-- measured NAME -->" and
# "<!-- /measured -->"; pictures go to docs/img. Text outside of the marks is left alone. Nothing is written if a run fails.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
kv=$build/kvcsa
tiny=examples/models/tiny
text=test/data/heldout.txt
recall=test/data/recall
doc=docs/measurements.md
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/img" "$dir/rows" docs/img
start=$SECONDS

# run NAME COMMAND...: the command and what it prints, as one block of text. Files of our own are not part of what is shown.
run() {
    local name=$1 shown=() word
    shift
    for word; do
        case $word in
        --plot | --rows) ;;
        "$dir"/*) ;;
        *) shown+=("$word") ;;
        esac
    done
    echo "measure: $name" >&2
    {
        echo '```'
        # an option stays on the line of its value
        echo "\$ kvcsa ${shown[*]}" | sed -E 's/(--[a-z]+) ([^ -])/\1~\2/g' | fold -s -w 118 | sed -e '2,$s/^/      /' -e '$!s/ *$/ \\/' |
            tr '~' ' '
        "$kv" "$@"
        echo '```'
    } >>"$dir/$name"
}

# ---------------------------------------------------------------- diff
# 4 windows of 2,048 positions, half scripture and half novel; 8 prompts of 1,024 tokens that go on for 64.
how=(-f "$text" --skip 32000 --limit 8188 --greedy 64 --prompts 8 --prompt 1024 -q)
compare() { # NAME [--ref SETTING] SETTING...
    local name=$1 ref=() sets=() setting
    shift
    if [ "$1" = --ref ]; then ref=(--ref "$2"); shift 2; fi
    for setting; do sets+=(--set "$setting"); done
    run "$name" diff "$tiny" "${how[@]}" ${ref[@]+"${ref[@]}"} "${sets[@]}" --plot "$dir/img/$name.svg" --rows "$dir/rows/$name.csv"
}
compare replay replay:256 bounded:64 bounded:256 bounded:64:chain decoder:256 decoder:512
compare selection top:16 top:8 top:4 candidates:8 candidates:4 candidates:2 window
compare formats --ref entries:f32 entries:bf16 entries:mxfp8 entries:q8_0 exact entries:fp4-as-f32 entries:mxfp4 entries:q4_0 entries:int3
compare eviction keep:16:1024 keep:16:256 keep:16:64 mass:0.5 mass:0.25 mass:0.1 window

# Decoder replay, by place in the window of 32 rows that is run again at the end of every 256 tokens.
{
    echo '| row of the 32 that are run again | rows | mean KL, nat | another likeliest token |'
    echo '|---|---|---|---|'
    awk -F, '
        $1 == "decoder:256" {
            row = $3 % 256 - 223
            part = row == 1 ? 1 : row <= 4 ? 2 : row <= 8 ? 3 : row <= 16 ? 4 : row <= 31 ? 5 : 6
            n[part]++; kl[part] += $4; flips[part] += $9 != $10
        }
        END {
            split("first|2 to 4|5 to 8|9 to 16|17 to 31|last: what the model goes on with", name, "|")
            for (i = 1; i <= 6; i++)
                printf "| %s | %d | %.3g | %d (%.3g %%) |\n", name[i], n[i], kl[i] / n[i], flips[i], 100 * flips[i] / n[i]
        }' "$dir/rows/replay.csv"
} >"$dir/decoder"

# ---------------------------------------------------------------- needle and need
needles=test/data/needles
run recall needle "$recall" "$needles/recall.jsonl" --special --set bounded:64 --set mass:0.25 --set keep:16:256 --set window -q
run clause needle "$recall" "$needles/page27.jsonl" --special --set bounded:64 --set window -q
run answers needle "$tiny" "$needles/tiny.jsonl" --limit 20 --set bounded:64 --set mass:0.25 --set window --greedy -q
run doors need "$recall" "$needles/doors.jsonl" --special --generate 1 --plot "$dir/img/need.svg" -q
run documents need "$tiny" "$needles/tiny_documents.jsonl" -q

# ---------------------------------------------------------------- where and when
model=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo "none")
[ -z "$(git status --porcelain -- src include Makefile 2>/dev/null)" ] || commit="$commit and what was not committed on top of it"
cat >"$dir/machine" <<EOT
| | |
|---|---|
| command | \`make measure\` |
| date | $(date -u +%Y-%m-%d) |
| machine | ${model:-unknown processor}, $(nproc) cores; $(uname -sm) |
| version | $("$kv" version), commit $commit |
| time | $((SECONDS - start)) s |
EOT

# ---------------------------------------------------------------- into the document
for part in "$dir"/*; do
    [ -f "$part" ] || continue
    name=$(basename "$part")
    grep -qx "<!-- measured $name -->" "$doc" || { echo "measure: $doc has no place for $name" >&2; exit 1; }
done
awk -v dir="$dir" '
    /^<!-- measured [a-z]+ -->$/ { print; while ((getline line < (dir "/" $3)) > 0) print line; skip = 1; next }
    /^<!-- \/measured -->$/      { skip = 0 }
    !skip                        { print }' "$doc" >"$dir.md"
mv "$dir.md" "$doc"
cp "$dir"/img/*.svg docs/img/
echo "$doc and docs/img: $((SECONDS - start)) s"
