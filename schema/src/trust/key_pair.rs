//! Keys on the curve P-256, and requests to sign them.

use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private, Public};
use openssl::x509::{X509NameBuilder, X509Req};
use sha2::{Digest as _, Sha256};

use super::{Identity, TrustError, failed, settled, unencrypted};

/// `sha256:` and the digest of a public key in hex.
pub type KeyFingerprint = String;

/// Private and public key of somebody. It stays the same when its certificate is renewed.
#[derive(Debug, Clone)]
pub struct KeyPair(pub(super) PKey<Private>);

/// Public key of somebody.
#[derive(Debug, Clone)]
pub struct PublicKey(pub(super) PKey<Public>);

impl KeyPair {
    /// Generates a key.
    ///
    /// # Errors
    /// OpenSSL has no randomness.
    pub fn generate() -> Result<Self, TrustError> {
        let failed = failed("generate a key");
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).map_err(&failed)?;
        let key = EcKey::generate(&group).and_then(PKey::from_ec_key).map_err(&failed)?;
        Ok(Self(key))
    }

    /// Reads a key as written by [`KeyPair::to_pem`].
    ///
    /// # Errors
    /// It is no private key, or is encrypted.
    pub fn from_pem(pem: &str) -> Result<Self, TrustError> {
        // Without a passphrase OpenSSL would ask for one on the terminal.
        let key = PKey::private_key_from_pem_callback(unencrypted(pem.as_bytes())?, |_| Ok(0));
        key.map(Self).map_err(failed("read a private key"))
    }

    /// Returns the key as PEM (PKCS#8), not encrypted.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn to_pem(&self) -> Result<String, TrustError> {
        let pem = self.0.private_key_to_pem_pkcs8().map_err(failed("write a private key"))?;
        Ok(String::from_utf8_lossy(&pem).into_owned())
    }

    /// Returns the public half.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn public_key(&self) -> Result<PublicKey, TrustError> {
        let failed = failed("read a public key");
        let der = self.0.public_key_to_der().map_err(&failed)?;
        PKey::public_key_from_der(&der).map(PublicKey).map_err(&failed)
    }

    /// Returns a request (PKCS#10, PEM) to sign this key. Whoever signs decides on the name.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn signing_request(&self, wanted: &Identity) -> Result<String, TrustError> {
        let failed = failed("make a signing request");
        let mut name = X509NameBuilder::new().map_err(&failed)?;
        name.append_entry_by_nid(Nid::COMMONNAME, &wanted.to_string()).map_err(&failed)?;
        let mut request = X509Req::builder().map_err(&failed)?;
        request.set_subject_name(&name.build()).map_err(&failed)?;
        request.set_pubkey(&self.0).map_err(&failed)?;
        request.sign(&self.0, MessageDigest::sha256()).map_err(&failed)?;
        let pem = request.build().to_pem().map_err(&failed)?;
        Ok(String::from_utf8_lossy(&pem).into_owned())
    }
}

impl PublicKey {
    /// Reads the key of a signing request that its own key has signed: whoever sends it has the private key.
    ///
    /// # Errors
    /// It is no request, its signature is wrong, or its key is not on the curve P-256.
    pub fn of_signing_request(pem: &str) -> Result<Self, TrustError> {
        let failed = failed("read the signing request");
        let request = X509Req::from_pem(unencrypted(pem.as_bytes())?).map_err(&failed)?;
        let key = request.public_key().map_err(&failed)?;
        let curve = key.ec_key().map(|key| key.group().curve_name());
        if !curve.is_ok_and(|curve| curve == Some(Nid::X9_62_PRIME256V1)) {
            return Err(TrustError::Content(
                "the signing request's key is not on the curve P-256".to_owned(),
            ));
        }
        match settled(request.verify(&key)).map_err(&failed)? {
            true => Ok(Self(key)),
            false => Err(TrustError::Content("the signing request is not signed by its own key".to_owned())),
        }
    }

    /// Returns `sha256:` and the digest of the key (SubjectPublicKeyInfo, DER) in hex, by which Git may pin it.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub fn fingerprint(&self) -> Result<KeyFingerprint, TrustError> {
        let der = self.0.public_key_to_der().map_err(failed("read a public key"))?;
        Ok(format!("sha256:{}", hex::encode(Sha256::digest(der))))
    }

    /// Returns true if both are the same key.
    pub fn is(&self, other: &Self) -> bool {
        self.0.public_eq(&other.0)
    }
}
