//! One webhook call: from a [`Call`] to a [`Report`](crate::domain::attempt::Report), under one deadline.
//!
//! ```text
//! client     builds the request, waits for the head and the body, reports
//! answer     what a head means                fault    what no head means
//! guard      the one place that dials         tls      whom it trusts
//! resolve    a name's addresses               stream   what it dials
//! connection a call's own, or at rest         destination  a URL, taken apart once
//! signature  Standard Webhooks
//! ```
//!
//! The invariant of the room: nothing that a receiver does costs more than its own call. Its answer is bounded in time
//! and in bytes, an exchange that did not end cleanly ends with its connection, and no byte of one answer is taken for
//! the next one. Redirects are never followed, bodies never decompressed, and no proxy of the environment is used: the
//! address that the guard checked is the one that is spoken to.

mod answer;
mod client;
mod connection;
mod destination;
mod fault;
mod guard;
mod resolve;
mod signature;
mod stream;
#[cfg(test)]
mod tests;
mod tls;

use std::path::PathBuf;

pub use client::{Call, Delivery};
pub use destination::Destination;
pub use resolve::{Resolve, SystemResolver};
pub use signature::Signers;
pub use tls::client_config as client_tls;

use crate::domain::address::AddressPolicy;

/// What all deliveries have in common.
#[derive(Debug, Clone)]
pub struct DeliveryConfig {
    /// Which addresses may be dialled.
    pub policy: AddressPolicy,
    /// A file of further TLS roots (`SSL_CERT_FILE`), beside those of the system.
    pub extra_roots: Option<PathBuf>,
    /// `duepost/<version>`.
    pub user_agent: String,
}

/// Why deliveries cannot begin at all.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// The file of further roots.
    #[error("the certificates of SSL_CERT_FILE cannot be read")]
    Roots(#[source] rustls_native_certs::Error),
    /// It holds nothing to trust.
    #[error("no certificate in {}, which SSL_CERT_FILE names", .0.display())]
    NoRoots(PathBuf),
    /// The TLS library refuses its own defaults.
    #[error("no TLS")]
    Tls(#[source] rustls::Error),
    /// The user agent cannot be sent.
    #[error("the user agent is not a header value")]
    UserAgent,
}
