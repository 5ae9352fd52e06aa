#!/bin/sh
# macos_syntax.sh COMPILER VENV FLAG... -- SOURCE... - compiles for macOS 13 on arm64 without making anything: use of
# what came later than that, and is not behind @available, is an error.
set -eu
here=$(dirname "$0")
compiler=$1
headers=$(echo "$2"/lib/python3*/site-packages/ziglang/lib/libc/include/any-darwin-any)
shift 2
flags=""
while [ "$1" != -- ]; do
    flags="$flags $1"
    shift
done
shift
for source in "$@"; do
    # shellcheck disable=SC2086 # flags are words
    "$compiler" -target arm64-apple-macos13 -nostdlibinc -isystem "$headers" -fsyntax-only -x objective-c -std=gnu11 \
        -fblocks -fno-objc-arc -Wall -Wextra -Wshadow -Wunguarded-availability-new -Werror -I"$here" -I"$here/apple" \
        $flags "$source"
done
echo "$# files compile for arm64-apple-macos13; what is newer is behind @available"
