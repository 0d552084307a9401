//! Paths of requests in the form in which they are compared. Pure.
//!
//! An endpoint may decode a path, resolve it or merge its slashes before it opens anything. Whoever chooses by path
//! must therefore read it as the endpoint might: normalized as in RFC 3986 6.2.2, and by segments.

use std::borrow::Cow;

/// Reason why no route can be chosen by a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    #[error("the path has a segment `.` or `..`; ask for the path that it leads to")]
    DotSegment,
    #[error("the path has a `%` without two hexadecimal digits; a percent sign itself is `%25`")]
    Encoding,
}

/// Returns the path with letters, digits, `-`, `.`, `_` and `~` decoded and the digits of other encoded characters in
/// upper case; borrowed if it is so already, as most are.
///
/// # Errors
/// [`PathError`]. Dot segments are refused rather than removed: a client resolves them before it sends a path.
pub(crate) fn normalized(path: &str) -> Result<Cow<'_, str>, PathError> {
    let path = if path.contains('%') { decoded(path)? } else { Cow::Borrowed(path) };
    if has_dot_segment(&path) { Err(PathError::DotSegment) } else { Ok(path) }
}

/// Returns the rest of a normalized path behind `prefix`, which is empty or begins with `/`, and must end where a
/// segment ends: `/shop` matches `/shop/x`, not `/shopping`. Repeated slashes count as one, here only: the rest
/// keeps its own.
pub(crate) fn rest_behind<'a>(prefix: &str, path: &'a str) -> Option<&'a str> {
    let mut rest = path;
    for segment in prefix.split('/').skip(1) {
        rest = after_separator(rest)?;
        while let Some(after) = after_separator(rest) {
            rest = after;
        }
        rest = rest.strip_prefix(segment)?;
    }
    (rest.is_empty() || after_separator(rest).is_some()).then_some(rest)
}

/// Returns the text after one separator of segments: a slash, or a form of it that some endpoints decode or convert
/// first.
fn after_separator(text: &str) -> Option<&str> {
    ["/", "%2F", "\\", "%5C"].iter().find_map(|form| text.strip_prefix(form))
}

fn decoded(path: &str) -> Result<Cow<'_, str>, PathError> {
    let mut out = String::with_capacity(path.len());
    let mut parts = path.split('%');
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let digits = digits.ok_or(PathError::Encoding)?;
        let byte = u8::from_str_radix(digits, 16).map_err(|_| PathError::Encoding)?;
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push_str(&digits.to_ascii_uppercase());
        }
        out.push_str(&part[2..]);
    }
    Ok(if out == path { Cow::Borrowed(path) } else { Cow::Owned(out) })
}

/// True if a segment of a decoded path is `.` or `..`, also with parameters (`..;a=b`), which servlet containers cut
/// off.
fn has_dot_segment(path: &str) -> bool {
    path.match_indices('.').any(|(at, _)| {
        let (before, dots) = path.split_at(at);
        let begins = before.is_empty() || ["/", "%2F", "\\", "%5C"].iter().any(|form| before.ends_with(form));
        let rest = dots.strip_prefix("..").or_else(|| dots.strip_prefix('.')).unwrap_or(dots);
        let ends = rest.is_empty() || rest.starts_with([';', '/', '\\']);
        begins && (ends || ["%2F", "%5C", "%3B"].iter().any(|form| rest.starts_with(form)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red with the path as it was sent.
    #[test]
    fn what_means_the_same_compares_the_same() {
        for (path, wanted) in [
            ("/", "/"),
            ("*", "*"),
            ("/a/b.c/.d/..e/f../...", "/a/b.c/.d/..e/f../..."),
            ("/%61dmin/%7Euser/%2d%5f%39", "/admin/~user/-_9"),
            ("/a%2fb%c3%a4%20", "/a%2Fb%C3%A4%20"),
            ("/a%252e%252e/b", "/a%252e%252e/b"),
            ("/a//b", "/a//b"),
        ] {
            assert_eq!(normalized(path).as_deref(), Ok(wanted), "{path}");
        }
        assert!(matches!(normalized("/a%20b/c.d?"), Ok(Cow::Borrowed(_))), "no copy without need");
    }

    // Seen red without the check, with decoding left out, and with `/` as the only separator.
    #[test]
    fn dot_segments_are_refused_in_every_form_that_an_endpoint_may_resolve() {
        let segments = [".", "..", "%2e", "%2E%2e", ".%2e", "%2e.", "..;", "..;a=b", "%2e%2e%3b"];
        for segment in segments {
            for path in [
                format!("/{segment}"),
                format!("/{segment}/admin"),
                format!("/public/{segment}/admin"),
                format!("/public/x%2f{segment}%2fadmin"),
                format!("/public%5c{segment}%5cadmin"),
                format!("/public\\{segment}\\admin"),
                format!("//{segment}//"),
            ] {
                assert_eq!(normalized(&path), Err(PathError::DotSegment), "{path}");
            }
        }
    }

    // Seen red with such text passed as it is: `%%32e` is decoded to `%2e`.
    #[test]
    fn an_incomplete_encoding_is_refused() {
        for path in ["/%", "/a%2", "/%zz", "/%%32e%%32e/admin", "/%+1", "/%\u{e4}"] {
            assert_eq!(normalized(path), Err(PathError::Encoding), "{path}");
        }
    }

    // Seen red with one slash for one separator, and with no other form of it.
    #[test]
    fn a_prefix_is_compared_by_segments_however_they_are_separated() {
        for (prefix, path, rest) in [
            ("", "/", Some("/")),
            ("", "*", None),
            ("/shop", "/shop", Some("")),
            ("/shop", "/shop/x//y", Some("/x//y")),
            ("/shop", "/shopping", None),
            ("/shop", "//shop//x", Some("//x")),
            ("/shop", "/%2Fshop%2Fx", Some("%2Fx")),
            ("/shop", "/\\shop\\x", Some("\\x")),
            ("/shop", "shop", None),
            ("/shop/cart", "/shop///cart/1", Some("/1")),
            ("/shop/cart", "/shop%5Ccart", Some("")),
            ("/shop/cart", "/shopcart", None),
            ("/shop/cart", "/shop/", None),
        ] {
            assert_eq!(rest_behind(prefix, path), rest, "{prefix} {path}");
        }
    }
}
