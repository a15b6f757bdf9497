#!/usr/bin/env bash
# Chromium for the tests of what a person looks at (tests/report): installs Debian's or Ubuntu's package where apt-get is there
# and this is root. Where it cannot, it says so and the tests are skipped; it fails for no other reason.
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
if ! command -v apt-get >/dev/null 2>&1 || [[ "$(id -u)" != 0 ]]; then
  echo "setup_browser: no Chromium, and not root with apt-get: install it for the tests of the pages" >&2
  exit 0
fi
echo "setup_browser: installing chromium" >&2
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install --yes --no-install-recommends chromium fonts-dejavu-core; } >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  echo "setup_browser: chromium could not be installed: the tests of the pages will be skipped" >&2
fi
