//! Meaning of a plain YAML scalar: YAML 1.2's core schema, and the words of 1.1 that Kubernetes' own parser still
//! reads as booleans.

/// Meaning of a scalar without quotes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Plain {
    Null,
    Bool(bool),
    /// `yes`, `off` and so on: a boolean in YAML 1.1, text in 1.2.
    OldBool(bool),
    Integer(i128),
    /// `0644`: octal in YAML 1.1, decimal in 1.2.
    LeadingZero,
    /// A fraction, an exponent, or an integer beyond 128 bits.
    Float,
    Text,
}

/// Resolves a plain scalar to its meaning.
pub(crate) fn resolve(text: &str) -> Plain {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Plain::Null,
        "true" | "True" | "TRUE" => return Plain::Bool(true),
        "false" | "False" | "FALSE" => return Plain::Bool(false),
        "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => return Plain::OldBool(true),
        "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => return Plain::OldBool(false),
        _ => {}
    }
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if let Some(octal) = text.strip_prefix("0o") {
        return i128::from_str_radix(octal, 8).map_or(Plain::Text, Plain::Integer);
    }
    if let Some(hexadecimal) = text.strip_prefix("0x") {
        return i128::from_str_radix(hexadecimal, 16).map_or(Plain::Text, Plain::Integer);
    }
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        if digits.len() > 1 && digits.starts_with('0') {
            return Plain::LeadingZero;
        }
        return digits
            .parse::<i128>()
            .map_or(Plain::Float, |number| Plain::Integer(if negative { -number } else { number }));
    }
    if is_float(digits) { Plain::Float } else { Plain::Text }
}

/// True for `[0-9]+(\.[0-9]*)?` or `\.[0-9]+`, then an exponent; or `.inf`, `.nan`.
fn is_float(text: &str) -> bool {
    if matches!(text, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let exponent_fits = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !digits.is_empty() && is_digits(digits)
    });
    is_digits(whole) && is_digits(fraction) && whole.len() + fraction.len() > 0 && exponent_fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_mean_what_yaml_1_2_says() {
        for (text, meaning) in [
            ("", Plain::Null),
            ("~", Plain::Null),
            ("True", Plain::Bool(true)),
            ("no", Plain::OldBool(false)),
            ("80", Plain::Integer(80)),
            ("-1", Plain::Integer(-1)),
            ("0x1F", Plain::Integer(31)),
            ("0o17", Plain::Integer(15)),
            ("0644", Plain::LeadingZero),
            ("0", Plain::Integer(0)),
            ("1.10", Plain::Float),
            (".5", Plain::Float),
            ("1e3", Plain::Float),
            (".", Plain::Text),
            ("1.2.3", Plain::Text),
            ("500m", Plain::Text),
            ("1:30", Plain::Text),
            ("e3", Plain::Text),
            ("-", Plain::Text),
        ] {
            assert_eq!(resolve(text), meaning, "{text:?}");
        }
    }
}
