#!/bin/sh
# Entry point of the images: turns the variable API_KEY into an entry of DUEPOST_KEYS, then becomes `duepost "$@"`.
#   API_KEY unset       nothing is done: without keys of another kind, `duepost serve` refuses to start and says why
#   API_KEY=generate    a key is made and printed, once: its hash stays in the data directory and counts at later starts
#   API_KEY=<a key>     this key is let in; at least 24 characters of A-Z a-z 0-9 . _ ~ + / = -
# The key itself is never written to a file and does not reach the service.
set -eu

say() { printf '%s\n' "$*" >&2; }
refuse() {
    say "error: $*"
    exit 78
}

# entry_of KEY: a list of one entry that lets it in
entry_of() {
    sha256=$(printf %s "$1" | sha256sum | cut -d ' ' -f 1)
    printf '[{"name": "api-key", "sha256": "%s", "roles": ["admin"], "queues": ["*"]}]' "$sha256"
}

# generate: an entry from an earlier start, or a new key's
generate() {
    kept=${DUEPOST_DATA_DIR:-/data}/api-key.json
    if [ -s "$kept" ]; then
        say "API key: the one printed at the first start (its hash is in $kept; remove that file for a new key)"
        cat "$kept"
        return
    fi
    key=$(duepost key new --name generated | sed -n 's/^ *"key": "\(dp_[^"]*\)".*/\1/p')
    [ -n "$key" ] || refuse "no key could be made"
    say "API key, printed only now: $key"
    entry=$(entry_of "$key")
    if ! (umask 077 && printf '%s' "$entry" >"$kept.part" && mv "$kept.part" "$kept") 2>/dev/null; then
        say "(its hash cannot be kept in $kept: the next start makes another key)"
    fi
    printf '%s' "$entry"
}

api_key=${API_KEY:-}
unset API_KEY
if [ -n "$api_key" ] && [ "${1:-}" = serve ]; then
    [ -z "${DUEPOST_KEYS:-}${DUEPOST_KEYS_FILE:-}" ] ||
        refuse "API_KEY and DUEPOST_KEYS or DUEPOST_KEYS_FILE are both set: give one of them"
    case $api_key in
        generate) DUEPOST_KEYS=$(generate) ;;
        *[!A-Za-z0-9._~+/=-]*) refuse "API_KEY has a character that is not one of A-Z a-z 0-9 . _ ~ + / = -" ;;
        ????????????????????????*) DUEPOST_KEYS=$(entry_of "$api_key") ;;
        *) refuse "API_KEY has less than 24 characters: make one with \`duepost key new\`, or say API_KEY=generate" ;;
    esac
    export DUEPOST_KEYS
fi
exec duepost "$@"
