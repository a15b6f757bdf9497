#!/usr/bin/env bash
# Installs Chromium for the tests of HTML pages (tests/report), if this is root on Debian or Ubuntu and there is no Chromium yet.
#
# If it cannot be installed, the script says so and succeeds, and the tests are skipped.
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
if ! command -v apt-get >/dev/null 2>&1 || [[ "$(id -u)" != 0 ]]; then
  echo "setup_browser: Chromium is missing and apt-get needs root. Install it to run the tests of HTML pages." >&2
  exit 0
fi
echo "setup_browser: installing chromium" >&2
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install --yes --no-install-recommends chromium fonts-dejavu-core; } >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  echo "setup_browser: Chromium could not be installed. The tests of HTML pages will be skipped." >&2
fi
