//! Tests of the parts together. Signatures were made with `openssl dgst -hmac`, not by this code.

mod calls;
mod fuzz_smoke;
mod intake;
mod interleavings;
mod listener;
mod vectors;

/// Secret of every vector except the published ones.
pub(super) const SECRET: &str = "0123456789abcdef-webhook-secret";
/// A push to `main`.
pub(super) const PUSH: &str = r#"{"ref":"refs/heads/main","after":"1481a2de7b2a7d02428ad93446ab166be7793fbb","repository":{"full_name":"lab/cluster"}}"#;
/// `printf %s "$PUSH" | openssl dgst -sha256 -hmac "$SECRET"`.
pub(super) const PUSH_SHA256: &str = "1fe5383e8bb5de54751986292cbe58e04e0ab86f37bce7f1903e917dd3ef6e38";
/// Likewise with `-sha512`.
pub(super) const PUSH_SHA512: &str = "7d711d528305f8c84093638063bf203c799684612a4e23550d9a86006873bcea1ddd37fbacc0272c1f52bfd31f28c437090f6cc6f8a9fc6a0ea320c7e0085b0c";
