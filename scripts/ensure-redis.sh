#!/bin/sh
# Makes sure that redis-server or valkey-server >= 6.2 is installed; says nothing if it is.
# Duepost starts a server of its own, so the distribution's service is neither started nor enabled.
#   DUEPOST_NO_INSTALL=1          only print the command that would install it
#   DUEPOST_REDIS_SERVER_BIN=...  use this binary and no other
set -eu

say() { printf '%s\n' "$*" >&2; }

# version_of BINARY: "7.0.15" from "Redis server v=7.0.15 sha=..."; nothing if it cannot be run
version_of() {
    "$1" --version 2>/dev/null | sed -n 's/.*[[:space:]]v=\([0-9]*\.[0-9]*\.[0-9]*\).*/\1/p'
}

# new_enough VERSION: at least 6.2
new_enough() {
    major=${1%%.*}
    rest=${1#*.}
    minor=${rest%%.*}
    [ "$major" -gt 6 ] || { [ "$major" -eq 6 ] && [ "$minor" -ge 2 ]; }
}

# usable: 0 if a server is there; what is there but too old is kept in $too_old
too_old=
usable() {
    too_old=
    if [ -n "${DUEPOST_REDIS_SERVER_BIN:-}" ]; then
        set -- "$DUEPOST_REDIS_SERVER_BIN"
    else
        set --
        for name in redis-server valkey-server; do
            found=$(command -v "$name" 2>/dev/null) && set -- "$@" "$found"
            set -- "$@" "/usr/local/bin/$name" "/opt/homebrew/bin/$name"
        done
    fi
    for binary in "$@"; do
        version=$(version_of "$binary") || version=
        [ -n "$version" ] || continue
        if new_enough "$version"; then return 0; fi
        too_old="$binary $version"
    done
    return 1
}

# as_root COMMAND...: shows it, then runs it, with sudo only if that is needed
as_root() {
    if [ "$(id -u)" -ne 0 ]; then set -- sudo "$@"; fi
    run "$@"
}

run() {
    say "+ $*"
    [ -n "${DUEPOST_NO_INSTALL:-}" ] || "$@" >&2
}

refuse_old() {
    say "error: $too_old is too old: Duepost needs Redis >= 6.2 or Valkey"
    say "fix one of:  Redis' own packages (https://redis.io/docs/latest/operate/oss_and_stack/install/)"
    say "          |  DUEPOST_REDIS_SERVER_BIN=/path/to/a/newer/redis-server"
    say "          |  duepost serve --redis redis://host:6379  |  docker compose up"
    exit 1
}

# Debian starts a service as soon as it is installed, unless a policy forbids it. The policy is there only meanwhile,
# and one that was there before comes back.
policy=/usr/sbin/policy-rc.d
policy_is_ours=
forbid_services() {
    [ -z "${DUEPOST_NO_INSTALL:-}" ] || return 0
    if [ -e "$policy" ] || [ -L "$policy" ]; then as_root mv "$policy" "$policy.before-duepost"; fi
    policy_is_ours=yes
    as_root sh -c "printf '#!/bin/sh\nexit 101\n' > $policy && chmod 755 $policy"
}
allow_services() {
    [ -n "$policy_is_ours" ] || return 0
    policy_is_ours=
    as_root rm -f "$policy"
    if [ -e "$policy.before-duepost" ] || [ -L "$policy.before-duepost" ]; then
        as_root mv "$policy.before-duepost" "$policy"
    fi
}

# apt_version PACKAGE: what apt-get would install; nothing if it knows none
apt_version() {
    apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *\([0-9]*:\)\{0,1\}\([0-9].*\)/\2/p'
}

apt_choose() {
    for package in redis-server valkey-server; do
        candidate=$(apt_version "$package")
        [ -n "$candidate" ] || continue
        if new_enough "$candidate"; then return 0; fi
        too_old="$package $candidate (what apt-get would install)"
    done
    package=
}

install_with_apt() {
    apt_choose
    if [ -z "$package" ] && [ -z "$too_old" ]; then
        as_root apt-get update -qq # the lists may just never have been fetched
        apt_choose
        [ -n "$package" ] || [ -z "${DUEPOST_NO_INSTALL:-}" ] || package=redis-server
    fi
    if [ -z "$package" ]; then
        if [ -n "$too_old" ]; then refuse_old; fi
        say "error: apt-get knows neither redis-server nor valkey-server"
        return 1
    fi
    forbid_services
    # the lists may be older than what the mirror still has
    apt_install || { as_root apt-get update -qq && apt_install; } || { say "error: apt-get failed"; return 1; }
    allow_services
    # nor at the next boot
    if command -v systemctl >/dev/null 2>&1; then as_root systemctl disable --quiet "$package" || return 0; fi
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package"
}

install_first_of() {
    installer=$1
    shift
    for package in "$@"; do
        # the installer is a few words
        # shellcheck disable=SC2086
        if [ "$installer" = "brew install" ]; then run $installer "$package"; else as_root $installer "$package"; fi \
            && return 0
    done
    say "error: $installer failed"
    return 1
}

if usable; then exit 0; fi
if [ -n "${DUEPOST_REDIS_SERVER_BIN:-}" ]; then
    if [ -n "$too_old" ]; then refuse_old; fi
    say "error: DUEPOST_REDIS_SERVER_BIN is set, but $DUEPOST_REDIS_SERVER_BIN is no Redis server that can be run"
    exit 1
fi
if [ -n "$too_old" ]; then refuse_old; fi

trap allow_services EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
say "Duepost needs redis-server or valkey-server >= 6.2, and found none."
if command -v apt-get >/dev/null 2>&1; then
    install_with_apt || exit 1
elif command -v dnf >/dev/null 2>&1; then
    install_first_of "dnf install -y" valkey redis || exit 1
elif command -v apk >/dev/null 2>&1; then
    install_first_of "apk add" valkey redis || exit 1
elif command -v brew >/dev/null 2>&1; then
    install_first_of "brew install" redis valkey || exit 1
else
    say "error: no apt-get, dnf, apk or brew to install it with: install it by hand, or give --redis redis://host:6379"
    exit 1
fi

if [ -n "${DUEPOST_NO_INSTALL:-}" ]; then
    say "(DUEPOST_NO_INSTALL is set: nothing was run)"
    exit 1
fi
if usable; then exit 0; fi
if [ -n "$too_old" ]; then refuse_old; fi
say "error: installed, but there is still no redis-server or valkey-server"
exit 1
