//! An authority and the serving certificates that it signs. Pure but for randomness and
//! the date.

use arc_swap::ArcSwap;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::sync::Arc;

/// The authority's certificate: renewed from the same key when less than a year is left.
const AUTHORITY_DAYS: i64 = 3650;
const AUTHORITY_LEFT_DAYS: i64 = 365;
/// A serving certificate: renewed several times a day, far from its end.
const SERVING_DAYS: i64 = 30;
/// Clocks of nodes differ.
const SKEW_DAYS: i64 = 1;

/// A certificate that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Not a DNS name, not an address; or no randomness.
    #[error("certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The TLS library does not take it.
    #[error("certificate: {0}")]
    Use(#[from] rustls::Error),
    /// A stored key or certificate is not one.
    #[error("certificate: {0}")]
    Read(String),
}

/// Signs serving certificates. Only the key matters: its certificate can be renewed without effect
/// on clients.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    not_after: jiff::civil::Date,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// A new one.
    pub(super) fn generate() -> Result<Self, CertificateError> {
        Self::of(KeyPair::generate()?)
    }

    /// A new certificate for this key.
    fn of(key: KeyPair) -> Result<Self, CertificateError> {
        let not_after = in_days(AUTHORITY_DAYS);
        let params = params(not_after);
        let pem = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            pem,
            not_after,
        })
    }

    /// From the stored objects. `None` instead of the old certificate if it belongs to another key
    /// or is about to expire: the key then gets a new one.
    pub(super) fn read(
        key_pem: &str,
        ca_pem: &str,
        not_after: &str,
    ) -> Result<(Self, Freshness), CertificateError> {
        let key = KeyPair::from_pem(key_pem)?;
        let fresh = not_after
            .parse::<jiff::civil::Date>()
            .ok()
            .filter(|date| *date > in_days(AUTHORITY_LEFT_DAYS))
            .filter(|_| vouches(ca_pem, &key));
        match fresh {
            Some(not_after) => Ok((
                Self {
                    issuer: Issuer::new(params(not_after), key),
                    pem: ca_pem.to_owned(),
                    not_after,
                },
                Freshness::Stored,
            )),
            None => Ok((Self::of(key)?, Freshness::Renewed)),
        }
    }

    /// The certificate.
    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    /// The private key, for the Secret.
    pub(super) fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Last day of the certificate.
    pub(super) fn not_after(&self) -> String {
        self.not_after.to_string()
    }
}

/// Whether the stored certificate is still the one in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// It is.
    Stored,
    /// The certificate was renewed and must be stored.
    Renewed,
}

fn params(not_after: jiff::civil::Date) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name("Aliquot CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_until(&mut params, not_after);
    params
}

/// Whether the certificate is one of this key.
fn vouches(ca_pem: &str, key: &KeyPair) -> bool {
    let attempt = || -> Result<(), CertificateError> {
        let ca = CertificateDer::from_pem_slice(ca_pem.as_bytes())
            .map_err(|e| CertificateError::Read(e.to_string()))?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca)?;
        let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::new(ring::default_provider()),
        )
        .build()
        .map_err(|e| CertificateError::Read(e.to_string()))?;
        let issuer = Issuer::new(params(in_days(AUTHORITY_DAYS)), key);
        let leaf =
            serving_params(&["probe".to_owned()])?.signed_by(&KeyPair::generate()?, &issuer)?;
        let name = rustls::pki_types::ServerName::try_from("probe")
            .map_err(|e| CertificateError::Read(e.to_string()))?;
        rustls::client::danger::ServerCertVerifier::verify_server_cert(
            &*verifier,
            leaf.der(),
            &[],
            &name,
            &[],
            rustls::pki_types::UnixTime::now(),
        )?;
        Ok(())
    };
    attempt().is_ok()
}

/// The certificate that servers show, replaced while they run.
#[derive(Debug)]
pub(super) struct Serving {
    now: ArcSwap<CertifiedKey>,
}

impl Serving {
    /// A certificate with these DNS names and addresses.
    pub(super) fn new(authority: &Authority, names: &[String]) -> Result<Self, CertificateError> {
        Ok(Self {
            now: ArcSwap::from_pointee(serve(authority, names)?),
        })
    }

    /// A new certificate for connections to come.
    pub(super) fn renew(
        &self,
        authority: &Authority,
        names: &[String],
    ) -> Result<(), CertificateError> {
        self.now.store(Arc::new(serve(authority, names)?));
        Ok(())
    }

    /// What a server is configured with.
    pub(super) fn tls(self: &Arc<Self>) -> Result<Arc<rustls::ServerConfig>, CertificateError> {
        let provider = Arc::new(ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(tls))
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now.load_full())
    }
}

fn serve(authority: &Authority, names: &[String]) -> Result<CertifiedKey, CertificateError> {
    let key = KeyPair::generate()?;
    let certificate = serving_params(names)?.signed_by(&key, &authority.issuer)?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let signing = ring::default_provider()
        .key_provider
        .load_private_key(private)?;
    Ok(CertifiedKey::new(vec![certificate.der().clone()], signing))
}

fn serving_params(names: &[String]) -> Result<CertificateParams, CertificateError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = name("aliquot-scheduler");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    valid_until(&mut params, in_days(SERVING_DAYS));
    Ok(params)
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "aliquot.dev");
    name.push(DnType::CommonName, common);
    name
}

/// The day after that number of days, UTC.
fn in_days(days: i64) -> jiff::civil::Date {
    let today = jiff::Timestamp::now()
        .to_zoned(jiff::tz::TimeZone::UTC)
        .date();
    today.saturating_add(jiff::Span::new().days(days))
}

/// From a little before now to the start of that day.
fn valid_until(params: &mut CertificateParams, last: jiff::civil::Date) {
    let midnight = |day: jiff::civil::Date| {
        rcgen::date_time_ymd(
            i32::from(day.year()),
            day.month().unsigned_abs(),
            day.day().unsigned_abs(),
        )
    };
    params.not_before = midnight(in_days(-SKEW_DAYS));
    params.not_after = midnight(last);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_authority_is_used_as_it_is() {
        let made = Authority::generate().expect("made");
        let (read, freshness) =
            Authority::read(&made.key_pem(), made.pem(), &made.not_after()).expect("read");
        assert_eq!(freshness, Freshness::Stored);
        assert_eq!(read.pem(), made.pem());
    }

    #[test]
    fn a_certificate_of_another_key_or_near_its_end_is_reissued_from_the_same_key() {
        let (made, other) = (
            Authority::generate().expect("made"),
            Authority::generate().expect("made"),
        );
        let soon = in_days(AUTHORITY_LEFT_DAYS - 1).to_string();
        for (ca, not_after) in [
            (other.pem(), made.not_after()),
            ("not a certificate", made.not_after()),
            (made.pem(), soon),
            (made.pem(), String::new()),
        ] {
            let (read, freshness) = Authority::read(&made.key_pem(), ca, &not_after).expect("read");
            assert_eq!(freshness, Freshness::Renewed);
            assert_eq!(read.key_pem(), made.key_pem());
            let key = KeyPair::from_pem(&made.key_pem()).expect("a key");
            assert!(vouches(read.pem(), &key));
            assert!(
                vouches(made.pem(), &key),
                "who believed the old one believes on"
            );
        }
        assert!(Authority::read("nonsense", made.pem(), &made.not_after()).is_err());
    }

    #[test]
    fn a_name_that_is_none_is_an_error_not_a_panic() {
        let authority = Authority::generate().expect("made");
        assert!(Serving::new(&authority, &["na\u{ef}ve\u{1f600}".to_owned()]).is_err());
        assert!(Serving::new(&authority, &["10.99.0.1".into(), "a.b.svc".into()]).is_ok());
    }
}
