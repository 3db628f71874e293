#!/usr/bin/env bash
# Writes a package with each kind of plug-in and follows the words that `firedrill new` prints, as they stand:
# installs it, runs its tests, runs what it has, and looks for it in `firedrill doctor`. For a machine that holds
# nothing else; run it from the checkout:
#
#   scripts/bare bash tests/cli/follow_new.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -x .venv/bin/firedrill ] || scripts/set-up run
PATH="$PWD/.venv/bin:$PATH"

for kind in workload checker system fault; do
  name=my$kind
  echo "== firedrill new $kind $name"
  told=$(firedrill new "$kind" "$name")
  echo "$told"
  steps=$(sed -n '/^next:$/,$ s/^  //p' <<<"$told")
  [ "$(wc -l <<<"$steps")" -ge 3 ] || { echo "follow_new: expected an installation, tests and a run" >&2; exit 1; }
  while read -r step; do
    echo "-- $step"
    code=0
    bash -c "$step" </dev/null || code=$?
    [ $code = 0 ] || { echo "follow_new: $kind: '$step' ended with $code" >&2; exit 1; }
  done <<<"$steps"
  firedrill doctor | grep -w "$name" || { echo "follow_new: doctor does not show $name" >&2; exit 1; }
done
