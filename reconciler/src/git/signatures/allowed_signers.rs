//! OpenSSH's allowed_signers: who may sign, with which key, until when.
//!
//! Format: ssh-keygen(1), "ALLOWED SIGNERS". Certificate authorities and options that are not known
//! refuse the file as a whole: passing over a line could pass over a restriction.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use ssh_key::PublicKey;
use ssh_key::public::KeyData;

use crate::git::known_hosts::matches_pattern;

/// The use of a signature that Git names in it.
pub(super) const NAMESPACE: &str = "git";

/// The lines of the file.
#[derive(Debug, Clone)]
pub(super) struct AllowedSigners(Vec<Signer>);

/// One line.
#[derive(Debug, Clone)]
pub(super) struct Signer {
    /// Patterns of addresses, separated by commas.
    principals: String,
    /// For which uses; any when not said.
    namespaces: Option<String>,
    valid_after: Option<Timestamp>,
    valid_before: Option<Timestamp>,
    key: KeyData,
}

impl AllowedSigners {
    /// Reads the file; an error names its line.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut signers = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            signers.push(parse_line(line).map_err(|why| format!("line {}: {why}", index + 1))?);
        }
        if signers.is_empty() {
            return Err("it names no signer".to_owned());
        }
        Ok(Self(signers))
    }

    /// The lines with that key.
    pub(super) fn with_key<'a>(&'a self, key: &'a KeyData) -> impl Iterator<Item = &'a Signer> {
        self.0.iter().filter(move |signer| signer.key == *key)
    }
}

impl Signer {
    /// The address is one of the line's.
    pub(super) fn matches(&self, email: &str) -> bool {
        let mut matched = false;
        for pattern in self.principals.split(',') {
            match pattern.strip_prefix('!') {
                Some(negated) if matches_pattern(negated.as_bytes(), email.as_bytes()) => return false,
                Some(_) => {}
                None => matched |= matches_pattern(pattern.as_bytes(), email.as_bytes()),
            }
        }
        matched
    }

    /// The line is for commits.
    pub(super) fn is_for_git(&self) -> bool {
        let matches = |pattern: &str| matches_pattern(pattern.as_bytes(), NAMESPACE.as_bytes());
        self.namespaces.as_ref().is_none_or(|list| list.split(',').any(matches))
    }

    /// The key may be used at `time`; else since or until when.
    pub(super) fn check_time(&self, time: Timestamp) -> Result<(), String> {
        match (self.valid_after, self.valid_before) {
            (Some(after), _) if time < after => Err(format!("the key is allowed only from {after} on")),
            (_, Some(before)) if time >= before => Err(format!("the key is allowed only before {before}")),
            _ => Ok(()),
        }
    }
}

fn parse_line(line: &str) -> Result<Signer, String> {
    let (principals, rest) = word(line)?;
    let (first, after_first) = word(rest)?;
    // Options stand between principals and key; a key begins with its type.
    let (options, key) = if is_key_type(&first) { (String::new(), rest) } else { (first, after_first) };
    let mut signer = Signer {
        principals,
        namespaces: None,
        valid_after: None,
        valid_before: None,
        key: PublicKey::from_openssh(key.trim())
            .map_err(|error| format!("its key can't be read: {error}"))?
            .key_data()
            .clone(),
    };
    if signer.principals.is_empty() {
        return Err("it names nobody".to_owned());
    }
    if let Some(bits) = rsa_bits(&signer.key)
        && bits < RSA_BITS_MIN
    {
        return Err(format!("its RSA key has {bits} bits; {RSA_BITS_MIN} at least"));
    }
    for option in split_options(&options)? {
        let (name, value) = option.split_once('=').map_or((option.as_str(), None), |(n, v)| (n, Some(v)));
        match (name.to_ascii_lowercase().as_str(), value) {
            ("cert-authority", _) => {
                return Err("cert-authority is not supported; list the signers' own keys".to_owned());
            }
            ("namespaces", Some(list)) => signer.namespaces = Some(list.to_owned()),
            ("valid-after", Some(time)) => signer.valid_after = Some(time_of(time)?),
            ("valid-before", Some(time)) => signer.valid_before = Some(time_of(time)?),
            _ => return Err(format!("the option `{name}` is not known")),
        }
    }
    Ok(signer)
}

/// Smaller keys can be taken apart.
const RSA_BITS_MIN: usize = 2048;

fn rsa_bits(key: &KeyData) -> Option<usize> {
    let bytes = key.rsa()?.n.as_positive_bytes()?;
    let leading = bytes.first().map_or(0, |byte| byte.leading_zeros() as usize);
    Some(bytes.len() * 8 - leading)
}

fn is_key_type(word: &str) -> bool {
    ["ssh-", "ecdsa-", "sk-"].iter().any(|start| word.starts_with(start))
}

/// The next word, with quotes within it kept together and taken off, and what follows it.
fn word(text: &str) -> Result<(String, &str), String> {
    let text = text.trim_start();
    if text.is_empty() {
        return Err("something is missing: it has principals, options and a key".to_owned());
    }
    let mut quoted = false;
    let mut end = text.len();
    for (at, character) in text.char_indices() {
        match character {
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => {
                end = at;
                break;
            }
            _ => {}
        }
    }
    if quoted {
        return Err("a quote is not closed".to_owned());
    }
    let (word, rest) = text.split_at(end);
    // Options keep their quotes until they are split.
    let word = match word.strip_prefix('"').and_then(|word| word.strip_suffix('"')) {
        Some(inner) => inner.to_owned(),
        None => word.to_owned(),
    };
    Ok((word, rest))
}

/// `namespaces="a,b",valid-after=20240101`: at the commas outside quotes.
fn split_options(options: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let (mut current, mut quoted) = (String::new(), false);
    for character in options.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => found.push(std::mem::take(&mut current)),
            c => current.push(c),
        }
    }
    if quoted {
        return Err("a quote is not closed".to_owned());
    }
    if !options.is_empty() {
        found.push(current);
    }
    Ok(found)
}

/// `YYYYMMDD[HHMM[SS]][Z]`; without the Z in this machine's time zone, as OpenSSH has it.
fn time_of(text: &str) -> Result<Timestamp, String> {
    let wrong = || format!("`{text}` is no time; write YYYYMMDD or YYYYMMDDHHMM[SS], with Z for UTC");
    let (digits, zone) = match text.strip_suffix(['Z', 'z']) {
        Some(digits) => (digits, TimeZone::UTC),
        None => (text, TimeZone::system()),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let padded = match digits.len() {
        8 => format!("{digits}000000"),
        12 => format!("{digits}00"),
        14 => digits.to_owned(),
        _ => return Err(wrong()),
    };
    let time = DateTime::strptime("%Y%m%d%H%M%S", &padded).map_err(|_| wrong())?;
    zone.to_timestamp(time).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIABySC7ARkW23zRl0CsidH0UFuxSwuM1GmOTiuHiSlhA";

    fn signer(line: &str) -> Signer {
        AllowedSigners::parse(line).unwrap().0.remove(0)
    }

    #[test]
    fn principals_are_patterns_and_a_negated_one_wins() {
        let line = |principals: &str| signer(&format!("{principals} {KEY} comment here"));
        for (principals, email, matches) in [
            ("ada@example.org", "ada@example.org", true),
            ("ada@example.org", "eve@example.org", false),
            ("*@example.org", "eve@example.org", true),
            ("*@example.org,!eve@*", "eve@example.org", false),
            ("\"ada@example.org,bob@example.org\"", "bob@example.org", true),
            ("*", "", true),
        ] {
            assert_eq!(line(principals).matches(email), matches, "{principals} {email}");
        }
    }

    #[test]
    fn options_restrict_use_and_time() {
        let files = signer(&format!("a namespaces=\"file,mail\" {KEY}"));
        assert!(!files.is_for_git());
        assert!(signer(&format!("a namespaces=\"file,git\" {KEY}")).is_for_git());
        assert!(signer(&format!("a {KEY}")).is_for_git());
        let timed = signer(&format!("a valid-after=20240101Z,valid-before=\"20250101120000Z\" {KEY}"));
        for (time, allowed) in [
            ("2023-12-31T23:59:59Z", false),
            ("2024-01-01T00:00:00Z", true),
            ("2025-01-01T11:59:59Z", true),
            ("2025-01-01T12:00:00Z", false),
        ] {
            assert_eq!(timed.check_time(time.parse().unwrap()).is_ok(), allowed, "{time}");
        }
    }

    #[test]
    fn a_line_that_is_not_understood_refuses_the_file() {
        for (text, says) in [
            (String::new(), "names no signer"),
            ("# only a comment\n".to_owned(), "names no signer"),
            (format!("a cert-authority {KEY}"), "line 1: cert-authority is not supported"),
            (format!("# x\na no-such-option {KEY}"), "line 2: the option `no-such-option`"),
            (format!("a valid-after=soon {KEY}"), "`soon` is no time"),
            (format!("a valid-before=20241301Z {KEY}"), "is no time"),
            ("a ssh-ed25519 AAAA".to_owned(), "its key can't be read"),
            ("a".to_owned(), "something is missing"),
            (format!("\"a {KEY}"), "quote is not closed"),
        ] {
            let error = AllowedSigners::parse(&text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
