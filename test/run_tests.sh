#!/bin/bash
# Runs the test programs of one build, and the check scripts; ends with the line "N passed, N failed, N skipped".
#
#   test/run_tests.sh --build DIR [--scripts RELEASE_BUILD RELEASE_LIBS] [--no-scripts] [--no-cuda]
#                     [--also BACKEND "PATTERN..."] [--only-also] [PATTERN...]
#
# DIR/test holds test_* (CMocka; every test counts), and fuzz_* (one count a target, which replays its stored inputs).
# A program that crashes, hangs or runs no test has failed. Scripts answer 0 = passed, 77 = skipped, else failed.
# PATTERNs (shell globs on the program's name) choose programs. Those of --also run (again) with the plug-in of DIR/test/BACKEND, see
# support/test_backend.h; their names are BACKEND.NAME then. Logs stay in DIR/test/log. TEST_JOBS programs run at a time (one a
# core); each prints its line when it ends.
set -u
cd "$(dirname "$0")/.." || exit 2

build=build scripts='' libs='' cuda=1 backend='' also='' only_also=0
seconds=${TEST_SECONDS:-900} at_once=${TEST_JOBS:-$(nproc 2>/dev/null || echo 2)}
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2; shift 2 ;;
    --scripts) scripts=$2; libs=$3; shift 3 ;;
    --no-scripts) scripts=''; shift ;;
    --also) backend=$2; also=$3; shift 3 ;;
    --only-also) only_also=1; shift ;;
    --no-cuda) cuda=0; shift ;; # a cross build has no emulated device
    *) break ;;
    esac
done
log=$build/test/log
begun=()
unset KVCSA_TEST_BACKEND_DIR
mkdir -p "$log"
rm -f "$log"/*.log "$log"/*.count "$build/test/counts"

chosen() { # NAME PATTERN...: true without patterns
    local name=$1 pattern
    shift
    [ $# -eq 0 ] && return 0
    for pattern; do
        # shellcheck disable=SC2053
        [[ $name == $pattern ]] && return 0
    done
    return 1
}

report() { # NAME PASSED FAILED SKIPPED SECONDS LOG [WHY]
    local word=ok text
    [ "$4" -gt 0 ] && [ "$2" -eq 0 ] && word=skipped
    [ "$3" -gt 0 ] && word=FAILED
    text="$2 good"
    [ "$3" -gt 0 ] && text="$text, $3 bad"
    [ "$4" -gt 0 ] && text="$text, $4 left out"
    printf '%-8s %-30s %-32s %4d s%s\n' "$word" "$1" "$text" "$5" "${7:+  $7}"
    if [ "$3" -gt 0 ]; then
        # The whole log is kept; what is printed is what a reader of CI needs.
        sed 's/^/    | /' "$6" | tail -n 80
        echo "    (all of it: $6)"
    fi
    echo "$2 $3 $4" >"$log/$1.count"
}

begin() { # FUNCTION NAME: in the background, as soon as there is room; its report comes in one piece
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n; done
    begun+=("$2")
    { text=$("$1" "$2") && printf '%s\n' "$text"; } &
}

# CMocka's standard output: one OK, FAILED or SKIPPED line a test, and lists of names at the end that must not count again.
count_cmocka() {
    awk '
        /listed below:$/                                  { list = 1; next }
        list && /^\[ +(FAILED|SKIPPED|PASSED) +\]/        { next }
                                                          { list = 0 }
        /^\[=+\].* ?Running [0-9]+ test\(s\)/             { match($0, /Running [0-9]+/)
                                                            want += substr($0, RSTART + 8, RLENGTH - 8) }
        /^\[ +OK +\] /                                    { ok++ }
        /^\[ +FAILED +\] /                                { bad++ }
        /^\[ +SKIPPED +\] /                               { out++ }
        END { print ok + 0, bad + 0, out + 0, want + 0 }' "$1"
}

run_cmocka() {
    local name=$1 start=$SECONDS rc ok bad out want why='' on=()
    [[ $name == *.* ]] && on=("KVCSA_TEST_BACKEND_DIR=$(realpath "$build/test/$backend")")
    timeout -k 10 "$seconds" env -u CMOCKA_MESSAGE_OUTPUT -u CMOCKA_XML_FILE -u CMOCKA_TEST_ABORT "${on[@]}" \
        "$build/test/${name#*.}" </dev/null >"$log/$name.log" 2>&1
    rc=$?
    read -r ok bad out want < <(count_cmocka "$log/$name.log")
    if [ $((ok + bad + out)) -lt "$want" ]; then
        why="died: $((want - ok - bad - out)) of its tests have no result"
        bad=$((want - ok - out))
    fi
    if [ "$rc" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
    elif [ $((ok + bad + out)) -eq 0 ]; then
        bad=1 why="ran no test"
    fi
    [ "$rc" -eq 124 ] && why="stopped after $seconds s"
    [ "$rc" -gt 124 ] && why="${why:-died} (exit status $rc)"
    report "$name" "$ok" "$bad" "$out" $((SECONDS - start)) "$log/$name.log" "$why"
}

run_fuzz() { # replays the corpus; without one, the empty input
    local name=$1 start=$SECONDS rc corpus=test/fuzz/corpus/${1#fuzz_}
    [ -d "$corpus" ] || corpus=
    timeout -k 10 "$seconds" "$build/test/$name" $corpus </dev/null >"$log/$name.log" 2>&1
    rc=$?
    if [ "$rc" -eq 0 ]; then
        report "$name" 1 0 0 $((SECONDS - start)) "$log/$name.log" "$(tail -n 1 "$log/$name.log")"
    else
        report "$name" 0 1 0 $((SECONDS - start)) "$log/$name.log" "(exit status $rc)"
    fi
}

run_script() {
    local name=$1 start=$SECONDS rc
    timeout -k 10 "$seconds" "test/$name" "$scripts" "$libs" </dev/null >"$log/$name.log" 2>&1
    rc=$?
    case $rc in
    0) report "$name" 1 0 0 $((SECONDS - start)) "$log/$name.log" ;;
    77) report "$name" 0 0 1 $((SECONDS - start)) "$log/$name.log" "$(tail -n 1 "$log/$name.log")" ;;
    *) report "$name" 0 1 0 $((SECONDS - start)) "$log/$name.log" "(exit status $rc)" ;;
    esac
}

# A cancelled run must not look like a short one that passed.
trap 'kill $(jobs -p) 2>/dev/null; echo "interrupted"; exit 130' INT TERM

# The list is made from the sources: a program that was not built has failed, one whose source is gone does not run.
for source in test/test_*.c test/cuda/test_*.c test/cuda/test_*.cc test/fuzz/fuzz_*.c; do
    name=$(basename "${source%.*}")
    [ "$only_also" = 1 ] && continue
    [[ $cuda = 0 && $source == test/cuda/* ]] && continue
    [ -e "$source" ] && [ "$name" != fuzz_main ] && chosen "$name" "$@" || continue
    if [ ! -x "$build/test/$name" ]; then
        echo "$build/test/$name is missing: not built" >"$log/$name.log"
        report "$name" 0 1 0 0 "$log/$name.log"
        continue
    fi
    case $name in
    fuzz_*) begin run_fuzz "$name" ;;
    *) begin run_cmocka "$name" ;;
    esac
done
read -ra patterns <<<"$also"
for source in test/test_*.c; do
    name=$(basename "${source%.*}")
    [ ${#patterns[@]} -gt 0 ] && chosen "$name" "${patterns[@]}" && begin run_cmocka "$backend.$name"
done
if [ -n "$scripts" ]; then
    for script in test/check_*.sh; do
        name=$(basename "$script")
        case $name in
        check_all.sh | check_large.sh | check_masks.sh | check_mingw.sh | check_neon.sh | check_plugin.sh) continue ;; # longer runs with targets of their own
        check_package.sh) [ -n "${KV_PART_OF:-}" ] || continue ;; # builds from its archive: a minute, for check-all
        esac
        chosen "$name" "$@" && begin run_script "$name"
    done
fi
wait
for name in "${begun[@]}"; do
    [ -e "$log/$name.count" ] || report "$name" 0 1 0 0 /dev/null "its report is missing"
done
read -r passed failed skipped < <(cat "$log"/*.count 2>/dev/null |
    awk '{ good += $1; bad += $2; out += $3 } END { print good + 0, bad + 0, out + 0 }')

echo "$passed $failed $skipped" >"$build/test/counts"
if [ -n "${KV_PART_OF:-}" ]; then
    echo "$build: $passed good, $failed bad, $skipped left out"
else
    echo "$passed passed, $failed failed, $skipped skipped"
fi
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
