#!/bin/sh
# Is there a Chromium, for devices in its tabs? Installs one where it may: as root or with sudo that asks for no
# password, on a system with apt. Leaves with 1, having said why, where there is none in the end.
# Usage: tools/browser.sh PYTHON
set -u

found() {
  "$1" -m tapestry.runtime.worker --list browser 2>/dev/null | grep -q '"ready":true'
}

found "$1" && exit 0
if [ "$(id -u)" = 0 ]; then as_root=env; else as_root='sudo -n'; fi
if command -v apt-get >/dev/null && $as_root true 2>/dev/null; then
  $as_root apt-get update -qq >/dev/null 2>&1
  $as_root apt-get install -y -qq chromium >/dev/null 2>&1
  found "$1" && exit 0
fi
echo 'No Chromium here and none could be installed: its tests are skipped.'
echo 'On Debian and Ubuntu: apt-get install chromium; or name one in TAPESTRY_CHROMIUM'
exit 1
