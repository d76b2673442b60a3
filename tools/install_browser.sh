#!/bin/sh
# Debian's Chromium and its driver for the browser tests, and node, which runs Perfetto's trace processor for the tests
# of exported timelines, where this machine lets us install packages.
#
#   tools/install_browser.sh          as the superuser only
#   tools/install_browser.sh --sudo   also through sudo that asks for no password
#
# Never fails: without them those tests are skipped, and this says so.
packages=
command -v chromium >/dev/null && command -v chromedriver >/dev/null || packages="chromium chromium-driver"
command -v node >/dev/null || packages="$packages nodejs"
[ -n "$packages" ] || exit 0

skipped() {
    echo "some tests are skipped: $1; install $packages to run them"
    exit 0
}

command -v apt-get >/dev/null || skipped "no apt-get here"
as=
if [ "$(id -u)" -ne 0 ]; then
    [ "$1" = --sudo ] || skipped "only the superuser may install packages"
    sudo -n true 2>/dev/null || skipped "sudo is missing or asks for a password"
    as="sudo -n"
fi
echo "installing $packages for the tests"
install="$as env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0 -o Acquire::Retries=1 -o Acquire::http::Timeout=20"
log=$(mktemp)
if timeout 120 $install update >"$log" 2>&1 && timeout 300 $install install --no-install-recommends $packages >>"$log" 2>&1; then
    rm -f "$log"
    exit 0
fi
tail -3 "$log"
rm -f "$log"
skipped "apt-get could not install them"
