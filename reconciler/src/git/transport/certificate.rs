//! Verifies a server's certificate against a source's own CA file: libgit2 knows one set of CAs per process.
//!
//! libgit2 passes on only the server's own certificate, so the file must hold the intermediate ones too.

use std::net::IpAddr;

use openssl::error::ErrorStack;
use openssl::stack::Stack;
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::verify::{X509VerifyFlags, X509VerifyParam};
use openssl::x509::{X509, X509PurposeId, X509StoreContext};

/// Verifies `certificate` (DER) for `host` against the CAs in `pem`, or returns the reason for rejecting it.
pub(super) fn verify(certificate: &[u8], host: &str, pem: &[u8]) -> Result<(), String> {
    let certificate = X509::from_der(certificate).map_err(|error| format!("it can't be read: {error}"))?;
    let authorities =
        X509::stack_from_pem(pem).map_err(|error| format!("the CA file can't be read: {error}"))?;
    if authorities.is_empty() {
        return Err("the CA file holds no certificate".to_owned());
    }
    let outcome = checked(&certificate, host, authorities);
    outcome.map_err(|error| format!("it can't be checked: {error}"))?.map_or(Ok(()), Err)
}

/// Returns the reason for rejecting the certificate; `None` if it is trusted.
fn checked(certificate: &X509, host: &str, authorities: Vec<X509>) -> Result<Option<String>, ErrorStack> {
    let mut store = X509StoreBuilder::new()?;
    for authority in authorities {
        store.add_cert(authority)?;
    }
    let mut wanted = X509VerifyParam::new()?;
    // Everything in the file is trusted as is, including an intermediate CA or the server's own certificate.
    wanted.set_flags(X509VerifyFlags::PARTIAL_CHAIN)?;
    match host.parse::<IpAddr>() {
        Ok(address) => wanted.set_ip(address)?,
        Err(_) => wanted.set_host(host)?,
    }
    store.set_param(&wanted)?;
    store.set_purpose(X509PurposeId::SSL_SERVER)?;
    let mut context = X509StoreContext::new()?;
    context.init(&store.build(), certificate, &*Stack::new()?, |context| {
        let good = context.verify_cert()?;
        Ok((!good).then(|| context.error().error_string().to_owned()))
    })
}
