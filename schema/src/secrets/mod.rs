//! Decides which names, texts and places hold secrets. Pure.
//!
//! Used by everything that quotes a manifest: the loader's messages, excerpts, plans. Hides too much rather than
//! too little: a message can do without the value, and a value once in a comment or a log is no longer secret.

pub mod format;
use crate::violation::Path;

/// Parts of names that mark secret values.
const SECRET_PARTS: [&str; 13] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "apikey",
    "credential",
    "privatekey",
    "accesskey",
    "authorization",
    "cookie",
    "connectionstring",
];
/// Words of names whose values are secret; as parts they occur in too many other names.
const SECRET_WORDS: [&str; 12] =
    ["pass", "pw", "auth", "jwt", "otp", "cred", "creds", "dsn", "salt", "webhookurl", "pin", "psk"];
/// Endings of names whose values are secret: `ENCRYPTION_KEY`, `masterkey`. `key` alone is not.
const SECRET_ENDINGS: [&str; 3] = ["key", "pass", "auth"];
/// Endings of names that refer to a secret's place instead of holding it.
const REFERENCE_ENDINGS: [&str; 5] = ["name", "ref", "file", "path", "dir"];
/// Beginnings of texts, or of words in them, that are keys, tokens or ciphertext.
const SECRET_BEGINNINGS: [&str; 29] = [
    "-----BEGIN",
    "AGE-SECRET-KEY-",
    "age-encryption.org/",
    "ENC[",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "gldt-",
    "AKIA",
    "ASIA",
    "AIza",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "xoxr-",
    "xapp-",
    "sk-",
    "sk_live_",
    "rk_live_",
    "npm_",
    "pypi-",
    "hvs.",
    "$2b$",
    "$argon2",
    "eyJ",
];
/// Fields below which any text may be a secret.
const SECRET_PLACES: [&str; 8] =
    ["env", "value", "args", "command", "runCommands", "httpHeaders", "annotations", "parameters"];
/// Fields among these that are checked word by word.
const WORD_CHECKED_PLACES: [&str; 5] = ["args", "command", "runCommands", "annotations", "parameters"];

/// Flags whose values are logins: `curl -u bob:x`.
const LOGIN_FLAGS: [&str; 3] = ["-u", "--user", "--proxy-user"];

/// True if a variable, header, flag or field of this name holds a secret, judging by the name.
pub fn is_secret_name(name: &str) -> bool {
    let plain = plain(name);
    suggests_secret(name, &plain) && !REFERENCE_ENDINGS.iter().any(|ending| plain.ends_with(ending))
}

/// True if the value under this name is a secret. The value of a name that refers to a secret's place must look
/// like a place.
pub fn holds_secret(name: &str, value: &str) -> bool {
    is_secret_name(name) || suggests_secret(name, &plain(name)) && !is_reference(value)
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_ascii_lowercase()
}

fn suggests_secret(name: &str, plain: &str) -> bool {
    SECRET_PARTS.iter().any(|part| plain.contains(part))
        || SECRET_ENDINGS.iter().any(|ending| plain != "key" && plain.ends_with(ending))
        || words(name).iter().any(|word| SECRET_WORDS.contains(&word.as_str()))
}

/// Splits a name into words: `dbPass`, `DB_PASS` and `db-pass` are `db` and `pass`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if !c.is_alphanumeric() || was_lower && c.is_uppercase() {
            words.push(String::new());
        }
        was_lower = c.is_lowercase();
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
    }
    words
}

/// True for a path, and for the name of an object or key.
fn is_reference(value: &str) -> bool {
    let rest = value.trim_start_matches(['.', '/']);
    let is_path = rest.len() < value.len();
    rest.split('/').all(|part| is_name(part) || is_path && part.len() <= 24 && is_name(&part.to_lowercase()))
}

/// True for `web-1`, `redis-0.redis.default`, `ca-bundle.crt`: short words, as people write them.
fn is_name(text: &str) -> bool {
    let is_word = |word: &str| {
        let letters = word.bytes().all(|b| b.is_ascii_lowercase());
        let digits = word.bytes().all(|b| b.is_ascii_digit());
        let mixed = word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        letters && word.len() <= 16 || digits && word.len() <= 4 || mixed && word.len() <= 4
    };
    text.len() <= 63 && text.split(['.', '-', '_']).all(is_word)
}

/// True for values of a shape that no secret has: numbers of few digits, booleans, names, levels, addresses, paths.
/// Any other value of an environment is not shown.
pub fn is_plain_value(value: &str) -> bool {
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    let is_number = value.strip_prefix(['-', '+']).unwrap_or(value);
    let is_number = is_number.bytes().all(|b| b.is_ascii_digit() || b == b'.') && digits <= 6;
    let unit = value.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let is_quantity = digits <= 6 && unit.len() <= 2 && unit.bytes().all(|b| b.is_ascii_alphabetic());
    let is_level = value.len() <= 8
        && value.bytes().all(|b| b.is_ascii_alphabetic())
        && (value == value.to_uppercase() || value[1..] == value[1..].to_lowercase());
    value.is_empty() || is_number || is_quantity || is_level || is_name(value) || is_address(value)
}

/// True for `web:8080`, `http://web:8080/path`, `/var/lib/data`, `10.0.0.1:80`: no login, no query.
fn is_address(value: &str) -> bool {
    let rest = match value.split_once("://") {
        Some((scheme, rest)) if is_name(scheme) => rest,
        Some(_) => return false,
        None => value,
    };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = host.split_once(':').unwrap_or((host, ""));
    let is_port = port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit());
    let is_path = path.split('/').all(|part| part.is_empty() || is_name(part));
    (host.is_empty() || is_name(host)) && is_port && is_path
}

/// True for characters that end a word of a command or a note.
fn is_between_words(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, '"' | '\'' | '`' | ';' | ',' | '=' | '|' | '&' | '<' | '>')
        || matches!(c, '(' | ')' | '[' | ']' | '{' | '}' | '$')
}

/// True for words of a command of a shape that no secret has, and for flags of that shape. A single dash may be
/// followed by a few letters, as in `-sSf`: more may be the flag's value, as in `mysql -pswordfish`.
fn is_plain_word(word: &str) -> bool {
    let name = word.trim_start_matches('-');
    let is_short_flag =
        word.starts_with('-') && name.bytes().all(|b| b.is_ascii_alphabetic()) && name.len() <= 4;
    !has_glued_value(word) && (is_short_flag || is_plain_value(name) || !word.contains(char::is_alphanumeric))
}

fn has_glued_value(word: &str) -> bool {
    let Some(flag) = word.strip_prefix('-').filter(|flag| !flag.starts_with('-')) else { return false };
    let is_number = flag.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    !is_number && (flag.chars().filter(|c| c.is_alphabetic()).count() > 4 || flag.contains(char::is_numeric))
}

/// True if the next word of the command is a secret or a login: `--password x`, `-u bob:x`.
pub fn is_secret_flag(word: &str) -> bool {
    word.starts_with('-') && !word.contains('=') && (LOGIN_FLAGS.contains(&word) || is_secret_name(word))
}

/// True for a command, an argument or a note that may be shown: each word has a shape that no secret has, and none
/// is the name or flag of a secret, except a flag alone, whose value is another argument. Any other text is hidden
/// as a whole: a shell's quotes do not tell where a value ends.
pub fn is_plain_text(text: &str) -> bool {
    let mut words = text.split(|c: char| c != '=' && is_between_words(c));
    is_flag_alone(text) || !is_secret_text(text) && words.all(is_plain_setting)
}

/// True for a plain word, and for a name with a plain value: `--log-level=debug`.
fn is_plain_setting(word: &str) -> bool {
    let (name, values) = word.split_once('=').unwrap_or(("", word));
    let is_name = is_plain_word(name) || !has_glued_value(name) && is_variable(name);
    is_name
        && !names_secret(name)
        && values.split('=').all(|value| is_plain_word(value) && !names_secret(value))
}

fn is_flag_alone(text: &str) -> bool {
    is_secret_flag(text) && is_variable(text) && !has_glued_value(text)
}

/// True for `--pin`, `-u`, `PGPASSWORD`, `password:x`. A path names a place.
fn names_secret(word: &str) -> bool {
    is_secret_flag(word) || has_name_of_secret(word) || !word.contains('/') && is_secret_name(word)
}

/// Most colons of a word that are checked.
const COLONS_MAX: usize = 16;

/// True for `password:x`. `http://auth:80` is a place.
fn has_name_of_secret(word: &str) -> bool {
    let end = word.find("://").unwrap_or(word.len());
    let mut colons = word[..end].match_indices(':').take(COLONS_MAX);
    colons.any(|(at, _)| is_secret_name(&word[..at]))
}

/// True for `PGPASSWORD`, `dry-run`.
fn is_variable(name: &str) -> bool {
    let name = name.trim_start_matches('-');
    name.len() <= 40 && name.bytes().all(|b| b.is_ascii_alphabetic() || matches!(b, b'_' | b'-' | b'.'))
}

/// True if the text is a secret or holds one: `--password=x`, `scheme://user:x@host`.
pub fn is_secret_text(text: &str) -> bool {
    let words = || text.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | ';' | ','));
    words().any(|word| {
        SECRET_BEGINNINGS.iter().any(|beginning| word.starts_with(beginning))
            || word.split_once(['=', ':']).is_some_and(|(name, value)| {
                !value.is_empty()
                    && !value.starts_with('$')
                    && !value.starts_with("//")
                    && is_secret_name(name)
            })
            || has_login(word)
    })
}

/// True for `scheme://user:password@host`, and the same without a scheme, as database drivers write it.
fn has_login(word: &str) -> bool {
    let rest = word.split_once("://").map_or(word, |(_, rest)| rest);
    let Some((login, host)) = rest.rsplit_once('@') else { return false };
    // `registry:5000/app@sha256:…` is an image.
    !host.starts_with("sha256:") && login.split_once(':').is_some_and(|(_, password)| !password.is_empty())
}

/// Endings of names whose value is a password or private key, whatever it looks like.
const CLEAR_ENDINGS: [&str; 6] =
    ["password", "passwd", "passphrase", "privatekey", "secretkey", "secretaccesskey"];
/// Yes-or-no values of images: `ALLOW_EMPTY_PASSWORD=yes`.
const YES_NO_VALUES: [&str; 8] = ["yes", "no", "true", "false", "on", "off", "0", "1"];
/// Beginnings of private keys and tokens, and of nothing else.
const CLEAR_BEGINNINGS: [&str; 6] = ["AGE-SECRET-KEY-", "ghp_", "github_pat_", "glpat-", "xoxb-", "sk_live_"];

/// True if the value of a variable is a password or a private key in clear. Unlike the rules for showing a value,
/// this is an error of the manifest, so only unmistakable cases count.
pub fn is_clear_secret(name: &str, value: &str) -> bool {
    let is_answer = YES_NO_VALUES.contains(&value.to_ascii_lowercase().as_str());
    let refers = value.contains("$(") || value.starts_with('/');
    let is_password = CLEAR_ENDINGS.iter().any(|ending| plain(name).ends_with(ending));
    is_clear_key(value) || is_password && !value.is_empty() && !is_answer && !refers
}

/// True if the text is, or holds, a private key or a token in clear.
pub fn is_clear_key(text: &str) -> bool {
    let of_line =
        |line: &str| line.trim_start().starts_with("-----BEGIN ") && line.contains("PRIVATE KEY-----");
    CLEAR_BEGINNINGS.iter().any(|beginning| text.trim_start().starts_with(beginning))
        || text.lines().any(of_line)
}

/// True if single words of any text below a field of this name may be secret: commands and notes.
pub fn is_checked_by_word(name: &str) -> bool {
    WORD_CHECKED_PLACES.contains(&name)
}

/// True if any text at this place may be a secret: by a field on the way, or by its own name.
pub fn is_secret_place(path: &Path<'_>) -> bool {
    path.any_field(|above, name, is_mapping| match is_mapping {
        true => is_secret_mapping(name) && !above.is_some_and(has_states),
        false => is_secret_field(name),
    })
}

/// True if the fields below this one are states of a workflow, named by a person: `check-token`.
pub fn has_states(field: &str) -> bool {
    matches!(field, "states" | "States" | "nodes")
}

/// True if any text below a field of this name may be a secret.
pub fn is_secret_field(name: &str) -> bool {
    SECRET_PLACES.contains(&name) || is_secret_name(name)
}

/// True if any text below a field of this name, whose value is a mapping, may be a secret. States of workflows are
/// often named after their type, as `Pass` or `PassState`.
pub fn is_secret_mapping(name: &str) -> bool {
    is_secret_field(name) && !is_pass_state_name(name)
}

/// True for a name that begins with `Pass` and otherwise names no secret: a state's, or its type.
pub fn is_pass_state_name(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("Pass") else { return false };
    let whole = plain(name);
    !SECRET_PARTS.iter().any(|part| whole.contains(part)) && !is_secret_name(&format!("x{rest}"))
}

#[cfg(test)]
mod tests;
