#!/bin/sh
# Holds the service and openapi/openapi.json against tools that know nothing of us but this file: schemathesis, and clients
# made by three generators, that schedule, move, pause, claim and cancel. `make contract` runs it.
#
# It needs python3 with venv, node with npm, go, java, unshare and ip. Packages come from PyPI and npm, at fixed versions,
# into target/contract. Then everything runs in a network namespace of its own, in which there is loopback and nothing
# else: schemathesis registers any URL as a webhook, and none of them may be looked up or called.
#   SEED=1            of the random cases
#   DUEPOST_TEST_BIN=...   the binary, else target/debug/duepost is built
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
root=$(pwd)
work=$root/target/contract
PATH=$work/venv/bin:$PATH
binary=${DUEPOST_TEST_BIN:-$root/target/debug/duepost}

refuse() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Everything that needs the network, or time, before the namespace closes.
prepare() {
    for tool in python3 node npm go java unshare ip; do
        command -v "$tool" >/dev/null || missing="${missing:-} $tool"
    done
    [ -z "${missing:-}" ] ||
        refuse "missing:$missing (Debian: apt-get install python3-venv nodejs npm golang-go default-jre-headless util-linux iproute2)"
    unshare --map-root-user --net ip link set lo up ||
        refuse "no network namespace can be made here: run as root; without one, any URL would be looked up and called"
    [ -n "${DUEPOST_TEST_BIN:-}" ] || cargo build --locked
    mkdir -p "$work"
    [ -x "$work/venv/bin/python3" ] || python3 -m venv "$work/venv"
    pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"

    rm -rf "$work/typescript/client.js" "$work/python" "$work/go"
    mkdir -p "$work/typescript" "$work/python"
    cp "$here/client.ts" "$here/package.json" "$here/package-lock.json" "$work/typescript"
    (
        cd "$work/typescript"
        npm ci --silent --no-audit --no-fund
        PATH=node_modules/.bin:$PATH
        openapi-typescript "$root/openapi/openapi.json" --output schema.d.ts
        tsc --strict --target es2022 --module nodenext --types node client.ts
    )
    openapi-python-client generate --path openapi/openapi.json --meta none --output-path "$work/python/duepost"
    # With the look-up by discriminator the client needs nothing but Go's own library.
    openapi-generator-cli generate --generator-name go --input-spec openapi/openapi.json --output "$work/go" \
        --additional-properties packageName=duepost,useOneOfDiscriminatorLookup=true \
        --global-property apis,models,supportingFiles,apiTests=false,modelTests=false,apiDocs=false,modelDocs=false \
        >"$work/go.log" 2>&1 || { cat "$work/go.log"; refuse "the Go client was not made"; }
    cp "$here/client_test.go" "$work/go"
    (cd "$work/go" && go vet . && go test -c -o "$work/go.test" .)
}

# In the namespace: a service on a private Redis, with one key that may do everything.
serve() {
    ip link set lo up
    rm -rf "$work/data"
    env -u DUEPOST_TEST_BIN "$binary" key new --name contract >"$work/key.json"
    field() { python3 -c "import json, sys; print($1)" <"$work/key.json"; }
    DUEPOST_KEY=$(field 'json.load(sys.stdin)["key"]')
    DUEPOST_KEYS=$(field 'json.dumps([json.load(sys.stdin)["entry"]])') env -u DUEPOST_TEST_BIN \
        "$binary" serve --listen 127.0.0.1:0 \
        --data-dir "$work/data" --allow-private-targets >"$work/service.out" 2>"$work/service.log" &
    service=$!
    trap 'kill $service 2>/dev/null || :; wait $service || :' EXIT
    until DUEPOST_URL=$(sed -n 's/^listening on \(http:[^ ]*\).*/\1/p' "$work/service.out") && [ -n "$DUEPOST_URL" ]; do
        kill -0 $service || { cat "$work/service.log"; refuse "the service does not start"; }
        sleep 0.1
    done
    export DUEPOST_URL DUEPOST_KEY
}

show() {
    node "$work/typescript/client.js"
    PYTHONPATH=$work/python python3 "$here/client.py"
    "$work/go.test" -test.v
    HOME_TOKEN=$(PYTHONPATH=$work/python python3 "$here/home.py")
    export HOME_TOKEN
    failed=
    cd "$work" # where it leaves what it found
    schemathesis --config-file "$here/schemathesis.toml" run "$root/openapi/openapi.json" --url "$DUEPOST_URL" \
        --header "Authorization: Bearer $DUEPOST_KEY" --seed "${SEED:-1}" \
        --checks not_a_server_error,status_code_conformance,content_type_conformance \
        --checks response_schema_conformance,negative_data_rejection \
        --report ndjson --report-ndjson-path "$work/schemathesis.ndjson" || failed=yes
    python3 "$here/count.py" "$work/schemathesis.ndjson" 100 || failed=yes
    [ -z "$failed" ] || refuse "schemathesis found what is above"
}

case ${1:-} in
    '')
        prepare
        exec unshare --map-root-user --net sh "$0" in-the-namespace
        ;;
    in-the-namespace)
        serve
        show
        ;;
    *) refuse "no argument is known" ;;
esac
