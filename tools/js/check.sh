#!/bin/sh
# Lints and type-checks the JavaScript of the pages with what package-lock.json pins.
#
# Where npm is missing or cannot reach its registry, nothing is checked, and this says so.
cd "$(dirname "$0")" || exit 2
if ! command -v npm >/dev/null; then
    echo "the pages' JavaScript is not checked: npm is not installed"
    exit 0
fi
if [ ! -d node_modules ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
    log=$(mktemp)
    if ! npm ci --no-audit --no-fund --ignore-scripts >"$log" 2>&1; then
        tail -3 "$log"
        rm -f "$log"
        echo "the pages' JavaScript is not checked: npm could not install the linter and the type checker"
        exit 0
    fi
    rm -f "$log"
fi
npm run --silent check
