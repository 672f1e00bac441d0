#!/usr/bin/env bash
# Operators of workloads before and after a change, and the gate on them. No accelerator is needed.
#
#   recipes/snapshots.sh BASE_COMMIT POLICY OUT WORKLOAD[:PRESET]...
#
# Snapshots are taken of the sources of BASE_COMMIT (in a work tree of its own) and of the current ones; the tree that is
# looked at comes first on PYTHONPATH. Exit codes are those of `ascend-perf gate`.
set -euo pipefail

if [ "$#" -lt 4 ]; then
  echo "usage: snapshots.sh BASE_COMMIT POLICY OUT WORKLOAD[:PRESET]..." >&2
  exit 2
fi
base=$1 policy=$2 out=$3
shift 3

tree=$(mktemp -d)
trap 'git worktree remove --force "$tree/base" >/dev/null 2>&1 || true; rm -rf "$tree"' EXIT
git worktree add --quiet --detach "$tree/base" "$base"
mkdir -p "$out/base" "$out/head"
rm -f "$out"/base/*.ops.txt "$out"/head/*.ops.txt

take() { # folder of sources, folder of snapshots
  local sources=$1 into=$2 name preset
  for one in "${workloads[@]}"; do
    name=${one%%:*} preset=tiny
    case $one in *:*) preset=${one#*:} ;; esac
    PYTHONPATH="$sources${PYTHONPATH:+:$PYTHONPATH}" \
      ascend-perf snapshot "$name" --preset "$preset" -o "$into/$name-$preset.ops.txt"
  done
}

workloads=("$@")
take "$tree/base" "$out/base"
take "$PWD" "$out/head"
ascend-perf gate "$out/base" "$out/head" --policy "$policy" -o "$out"
