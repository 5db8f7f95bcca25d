# midstream in a small image: the program, nothing of the machine that built it, no shell, no root.
#
#     docker build -t midstream .
#     docker run --rm -v midstream:/data midstream keys create laptop     # once: without a key only loopback is served
#     docker run -p 8080:8080 -v midstream:/data midstream
FROM rust:1.95-slim-bookworm AS build
# The tokenizers' regular expressions and zstd are C.
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN cargo build --release --locked && mkdir /data

# Models that have a name are fetched with pip, which this image does not have: mount a GGUF file, or an upstream.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /source/target/release/midstream /usr/local/bin/midstream
COPY --from=build --chown=nonroot:nonroot /data /data
ENV MIDSTREAM_DATA_DIR=/data MIDSTREAM_CACHE_DIR=/data/models MIDSTREAM_LISTEN=0.0.0.0:8080 MIDSTREAM_LOG_FORMAT=json
USER nonroot
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/usr/local/bin/midstream", "health"]
ENTRYPOINT ["/usr/local/bin/midstream"]
CMD ["serve"]
