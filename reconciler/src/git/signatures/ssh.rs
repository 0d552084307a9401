//! SSH signatures: the key is one that the committer may sign with now and then.
//!
//! Format: OpenSSH's PROTOCOL.sshsig. The signature carries its key; what counts is that the key
//! is on a line for the committer's address.

use ssh_key::{Algorithm, HashAlg, PublicKey, SshSig};

use super::allowed_signers::{AllowedSigners, NAMESPACE, Signer};
use super::{Doubt, HELP_SIGN, Signed};

const HELP_ALLOW: &str = "sign it with an allowed key, or add the key to the allowed signers of the source";
/// Flags and counter at the end of a signature by a hardware key.
const SK_TAIL_BYTES: usize = 5;

/// Believes `armor` over the commit, or says why not.
pub(super) fn verify(signers: &AllowedSigners, armor: &str, signed: &Signed<'_>) -> Result<(), Doubt> {
    let signature = SshSig::from_pem(armor.trim())
        .map_err(|error| Doubt::new(format!("its SSH signature can't be read: {error}"), HELP_SIGN))?;
    let key = PublicKey::from(signature.public_key().clone());
    let print = key.fingerprint(HashAlg::Sha256);
    if signature.namespace() != NAMESPACE {
        return Err(Doubt::new("its signature was made for something else than Git", HELP_SIGN));
    }
    check_algorithm(&signature)?;
    let known: Vec<&Signer> = signers.with_key(signature.public_key()).filter(|s| s.is_for_git()).collect();
    if known.is_empty() {
        return Err(Doubt::new(format!("key {print} is not among the allowed signers"), HELP_ALLOW));
    }
    let own: Vec<&Signer> = known.into_iter().filter(|signer| signer.matches(signed.email)).collect();
    if own.is_empty() {
        let why = format!("key {print} is not allowed for the committer <{}>", shown(signed.email));
        return Err(Doubt::new(why, HELP_ALLOW));
    }
    let times = own.iter().map(|signer| signer.check_time(signed.committed_at));
    if let Err(why) = times.reduce(Result::or).unwrap_or(Ok(())) {
        let why = format!("{why}, and the commit is of {}", signed.committed_at);
        return Err(Doubt::new(why, HELP_ALLOW));
    }
    key.verify(NAMESPACE, signed.content, &signature)
        .map_err(|_| Doubt::new(format!("the signature of key {print} does not fit the commit"), HELP_SIGN))
}

/// What OpenSSH does not take either: SHA-1, DSA, a hardware key that nobody touched.
fn check_algorithm(signature: &SshSig) -> Result<(), Doubt> {
    let weak = |why: &str| Err(Doubt::new(why, HELP_SIGN));
    match signature.signature().algorithm() {
        Algorithm::Rsa { hash: None } => weak("its signature uses SHA-1"),
        Algorithm::Dsa => weak("its signature uses DSA"),
        Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256 => {
            let bytes = signature.signature().as_bytes();
            let flags = bytes.len().checked_sub(SK_TAIL_BYTES).and_then(|at| bytes.get(at));
            match flags {
                Some(flags) if flags & 1 == 1 => Ok(()),
                _ => weak("its hardware key was not touched"),
            }
        }
        _ => Ok(()),
    }
}

/// As it goes to terminals.
fn shown(email: &str) -> String {
    email.chars().filter(|c| !c.is_control()).take(200).collect()
}
