//! Encryption and decryption with age, of small texts in memory.

use std::io::{Read as _, Write as _};
use std::path::Path;

use age::armor::{ArmoredReader, ArmoredWriter, Format};
use age::secrecy::ExposeSecret as _;
use age::x25519::{Identity, Recipient};
use anyhow::{Context as _, bail};
use schema::files::LIMITS;

/// Encrypts to all of these, as text.
pub(super) fn encrypt(plain: &[u8], to: &[Recipient]) -> anyhow::Result<Vec<u8>> {
    let recipients = to.iter().map(|recipient| recipient as &dyn age::Recipient);
    let encryptor = age::Encryptor::with_recipients(recipients).context("there is nobody to encrypt to")?;
    let armored = ArmoredWriter::wrap_output(Vec::new(), Format::AsciiArmor)?;
    let mut writer = encryptor.wrap_output(armored)?;
    writer.write_all(plain)?;
    let ciphertext = writer.finish()?.finish()?;
    if ciphertext.len() as u64 > LIMITS.secret_bytes {
        bail!("a secret has at most {} KiB, encrypted", LIMITS.secret_bytes / 1024);
    }
    Ok(ciphertext)
}

/// The plaintext; none if it is encrypted to others.
pub(super) fn decrypt(ciphertext: &[u8], with: &[Identity]) -> anyhow::Result<Option<Vec<u8>>> {
    let decryptor = age::Decryptor::new_buffered(ArmoredReader::new(ciphertext))?;
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

/// To how many recipients a file is encrypted; who they are it does not say.
pub(super) fn recipients_of(ciphertext: &[u8]) -> anyhow::Result<usize> {
    let mut bytes = Vec::new();
    ArmoredReader::new(ciphertext).take(LIMITS.secret_bytes).read_to_end(&mut bytes)?;
    let lines = bytes.split(|byte| *byte == b'\n').take_while(|line| !line.starts_with(b"---"));
    Ok(lines.filter(|line| line.starts_with(b"-> X25519 ")).count())
}

/// The identities in a file as `age-keygen` writes it.
pub(super) fn identities(text: &str, path: &Path) -> anyhow::Result<Vec<Identity>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let identities: Result<Vec<Identity>, _> = lines.map(str::parse).collect();
    match identities {
        Ok(identities) if !identities.is_empty() => Ok(identities),
        _ => bail!("{} holds something else than age identities; 'age-keygen' makes one", path.display()),
    }
}

/// As `age-keygen` writes them.
pub(super) fn written(identities: &[Identity], what: &str) -> String {
    let mut text = format!("# {what}\n");
    for identity in identities {
        text +=
            &format!("# public key: {}\n{}\n", identity.to_public(), identity.to_string().expose_secret());
    }
    text
}

/// `age1…`.
pub(super) fn recipient(text: &str) -> anyhow::Result<Recipient> {
    let parsed = text.trim().parse::<Recipient>();
    parsed.map_err(|_| anyhow::anyhow!("{text:?} is no age recipient; it begins with age1"))
}
