#!/bin/bash
# A process that saves snapshots is killed at random moments and what it leaves is looked at: test/check_killed_saver.sh BUILD.
# A hundred times for each form in memory, where nothing waits for a disk, and a few times on the disk.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build}
dirs=()
trap 'rm -rf "${dirs[@]}"' EXIT
seed=${TEST_SEED:-$RANDOM}
echo "seed $seed"
run() { # KILLS [FOLDER]
    local dir
    dir=$(mktemp -d ${2:+-p "$2"}) || exit 2
    dirs+=("$dir")
    "$build/test/killed_saver" test/data/t1 "$dir" "$1" "$seed" || exit 1
}
if [ -d /dev/shm ] && [ -w /dev/shm ]; then
    run 100 /dev/shm
    run 10
else
    run 100
fi
