#!/bin/bash
# The main job on the shipped model: read a text, go on writing. test/run_demo.sh BUILD
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
text=$(find examples/texts -name '*.txt' | sort | head -n 1)
[ -n "$text" ] || { echo "no text in examples/texts" >&2; exit 1; }
echo "A small model in the DeepSeek-V4.1 format (examples/models/tiny) reads $text and goes on writing."
echo "Its end is shown first, then what the model makes of it. The model has some millions of parameters: expect grammar, not sense."
echo
echo "    $build/kvcsa run examples/models/tiny -f $text -n 120 --temp 0.7 --top-p 0.9 --seed 1"
echo
echo "... $(tail -c 200 "$text" | tr '\n' ' ')"
echo "------------------------------------------------------------"
"$build/kvcsa" run examples/models/tiny -f "$text" -n 120 --temp 0.7 --top-p 0.9 --seed 1
