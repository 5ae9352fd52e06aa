#!/bin/sh
# tools.sh - says whether the tests of the Metal driver can run here: exit 0; 75: not, and says what is missing, or that
# this is a Mac; 1: not, and this is CI (CI is set), where they must.
set -u
here=$(dirname "$0")
missing=""
for tool in clang-22 clang++-22 gcc g++ python3; do
    command -v "$tool" > /dev/null || missing="$missing $tool"
done
objc=$(gcc -print-file-name=include/objc/objc.h 2> /dev/null)
for header in /usr/include/GNUstep/Foundation/Foundation.h "$objc"; do
    test -e "$header" || missing="$missing ${header##*/}"
done
if [ "$(uname -s)" = Darwin ]; then
    echo "SKIPPED test-metal: it is for systems without Metal; on a Mac run tools/mac_check.sh"
    exit 75
fi
if [ -n "$missing" ]; then
    echo "SKIPPED test-metal: missing:$missing"
    echo "    apt-get install -y --no-install-recommends $(tr '\n' ' ' < "$here/packages.txt")"
    if [ -n "${CI:-}" ]; then exit 1; fi
    exit 75
fi
