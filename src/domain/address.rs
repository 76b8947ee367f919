//! Which addresses may be called, and which texts are URLs of webhooks.
//!
//! An address is judged in two places by the same [`AddressPolicy`]: at registration, where the URL shows it, and at
//! every dial, where the name was resolved. Only the second one protects; the first one tells the user early.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::{Host, Url};

/// Longest URL of a webhook, in characters as given.
pub const URL_MAX: usize = 2048;

/// Which addresses may be called beyond the public ones. The default allows none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressPolicy {
    /// Loopback and the private ranges (RFC 1918, carrier NAT, unique local); still neither link-local nor metadata.
    pub allow_private: bool,
    /// Loopback alone, so that `duepost dev` can deliver to its own receiver.
    pub allow_loopback: bool,
    /// Networks allowed whatever they are: the only way to what is neither public, private nor loopback.
    pub allowed: Vec<IpNet>,
}

/// What kind of address was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressClass {
    /// `127.0.0.0/8`, `::1` and the names that mean them.
    Loopback,
    /// Networks that people own: RFC 1918, carrier NAT, unique local.
    Private,
    /// Anything else that is not a public host: link-local, metadata, multicast, translation, documentation, reserved.
    Special,
}

/// The address is not allowed as a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{class} addresses are not allowed as targets")]
pub struct Refused {
    /// What it is instead of public.
    pub class: AddressClass,
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::Special => "non-public",
        })
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(a: u16, b: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), prefix)
}

use AddressClass::{Loopback, Private, Special};

/// The IPv4 networks that are no targets; all others are.
const V4_REFUSED: [(Ipv4Net, AddressClass); 16] = [
    (v4(0, 0, 0, 0, 8), Special),
    (v4(10, 0, 0, 0, 8), Private),
    (v4(100, 64, 0, 0, 10), Private),
    (v4(127, 0, 0, 0, 8), Loopback),
    (v4(168, 63, 129, 16, 32), Special), // Azure's metadata and DNS
    (v4(169, 254, 0, 0, 16), Special),   // link-local, and the metadata of most clouds
    (v4(172, 16, 0, 0, 12), Private),
    (v4(192, 0, 0, 0, 24), Special),
    (v4(192, 0, 2, 0, 24), Special),
    (v4(192, 88, 99, 0, 24), Special),
    (v4(192, 168, 0, 0, 16), Private),
    (v4(198, 18, 0, 0, 15), Special),
    (v4(198, 51, 100, 0, 24), Special),
    (v4(203, 0, 113, 0, 24), Special),
    (v4(224, 0, 0, 0, 4), Special),
    (v4(240, 0, 0, 0, 4), Special),
];

/// Global unicast, the only IPv6 that can be a target: mapped, NAT64, unique local and link-local are outside of it.
const V6_GLOBAL: Ipv6Net = v6(0x2000, 0, 3);
/// What is no target within it: protocol assignments with Teredo, documentation, 6to4.
const V6_REFUSED: [Ipv6Net; 4] = [v6(0x2001, 0, 23), v6(0x2001, 0xdb8, 32), v6(0x2002, 0, 16), v6(0x3fff, 0, 20)];
const V6_UNIQUE_LOCAL: Ipv6Net = v6(0xfc00, 0, 7);

/// What keeps an address from being a public target.
fn class_of(ip: IpAddr) -> Option<AddressClass> {
    match ip {
        IpAddr::V4(ip) => V4_REFUSED.iter().find(|(net, _)| net.contains(&ip)).map(|(_, class)| *class),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Some(Loopback),
        IpAddr::V6(ip) if V6_UNIQUE_LOCAL.contains(&ip) => Some(Private),
        IpAddr::V6(ip) if !V6_GLOBAL.contains(&ip) => Some(Special),
        IpAddr::V6(ip) => V6_REFUSED.iter().any(|net| net.contains(&ip)).then_some(Special),
    }
}

impl AddressPolicy {
    /// Whether this address may be called. An IPv4 address in IPv6 clothes (mapped, NAT64, 6to4) is judged as IPv6.
    ///
    /// # Errors
    /// It is not public, and nothing here allows it.
    pub fn permits(&self, ip: IpAddr) -> Result<(), Refused> {
        let Some(class) = class_of(ip) else { return Ok(()) };
        let by_class = match class {
            Loopback => self.allow_loopback || self.allow_private,
            Private => self.allow_private,
            Special => false,
        };
        if by_class || self.allowed.iter().any(|net| net.contains(&ip)) { Ok(()) } else { Err(Refused { class }) }
    }
}

/// Why a text is not the URL of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlRefused {
    /// Beyond [`URL_MAX`].
    #[error("longer than 2048 characters")]
    TooLong,
    /// A blank or control character; the URL standard would drop or encode some silently.
    #[error("blanks and control characters are not allowed in a URL")]
    Blank,
    /// Another scheme, or none.
    #[error("must be an absolute URL that begins with http:// or https://")]
    Scheme,
    /// `user@` or `user:password@`, also empty.
    #[error("user and password are not allowed in a URL: use a header")]
    Userinfo,
    /// `#`, also with nothing behind it.
    #[error("a fragment (#) is not allowed: it would never be sent")]
    Fragment,
    /// Nothing between `//` and the path, or what stands there cannot be a host.
    #[error("has no valid host")]
    Host,
    /// Port 0, above 65535, or not a number.
    #[error("the port must be 1 to 65535")]
    Port,
    /// The URL standard does not take it.
    #[error("not a URL: {0}")]
    Invalid(url::ParseError),
}

/// Parses the URL of a webhook as the WHATWG standard does, but without its leniency: what it would strip or guess
/// is refused, so that the user sees the mistake and nobody reads a URL in two ways.
///
/// # Errors
/// The first rule that it breaks.
pub fn parse_target(text: &str) -> Result<Url, UrlRefused> {
    if text.chars().take(URL_MAX + 1).count() > URL_MAX {
        return Err(UrlRefused::TooLong);
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(UrlRefused::Blank);
    }
    let (scheme, rest) = text.split_once("://").ok_or(UrlRefused::Scheme)?;
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err(UrlRefused::Scheme);
    }
    if rest.contains('#') {
        return Err(UrlRefused::Fragment);
    }
    let authority = rest.split(['/', '\\', '?']).next().unwrap_or_default();
    if authority.is_empty() {
        return Err(UrlRefused::Host); // the standard would take the first piece of the path for it
    }
    if authority.contains('@') {
        return Err(UrlRefused::Userinfo);
    }
    let url = Url::parse(text).map_err(|error| match error {
        url::ParseError::InvalidPort => UrlRefused::Port,
        url::ParseError::EmptyHost => UrlRefused::Host,
        other => UrlRefused::Invalid(other),
    })?;
    if url.port() == Some(0) {
        return Err(UrlRefused::Port);
    }
    // the standard also takes hosts that are no names in DNS and that no HTTP client sends
    let of_dns = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    match url.host() {
        Some(Host::Domain(name)) if name.chars().all(of_dns) && !name.trim_end_matches('.').is_empty() => Ok(url),
        Some(Host::Ipv4(_) | Host::Ipv6(_)) => Ok(url),
        _ => Err(UrlRefused::Host),
    }
}

/// Why this URL can never be called, as far as the text shows: an address, or a name that means loopback.
#[must_use]
pub fn visible_refusal(url: &Url, policy: &AddressPolicy) -> Option<Refused> {
    match url.host()? {
        Host::Ipv4(ip) => policy.permits(ip.into()).err(),
        Host::Ipv6(ip) => policy.permits(ip.into()).err(),
        Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            let is_loopback = name == "localhost" || name.ends_with(".localhost");
            let v6 = || policy.permits(Ipv6Addr::LOCALHOST.into()).err();
            if is_loopback { policy.permits(Ipv4Addr::LOCALHOST.into()).err().and_then(|_| v6()) } else { None }
        }
    }
}

#[cfg(test)]
mod tests;
