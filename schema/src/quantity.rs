//! Quantities of CPU and memory, and shares, read and written as Kubernetes does.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// CPU in thousandths of a core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpu {
    /// Thousandths of a core.
    pub millis: u64,
}

/// Memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Memory {
    /// Bytes.
    pub bytes: u64,
}

/// Number of whole things.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Count {
    /// The number.
    pub number: u64,
}

/// Unit in which an amount of CPU or memory is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Divisor {
    /// Thousandths of a core or byte.
    pub thousandths: u128,
}

/// A share, such as a tolerance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    /// Thousandths of one.
    pub thousandths: u64,
}

/// Error for a text that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text has no number, or an unknown suffix.
    #[error(
        "`{0}` is not a quantity; write a number with one of the suffixes m, k, M, G, T, P, Ki, Mi, Gi, Ti, Pi or none"
    )]
    Syntax(String),
    /// The quantity is below zero.
    #[error("`{0}` is below zero")]
    Negative(String),
    /// The quantity is too large to be stored.
    #[error("`{0}` is too large")]
    TooLarge(String),
    /// The quantity has a fraction and may have none.
    #[error("`{0}` must be an integer")]
    Fraction(String),
}

impl FromStr for Cpu {
    type Err = QuantityError;

    /// Parses `500m`, `0.5`, `2`. Rounds up to whole thousandths, as Kubernetes does.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let thousandths = thousandths(text)?;
        u64::try_from(thousandths)
            .map(|millis| Self { millis })
            .map_err(|_| QuantityError::TooLarge(text.to_owned()))
    }
}

impl FromStr for Memory {
    type Err = QuantityError;

    /// Parses `128Mi`, `1G`, `1048576`. Rounds up to whole bytes.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let bytes = thousandths(text)?.div_ceil(1000);
        u64::try_from(bytes).map(|bytes| Self { bytes }).map_err(|_| QuantityError::TooLarge(text.to_owned()))
    }
}

impl FromStr for Count {
    type Err = QuantityError;

    /// Parses `2`, also as `2000m` or `0.002k`.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let thousandths = thousandths(text)?;
        if !thousandths.is_multiple_of(1000) {
            return Err(QuantityError::Fraction(text.to_owned()));
        }
        let number = u64::try_from(thousandths / 1000);
        number.map(|number| Self { number }).map_err(|_| QuantityError::TooLarge(text.to_owned()))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)
    }
}

impl FromStr for Divisor {
    type Err = QuantityError;

    /// Parses `1m`, `1`, `1Mi`.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        thousandths(text).map(|thousandths| Self { thousandths })
    }
}

impl fmt::Display for Divisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::UNITS.iter().find(|unit| unit.parse() == Ok(*self)) {
            Some(unit) => f.write_str(unit),
            None => write!(f, "{}m", self.thousandths),
        }
    }
}

impl Divisor {
    /// Units of Kubernetes for CPU: the first two; and for memory: all but the first.
    pub const UNITS: [&str; 14] =
        ["1m", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
}

impl FromStr for Share {
    type Err = QuantityError;

    /// Parses `0.05`, `50m`, `1`. Rounds up to whole thousandths.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        text.parse().map(|Cpu { millis }| Self { thousandths: millis })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Cpu { millis: self.thousandths }, f)
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.millis.is_multiple_of(1000) {
            write!(f, "{}", self.millis / 1000)
        } else {
            write!(f, "{}m", self.millis)
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SUFFIXES: [(&str, u64); 4] =
            [("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
        for (suffix, unit) in SUFFIXES {
            if self.bytes >= unit && self.bytes.is_multiple_of(unit) {
                return write!(f, "{}{suffix}", self.bytes / unit);
            }
        }
        write!(f, "{}", self.bytes)
    }
}

impl Memory {
    /// Formats for people, to about three digits: `15.5Gi` for a kernel's count in bytes. Short amounts stay exact.
    pub fn readable(self) -> String {
        const EXACT_MAX_CHARS: usize = 6;
        const UNITS: [(&str, u64); 4] = [("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
        let exact = self.to_string();
        let fits = UNITS.into_iter().find(|(_, bytes)| self.bytes >= *bytes);
        match fits {
            Some((unit, bytes)) if exact.len() > EXACT_MAX_CHARS => {
                // Tenths, rounded down: a node never appears to have more than it has.
                let tenths = u128::from(self.bytes) * 10 / u128::from(bytes);
                format!("{}.{}{unit}", tenths / 10, tenths % 10)
            }
            _ => exact,
        }
    }
}

/// Parses the quantity in thousandths, rounded up.
fn thousandths(text: &str) -> Result<u128, QuantityError> {
    let syntax = || QuantityError::Syntax(text.to_owned());
    let too_large = || QuantityError::TooLarge(text.to_owned());
    let trimmed = text.trim();
    if trimmed.starts_with('-') {
        return Err(QuantityError::Negative(text.to_owned()));
    }
    let digits_end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits_end);
    let (numerator, denominator): (u128, u128) = scale(suffix).ok_or_else(syntax)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let well_formed = !(whole.is_empty() && fraction.is_empty())
        && whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit());
    if !well_formed {
        return Err(syntax());
    }
    // 18 fractional digits keep the product below within 128 bits.
    if whole.len() + fraction.len() > 36 || fraction.len() > 18 {
        return Err(too_large());
    }
    let mantissa: u128 = format!("{whole}{fraction}").parse().map_err(|_| syntax())?;
    let fraction_digits = u32::try_from(fraction.len()).map_err(|_| too_large())?;
    let divisor = denominator * 10u128.pow(fraction_digits);
    let product = mantissa.checked_mul(numerator).and_then(|n| n.checked_mul(1000)).ok_or_else(too_large)?;
    Ok(product.div_ceil(divisor))
}

/// Returns the factor of a suffix, as a fraction.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: u32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            (10u128.checked_pow(exponent.min(24))?, 1)
        }
    })
}

macro_rules! as_json_text_or_number {
    ($name:ident, $format:literal, $description:literal) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                match serde_json::Value::deserialize(deserializer)? {
                    serde_json::Value::String(text) => text.parse().map_err(de::Error::custom),
                    serde_json::Value::Number(number) => number.to_string().parse().map_err(de::Error::custom),
                    other => Err(de::Error::custom(format!("`{other}` is not a quantity"))),
                }
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "description": $description,
                    "anyOf": [{"type": "string", "format": $format}, {"type": "number", "minimum": 0}]
                })
            }
        }
    };
}

as_json_text_or_number!(Cpu, "cpu-quantity", "CPU in cores: `500m`, `0.5`, `2`.");
as_json_text_or_number!(Count, "count-quantity", "A whole number: `1`.");
as_json_text_or_number!(Divisor, "memory-quantity", "Unit of CPU or memory: `1m`, `1`, `1Mi`.");
as_json_text_or_number!(Memory, "memory-quantity", "Memory in bytes: `128Mi`, `1G`, `1048576`.");
as_json_text_or_number!(Share, "quantity", "A share: `0.05`, `50m`.");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_reads_cores_and_millicores() {
        for (text, millis) in
            [("500m", 500), ("0.5", 500), ("2", 2000), ("1.0001", 1001), ("100u", 1), ("1e3", 1_000_000)]
        {
            assert_eq!(text.parse::<Cpu>().map(|c| c.millis), Ok(millis), "{text}");
        }
    }

    #[test]
    fn a_share_is_read_and_written_as_kubernetes_does() {
        for (text, thousandths, written) in
            [("0.05", 50, "50m"), ("50m", 50, "50m"), ("0", 0, "0"), ("1", 1000, "1")]
        {
            let share = text.parse::<Share>().unwrap();
            assert_eq!((share.thousandths, share.to_string().as_str()), (thousandths, written), "{text}");
        }
        assert!("-0.05".parse::<Share>().is_err() && "5%".parse::<Share>().is_err());
    }

    #[test]
    fn memory_reads_decimal_and_binary_suffixes() {
        for (text, bytes) in
            [("128Mi", 128 << 20), ("1G", 1_000_000_000), ("42", 42), ("1.5Ki", 1536), ("1m", 1)]
        {
            assert_eq!(text.parse::<Memory>().map(|m| m.bytes), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn memory_is_short_where_it_is_not_round() {
        for (bytes, text) in [
            (0, "0"),
            (128 << 20, "128Mi"),
            (16_654_266_368, "15.5Gi"),
            (16_264_908 << 10, "15.5Gi"),
            (1_000_000_000, "953.6Mi"),
            (u64::MAX, "16777215.9Ti"),
        ] {
            assert_eq!(Memory { bytes }.readable(), text);
        }
    }

    #[test]
    fn a_count_is_a_whole_number() {
        for (text, number) in [("1", 1), ("0", 0), ("2000m", 2), ("1k", 1000), ("2.0", 2)] {
            assert_eq!(text.parse::<Count>().map(|count| count.number), Ok(number), "{text}");
        }
        for text in ["0.5", "1m", "one", "-1"] {
            assert!(text.parse::<Count>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_divisor_is_written_as_kubernetes_writes_it() {
        for unit in Divisor::UNITS {
            assert_eq!(unit.parse::<Divisor>().map(|divisor| divisor.to_string()), Ok(unit.to_owned()));
        }
        for (text, shown) in [("1000m", "1"), ("1024Ki", "1Mi"), ("0", "0m"), ("0.3", "300m"), ("1e3", "1k")]
        {
            assert_eq!(text.parse::<Divisor>().map(|divisor| divisor.to_string()), Ok(shown.to_owned()));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "m", "-1", "1.2.3", "12Xi", "1 Mi", ".", "9999999999999E"] {
            assert!(text.parse::<Memory>().is_err(), "{text}");
        }
    }

    #[test]
    fn equal_amounts_are_written_equal() {
        assert_eq!("0.5".parse::<Cpu>().map(|c| c.to_string()), Ok("500m".to_owned()));
        assert_eq!("1024Mi".parse::<Memory>().map(|m| m.to_string()), Ok("1Gi".to_owned()));
    }
}
