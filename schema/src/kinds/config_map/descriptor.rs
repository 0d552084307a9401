//! The `ConfigMap` kind: names, content, defaults.

use super::super::{ContentLink, Descriptor, FieldPlacement, KindSpec, Links, NameForm};
use super::ConfigMapSpec;
use crate::kinds::content::{CONTENT_MAX_BYTES, Content, decode_base64};
use crate::names::is_key;
use crate::secrets::{is_clear_key, is_clear_secret};
use crate::violation::{Findings, Path, rules};

impl KindSpec for ConfigMapSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "configmaps",
        short_names: &["cm"],
        api_version: "v1",
        fields: FieldPlacement::AtTop,
        names: NameForm::Long,
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> = Links {
        content: Some(ContentLink {
            values: Self::values,
            stored: |spec| Some((spec.content.as_ref()?, spec.immutable)),
        }),
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        if self.content.is_none() {
            self.content = Content::from_values(&self.values());
            (self.data, self.binary_data) = Default::default();
        }
    }

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}

// Checks of a ConfigMap beyond the schema, in Kubernetes' wording where people search for it.

/// Maximum number of keys: the object holds a digest for each, and must fit under its etcd key.
const KEYS_MAX: usize = 500;

pub(super) fn validate(spec: &ConfigMapSpec, at: &Path<'_>, findings: &mut Findings) {
    let (data, binary_data) = (at.field("data"), at.field("binaryData"));
    let mut bytes = 0;
    for (key, text) in &spec.data {
        check_key(key, &data, findings);
        // Text of several words under such a key is a page or a template.
        let is_password = !text.trim().contains(char::is_whitespace) && is_clear_secret(key, text.trim());
        if is_clear_key(text) || is_password {
            clear_secret(is_clear_key(text), &data.field(key), findings);
        }
        bytes += text.len();
    }
    for (key, text) in &spec.binary_data {
        check_key(key, &binary_data, findings);
        let here = binary_data.field(key);
        match decode_base64(text) {
            Some(value) => {
                bytes += value.len();
                if str::from_utf8(&value).is_ok_and(is_clear_key) {
                    clear_secret(true, &here, findings);
                }
            }
            None => {
                let help = "write the output of `base64 FILE`";
                findings.add(&rules::WRONG_TYPE, &here, "Invalid value: not base64").help(help);
            }
        }
        if spec.data.contains_key(key) {
            let message = format!("Invalid value: `{key}`: duplicate of key present in data");
            findings.add(&rules::DUPLICATE_NAME, &here, message).on_key();
        }
    }
    let keys = spec.data.len() + spec.binary_data.len();
    if keys > KEYS_MAX {
        let message = format!("Too many: {keys} keys; the limit is {KEYS_MAX}");
        let place = if spec.data.is_empty() { &binary_data } else { &data };
        let help = "split it, or mount a folder of the repository with a repo volume";
        findings.add(&rules::TOO_LARGE, place, message).on_key().help(help);
    }
    if bytes > CONTENT_MAX_BYTES {
        let place = if spec.data.is_empty() { &binary_data } else { &data };
        let message =
            format!("Too long: the values have {bytes} bytes in all; the limit is {CONTENT_MAX_BYTES}");
        let help = "split it, or mount a file of the repository with a repo volume";
        findings.add(&rules::TOO_LARGE, place, message).on_key().help(help);
    }
}

fn clear_secret(is_key: bool, at: &Path<'_>, findings: &mut Findings) {
    let what = if is_key { "a private key" } else { "a password" };
    let message =
        format!("{what} in clear text: anyone who can read the repository has it, even after removal");
    let help = "change it where it is used; write the new one with 'minik8s secrets seal NAME --from FILE' and mount \
                it: volumes: [{name: …, secret: {secretName: NAME}}]";
    findings.add(&rules::LITERAL_SECRET, at, message).on_key().help(help);
}

fn check_key(key: &str, at: &Path<'_>, findings: &mut Findings) {
    if !is_key(key) {
        let message = format!(
            "Invalid value: `{key}`: a valid config key must consist of alphanumeric characters, '-', '_' or '.', \
at most 253, and can't be `.` or begin with `..`"
        );
        findings.add(&rules::INVALID_NAME, &at.field(key), message).on_key();
    }
}
