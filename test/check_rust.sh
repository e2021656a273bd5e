#!/bin/bash
# The Rust crates of lib/rust against the built library: declarations, safe layer, tour, example, lints, documents.
#
#   test/check_rust.sh [BUILD LIBS]
#
# Everything that cargo makes stays in BUILD/rust, so that a second run compiles what has changed. Nothing is fetched.
set -u
cd "$(dirname "$0")/.." || exit 2
build=$(realpath -m "${1:-build}") libs=$(realpath -m "${2:-lib}")
bad=0
complain() { echo "$1"; bad=1; }
skip() { echo "skipped: $1"; exit 77; }

command -v cargo >/dev/null || skip "cargo is not installed"
command -v rustc >/dev/null || skip "rustc is not installed"
least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' lib/rust/kvcsa/Cargo.toml)
[ "$(sed -n 's/^rust-version = "\(.*\)"/\1/p' lib/rust/kvcsa-sys/Cargo.toml)" = "$least" ] || complain "the crates name different versions of rustc"
has=$(rustc --version | sed 's/^rustc \([0-9.]*\).*/\1/')
[ "$(printf '%s\n' "$least" "$has" | sort -V | head -n 1)" = "$least" ] || skip "rustc is $has, the crates need $least"

# Found as a user finds it: by pkg-config, in a root of its own.
unset MAKEFLAGS MFLAGS MAKELEVEL KVCSA_LIB_DIR KVCSA_INCLUDE_DIR RUSTFLAGS CARGO_BUILD_TARGET CARGO_TARGET_DIR LD_LIBRARY_PATH
work=$build/rust
root=$work/root
mkdir -p "$work"
make -s install DESTDIR="$root" PREFIX=/usr B="${1:-build}" L="${2:-lib}" >"$work/install.log" 2>&1 ||
    { echo "make install failed:"; cat "$work/install.log"; exit 1; }
export PKG_CONFIG_PATH=$root/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root RUST_BACKTRACE=0
# Compiled once and run once.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_DEBUG=0
manifest=(--manifest-path "$PWD/lib/rust/Cargo.toml" --offline --locked)

with_shared() { LD_LIBRARY_PATH=$root/usr/lib CARGO_TARGET_DIR=$work/target "$@"; }
# Linked into the program, from a folder that is named.
with_static() { KVCSA_LIB_DIR=$libs CARGO_TARGET_DIR=$work/static "$@"; }

with_shared cargo test "${manifest[@]}" --quiet >"$work/test.log" 2>&1 || { complain "cargo test failed:"; cat "$work/test.log"; }
# A run that tests nothing has failed.
passed=$(awk '/^test result: / { n += $4 } END { print n + 0 }' "$work/test.log")
written=$(cat lib/rust/*/tests/*.rs lib/rust/*/tests/*/*.rs | grep -c '^ *#\[test\]')
((passed >= written && written > 0)) || complain "$passed tests passed, $written are written"

# The example: with either library the text of the example in C.
minimal=(run "${manifest[@]}" --quiet -p kvcsa --example minimal)
what=(examples/models/tiny "In the beginning" 24)
with_shared cargo "${minimal[@]}" -- "${what[@]}" >"$work/shared.out" 2>"$work/shared.err" || { complain "examples/minimal.rs failed:"; cat "$work/shared.err"; }
with_static cargo "${minimal[@]}" --features static -- "${what[@]}" >"$work/static.out" 2>"$work/static.err" ||
    { complain "examples/minimal.rs (static) failed:"; cat "$work/static.err"; }
ldd "$work/static/debug/examples/minimal" | grep -q libkvcsa && complain "with the feature static the program still needs libkvcsa.so"
"$build/examples/generate" "${what[@]}" >"$work/c.out" 2>/dev/null </dev/null || complain "examples/generate failed"
[ -s "$work/c.out" ] || complain "examples/generate wrote nothing"
for how in shared static; do
    cmp -s "$work/c.out" "$work/$how.out" || complain "examples/minimal.rs ($how) does not write what examples/generate writes"
done
with_shared cargo "${minimal[@]}" -- "$work/nothing" x 1 >"$work/out" 2>"$work/err" && complain "minimal.rs does not fail without a model"
grep -q KVCSA_ERR_IO "$work/err" || complain "minimal.rs does not say what is wrong with a missing model"

# It gives back all memory that it took, counted at the allocator hook.
${CC:-cc} -std=gnu11 -O2 -Iinclude -fPIC -shared -o "$work/balance.so" test/guest/balance.c || complain "test/guest/balance.c was not built"
with_shared env LD_PRELOAD="$work/balance.so" GUEST_BALANCE="$work/balance" "$work/target/debug/examples/minimal" "${what[@]}" >"$work/out" 2>&1 ||
    complain "examples/minimal.rs failed with its memory counted"
grep -qE '^[1-9][0-9]* taken, 0 blocks of 0 bytes left$' "$work/balance" || complain "examples/minimal.rs: $(cat "$work/balance")"

# Where the library is not to be found, the build says what to do.
PKG_CONFIG=false CARGO_TARGET_DIR=$work/missing cargo build "${manifest[@]}" -p kvcsa-sys >"$work/out" 2>&1 && complain "kvcsa-sys builds without kvcsa"
grep -q 'set KVCSA_LIB_DIR' "$work/out" || complain "a build without kvcsa does not say what to do"

# The code of the guide compiles: it is that of a test, but for the breaks of lines.
squeeze() { tr -d ' \n' | sed 's/,)/)/g'; }
squeezed=$(squeeze <lib/rust/kvcsa/tests/guide.rs)
awk '/^```rust$/ { on = 1; next } /^```$/ { on = 0 } on' docs/guide-rust.md | grep -v '^ *$' >"$work/guide"
[ -s "$work/guide" ] || complain "docs/guide-rust.md shows no code"
while IFS= read -r line; do
    [[ $squeezed == *"$(squeeze <<<"$line")"* ]] || complain "docs/guide-rust.md: not in lib/rust/kvcsa/tests/guide.rs: $line"
done <"$work/guide"

# Lints, form and documents, where the tools are there.
if cargo clippy --version >/dev/null 2>&1; then
    with_shared cargo clippy "${manifest[@]}" --quiet --all-targets -- -D warnings >"$work/clippy.log" 2>&1 || { complain "cargo clippy:"; cat "$work/clippy.log"; }
fi
if cargo fmt --version >/dev/null 2>&1; then
    cargo fmt --all --manifest-path lib/rust/Cargo.toml -- --check >"$work/fmt.log" 2>&1 || { complain "cargo fmt:"; head -n 40 "$work/fmt.log"; }
    rustfmt --edition 2021 --check examples/minimal.rs >"$work/fmt.log" 2>&1 || { complain "examples/minimal.rs:"; head -n 40 "$work/fmt.log"; }
fi
if command -v rustdoc >/dev/null; then
    RUSTDOCFLAGS="-D warnings" with_shared cargo doc "${manifest[@]}" --quiet --no-deps >"$work/doc.log" 2>&1 || { complain "cargo doc:"; cat "$work/doc.log"; }
fi
[ "$bad" -eq 0 ] && echo "$passed tests of the crates passed with rustc $has; the example writes the text of the C example"
exit "$bad"
