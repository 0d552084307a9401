//! Certificates as read: whose, from when to when, by which authority.

use std::net::IpAddr;

use jiff::Timestamp;
use openssl::asn1::{Asn1Time, Asn1TimeRef};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::x509::{GeneralNameRef, X509, X509Ref};

use super::{Identity, PublicKey, TrustError, failed, settled, unencrypted};

/// Serial number of a certificate in lower-case hex.
pub type Serial = String;

/// A certificate of an identity, or of an authority.
#[derive(Debug, Clone)]
pub struct Certificate(pub(super) X509);

impl Certificate {
    /// Reads the first certificate of a PEM text.
    ///
    /// # Errors
    /// There is none, or the text is encrypted.
    pub fn from_pem(pem: &str) -> Result<Self, TrustError> {
        X509::from_pem(unencrypted(pem.as_bytes())?).map(Self).map_err(failed("read a certificate"))
    }

    /// Returns it as PEM.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn to_pem(&self) -> Result<String, TrustError> {
        let pem = self.0.to_pem().map_err(failed("write a certificate"))?;
        Ok(String::from_utf8_lossy(&pem).into_owned())
    }

    /// Returns whose it is.
    ///
    /// # Errors
    /// Its common name is no identity: that of an authority, for example.
    pub fn identity(&self) -> Result<Identity, TrustError> {
        identity_of(&self.0)
    }

    /// Returns the serial number.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn serial(&self) -> Result<Serial, TrustError> {
        let failed = failed("read the serial number of a certificate");
        let number = self.0.serial_number().to_bn().map_err(&failed)?;
        Ok(number.to_hex_str().map_err(&failed)?.to_lowercase())
    }

    /// Returns the key.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn public_key(&self) -> Result<PublicKey, TrustError> {
        self.0.public_key().map(PublicKey).map_err(failed("read the key of a certificate"))
    }

    /// Returns the addresses and host names under which its holder is reached, as they were signed.
    pub fn addresses(&self) -> Vec<String> {
        let names = self.0.subject_alt_names();
        let text = |name: &GeneralNameRef| match (name.dnsname(), name.ipaddress()) {
            (Some(name), _) => Some(name.to_owned()),
            (None, Some(bytes)) => ip_of(bytes).map(|ip| ip.to_string()),
            (None, None) => None,
        };
        names.iter().flatten().filter_map(text).collect()
    }

    /// Returns the first second of its validity.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn not_before(&self) -> Result<Timestamp, TrustError> {
        timestamp(self.0.not_before())
    }

    /// Returns the end of its validity.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn not_after(&self) -> Result<Timestamp, TrustError> {
        timestamp(self.0.not_after())
    }

    /// Returns the time from which on it should be renewed: two thirds of its validity.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn renew_at(&self) -> Result<Timestamp, TrustError> {
        let (from, to) = (self.not_before()?.as_second(), self.not_after()?.as_second());
        Timestamp::from_second(from + (to - from) / 3 * 2)
            .map_err(|error| TrustError::Content(format!("a certificate's validity: {error}")))
    }

    /// Returns the SHA-256 digest of the whole certificate in hex, by which a token pins an authority.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn digest(&self) -> Result<String, TrustError> {
        self.0.digest(MessageDigest::sha256()).map(hex::encode).map_err(failed("digest a certificate"))
    }

    /// Returns true if the authority has signed it, whatever the time is.
    pub fn is_signed_by(&self, authority: &Certificate) -> bool {
        settled(authority.0.public_key().and_then(|key| self.0.verify(&key))).unwrap_or(false)
    }
}

pub(super) fn identity_of(certificate: &X509Ref) -> Result<Identity, TrustError> {
    let mut names = certificate.subject_name().entries_by_nid(Nid::COMMONNAME);
    // Two names could be read differently here and by etcd.
    let (Some(name), None) = (names.next(), names.next()) else {
        return Err(TrustError::Content("a certificate without exactly one common name".to_owned()));
    };
    let text = name.data().to_string().map_err(failed("read the name of a certificate"))?;
    text.parse().map_err(|error: super::IdentityError| TrustError::Content(error.to_string()))
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

fn timestamp(time: &Asn1TimeRef) -> Result<Timestamp, TrustError> {
    let failed = failed("read the time in a certificate");
    let epoch = Asn1Time::from_unix(0).map_err(&failed)?;
    let since = epoch.diff(time).map_err(&failed)?;
    Timestamp::from_second(i64::from(since.days) * 86_400 + i64::from(since.secs))
        .map_err(|error| TrustError::Content(format!("a certificate's validity: {error}")))
}

/// Reads the certificates of a PEM text of somebody else's, which may be none.
///
/// # Errors
/// One is damaged, or the text is encrypted.
pub fn chain_from_pem(pem: &[u8]) -> Result<Vec<X509>, TrustError> {
    X509::stack_from_pem(unencrypted(pem)?).map_err(failed("read certificates"))
}

/// Reads the certificates of a PEM text, one or more.
///
/// # Errors
/// There is none, or one is damaged or encrypted.
pub fn bundle_from_pem(pem: &str) -> Result<Vec<Certificate>, TrustError> {
    let all = chain_from_pem(pem.as_bytes())?;
    match all.is_empty() {
        false => Ok(all.into_iter().map(Certificate).collect()),
        true => Err(TrustError::Content("no certificate of an authority".to_owned())),
    }
}

/// Returns all certificates as one PEM text.
///
/// # Errors
/// Those of OpenSSL.
pub fn bundle_to_pem(all: &[Certificate]) -> Result<String, TrustError> {
    all.iter().map(Certificate::to_pem).collect()
}
