# shellcheck shell=bash
# What the checks of the built command share; read by them with `.` from the root of the tree, with $kv = the command. Makes $dir, a
# folder that goes away, whose files out and err hold what a command said.
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0 skipped=0
[ -x "$kv" ] || { echo "$kv is missing"; exit 1; }

ok() { passed=$((passed + 1)); echo "ok $1"; }
not_ok() { failed=$((failed + 1)); echo "not ok $1"; sed 's/^/#   /' "$dir/err" "$dir/out" | cut -c1-300 | head -n 20; }
skip() { skipped=$((skipped + 1)); echo "ok $1 # skipped: $2"; }
# what NAME STATUS [out|err PATTERN]... -- COMMAND...: status and what the streams must hold; "out -" = stdout is empty
what() {
    local name=$1 status=$2 checks=() rc bad=0
    shift 2
    while [ "$1" != -- ]; do checks+=("$1" "$2"); shift 2; done
    shift
    "$@" >"$dir/out" 2>"$dir/err" </dev/null
    rc=$?
    [ "$rc" -eq "$status" ] || { bad=1; echo "# status $rc, wanted $status"; }
    set -- ${checks[@]+"${checks[@]}"}
    while [ $# -gt 0 ]; do
        if [ "$2" = - ]; then
            [ -s "$dir/$1" ] && { bad=1; echo "# std$1 is not empty"; }
        else
            grep -qF -- "$2" "$dir/$1" || { bad=1; echo "# std$1 lacks: $2"; }
        fi
        shift 2
    done
    if [ $bad -eq 0 ]; then ok "$name"; else not_ok "$name"; fi
}
# The last line of a script, and its exit status.
report() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}
