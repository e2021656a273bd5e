#!/bin/bash
# Runs the built command as a user would: test/check_cli.sh BUILD. Prints a line per check and ends with the line
# "N passed, N failed, N skipped"; exit status 0 = all passed, 1 = some failed.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build}
kv=$build/kvcsa
tiny=examples/models/tiny
doc=examples/texts/moby-dick.txt
. test/support/command_checks.sh

same() { # NAME WANTED-FILE GOT-FILE
    if cmp -s "$2" "$3"; then ok "$1"; else cp "$3" "$dir/out"; not_ok "$1"; fi
}
# json NAME EXPRESSION FALLBACK-PATTERN: EXPRESSION in python over the object j in $dir/out
json() {
    if command -v python3 >/dev/null; then
        if python3 -c "import json,sys; j=json.load(open(sys.argv[1],encoding='utf-8')); sys.exit(not ($2))" "$dir/out" \
            2>"$dir/err"; then ok "$1"; else not_ok "$1"; fi
    elif grep -q -- "$3" "$dir/out"; then ok "$1 (without python3: by pattern)"; else not_ok "$1"; fi
}

# ---------------------------------------------------------------- help and usage
version=$(sed -n 's/^#define KVCSA_VERSION_[MP][A-Z]* *//p' include/kvcsa.h | paste -sd.)
what "version" 0 out "kvcsa $version" err - -- "$kv" version
what "help names every command" 0 out "kvcsa score" err - -- "$kv" --help
what "help of a command has an example" 0 out "Examples:" err - -- "$kv" help run
what "--help behind a command" 0 out "kvcsa plan (MODEL | config.json)" err - -- "$kv" plan --help
what "no command" 2 out - err "kvcsa run MODEL" -- "$kv"
what "help of nothing" 2 out - err 'no command "nosuch"' -- "$kv" help nosuch
what "unknown command gets a hint" 2 out - err "did you mean plan?" -- "$kv" pln "$tiny"
what "unknown option gets a hint" 2 out - err "did you mean --threads?" -- "$kv" run "$tiny" -p x --thread 2
what "unknown option far from all" 2 out - err "unknown option --frobnicate" -- "$kv" run "$tiny" -p x --frobnicate
what "option without its value" 2 out - err "-n wants a value" -- "$kv" run "$tiny" -p x -n
what "flag with a value" 2 out - err "--json takes no value" -- "$kv" run "$tiny" -p x --json=1
what "number that is none" 2 out - err '"12x"' -- "$kv" run "$tiny" -p x -n 12x
what "negative number" 2 out - err '"-3"' -- "$kv" run "$tiny" -p x -n -3
what "number beyond 32 bits" 2 out - err 4294967296 -- "$kv" run "$tiny" -p x -n 4294967296
what "temperature that is no number" 2 out - err '"nan"' -- "$kv" run "$tiny" -p x --temp nan
what "share above one" 2 out - err "at most 1" -- "$kv" run "$tiny" -p x --top-p 1.5
what "bytes with a wrong suffix" 2 out - err '"5X"' -- "$kv" run "$tiny" -p x --budget 5X
what "bytes beyond 64 bits" 2 out - err 99999999999G -- "$kv" run "$tiny" -p x --budget 99999999999G
what "text twice" 2 out - err "-p TEXT or with -f FILE" -- "$kv" run "$tiny" -p x -f "$doc"
what "no text" 2 out - err "-p TEXT or with -f FILE" -- "$kv" run "$tiny"
what "no model" 2 out - err "which model" -- "$kv" run -p x
what "one word too many" 2 out - err '"again"' -- "$kv" run "$tiny" again -p x
what "empty stop string" 2 out - err "--stop is empty" -- "$kv" run "$tiny" -p x --stop ""
what "score without a text" 2 out - err "-f FILE" -- "$kv" score "$tiny"
what "context of one token" 2 out - err "2..8192" -- "$kv" score "$tiny" -f "$doc" --context 1

# ---------------------------------------------------------------- bad files
what "missing model" 1 out - err "KVCSA_ERR_IO" -- "$kv" run "$dir/nothing" -p x
what "folder without a model" 1 out - err "config.json" -- "$kv" info "$dir"
what "missing text" 1 out - err "$dir/nothing" -- "$kv" run "$tiny" -f "$dir/nothing"
what "folder as a text" 1 out - err "$dir" -- "$kv" tokenize "$tiny" -f "$dir"
mkdir "$dir/cut" && cp "$tiny"/* "$dir/cut/" && chmod u+w "$dir"/cut/*
head -c 2000000 "$tiny/model-00001-of-00002.safetensors" >"$dir/cut/model-00001-of-00002.safetensors"
what "model cut in half" 1 out - err "model-00001-of-00002" -- "$kv" run "$dir/cut" -p x
printf '{"architectures":["Other"]}' >"$dir/other.json"
what "another architecture" 1 out - err "KVCSA_ERR_" -- "$kv" plan "$dir/other.json"
printf '\0\0not json' >"$dir/zero.json"
what "NUL in a configuration" 1 out - err "KVCSA_ERR_FORMAT" -- "$kv" plan "$dir/zero.json"

# ---------------------------------------------------------------- plan and info
what "plan as a table" 0 out "layers" out "persist" err - -- "$kv" plan "$tiny"
what "plan of V4.1-Flash as JSON" 0 err - -- "$kv" plan test/data/v41-flash-config.json --json -n 128
json "V4.1-Flash costs 890 B per token" \
    'j["rate"] == 890 and j["block_bytes"] == 113920 and j["block_tokens"] == 128 and j["index_part_bytes"] == 21760
     and j["main_part_bytes"] == 92160 and j["resident"] == j["const"] + 113920 and len(j["layers"]) == 40' '"rate": 890,'
what "plan at a length" 0 err - -- "$kv" plan "$tiny" --json
json "tiny's figures" 'j["rate"] == 79.5 and j["n_tokens"] == 4096 and j["const"] == 8 * 32 * 66
     and j["resident"] == j["const"] + 32 * 10176 and j["layers"][6]["select"] == "reindex"' '"rate": 79.5'
what "plan beyond the limit" 1 out - err "KVCSA_ERR_LIMIT" -- "$kv" plan "$tiny" -n 8193
what "info" 0 out "643 tensors" err - -- "$kv" info "$tiny"
what "info as JSON" 0 err - -- "$kv" info test/data/t1 --json
json "T1 has tensors that are left alone" \
    'j["skipped_tensors"] == len(j["skipped_names"]) > 0 and j["bos_token"] == 0' '"skipped_tensors"'

# ---------------------------------------------------------------- tokenize
echo "70 395 417 975 49" >"$dir/want"
"$kv" tokenize "$tiny" -p "Call me Ishmael." --ids >"$dir/got" 2>/dev/null
same "ids of a sentence" "$dir/want" "$dir/got"
what "tokens of a sentence" 0 out '    975  " Ishmael"' err - -- "$kv" tokenize "$tiny" -p "Call me Ishmael."
what "empty text has no tokens" 0 err - -- "$kv" tokenize "$tiny" -p "" --json
json "empty text as JSON" 'j["n_tokens"] == 0 and j["ids"] == []' '"n_tokens": 0'
printf 'a\0b\377\n' >"$dir/bytes"
what "NUL and stray bytes are text" 0 out '"\x00"' out '"\xff"' err - -- "$kv" tokenize "$tiny" -f "$dir/bytes"
what "text of standard input" 0 out '"a"' -- bash -c "printf a | '$kv' tokenize '$tiny' -f -"
what "special tokens by name" 0 out "1531" -- "$kv" tokenize "$tiny" --special --ids -p "<｜User｜>"
"$kv" tokenize "$tiny" --ids -p "<｜User｜>" >"$dir/out" 2>"$dir/err"
if grep -qw 1531 "$dir/out"; then not_ok "their names are plain text otherwise"; else ok "their names are plain text otherwise"; fi

# ---------------------------------------------------------------- run
# What the independent reference writes (examples/models/tiny was evaluated with it).
printf ' of the word, and the word of the LORD came unto me, saying,\nSon of man, thou son of man, speak unto the children of Israel, and say unto them, Thus\n' >"$dir/want"
run() { "$kv" run "$tiny" -p "In the beginning" "$@" 2>"$dir/err" </dev/null; }
run -n 40 >"$dir/got"
same "greedy text is the reference's" "$dir/want" "$dir/got"
cp "$dir/err" "$dir/out"
if grep -q "prefill .*tokens/s" "$dir/err" && grep -q "decode .*ended by limit" "$dir/err" && grep -q "^  rate  *79.5 B" "$dir/err"
then ok "figures go to stderr"; else not_ok "figures go to stderr"; fi
for how in "--threads 1" "--threads 3" "--chunk 1" "--chunk 5 --threads 2"; do
    # shellcheck disable=SC2086
    run -n 40 $how >"$dir/got"
    same "same text with $how" "$dir/want" "$dir/got"
done
run -n 40 -q >"$dir/got"
same "quiet: same text" "$dir/want" "$dir/got"
if [ -s "$dir/err" ]; then not_ok "quiet: nothing on stderr"; else ok "quiet: nothing on stderr"; fi
what "run as JSON" 0 -- "$kv" run "$tiny" -p "In the beginning" -n 40 --json -q
json "JSON of a run" 'j["text"].startswith(" of the word, and the word of the LORD came") and j["ended"] == "limit"
     and j["generated_tokens"] == len(j["ids"]) == 40 and j["cache"]["rate"] == 79.5 and j["cache"]["n_tokens"] == j["prompt_tokens"]
     and j["pool"]["used_bytes"] == j["pool"]["block_bytes"] + j["pool"]["window_bytes"] and j["session"]["tokens"] == j["prompt_tokens"] + 39
     and j["prefill"]["tokens_per_second"] > 0' '"ended": "limit"'
printf ' of the word, and the word of the \n' >"$dir/want"
run -n 40 --stop "never" --stop "LORD" >"$dir/got"
same "nothing at or after a stop string" "$dir/want" "$dir/got"
what "reading only" 0 out - err "ended by limit" -- "$kv" run "$tiny" -p "In the beginning" -n 0
what "empty text begins at the start token" 0 err "1 tokens of 0 bytes" -- "$kv" run "$tiny" -p "" -n 5
run -n 30 --temp 1 --seed 7 >"$dir/want"
run -n 30 --temp 1 --seed 7 --chunk 3 >"$dir/got"
same "a seed repeats its text" "$dir/want" "$dir/got"
run -n 30 --temp 1 --seed 8 >"$dir/got"
if cmp -s "$dir/want" "$dir/got"; then not_ok "another seed writes another text"; else ok "another seed writes another text"; fi
run -n 30 --temp 1 --seed 7 --top-k 1 >"$dir/got"
run -n 30 >"$dir/want"
same "top-k 1 is greedy" "$dir/want" "$dir/got"
what "NUL in a text" 0 -- "$kv" run "$tiny" -f "$dir/bytes" -n 3
what "NUL in a chat message" 1 out - err "NUL" -- "$kv" run "$tiny" -f "$dir/bytes" -n 3 --chat
what "a chat" 0 err "in the chat format" -- "$kv" run "$tiny" -p "Who is Ahab?" -n 5 --chat --system "Be short."
what "system without chat" 2 out - err "belongs to --chat" -- "$kv" run "$tiny" -p x --system y
what "budget too small for the text" 1 out - err "KVCSA_ERR_FULL" -- "$kv" run "$tiny" -f "$doc" -n 1 --budget 100K
what "budget too small for a window" 1 out - err "KVCSA_ERR_FULL" -- "$kv" run "$tiny" -p x -n 1 --budget 1K
what "text beyond the context limit" 1 out - err "KVCSA_ERR_LIMIT" -- "$kv" run "$tiny" -f test/data/heldout.txt -n 1
if [ -e /dev/full ]; then
    what "full disk is noticed" 1 err "stdout" -- bash -c "'$kv' run '$tiny' -p x -n 3 >/dev/full"
    what "full disk is noticed by plan" 1 err "stdout" -- bash -c "'$kv' plan '$tiny' >/dev/full"
else
    skip "full disk is noticed" "no /dev/full"
fi
if env --default-signal=INT true 2>/dev/null; then
    # after the first text, so that it does not come before the program listens; 2,000 tokens take seconds
    # shellcheck disable=SC2016
    what "Ctrl-C cancels" 1 err "cancelled" -- bash -c '
        env --default-signal=INT "$0" run "$1" -f "$2" -n 2000 >"$3/text" 2>"$3/said" &
        for ((i = 0; i < 600; i++)); do [ -s "$3/text" ] && break; sleep 0.05; done
        kill -INT $!; wait $!; rc=$?; cat "$3/said" >&2; exit $rc' "$kv" "$tiny" "$doc" "$dir"
else
    skip "Ctrl-C cancels" "env has no --default-signal"
fi

# ---------------------------------------------------------------- score
what "score" 0 -- "$kv" score "$tiny" -f test/data/heldout.txt --limit 3000 --json -q
json "bits per byte are the reference's" 'abs(j["bits_per_byte"] - 1.24437) < 1e-4 and j["tokens"] == 3000 and j["bytes"] == 9068
     and j["windows"] == 6' '"bits_per_byte": 1.2443'
what "score in short windows" 0 out "1.2906 bits/byte" -- "$kv" score "$tiny" -f test/data/heldout.txt --limit 3000 --context 100
what "score of nothing" 1 out - err "empty" -- "$kv" score "$tiny" -f /dev/null

# ---------------------------------------------------------------- the example
if [ -x "$build/examples/generate" ]; then
    run -n 40 -q >"$dir/want"
    "$build/examples/generate" "$tiny" "In the beginning" 40 >"$dir/got" 2>"$dir/err"
    same "examples/generate writes the same" "$dir/want" "$dir/got"
    what "examples/generate says what is wrong" 1 out - err "KVCSA_ERR_IO" -- "$build/examples/generate" "$dir/nothing" x 3
else
    skip "examples/generate" "not built"
fi

report
