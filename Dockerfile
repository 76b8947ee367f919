# Two images from one build:
#   docker build -t duepost .                                the service alone; needs DUEPOST_REDIS
#   docker build -t duepost-redis --target duepost-redis .   with a private Redis; its data is in the volume /data
# Both run as user 10001, work with a read-only root, and listen on 0.0.0.0:8710, so they want API keys: docs/operations.md.

FROM rust:1-bookworm AS build
WORKDIR /src
ENV CARGO_PROFILE_RELEASE_STRIP=symbols
# the dependencies alone, so that this layer stays as it is while only src/ changes
COPY Cargo.toml Cargo.lock ./
RUN mkdir -p src tests/it tests/faults benches/speed \
 && touch src/lib.rs tests/it/main.rs tests/faults/main.rs benches/speed/main.rs && echo 'fn main() {}' >src/main.rs \
 && cargo build --release --locked --bin duepost
COPY src src
# touch: Cargo goes by time, and files in the context may be older than the build above
RUN touch src/lib.rs src/main.rs && cargo build --release --locked --bin duepost

FROM debian:bookworm-slim AS base
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*.log /var/log/apt \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin duepost \
 && install -d -o 10001 -g 10001 -m 0700 /data
COPY LICENSE-APACHE LICENSE-MIT /usr/share/doc/duepost/
COPY --chmod=0755 scripts/docker-entrypoint.sh /usr/local/bin/docker-entrypoint
# a duepost.toml mounted here is read
WORKDIR /etc/duepost
# as variables, not as flags: `duepost healthcheck` reads them too
ENV DUEPOST_LISTEN=0.0.0.0:8710 \
    DUEPOST_DATA_DIR=/data
EXPOSE 8710
VOLUME /data
HEALTHCHECK --interval=10s --timeout=8s --start-period=60s --retries=3 CMD ["duepost", "healthcheck"]
ENTRYPOINT ["docker-entrypoint"]
CMD ["serve"]

FROM base AS duepost-redis
# a service starts the server itself; the package's own one never runs
RUN apt-get update \
 && apt-get install -y --no-install-recommends redis-server \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*.log /var/log/apt
COPY --from=build /src/target/release/duepost /usr/local/bin/duepost
USER 10001:10001

FROM base AS duepost
COPY --from=build /src/target/release/duepost /usr/local/bin/duepost
USER 10001:10001
