//! Finds the known word nearest to an unknown one.

/// Returns the candidate that a person most likely meant, if any is near enough.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    // A third of the word may be wrong: `conatiners` is `containers`, `foo` is nothing.
    let allowed = (word.chars().count() / 3).clamp(1, 4);
    let length = lower.chars().count();
    candidates
        .into_iter()
        // The distance is at least that of the lengths, and comparing long words takes long.
        .filter(|candidate| candidate.to_lowercase().chars().count().abs_diff(length) <= allowed)
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns ``did you mean `x`?``, else the known candidates.
pub fn suggestion<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match nearest(word, candidates.clone()) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None => format!("known: {}", list(candidates)),
    }
}

/// Formats words as `a`, `b`, `c`, cut off for long lists.
pub(crate) fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    // Twelve fit one line of a terminal; the longest enum has eight.
    const SHOWN: usize = 12;
    // The longest name that is not a mistake.
    const WORD_SHOWN: usize = 63;
    let words: Vec<&str> = words.into_iter().collect();
    let shown = |word: &&str| match word.char_indices().nth(WORD_SHOWN) {
        None => format!("`{word}`"),
        Some((end, _)) => format!("`{}…`", &word[..end]),
    };
    let mut text = words.iter().take(SHOWN).map(shown).collect::<Vec<_>>().join(", ");
    if words.len() > SHOWN {
        text.push_str(", …");
    }
    text
}
