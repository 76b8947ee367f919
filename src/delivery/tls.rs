//! Whom deliveries trust: the system's roots and those of the operator's file, TLS 1.2 or later, always verified. A
//! session that is resumed was verified when it began, by the same roots.

use std::{path::Path, sync::Arc};

use rustls::{ClientConfig, RootCertStore, client::Resumption, crypto::ring, pki_types::CertificateDer};
use rustls_native_certs::{load_certs_from_paths, load_native_certs};

use super::DeliveryError;

/// Where systems keep all their roots in one file.
const SYSTEM_BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, RHEL
    "/etc/pki/tls/certs/ca-bundle.crt",                  // older RHEL
    "/etc/ssl/ca-bundle.pem",                            // SUSE
    "/etc/ssl/cert.pem",                                 // Alpine, macOS
    "/usr/local/etc/ssl/cert.pem",                       // FreeBSD
];

/// Host names whose sessions are kept; past that the one that came first goes. A session spares each further connection
/// 0.1 ms of CPU. It takes up to 30 KiB a host with an ordinary chain of certificates, and never more than about 1 MiB,
/// as chain and ticket have 64 KiB each at most.
const SESSION_HOSTS_MAX: usize = 256;
/// What rustls keeps of one host, by which it divides the number that it is given: its default of 256 is 32 hosts.
const SESSIONS_PER_HOST: usize = 8;

/// The configuration of all outgoing TLS.
///
/// # Errors
/// The file of further roots cannot be read or holds none.
pub fn client_config(extra_roots: Option<&Path>) -> Result<ClientConfig, DeliveryError> {
    let mut roots = RootCertStore::empty();
    let (system, _) = roots.add_parsable_certificates(system_roots(extra_roots.is_some()));
    if system == 0 {
        tracing::warn!("no system certificates found: https targets are reachable by SSL_CERT_FILE only");
    }
    if let Some(file) = extra_roots {
        let found = load_certs_from_paths(Some(file), None);
        if let Some(cause) = found.errors.into_iter().next() {
            return Err(DeliveryError::Roots(cause));
        }
        if roots.add_parsable_certificates(found.certs).0 == 0 {
            return Err(DeliveryError::NoRoots(file.to_owned()));
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(DeliveryError::Tls)?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.resumption = Resumption::in_memory_sessions(SESSION_HOSTS_MAX * SESSIONS_PER_HOST);
    Ok(config)
}

/// The system's roots. With `SSL_CERT_FILE` set the library would give that file *instead* of them, while ours adds.
fn system_roots(file_is_set: bool) -> Vec<CertificateDer<'static>> {
    if !file_is_set {
        return load_native_certs().certs;
    }
    let bundle = SYSTEM_BUNDLES.iter().map(Path::new).find(|path| path.exists());
    bundle.map(|path| load_certs_from_paths(Some(path), None).certs).unwrap_or_default()
}
