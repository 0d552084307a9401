//! Which names, texts and places hold secrets. Pure.
//!
//! Reads names and texts, decides whether a value may be shown. Used by whatever quotes a manifest:
//! the loader's messages, excerpts, plans. Rather too much than too little is hidden: a message can
//! do without the value, and what was once in a comment or a log is known.

use crate::violation::Path;

/// Parts of names whose values are secret.
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
/// Words of names whose values are secret; as parts they are in too many others.
const SECRET_WORDS: [&str; 12] =
    ["pass", "pw", "auth", "jwt", "otp", "cred", "creds", "dsn", "salt", "webhookurl", "pin", "psk"];
/// Names that end so are of secrets: `ENCRYPTION_KEY`, `masterkey`. `key` alone is not.
const SECRET_ENDINGS: [&str; 3] = ["key", "pass", "auth"];
/// Names that end so say where a secret is, not what it is.
const REFERENCE_ENDINGS: [&str; 5] = ["name", "ref", "file", "path", "dir"];
/// Texts that begin so, or have words that do, are keys, tokens or ciphertext.
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
/// And those of them that are read word by word.
const WORDY_PLACES: [&str; 5] = ["args", "command", "runCommands", "annotations", "parameters"];

/// Flags whose values are logins: `curl -u bob:x`.
const LOGIN_FLAGS: [&str; 3] = ["-u", "--user", "--proxy-user"];
const QUOTES: [char; 3] = ['"', '\'', '`'];

/// A variable, header, flag or field of this name holds a secret, as far as the name tells.
pub fn is_secret_name(name: &str) -> bool {
    let plain = plain(name);
    speaks_of_secret(name, &plain) && !REFERENCE_ENDINGS.iter().any(|ending| plain.ends_with(ending))
}

/// What stands under this name is a secret. A name that says where one is must have a value that
/// looks like a place.
pub fn holds_secret(name: &str, value: &str) -> bool {
    is_secret_name(name) || speaks_of_secret(name, &plain(name)) && !is_reference(value)
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_ascii_lowercase()
}

fn speaks_of_secret(name: &str, plain: &str) -> bool {
    SECRET_PARTS.iter().any(|part| plain.contains(part))
        || SECRET_ENDINGS.iter().any(|ending| plain != "key" && plain.ends_with(ending))
        || words(name).iter().any(|word| SECRET_WORDS.contains(&word.as_str()))
}

/// `dbPass`, `DB_PASS` and `db-pass` are `db` and `pass`.
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

/// A path, or the name of an object or key.
fn is_reference(value: &str) -> bool {
    let rest = value.trim_start_matches(['.', '/']);
    let is_path = rest.len() < value.len();
    rest.split('/').all(|part| is_name(part) || is_path && part.len() <= 24 && is_name(&part.to_lowercase()))
}

/// `web-1`, `redis-0.redis.default`, `ca-bundle.crt`: short words, as people write them.
fn is_name(text: &str) -> bool {
    let is_word = |word: &str| {
        let letters = word.bytes().all(|b| b.is_ascii_lowercase());
        let digits = word.bytes().all(|b| b.is_ascii_digit());
        let mixed = word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        letters && word.len() <= 16 || digits && word.len() <= 4 || mixed && word.len() <= 4
    };
    text.len() <= 63 && text.split(['.', '-', '_']).all(is_word)
}

/// A value of a shape that no secret has: numbers of few digits, booleans, names, levels, addresses,
/// paths. What an environment sets to anything else is not shown.
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

/// `web:8080`, `http://web:8080/path`, `/var/lib/data`, `10.0.0.1:80`: no login, no query.
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

/// Where a word of a command or a note ends.
fn is_between_words(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, '"' | '\'' | '`' | ';' | ',' | '=' | '|' | '&' | '<' | '>')
        || matches!(c, '(' | ')' | '[' | ']' | '{' | '}' | '$')
}

/// A word of a command of a shape that no secret has, or a flag of that shape. What stands right behind
/// a single dash is a few letters, as in `-sSf`: more may be the flag's value, as in `mysql -pswordfish`.
pub fn is_plain_word(word: &str) -> bool {
    let name = word.trim_start_matches('-');
    let is_short_flag =
        word.starts_with('-') && name.bytes().all(|b| b.is_ascii_alphabetic()) && name.len() <= 4;
    !is_glued(word) && (is_short_flag || is_plain_value(name) || !word.contains(char::is_alphanumeric))
}

fn is_glued(word: &str) -> bool {
    let Some(flag) = word.strip_prefix('-').filter(|flag| !flag.starts_with('-')) else { return false };
    let is_number = flag.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    !is_number && (flag.chars().filter(|c| c.is_alphabetic()).count() > 4 || flag.contains(char::is_numeric))
}

/// The next word of the command is a secret, or a login: `--password x`, `-u bob:x`.
pub fn is_secret_flag(word: &str) -> bool {
    word.starts_with('-') && !word.contains('=') && (LOGIN_FLAGS.contains(&word) || is_secret_name(word))
}

/// A command, an argument or a note with `hidden` for each word that is not of a shape that no secret has,
/// and for all of the value of each name or flag of a secret: `--pin 1234`, `PGPASSWORD="x y"`,
/// `Authorization: Bearer x`.
pub fn masked(text: &str, hidden: &str) -> String {
    let mut scan =
        Scan { text, hidden, at: 0, quotes: Vec::new(), masked: String::with_capacity(text.len()) };
    while scan.at < text.len() {
        scan.step();
    }
    scan.masked
}

/// A walk over a text. Where it is not sure where a value ends, the value is longer.
struct Scan<'t> {
    text: &'t str,
    hidden: &'t str,
    at: usize,
    /// Quotes around what comes next, the outermost first, each with the backslashes before it.
    quotes: Vec<&'t str>,
    masked: String,
}

impl<'t> Scan<'t> {
    fn step(&mut self) {
        if self.pass_quote() {
            return;
        }
        let word = word_at(self.text, self.at);
        if word.is_empty() {
            return self.show(next_char(self.text, self.at));
        }
        let colon = colon_of_name(word);
        let name = &word[..colon.unwrap_or(word.len())];
        let behind = &self.text[self.at + name.len()..];
        // `"name": `, `map["name"] = `.
        let around = |c: char| matches!(c, ' ' | '\t' | '"' | '\'' | '`' | '\\' | ']' | ')' | '}');
        let sign = behind.trim_start_matches(around);
        if colon.is_none() && is_secret_flag(word) {
            self.word(word, true);
            self.pass_to_value();
            self.hide(self.end_of_word());
            self.hide_glued();
        } else if is_secret_name(name) && sign.starts_with([':', '=']) {
            self.word(name, true);
            self.named(self.text.len() - sign.len());
        } else {
            self.word(word, behind.starts_with('='));
        }
    }

    /// The value of a name that ends here and whose sign is at `sign`.
    fn named(&mut self, sign: usize) {
        let is_close = self.at == sign || !self.text[self.at..sign].contains([' ', '\t']);
        while self.at < sign {
            if !self.pass_quote() {
                self.show(next_char(self.text, self.at));
            }
        }
        let behind = self.text[sign..].trim_start_matches([':', '=', '>']);
        let value = self.text.len() - behind.len();
        let (signs, is_field) = (&self.text[sign..value], self.text[sign..].starts_with(':'));
        self.show(value);
        if signs == "=" && is_close && !behind.starts_with(char::is_whitespace) {
            self.hide(self.end_of_word());
        } else {
            self.show(self.text.len() - behind.trim_start_matches([' ', '\t']).len());
            self.hide(self.end_of_line(is_field));
        }
        self.hide_glued();
    }

    fn word(&mut self, word: &str, is_name: bool) {
        let is_shown =
            is_plain_word(word) || is_name && !is_glued(word) && is_variable(word.trim_start_matches('-'));
        self.masked.push_str(if is_shown { word } else { self.hidden });
        self.at += word.len();
    }

    fn show(&mut self, end: usize) {
        self.masked.push_str(&self.text[self.at..end]);
        self.at = end;
    }

    /// Hides all up to `end`, but for quotes that are around just that.
    fn hide(&mut self, end: usize) {
        let around = quote_at(self.text, self.at)
            .filter(|quote| close(self.text, self.at + quote.len(), quote) == Some(end));
        let quote = around.unwrap_or_default();
        if self.at < end {
            self.masked.extend([quote, self.hidden, quote]);
        }
        self.at = end;
    }

    fn pass_quote(&mut self) -> bool {
        let Some(quote) = quote_at(self.text, self.at) else { return false };
        match self.quotes.iter().position(|open| *open == quote) {
            Some(at) => self.quotes.truncate(at),
            None => self.quotes.push(quote),
        }
        self.show(self.at + quote.len());
        true
    }

    fn is_closing(&self, quote: &str) -> bool {
        self.quotes.contains(&quote)
    }

    /// From a flag to its value: `--pin   1`, `--pin=1`, `"--pin", "1"`.
    fn pass_to_value(&mut self) {
        while let Some(c) = self.text[self.at..].chars().next() {
            match quote_at(self.text, self.at) {
                Some(quote) if self.is_closing(quote) => {
                    self.pass_quote();
                }
                Some(_) => return,
                None => {
                    let end = next_char(self.text, self.at);
                    let is_continued = c == '\\' && self.text[end..].starts_with(char::is_whitespace);
                    if !is_continued && !c.is_whitespace() && !matches!(c, ',' | '=') {
                        return;
                    }
                    self.show(end);
                }
            }
        }
    }

    /// What a shell takes as one with what is hidden: `'Bearer '"$TOKEN"`.
    fn hide_glued(&mut self) {
        let behind = self.text[self.at..].trim_start_matches([' ', '\t']);
        let end = self.text.len() - behind.len();
        if !quote_at(self.text, end).is_some_and(|quote| self.is_closing(quote)) {
            return;
        }
        self.show(end);
        self.pass_quote();
        let behind = &self.text[self.at..];
        let is_end = behind.starts_with(|c: char| c.is_whitespace() || ",;:|&<>)]}".contains(c));
        if !is_end {
            self.hide(self.end_of_word());
        }
    }

    /// Where the quotes end that the value is in, if it is in some of its own.
    fn own_quotes(&self) -> Option<usize> {
        let quote = quote_at(self.text, self.at).filter(|quote| !self.is_closing(quote))?;
        close(self.text, self.at + quote.len(), quote)
    }

    /// Where a word of a command ends that begins here: at white space outside of quotes and brackets.
    fn end_of_word(&self) -> usize {
        if let Some(end) = self.own_quotes() {
            // An item of a list, or the last word of a command.
            let behind = self.text[end..].trim_start_matches([',', ';', ']', '}', ')']);
            if behind.is_empty() || behind.starts_with(char::is_whitespace) {
                return end;
            }
        }
        let (mut end, mut depth) = (self.at, 0_usize);
        while let Some(c) = self.text[end..].chars().next() {
            if let Some(quote) = quote_at(self.text, end) {
                if depth == 0 && self.is_closing(quote) {
                    break;
                }
                end = close(self.text, end + quote.len(), quote).unwrap_or(self.text.len());
                continue;
            }
            match c {
                '(' | '{' => depth += 1,
                ')' | '}' => depth = depth.saturating_sub(1),
                '\\' => end = next_char(self.text, end),
                c if c.is_whitespace() && depth == 0 => break,
                _ => {}
            }
            end = next_char(self.text, end);
        }
        end
    }

    /// Where the line ends, or the quotes around it; or a value in quotes of its own. `is_field`: the
    /// value may be on the lines that follow.
    fn end_of_line(&self, is_field: bool) -> usize {
        let closes = |at: usize| quote_at(self.text, at).is_some_and(|quote| self.is_closing(quote));
        if let Some(end) = self.own_quotes() {
            let behind = self.text[end..].trim_start_matches([' ', '\t']);
            let is_all = behind.starts_with([',', ';', '#', '}', ']', ')', '\n', '\r']);
            if behind.is_empty() || is_all || closes(self.text.len() - behind.len()) {
                return end;
            }
        }
        let mut end = self.at;
        let mut goes_on = false;
        while end < self.text.len() && !closes(end) {
            if self.text[end..].starts_with('\n') && !goes_on {
                let line = self.text[self.at..end].trim();
                let is_block = line.is_empty() || line.starts_with(['|', '>']) && line.len() <= 3;
                goes_on = is_field && is_block || line.ends_with('\\');
                if !goes_on {
                    break;
                }
            }
            end = quote_at(self.text, end).map_or(next_char(self.text, end), |quote| end + quote.len());
        }
        self.at + self.text[self.at..end].trim_end().len()
    }
}

/// So many colons of a word are looked at.
const COLONS_MAX: usize = 16;

/// Where the name of a secret ends in `password:x`. `http://auth:80` is a place.
fn colon_of_name(word: &str) -> Option<usize> {
    let end = word.find("://").unwrap_or(word.len());
    let colons = word[..end].match_indices(':').map(|(at, _)| at).take(COLONS_MAX);
    colons.into_iter().find(|at| is_secret_name(&word[..*at]))
}

/// The word that begins here, without a quote at its end.
fn word_at(text: &str, at: usize) -> &str {
    let rest = &text[at..];
    let word = &rest[..rest.find(is_between_words).unwrap_or(rest.len())];
    if rest[word.len()..].starts_with(QUOTES) { word.trim_end_matches('\\') } else { word }
}

/// Six shells within each other need 63; without a bound a run of them would be read once from each.
const BACKSLASHES_MAX: usize = 64;

/// The quote that is here, with the backslashes before it. `don't` has none.
fn quote_at(text: &str, at: usize) -> Option<&str> {
    let rest = &text[at..];
    let slashes = rest.bytes().take(BACKSLASHES_MAX + 1).take_while(|byte| *byte == b'\\').count();
    if slashes > BACKSLASHES_MAX || !rest[slashes..].starts_with(QUOTES) {
        return None;
    }
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let is_apostrophe = is_letter(text[..at].chars().next_back())
        && rest.strip_prefix('\'').is_some_and(|after| is_letter(after.chars().next()));
    (!is_apostrophe).then(|| &rest[..=slashes])
}

/// Behind the next quote that is the same as `open`.
fn close(text: &str, from: usize, open: &str) -> Option<usize> {
    let mut at = from;
    while at < text.len() {
        match quote_at(text, at) {
            Some(quote) if quote == open => return Some(at + quote.len()),
            Some(quote) => at += quote.len(),
            None => at = next_char(text, at),
        }
    }
    None
}

fn next_char(text: &str, at: usize) -> usize {
    at + text[at..].chars().next().map_or(0, char::len_utf8)
}

/// `PGPASSWORD`, `dry-run`.
fn is_variable(name: &str) -> bool {
    name.len() <= 40 && name.bytes().all(|b| b.is_ascii_alphabetic() || matches!(b, b'_' | b'-' | b'.'))
}

/// The text itself is a secret, or holds one: `--password=x`, `scheme://user:x@host`.
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

/// `scheme://user:password@host`, and the same without a scheme, as database drivers have it.
fn has_login(word: &str) -> bool {
    let rest = word.split_once("://").map_or(word, |(_, rest)| rest);
    let Some((login, host)) = rest.rsplit_once('@') else { return false };
    // `registry:5000/app@sha256:…` is an image.
    !host.starts_with("sha256:") && login.split_once(':').is_some_and(|(_, password)| !password.is_empty())
}

/// Of any text below a field of this name single words may be secret: commands and notes.
pub fn is_wordy_field(name: &str) -> bool {
    WORDY_PLACES.contains(&name)
}

/// Any text at this place may be a secret: by a field on the way, or by its own name.
pub fn is_secret_place(path: &Path<'_>) -> bool {
    path.any_field(is_secret_field)
}

/// Any text below a field of this name may be a secret.
pub fn is_secret_field(name: &str) -> bool {
    SECRET_PLACES.contains(&name) || is_secret_name(name)
}

#[cfg(test)]
mod tests;
