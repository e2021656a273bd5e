#!/bin/bash
# kvcsa needle and kvcsa need on the recall checkpoint, where every right figure is known: test/check_need.sh BUILD. Prints a line per
# check and ends with the line "N passed, N failed, N skipped"; exit status 0 = all passed, 1 = some failed.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build}
kv=$build/kvcsa
recall=test/data/recall
tiny=examples/models/tiny
items=test/data/needles
. test/support/command_checks.sh

# json NAME EXPRESSION: in python over the object j in $dir/out
json() {
    if ! command -v python3 >/dev/null; then skipped=$((skipped + 1)); echo "ok $1 # skipped: no python3"; return; fi
    if python3 -c "import json,sys; j=json.load(open(sys.argv[1],encoding='utf-8')); sys.exit(not ($2))" "$dir/out" 2>"$dir/err"
    then ok "$1"; else not_ok "$1"; fi
}
bad() { # NAME PATTERN COMMAND LINE: the second line of a file of items is wrong
    printf '\n%s\n' "$4" >"$dir/bad.jsonl"
    what "$1" 1 out - err "$dir/bad.jsonl:2: " err "$2" -- "$kv" "$3" "$recall" "$dir/bad.jsonl" --special -q
}

# ---------------------------------------------------------------- the checkpoint and the items are what their programs write
if command -v python3 >/dev/null; then
    cp -r test/data/needles "$dir/needles" && mkdir "$dir/recall" && python3 $recall/make_recall.py "$dir/recall" &&
        rm "$dir"/needles/{recall,doors,page27,page400,tiny_documents}.jsonl && python3 "$dir/needles/make_needles.py"
    { diff -rq "$dir/needles" $items; for f in "$dir"/recall/*; do cmp "$f" "$recall/$(basename "$f")"; done; } >"$dir/out" 2>&1
    if [ -s "$dir/out" ]; then not_ok "checkpoint and items come out again"; else ok "checkpoint and items come out again"; fi
fi

# ---------------------------------------------------------------- needle: what recalls, and what cannot
# the 9 items of 512 tokens; 7 of them hang on a needle that is far away
what "needle" 0 -- "$kv" needle $recall $items/recall.jsonl --special --limit 9 --greedy --json -q --set exact --set window \
    --set top:1 --set candidates:1 --set entries:bf16 --set bounded:64 --set decoder --set keep:0:32+append:32 --set drop:0:8
json "all of it is recalled" 'j["settings"][0]["right"] == j["settings"][0]["items"] == 9'
json "identical settings differ in nothing" 'j["settings"][1]["right"] == 9 and j["settings"][1]["log_prob_change"] == 0
     and j["settings"][1]["mcnemar_p"] == 1 and all(i["outcomes"][0] == i["outcomes"][1] for i in j["items"])'
json "the window alone recalls what is in it" '[i["line"] for i in j["items"] if i["outcomes"][2]["right"]] == [5, 9]'
json "lost items and their p" 'j["settings"][2]["lost"] == 7 and j["settings"][2]["found"] == 0
     and abs(j["settings"][2]["mcnemar_p"] - 2 * 0.5 ** 7) < 1e-12'
json "one entry is enough where one fact decides" '[i["line"] for i in j["items"] if not i["outcomes"][3]["right"]] == [7]'
json "without the candidate block nothing is found" 'j["settings"][4]["right"] == 2'
json "other formats and replays keep the answers" 'all(j["settings"][k]["right"] == 9 for k in (5, 6, 7))'
json "the last 32 tokens are not enough" '[i["line"] for i in j["items"] if i["outcomes"][8]["right"]] == [5, 9]'
json "one span gone, what it held gone" '[i["line"] for i in j["items"] if not i["outcomes"][9]["right"]] == [1, 8]'
json "hiding the needle does what it must" 'sum("control" in i for i in j["items"]) == 8
     and all(i["control"]["absent_right"] for i in j["items"] if "control" in i)'
json "by distance" 'j["settings"][2]["by_distance"][0] == {"from": 1, "to": 1, "items": 1, "right": 1}
     and sum(b["items"] for b in j["settings"][2]["by_distance"]) == 8'
json "greedy answers say the same" 'all((o["generated"] == i["outcomes"][0]["generated"]) == o["right"] for i in j["items"]
     for o in i["outcomes"])'

# ---------------------------------------------------------------- a clause on a page of its own
what "27 pages, one clause" 0 -- "$kv" needle $recall $items/page27.jsonl --special --json -q --set drop:4040:4056 \
    --set drop:4056:4064
json "the clause flips the answer" 'j["items"][0]["tokens"] == 8100 and j["items"][0]["outcomes"][0]["right"]
     and j["items"][0]["control"]["absent_right"] and j["items"][0]["control"]["right"] is False'
json "its block dropped by hand, and the next one" 'j["items"][0]["needle"] == [4050, 4051]
     and [o["right"] for o in j["items"][0]["outcomes"]] == [True, False, True]'
what "what is said then" 0 out '" no", drop:256:272 " yes"' -- "$kv" needle $recall <(sed 's/8100/512/' $items/page27.jsonl) \
    --special -q --greedy --set drop:256:272

# ---------------------------------------------------------------- the trained model: the same answers, if not the right ones
what "needles of the trained model" 0 -- "$kv" needle $tiny $items/tiny.jsonl --limit 3 --greedy --json -q --set replay:64
json "an exact replay changes nothing" 'all(i["outcomes"][0] == i["outcomes"][1] for i in j["items"]) and len(j["items"]) == 3'

# ---------------------------------------------------------------- need: exactly the spans that hold the facts
what "need" 0 -- "$kv" need $recall $items/doors.jsonl --special --generate 1 --questions 1,4,16 --limit 1 --json -q
cat >"$dir/need.py" <<'PY'
import json, sys
j = json.load(open(sys.argv[1], encoding="utf-8"))
items = [json.loads(l) for l in open(sys.argv[2], encoding="utf-8")]
assert j["span_tokens"] == 8 and j["span_bytes"] == 280 and len(j["documents"]) == 1
for d, item in zip(j["documents"], items):
    n = d["spans"]
    assert n == 512 and d["tokens"] == 4096 and d["sure_tokens"] == 64
    span = {item["needles"][i]["text"][:8]: d["needles"][i][0] // 8 for i in range(64)}   # " Door 07"
    spans = [span[q[:8]] for q in item["questions"]]
    assert len(set(spans)) == 64
    assert [u["questions"] for u in d["unions"]] == [1, 4, 16, 64]
    for u in d["unions"]:
        mine = spans[:u["questions"]]
        assert u["hindsight"]["spans"] == len(mine) and sorted(u["best_set"]) == sorted(mine), u
        assert u["hindsight"]["bytes"] == 280 * len(mine)
        assert u["recent"]["spans"] == n - min(mine) and u["first"]["spans"] == max(mine) + 1, u
        assert all(u[o]["monotone"] for o in ("hindsight", "mass", "recent", "first"))
    for s, q in zip(spans, d["questions"]):
        assert q["hindsight"]["spans"] == 1 and q["recent"]["spans"] == n - s and q["first"]["spans"] == s + 1, q
PY
if command -v python3 >/dev/null; then
    if python3 "$dir/need.py" "$dir/out" $items/doors.jsonl 2>"$dir/err"; then ok "hindsight finds exactly the facts"
    else not_ok "hindsight finds exactly the facts"; fi
fi
# a document that asks itself about 16 doors: then attention knows these, and no others
sed -n '2s/"length": 4096/"length": 2048/p' $items/doors.jsonl >"$dir/asked.jsonl"
what "need, by mass" 0 -- "$kv" need $recall "$dir/asked.jsonl" --special --generate 1 --questions 16 --by mass --json -q
json "attention keeps what was asked before, and no more" '[u["mass"]["spans"] for u in j["documents"][0]["unions"]][0] == 16
     and j["documents"][0]["unions"][1]["mass"]["spans"] > 128 and "recent" not in j["documents"][0]["unions"][0]'
# the answer to 2 of 4 questions may be lost: two spans are enough
sed -n '1s/"length": 4096/"length": 1024/p' $items/doors.jsonl >"$dir/one.jsonl"
what "need, half may change" 0 -- "$kv" need $recall "$dir/one.jsonl" --special --generate 1 --questions 4 --by first --epsilon 0.5 \
    --json -q
json "half of the spans do for half of the answers" 'j["documents"][0]["unions"][0]["hindsight"]["spans"] == 2'
printf '%s\n' '{"document": " Door 07 is red. Nothing more.", "questions": [" Door 07?", " Door 08?"]}' >"$dir/short.jsonl"
what "need, a document inside the window" 0 out "hindsight         0        0        0" out '" unknown"' \
    -- "$kv" need $recall "$dir/short.jsonl" --special --generate 1 --prune -q --plot "$dir/need.svg"
what "the picture" 0 out "</svg>" -- cat "$dir/need.svg"

# ---------------------------------------------------------------- wrong use, wrong files
what "needle without items" 2 out - -- "$kv" needle $recall
what "needle with an unknown setting" 2 out - err "windw" -- "$kv" needle $recall $items/page27.jsonl --set windw
what "needle without a file" 1 out - err "$dir/nothing" -- "$kv" needle $recall "$dir/nothing"
what "needle with an empty file" 1 out - err "no items" -- "$kv" needle $recall /dev/null
what "need with an unknown order" 2 out - err "did you mean recent" -- "$kv" need $recall $items/doors.jsonl --by recnt
for list in 0 4,4 4,1 1, ,1 x 1,2x; do
    what "need with --questions $list" 2 out - err "--questions" -- "$kv" need $recall $items/doors.jsonl --questions "$list"
done
what "need with no answer" 2 out - err "--generate is 0" -- "$kv" need $recall $items/doors.jsonl --generate 0
what "need with --epsilon 2" 2 out - err "at most 1" -- "$kv" need $recall $items/doors.jsonl --epsilon 2
bad "no JSON" "column" needle '{"prompt": '
bad "no object" "braces" needle '["prompt"]'
bad "a key twice" "duplicate" needle '{"answer": "x", "answer": "y", "prompt": "z"}'
bad "no answer" "answer is missing" needle '{"prompt": "x"}'
bad "an empty answer" "answer is empty" needle '{"prompt": "x", "answer": ""}'
bad "no prompt" "prompt is missing" needle '{"answer": "x"}'
bad "a prompt that is a number" "prompt must be a text" needle '{"prompt": 3, "answer": "x"}'
bad "an id that is none" "prompt[1] is not a token id" needle '{"prompt": [1, 860], "answer": "x"}'
bad "a depth above 1" "depth must be" needle '{"filler": "x", "length": 9, "needle": "y", "depth": 1.5, "question": "q", "answer": "x"}'
bad "a length beyond the model" "length must be" needle '{"filler": "x", "length": 99999999999, "question": "q", "answer": "x"}'
bad "a length that is too short" "tokens without any filler" needle '{"filler": "x", "length": 2, "question": "qqq", "answer": "x"}'
bad "no length" "length is missing" needle '{"filler": "x", "question": "q", "answer": "x"}'
bad "filler of nothing" "filler is empty" needle '{"filler": "", "length": 9, "question": "q", "answer": "x"}'
bad "needles that are none" "needles[0] must be" needle '{"filler": "x", "length": 9, "needles": [1], "question": "q", "answer": "x"}'
bad "a distance below 0" "distance must be" needle '{"prompt": "x", "answer": "y", "distance": -1}'
bad "no questions" "questions must be" need '{"document": "x"}'
bad "an empty question" "questions[1] is empty" need '{"document": "x", "questions": ["a", ""]}'
bad "a question that is none" "question must be" need '{"document": "x", "questions": [7]}'
bad "no document" "document is missing" need '{"questions": ["x"]}'

report
