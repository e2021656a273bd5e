#!/bin/bash
# Who may include whom: every include of ours looks left in the order of rooms (docs/architecture.md), never right or across.
set -u
cd "$(dirname "$0")/.." || exit 2
bad=0
complain() { echo "$1"; bad=1; }

# A room and the rooms that it may see beside itself and kvcsa.h.
sees() {
    local plan='base' format='base plan' backend='base plan format' text='base plan format backend'
    local model="$text text" pool net
    pool="$model model tier"
    net="$pool pool index attn"
    case $1 in
    base) ;;
    plan) echo "$plan" ;;
    format) echo "$format" ;;
    backend) echo "$backend" ;;
    text) echo "$text" ;;
    model | tier) echo "$model" ;;
    pool) echo "$pool" ;;
    index | attn) echo "$pool pool" ;;
    net) echo "$net" ;;
    session) echo "$net net" ;;
    api) echo "$net net session" ;;
    measure) echo "$net net session api" ;;
    cpu | cuda) echo "base plan format backend" ;;
    cli) ;;
    *) return 1 ;;
    esac
}

includes() { # FILE: names between quotes, or kvcsa.h between brackets
    sed -n -e 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1/p' \
        -e 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*<\(kvcsa\.h\)>.*/\1/p' "$1"
}

n=0
for file in src/*/*.[ch] src/*/*/*.[ch]; do
    [ -e "$file" ] || continue
    room=${file#src/} room=${room%%/*}
    allowed=$(sees "$room") || { complain "$file: no room of this name in test/check_layers.sh"; continue; }
    n=$((n + 1))
    for name in $(includes "$file"); do
        other=${name%%/*}
        if [ "$name" = kvcsa.h ]; then
            continue
        elif [ "$other" = "$name" ]; then # in its own folder
            [ -e "$(dirname "$file")/$name" ] || complain "$file: includes $name, which is not in its room"
            continue
        elif [ "$other" = "$room" ]; then
            [ -e "src/$name" ] || complain "$file: includes $name, which does not exist"
            continue
        fi
        case " $allowed " in
        *" $other "*) ;;
        *) complain "$file: room $room may not include $name" ;;
        esac
        case $name in
        *_int.h) complain "$file: $name is private to room $other" ;;
        esac
        [ -e "src/$name" ] || complain "$file: includes $name, which does not exist"
    done
done

# Programs that show how the library is used, and tests of the interface, know the public header only.
for file in examples/*.c examples/*.cc test/test_api_*.c; do
    [ -e "$file" ] || continue
    for name in $(includes "$file"); do
        case $name in
        kvcsa.h | support/*.h | golden/*.h) ;;
        *) complain "$file: includes $name; only kvcsa.h is meant to be enough" ;;
        esac
    done
done

[ "$n" -gt 0 ] || complain "no source file found"
[ "$bad" -eq 0 ] && echo "$n files look left only"
exit "$bad"
