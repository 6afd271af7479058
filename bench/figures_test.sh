#!/bin/sh
# The committed pictures are those that the collectives give now: figures_test.sh PROGRAM FOLDER
set -eu
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$1" "$made" >/dev/null
for picture in "$made"/*.svg; do
  cmp "$picture" "$2/$(basename "$picture")" || { echo "draw them anew: scripts/figures"; exit 1; }
done
