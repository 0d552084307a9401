//! A CA and a server certificate for loopback, created for each server; and a minimal server that uses one.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{SslAcceptor, SslMethod};
use openssl::x509::extension::{BasicConstraints, ExtendedKeyUsage, SubjectAlternativeName};
use openssl::x509::{X509, X509Builder, X509Name, X509NameBuilder};

use crate::wait::secs;

/// Answers every request over TLS with 200, or 500 while it is sick, on a loopback port until the test
/// ends.
#[derive(Debug)]
pub struct HttpsServer {
    pub port: u16,
    is_sick: Arc<AtomicBool>,
}

impl HttpsServer {
    /// Starts serving, with a certificate of an unknown CA.
    pub fn serve(ca_file: &Path) -> Result<Self> {
        let (acceptor, listener) = (acceptor(ca_file)?, TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        let (port, is_sick) = (listener.local_addr()?.port(), Arc::new(AtomicBool::new(false)));
        let sick = Arc::clone(&is_sick);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                // A client that hangs up is no fault of the server.
                let _ = answer(&acceptor, connection, sick.load(Ordering::Relaxed));
            }
        });
        Ok(Self { port, is_sick })
    }

    /// Makes it answer 500, or 200 again.
    pub fn be_sick(&self, sick: bool) {
        self.is_sick.store(sick, Ordering::Relaxed);
    }
}

fn answer(acceptor: &SslAcceptor, connection: TcpStream, is_sick: bool) -> Result<()> {
    connection.set_read_timeout(Some(secs(5)))?;
    let mut stream = acceptor.accept(connection)?;
    let mut request = [0; 1024];
    let _ = stream.read(&mut request)?;
    let code = if is_sick { "500 Internal Server Error" } else { "200 OK" };
    stream
        .write_all(format!("HTTP/1.1 {code}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").as_bytes())?;
    stream.shutdown()?;
    Ok(())
}

/// TLS acceptor for a server; the CA's certificate is written to `ca_file`.
pub(crate) fn acceptor(ca_file: &Path) -> Result<SslAcceptor> {
    let (certificate, key) = signed(&Ipv4Addr::LOCALHOST.to_string(), ca_file)?;
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls())?;
    acceptor.set_private_key(&key)?;
    acceptor.set_certificate(&certificate)?;
    Ok(acceptor.build())
}

/// Like `acceptor`, as files for a server at this address.
pub(crate) fn files(address: &str, ca_file: &Path, certificate_file: &Path, key_file: &Path) -> Result<()> {
    let (certificate, key) = signed(address, ca_file)?;
    std::fs::write(certificate_file, certificate.to_pem()?)?;
    std::fs::write(key_file, key.private_key_to_pem_pkcs8()?)?;
    Ok(())
}

/// Creates a certificate for an address and `localhost`, and its key.
fn signed(address: &str, ca_file: &Path) -> Result<(X509, PKey<Private>)> {
    let ca_key = key()?;
    let mut ca = builder("minik8s test CA", &ca_key)?;
    ca.append_extension(BasicConstraints::new().critical().ca().build()?)?;
    let ca_name = name("minik8s test CA")?;
    ca.set_issuer_name(&ca_name)?;
    ca.sign(&ca_key, MessageDigest::sha256())?;
    let ca: X509 = ca.build();
    std::fs::write(ca_file, ca.to_pem()?)?;

    let own_key = key()?;
    let mut own = builder("localhost", &own_key)?;
    own.set_issuer_name(ca.subject_name())?;
    let names = SubjectAlternativeName::new()
        .dns("localhost")
        .ip(address)
        .build(&own.x509v3_context(Some(&ca), None))?;
    own.append_extension(names)?;
    own.append_extension(ExtendedKeyUsage::new().server_auth().build()?)?;
    own.sign(&ca_key, MessageDigest::sha256())?;
    Ok((own.build(), own_key))
}

fn key() -> Result<PKey<Private>> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    Ok(PKey::from_ec_key(EcKey::generate(&group)?)?)
}

fn name(common: &str) -> Result<X509Name> {
    let mut name = X509NameBuilder::new()?;
    name.append_entry_by_text("CN", common)?;
    Ok(name.build())
}

fn builder(common: &str, key: &PKey<Private>) -> Result<X509Builder> {
    let mut builder = X509::builder()?;
    builder.set_version(2)?;
    let serial = BigNum::from_u32(u32::try_from(common.len())?)?.to_asn1_integer()?;
    builder.set_serial_number(&serial)?;
    let subject = name(common)?;
    builder.set_subject_name(&subject)?;
    builder.set_pubkey(key)?;
    builder.set_not_before(&*Asn1Time::days_from_now(0)?)?;
    builder.set_not_after(&*Asn1Time::days_from_now(2)?)?;
    Ok(builder)
}
