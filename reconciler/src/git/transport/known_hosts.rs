//! Look-up of a host's key in OpenSSH's known_hosts.
//!
//! Supports plain, wildcard and hashed names, `[host]:port` and `@revoked`; skips certificate authorities. Format:
//! sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT".

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use openssl::error::ErrorStack;
use openssl::stack::Stack;
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::verify::{X509VerifyFlags, X509VerifyParam};
use openssl::x509::{X509, X509PurposeId, X509StoreContext};
use schema::trust::chain_from_pem;
use sha1::Sha1;

/// Outcome of looking up a host's key in a known_hosts file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostKey {
    Known,
    /// The host has other keys.
    Changed,
    /// The host has only keys of other types; it may well have this one, too.
    OtherType,
    Unknown,
    Revoked,
}

/// Looks up the key that `host` presented on `port`.
pub(super) fn look_up(file: &str, host: &str, port: u16, key: &[u8]) -> HostKey {
    let name = if port == 22 {
        host.to_ascii_lowercase()
    } else {
        format!("[{}]:{port}", host.to_ascii_lowercase())
    };
    let mut found = HostKey::Unknown;
    for line in file.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace().peekable();
        let marker = words.next_if(|word| word.starts_with('@'));
        let (Some(patterns), Some(kind), Some(encoded)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if marker == Some("@cert-authority") || !matches_host(patterns, &name) {
            continue;
        }
        let same = BASE64.decode(encoded).is_ok_and(|known| known == key);
        match (marker, same) {
            (Some("@revoked"), true) => return HostKey::Revoked,
            (Some(_), _) => {}
            (None, true) => found = HostKey::Known,
            (None, false) if found == HostKey::Known => {}
            (None, false) if kind_of(key).is_some_and(|shown| shown != kind.as_bytes()) => {
                if found == HostKey::Unknown {
                    found = HostKey::OtherType;
                }
            }
            (None, false) => found = HostKey::Changed,
        }
    }
    found
}

/// Returns the type that a key claims: its first string.
fn kind_of(key: &[u8]) -> Option<&[u8]> {
    let (length, rest) = key.split_first_chunk::<4>()?;
    rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

fn matches_host(patterns: &str, name: &str) -> bool {
    if let Some(hashed) = patterns.strip_prefix("|1|") {
        return matches_hash(hashed, name).unwrap_or(false);
    }
    let mut matched = false;
    for pattern in patterns.to_ascii_lowercase().split(',') {
        match pattern.strip_prefix('!') {
            Some(negated) if matches_pattern(negated.as_bytes(), name.as_bytes()) => return false,
            Some(_) => {}
            None => matched |= matches_pattern(pattern.as_bytes(), name.as_bytes()),
        }
    }
    matched
}

/// Matches `salt|hash`: HMAC-SHA1 of the name with the salt as key.
fn matches_hash(hashed: &str, name: &str) -> Option<bool> {
    let (salt, hash) = hashed.split_once('|')?;
    let mut mac = Hmac::<Sha1>::new_from_slice(&BASE64.decode(salt).ok()?).ok()?;
    mac.update(name.as_bytes());
    Some(mac.verify_slice(&BASE64.decode(hash).ok()?).is_ok())
}

/// Matches a glob: `*` is any text, `?` any one character.
fn matches_pattern(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, _) => text.is_empty(),
        (Some((b'*', rest)), _) => (0..=text.len()).any(|at| matches_pattern(rest, &text[at..])),
        (Some((wanted, rest)), Some((c, tail))) => {
            (*wanted == b'?' || wanted == c) && matches_pattern(rest, tail)
        }
        (Some(_), None) => false,
    }
}

// Verifies a server's certificate against a source's own CA file: libgit2 knows one set of CAs per process.
//
// libgit2 passes on only the server's own certificate, so the file must hold the intermediate ones too.

/// Verifies `certificate` (DER) for `host` against the CAs in `pem`, or returns the reason for rejecting it.
pub(super) fn verify(certificate: &[u8], host: &str, pem: &[u8]) -> Result<(), String> {
    let certificate = X509::from_der(certificate).map_err(|error| format!("it can't be read: {error}"))?;
    let authorities = chain_from_pem(pem).map_err(|error| format!("the CA file can't be read: {error}"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"the key";

    fn line(host: &str) -> String {
        format!("{host} ssh-ed25519 {}\n", BASE64.encode(KEY))
    }

    #[test]
    fn a_key_is_known_under_the_name_and_port_it_is_listed_with() {
        for (listed, host, port, expected) in [
            ("git.example", "git.example", 22, HostKey::Known),
            ("git.example", "GIT.example", 22, HostKey::Known),
            ("git.example", "other.example", 22, HostKey::Unknown),
            ("git.example", "git.example", 2222, HostKey::Unknown),
            ("[git.example]:2222", "git.example", 2222, HostKey::Known),
            ("a,*.example,!bad.example", "git.example", 22, HostKey::Known),
            ("a,*.example,!bad.example", "bad.example", 22, HostKey::Unknown),
            ("*.example,!BAD.example", "bad.example", 22, HostKey::Unknown),
            ("*.EXAMPLE,!Bad.example", "git.example", 22, HostKey::Known),
            ("g?t.example", "git.example", 22, HostKey::Known),
            ("@cert-authority git.example", "git.example", 22, HostKey::Unknown),
            ("@revoked git.example", "git.example", 22, HostKey::Revoked),
        ] {
            assert_eq!(look_up(&line(listed), host, port, KEY), expected, "{listed} {host}:{port}");
        }
    }

    #[test]
    fn another_key_of_a_listed_host_is_a_change_unless_a_later_line_has_it() {
        let file = format!("# comment\n\ngit.example ssh-rsa AAAA\n{}", line("git.example"));
        assert_eq!(look_up(&file, "git.example", 22, KEY), HostKey::Known);
        assert_eq!(look_up(&file, "git.example", 22, b"other"), HostKey::Changed);
        assert_eq!(look_up("git.example\nbroken |1|x\n", "git.example", 22, KEY), HostKey::Unknown);
    }

    #[test]
    fn a_key_of_another_kind_is_distinguished_from_a_changed_one() {
        let key = |kind: &str, rest: &[u8]| {
            let length = u32::try_from(kind.len()).unwrap().to_be_bytes();
            [&length[..], kind.as_bytes(), rest].concat()
        };
        let (shown, other) = (key("ssh-ed25519", b"1"), key("ssh-rsa", b"2"));
        let listed = format!("h ssh-rsa {}\n", BASE64.encode(&other));
        assert_eq!(look_up(&listed, "h", 22, &shown), HostKey::OtherType);
        let changed = format!("{listed}h ssh-ed25519 {}\n", BASE64.encode(key("ssh-ed25519", b"3")));
        assert_eq!(look_up(&changed, "h", 22, &shown), HostKey::Changed);
        let known = format!("{changed}h ssh-ed25519 {}\n", BASE64.encode(&shown));
        assert_eq!(look_up(&known, "h", 22, &shown), HostKey::Known);
    }

    /// From `ssh-keygen -H` on a file with the name `localhost`.
    #[test]
    fn hashed_names_are_understood() {
        let mut mac = Hmac::<Sha1>::new_from_slice(b"01234567890123456789").unwrap();
        mac.update(b"localhost");
        let hash = BASE64.encode(mac.finalize().into_bytes());
        let listed = format!("|1|{}|{hash}", BASE64.encode(b"01234567890123456789"));
        assert_eq!(look_up(&line(&listed), "localhost", 22, KEY), HostKey::Known);
        assert_eq!(look_up(&line(&listed), "otherhost", 22, KEY), HostKey::Unknown);
    }
}
