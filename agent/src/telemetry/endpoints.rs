//! Which scheduler replicas there are: every address of one host name, looked up again
//! and again; a stream to each.
//!
//! In: a name. Out: running streams. A name that does not resolve takes no stream down:
//! the name server may be what is broken.

use super::stream::{self, Sources};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Between two look-ups.
const LOOK_UP: Duration = Duration::from_secs(10);
/// Before the first answer.
const LOOK_UP_SOON: Duration = Duration::from_millis(500);

/// `host:port`; the schedulers' usual port where none is given.
pub fn with_port(endpoint: &str) -> String {
    let has_port = match endpoint.rsplit_once(':') {
        // A bare IPv6 address has colons and no port.
        Some((host, port)) => {
            port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
        }
        None => false,
    };
    if has_port {
        endpoint.to_owned()
    } else if endpoint.contains(':') && !endpoint.starts_with('[') {
        format!("[{endpoint}]:{}", proto::names::telemetry::PORT)
    } else {
        format!("{endpoint}:{}", proto::names::telemetry::PORT)
    }
}

/// The host alone, as a certificate names it.
pub fn host(endpoint: &str) -> String {
    let whole = with_port(endpoint);
    let host = whole.rsplit_once(':').map_or("", |(host, _)| host);
    host.trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned()
}

/// Keeps a stream to every address of `endpoint` until `stop`.
pub async fn run(sources: Sources, endpoint: String, stop: CancellationToken) {
    let endpoint = with_port(&endpoint);
    let mut streams: BTreeMap<SocketAddr, CancellationToken> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let found = tokio::select! {
            () = stop.cancelled() => break,
            found = tokio::net::lookup_host(&endpoint) => found,
        };
        match found {
            Ok(addresses) => {
                let addresses: BTreeSet<SocketAddr> = addresses.collect();
                for (address, token) in &streams {
                    if !addresses.contains(address) {
                        info!(%address, "a scheduler's address is no longer in DNS");
                        token.cancel();
                    }
                }
                streams.retain(|address, _| addresses.contains(address));
                for address in addresses {
                    streams.entry(address).or_insert_with(|| {
                        info!(%address, "scheduler");
                        let token = stop.child_token();
                        tasks.spawn(stream::run(sources.clone(), address, token.clone()));
                        token
                    });
                }
            }
            Err(error) => warn!(endpoint, %error, "cannot look up the schedulers"),
        }
        let pause = if streams.is_empty() {
            LOOK_UP_SOON
        } else {
            LOOK_UP
        };
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
        // Streams that are ending.
        while tasks.try_join_next().is_some() {}
    }
    while tasks.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_added_where_none_is_given() {
        for (given, whole, name) in [
            ("10.99.0.1:9443", "10.99.0.1:9443", "10.99.0.1"),
            ("10.99.0.1", "10.99.0.1:9443", "10.99.0.1"),
            (
                "aliquot-telemetry.ns",
                "aliquot-telemetry.ns:9443",
                "aliquot-telemetry.ns",
            ),
            ("localhost:1", "localhost:1", "localhost"),
            ("[::1]:1", "[::1]:1", "::1"),
            ("[::1]", "[::1]:9443", "::1"),
            ("::1", "[::1]:9443", "::1"),
        ] {
            assert_eq!(with_port(given), whole);
            assert_eq!(host(given), name);
        }
    }
}
