//! OpenPGP signatures, checked by `gpg` in a home that holds only the keyring.
//!
//! Every key of the keyring may sign. Status lines: GnuPG's doc/DETAILS.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use tempfile::TempDir;

use super::program::{Answer, Doubt, HELP_SIGN, SignedCommit, run};

const HELP_KEYRING: &str = "sign it with a key of the keyring, or add the key to the GPG keys of the source";
/// Digests that no signature may rely on, neither of a commit nor of a key over itself.
const WEAK: [&str; 4] = ["--weak-digest", "SHA1", "--weak-digest", "RIPEMD160"];

/// Imported keys that may sign: `gpg` merges duplicate keys.
pub(super) struct Keyring(TempDir);

impl Keyring {
    /// Imports keys, armored or binary.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.windows(17).any(|part| part == b"PRIVATE KEY BLOCK") {
            return Err("it holds a private key; keep only public ones in it".to_owned());
        }
        let home = tempfile::tempdir().map_err(|error| error.to_string())?;
        let file = home.path().join("keys");
        fs::write(&file, bytes).map_err(|error| error.to_string())?;
        let imported = gpg(home.path(), &["--import", "keys"])?;
        let has_keys = status_lines(&imported).any(|(keyword, _)| keyword == "IMPORT_OK");
        has_keys.then_some(Self(home)).ok_or_else(|| "it holds no key".to_owned())
    }
}

fn gpg(home: &Path, args: &[&str]) -> Result<Answer, String> {
    let always = ["--no-options", "--batch", "--no-autostart", "--trust-model", "always", "--status-fd", "1"];
    run("gpg", "gpg", &[&always, &WEAK[..], args].concat(), home, None)
}

/// Yields keyword and arguments of each machine-readable line.
fn status_lines(answer: &Answer) -> impl Iterator<Item = (&str, &str)> {
    let lines = answer.stdout.lines().filter_map(|line| line.strip_prefix("[GNUPG:] "));
    lines.map(|line| line.split_once(' ').unwrap_or((line, "")))
}

/// Verifies `armor` over the commit, or returns the reason for rejecting it.
pub(super) fn verify(keyring: &Keyring, armor: &str, signed: &SignedCommit<'_>) -> Result<(), Doubt> {
    let home = keyring.0.path();
    let written = fs::write(home.join("signature"), armor)
        .and_then(|()| fs::write(home.join("commit"), signed.content))
        .map_err(|error| error.to_string());
    let answer = written.and_then(|()| gpg(home, &["--verify", "signature", "commit"]));
    judge(&answer.map_err(|why| Doubt::new(why, HELP_KEYRING))?)
}

/// Accepts one good signature over a document, by a valid key, as Git reads these lines; rejects everything else.
fn judge(answer: &Answer) -> Result<(), Doubt> {
    let argument = |wanted: &str| {
        let mut found = status_lines(answer).filter(|(keyword, _)| *keyword == wanted);
        found.next().map(|(_, rest)| rest)
    };
    let key = |rest: &str| rest.split(' ').next().unwrap_or_default().to_owned();
    let refuse = |why: String, help| Err(Doubt::new(why, help));
    if let Some(rest) = argument("REVKEYSIG") {
        return refuse(format!("GPG key {} is revoked", key(rest)), HELP_KEYRING);
    }
    if let Some(rest) = argument("EXPKEYSIG") {
        let ended = argument("KEYEXPIRED").and_then(|rest| rest.parse().ok());
        let ended = ended.and_then(|second| Timestamp::from_second(second).ok());
        let when = ended.map(|end| format!(" at {end}")).unwrap_or_default();
        return refuse(format!("GPG key {} expired{when}", key(rest)), HELP_KEYRING);
    }
    if argument("EXPSIG").is_some() {
        return refuse("its GPG signature has expired".to_owned(), HELP_SIGN);
    }
    if let Some(rest) = argument("BADSIG") {
        return refuse(
            format!("the signature of GPG key {} does not match the commit", key(rest)),
            HELP_SIGN,
        );
    }
    if let Some(rest) = argument("NO_PUBKEY") {
        return refuse(format!("GPG key {} is not in the keyring", key(rest)), HELP_KEYRING);
    }
    if status_lines(answer).filter(|(keyword, _)| *keyword == "NEWSIG").count() > 1 {
        return refuse("it has more than one GPG signature".to_owned(), HELP_SIGN);
    }
    let is_over_document = |rest: &str| rest.split(' ').nth(8) == Some("00");
    match (answer.success, argument("GOODSIG"), argument("VALIDSIG")) {
        (true, Some(_), Some(valid)) if is_over_document(valid) => Ok(()),
        _ => {
            let last = answer.stderr.lines().last().unwrap_or("gpg gives no reason");
            refuse(format!("its GPG signature is not valid: {last}"), HELP_SIGN)
        }
    }
}
