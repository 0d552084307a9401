//! A CA of the cluster: it signs certificates, and the list of revoked ones that etcd reads.

use std::collections::BTreeSet;
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use openssl::asn1::{Asn1Integer, Asn1Time};
use openssl::bn::{BigNum, MsbOption};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::x509::extension::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAlternativeName,
    SubjectKeyIdentifier,
};
use openssl::x509::{
    CrlNumber, X509, X509Builder, X509Crl, X509CrlBuilder, X509Name, X509NameBuilder, X509RevokedBuilder,
};

use super::{
    BACKDATED_SECONDS, Certificate, Identity, KeyPair, PublicKey, Role, Serial, TrustError, failed,
    unencrypted,
};

/// Extended key usage of users in the place of `clientAuth`: an OID of our own, in the arc that belongs to nobody. etcd
/// refuses their handshake for it: it answers `MemberList`, `Compact`, `Alarm` and `MoveLeader` to whoever is connected.
const USER_USAGE: &str = "2.999.8.1";

/// Bits of a serial number, all random.
const SERIAL_BITS: i32 = 127;

/// A CA of the cluster: its certificate and its private key.
#[derive(Debug, Clone)]
pub struct Authority {
    certificate: Certificate,
    key: KeyPair,
}

/// Content of a certificate to sign.
#[derive(Debug, Clone)]
pub struct LeafRequest<'a> {
    /// Common name.
    pub identity: &'a Identity,
    /// Key to certify.
    pub key: &'a PublicKey,
    /// Addresses and host names under which others reach it, for etcd, browsers and curl; empty for nodes and users.
    pub addresses: &'a [String],
    /// Validity from now on. It ends with that of the authority.
    pub lifetime: SignedDuration,
}

impl Authority {
    /// Creates an authority with a new key.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn create(lifetime: SignedDuration, now: Timestamp) -> Result<Self, TrustError> {
        let key = KeyPair::generate()?;
        let certificate = self_signed(&key, lifetime, now).map_err(failed("create an authority"))?;
        Ok(Self { certificate: Certificate(certificate), key })
    }

    /// Reads an authority from the PEM texts of its certificate and its key.
    ///
    /// # Errors
    /// One is damaged, or they do not belong together.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, TrustError> {
        let (certificate, key) = (Certificate::from_pem(certificate)?, KeyPair::from_pem(key)?);
        match certificate.public_key()?.is(&key.public_key()?) {
            true => Ok(Self { certificate, key }),
            false => {
                Err(TrustError::Content("the authority's key is not that of its certificate".to_owned()))
            }
        }
    }

    /// Returns the certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Returns the private key as PEM.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn key_pem(&self) -> Result<String, TrustError> {
        self.key.to_pem()
    }

    /// Signs a certificate. It begins 10 minutes ago, because clocks differ.
    ///
    /// # Errors
    /// An address can be in no certificate, or those of OpenSSL.
    pub fn sign(&self, leaf: &LeafRequest<'_>, now: Timestamp) -> Result<Certificate, TrustError> {
        let end = (now + leaf.lifetime).min(self.certificate.not_after()?);
        self.signed(leaf, now, end).map(Certificate).map_err(failed("sign a certificate"))
    }

    fn signed(&self, leaf: &LeafRequest<'_>, now: Timestamp, end: Timestamp) -> Result<X509, ErrorStack> {
        let authority = &self.certificate.0;
        let mut builder = begun(&named(&leaf.identity.to_string())?, now, end)?;
        builder.set_issuer_name(authority.subject_name())?;
        builder.set_pubkey(&leaf.key.0)?;
        builder.append_extension(BasicConstraints::new().critical().build()?)?;
        builder.append_extension(KeyUsage::new().critical().digital_signature().build()?)?;
        let mut usage = ExtendedKeyUsage::new();
        match leaf.identity.role() {
            Role::User => usage.other(USER_USAGE),
            Role::Node | Role::Reconciler | Role::Etcd => usage.client_auth().server_auth(),
        };
        builder.append_extension(usage.build()?)?;
        let context = builder.x509v3_context(Some(authority), None);
        let key_id = AuthorityKeyIdentifier::new().keyid(true).build(&context)?;
        let mut names = SubjectAlternativeName::new();
        for address in leaf.addresses {
            match address.parse::<IpAddr>() {
                Ok(ip) => names.ip(&ip.to_string()),
                Err(_) => names.dns(address),
            };
        }
        let names = (!leaf.addresses.is_empty()).then(|| names.build(&context)).transpose()?;
        builder.append_extension(key_id)?;
        if let Some(names) = names {
            builder.append_extension(names)?;
        }
        builder.sign(&self.key.0, MessageDigest::sha256())?;
        Ok(builder.build())
    }

    /// Signs a list of revoked certificates; returns it as PEM. It ends with the authority.
    ///
    /// # Errors
    /// A serial number is not one, or those of OpenSSL.
    pub fn sign_revocations<'a>(
        &self,
        serials: impl IntoIterator<Item = &'a Serial>,
        now: Timestamp,
    ) -> Result<String, TrustError> {
        let failed = failed("sign a list of revoked certificates");
        let list = self.revocations(serials, now).map_err(&failed)?;
        Ok(String::from_utf8_lossy(&list.to_pem().map_err(&failed)?).into_owned())
    }

    fn revocations<'a>(
        &self,
        serials: impl IntoIterator<Item = &'a Serial>,
        now: Timestamp,
    ) -> Result<X509Crl, ErrorStack> {
        let authority = &self.certificate.0;
        let at = Asn1Time::from_unix(now.as_second())?;
        let mut list = X509CrlBuilder::new()?;
        list.set_issuer_name(authority.subject_name())?;
        list.set_last_update(&at)?;
        list.set_next_update(authority.not_after())?;
        let none = X509::builder()?;
        let context = none.x509v3_context(Some(authority), None);
        list.append_extension(AuthorityKeyIdentifier::new().keyid(true).build(&context)?)?;
        // Grows with each list.
        let number = BigNum::from_dec_str(&now.as_microsecond().max(0).to_string())?;
        list.append_extension(CrlNumber::new(number)?.build()?)?;
        for serial in serials {
            let mut revoked = X509RevokedBuilder::new()?;
            revoked.set_serial_number(&*number_of(serial)?)?;
            revoked.set_revocation_date(&at)?;
            list.add_revoked(revoked.build())?;
        }
        list.sign(&self.key.0, MessageDigest::sha256())?;
        list.build()
    }
}

fn self_signed(key: &KeyPair, lifetime: SignedDuration, now: Timestamp) -> Result<X509, ErrorStack> {
    let mut id = BigNum::new()?;
    id.rand(32, MsbOption::ONE, false)?;
    // Two authorities in one bundle are told apart by their names.
    let name = named(&format!("minik8s-ca-{}", id.to_hex_str()?.to_lowercase()))?;
    let mut builder = begun(&name, now, now + lifetime)?;
    builder.set_issuer_name(&name)?;
    builder.set_pubkey(&key.0)?;
    builder.append_extension(BasicConstraints::new().critical().ca().pathlen(0).build()?)?;
    builder.append_extension(KeyUsage::new().critical().key_cert_sign().crl_sign().build()?)?;
    let key_id = SubjectKeyIdentifier::new().build(&builder.x509v3_context(None, None))?;
    builder.append_extension(key_id)?;
    builder.sign(&key.0, MessageDigest::sha256())?;
    Ok(builder.build())
}

fn named(common: &str) -> Result<X509Name, ErrorStack> {
    let mut name = X509NameBuilder::new()?;
    name.append_entry_by_nid(Nid::COMMONNAME, common)?;
    Ok(name.build())
}

/// Begins a certificate: name, serial number and validity.
fn begun(name: &X509Name, now: Timestamp, end: Timestamp) -> Result<X509Builder, ErrorStack> {
    let mut serial = BigNum::new()?;
    serial.rand(SERIAL_BITS, MsbOption::ONE, false)?;
    let mut builder = X509::builder()?;
    builder.set_version(2)?;
    builder.set_serial_number(&*serial.to_asn1_integer()?)?;
    builder.set_subject_name(name)?;
    builder.set_not_before(&*Asn1Time::from_unix(now.as_second() - BACKDATED_SECONDS)?)?;
    builder.set_not_after(&*Asn1Time::from_unix(end.as_second())?)?;
    Ok(builder)
}

fn number_of(serial: &str) -> Result<Asn1Integer, ErrorStack> {
    BigNum::from_hex_str(serial)?.to_asn1_integer()
}

/// Reads the serial numbers in a list of revoked certificates.
///
/// # Errors
/// It is damaged.
pub fn revoked_serials(pem: &str) -> Result<BTreeSet<Serial>, TrustError> {
    let failed = failed("read a list of revoked certificates");
    let list = X509Crl::from_pem(unencrypted(pem.as_bytes())?).map_err(&failed)?;
    let serials = list.get_revoked().into_iter().flatten().map(|revoked| {
        let number = revoked.serial_number().to_bn()?;
        Ok(number.to_hex_str()?.to_lowercase())
    });
    serials.collect::<Result<_, ErrorStack>>().map_err(&failed)
}
