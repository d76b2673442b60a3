#!/usr/bin/env bash
# The script of action.yml: runs `stepscope gate`, fills the job summary and the outputs, and ends with its exit code.
set -uo pipefail

if [ -z "${GATE_BASE:-}" ]; then
  echo "::error::stepscope gate: no base revision; run on a pull request, or set the input \`base\`"
  exit 2
fi
if ! git rev-parse --verify --quiet "$GATE_BASE^{commit}" >/dev/null; then
  echo "::error::stepscope gate: $GATE_BASE is not in this checkout; use actions/checkout with fetch-depth: 0"
  exit 2
fi

out="$(mktemp -d "${RUNNER_TEMP:-/tmp}/stepscope-gate-XXXXXXXX")" || exit 2
stepscope gate --base "$GATE_BASE" --threshold "$GATE_THRESHOLD" --false-alarms "$GATE_FALSE_ALARMS" \
  ${GATE_ROUNDS:+--rounds "$GATE_ROUNDS"} --out "$out/trials" --json "$out/gate.json" --markdown "$out/summary.md" \
  --bencher "$out/bencher.json" -- bash -c "$GATE_COMMAND"
code=$?

[ -f "$out/summary.md" ] && cat "$out/summary.md" >>"${GITHUB_STEP_SUMMARY:-/dev/stdout}"
if [ -f "$out/gate.json" ]; then
  {
    python -c 'import json, sys; print("verdict=" + json.load(open(sys.argv[1]))["verdict"])' "$out/gate.json"
    echo "json=$out/gate.json"
    echo "bencher=$out/bencher.json"
  } >>"${GITHUB_OUTPUT:-/dev/stdout}"
fi
case $code in
  1) echo "::error::stepscope gate: the training step got slower; the job summary has the numbers and the lines" ;;
  2) echo "::error::stepscope gate: base or head could not be measured; the message is in the log above" ;;
  3) echo "::warning::stepscope gate: stopped before it was decided" && code=0 ;;
esac
exit $code
