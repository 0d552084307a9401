//! Encryption and decryption of small texts in memory with age.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use age::armor::{ArmoredReader, ArmoredWriter, Format};
use age::secrecy::ExposeSecret as _;
use age::x25519::{Identity, Recipient};
use anyhow::{Context as _, bail};
use schema::content_refs::{LIMITS, has_bounded_header, is_sops};
use schema::control::DiskRecord;
use schema::file_text::file_text;
use schema::secrets::format::sops::SopsFile;
use zeroize::Zeroizing;

/// Encrypts to all recipients, armored as text.
pub(crate) fn encrypt(plain: &[u8], to: &[Recipient]) -> anyhow::Result<Vec<u8>> {
    let recipients = to.iter().map(|recipient| recipient as &dyn age::Recipient);
    let encryptor = age::Encryptor::with_recipients(recipients).context("no recipients to encrypt to")?;
    let armored = ArmoredWriter::wrap_output(Vec::new(), Format::AsciiArmor)?;
    let mut writer = encryptor.wrap_output(armored)?;
    writer.write_all(plain)?;
    let ciphertext = writer.finish()?.finish()?;
    if ciphertext.len() as u64 > LIMITS.secret_bytes {
        bail!("a secret has at most {} KiB, encrypted", LIMITS.secret_bytes / 1024);
    }
    without_armour(&ciphertext).context("a secret can have 1,000 recipients at most")?;
    Ok(ciphertext)
}

/// Decrypts; `None` if the text is encrypted to others.
pub(crate) fn decrypt(ciphertext: &[u8], with: &[Identity]) -> anyhow::Result<Option<Vec<u8>>> {
    let binary = without_armour(ciphertext)?;
    let decryptor = age::Decryptor::new_buffered(binary.as_slice())?;
    let identities = with.iter().map(|identity| identity as &dyn age::Identity);
    let mut plain = Vec::new();
    match decryptor.decrypt(identities) {
        Err(age::DecryptError::NoMatchingKeys) => Ok(None),
        reader => {
            reader?.take(LIMITS.secret_bytes).read_to_end(&mut plain)?;
            Ok(Some(plain))
        }
    }
}

/// Encrypts a text to one recipient, armored as text.
pub(crate) fn seal(text: &str, to: Recipient) -> anyhow::Result<String> {
    Ok(String::from_utf8(encrypt(text.as_bytes(), &[to])?)?)
}

/// Decrypts a text with the identities in a file.
pub(crate) fn open_sealed(sealed: &str, identity_file: &Path) -> anyhow::Result<String> {
    let plain = decrypt(sealed.as_bytes(), &read_identities(identity_file)?)?;
    Ok(String::from_utf8(plain.context("it is encrypted to another machine")?)?)
}

/// Removes the armor of a whole file. The error names the damage, as far as it shows without an identity.
pub(crate) fn without_armour(ciphertext: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut binary = Vec::new();
    ArmoredReader::new(ciphertext).take(LIMITS.secret_bytes).read_to_end(&mut binary)?;
    if has_bounded_header(&binary) { Ok(binary) } else { bail!("its header has no end") }
}

/// Decrypts the file of a secret, which may be a SOPS file; `None` if it is encrypted to others.
pub(crate) fn open_secret(path: &Path, file: &[u8], with: &[Identity]) -> anyhow::Result<Option<Vec<u8>>> {
    if !is_sops(&path.to_string_lossy()) {
        return decrypt(file, with);
    }
    let sealed = SopsFile::parse(file)?;
    for data_key in sealed.data_keys() {
        if let Some(data_key) = decrypt(data_key.as_bytes(), with)? {
            return Ok(Some(sealed.plaintext(&data_key)?));
        }
    }
    Ok(None)
}

/// Number of recipients of a file, which does not reveal their identities.
pub(crate) fn recipients_of(ciphertext: &[u8]) -> anyhow::Result<usize> {
    let binary = without_armour(ciphertext)?;
    let lines = binary.split(|byte| *byte == b'\n').take_while(|line| !line.starts_with(b"---"));
    // `…-grease` is a stanza without a recipient: the format lets programs add some.
    let is_recipient = |line: &&[u8]| {
        let mut words = line.strip_prefix(b"-> ").unwrap_or_default().split(|byte| *byte == b' ');
        words.next().is_some_and(|kind| !kind.is_empty() && !kind.ends_with(b"-grease"))
    };
    Ok(lines.filter(is_recipient).count())
}

/// Parses a file of identities, as written by `age-keygen`.
pub(crate) fn identities(text: &str, path: &Path) -> anyhow::Result<Vec<Identity>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let identities: Result<Vec<Identity>, _> = lines.map(str::parse).collect();
    match identities {
        Ok(identities) if !identities.is_empty() => Ok(identities),
        _ => bail!("{} holds something other than age identities; 'age-keygen' creates one", path.display()),
    }
}

/// Creates an identity file unless it exists; returns its recipient either way.
pub(crate) fn ensure_identity(path: &Path, what: &str) -> anyhow::Result<String> {
    if !path.exists() {
        let made = written(&[Identity::generate()], what);
        let kept = DiskRecord::new(path).create_new(made.as_bytes());
        kept.with_context(|| format!("cannot write an age identity to {}", path.display()))?;
    }
    recipient_of(path)
}

/// Returns the recipient of the first identity in a file.
pub(crate) fn recipient_of(path: &Path) -> anyhow::Result<String> {
    Ok(read_identities(path)?[0].to_public().to_string())
}

/// Reads a file of identities, and wipes its text from memory.
fn read_identities(path: &Path) -> anyhow::Result<Vec<Identity>> {
    let read = |text: &mut Zeroizing<Vec<u8>>| -> io::Result<()> {
        let mut file = File::open(path)?;
        // At once: a buffer that grows would leave copies.
        text.reserve_exact(usize::try_from(file.metadata()?.len()).unwrap_or(0) + 1);
        file.read_to_end(text).map(drop)
    };
    let mut text = Zeroizing::new(Vec::new());
    read(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
    let text = file_text(&text).with_context(|| format!("{} is not UTF-8 text", path.display()))?;
    identities(text, path)
}

/// Formats identities as `age-keygen` does.
pub(crate) fn written(identities: &[Identity], what: &str) -> Zeroizing<String> {
    // At once: a text that grows would leave copies.
    let mut text =
        Zeroizing::new(String::with_capacity(what.len() + 16 + identities.len() * IDENTITY_MAX_BYTES));
    text.push_str("# ");
    text.push_str(what);
    text.push('\n');
    for identity in identities {
        text.push_str("# public key: ");
        text.push_str(&identity.to_public().to_string());
        text.push('\n');
        text.push_str(identity.to_string().expose_secret());
        text.push('\n');
    }
    text
}

/// Most bytes of an identity with its public key, as text: 62 and 74, and the words around them.
const IDENTITY_MAX_BYTES: usize = 256;

/// Parses a recipient, `age1…`.
pub(crate) fn recipient(text: &str) -> anyhow::Result<Recipient> {
    let parsed = text.trim().parse::<Recipient>();
    parsed.map_err(|_| anyhow::anyhow!("{text:?} is not an age recipient; it begins with age1"))
}
