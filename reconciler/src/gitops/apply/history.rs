//! Revisions of a source: the next number, the expired ones, the last complete one. Pure.

use schema::records::Revision;
use schema::snapshot::{Table, Versioned};

/// Number of revisions kept per source.
pub const KEPT: usize = 100;

/// Returns the number of the next revision. `last` is the number in the source's status.
pub fn next_sequence(revisions: &Table<(String, u64), Revision>, source: &str, last: u64) -> u64 {
    let newest = of(revisions, source).next_back().map_or(0, |(sequence, _)| sequence);
    newest.max(last) + 1
}

/// Returns at most `max` revisions to remove when one more is written, each with its mod revision.
pub fn expired(revisions: &Table<(String, u64), Revision>, source: &str, max: usize) -> Vec<(u64, i64)> {
    let surplus = (of(revisions, source).count() + 1).saturating_sub(KEPT);
    of(revisions, source)
        .take(surplus.min(max))
        .map(|(sequence, entry)| (sequence, entry.mod_revision))
        .collect()
}

/// Returns the newest commit whose removals were all done.
pub fn base(revisions: &Table<(String, u64), Revision>, source: &str) -> Option<String> {
    newest(revisions, source, |revision| revision.counts.held == 0)
}

/// Returns the newest commit that was applied completely; quarantined files were not applied.
pub fn whole(revisions: &Table<(String, u64), Revision>, source: &str) -> Option<String> {
    newest(revisions, source, is_whole)
}

/// True if the whole commit was applied.
pub fn is_whole(revision: &Revision) -> bool {
    revision.counts.held == 0 && revision.counts.quarantined == 0
}

fn newest(
    revisions: &Table<(String, u64), Revision>,
    source: &str,
    is_it: impl Fn(&Revision) -> bool,
) -> Option<String> {
    let mut newest = of(revisions, source).rev();
    newest.find(|(_, entry)| is_it(&entry.value)).map(|(_, entry)| entry.value.commit.clone())
}

fn of<'a>(
    revisions: &'a Table<(String, u64), Revision>,
    source: &str,
) -> impl DoubleEndedIterator<Item = (u64, &'a Versioned<Revision>)> + use<'a> {
    let range = (source.to_owned(), 0)..=(source.to_owned(), u64::MAX);
    revisions.range(range).map(|((_, sequence), revision)| (*sequence, &**revision))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use schema::records::{ChangeCounts, Verdict};

    use super::*;

    fn table(sequences: impl IntoIterator<Item = u64>) -> Table<(String, u64), Revision> {
        let mut table = Table::new();
        for (source, sequence) in sequences.into_iter().flat_map(|n| [("main", n), ("other", n * 7)]) {
            let counts = ChangeCounts {
                held: sequence % 2,
                quarantined: u64::from(sequence % 4 == 0),
                ..ChangeCounts::default()
            };
            let value = Revision {
                source: source.into(),
                sequence,
                commit: format!("{source}-{sequence}"),
                author: String::new(),
                subject: String::new(),
                committed_at: Timestamp::UNIX_EPOCH,
                applied_at: Timestamp::UNIX_EPOCH,
                duration_ms: 0,
                counts,
                removed: vec![],
                verdict: Verdict::Applied,
                decided_at: None,
                plan: None,
            };
            let versioned = Versioned { value, create_revision: 1, mod_revision: 1 };
            table.insert((source.to_owned(), sequence), Arc::new(versioned));
        }
        table
    }

    #[test]
    fn numbers_go_on_even_when_the_history_is_lost() {
        assert_eq!(next_sequence(&table([]), "main", 0), 1);
        assert_eq!(next_sequence(&table([]), "main", 7), 8);
        assert_eq!(next_sequence(&table(1..=9), "main", 3), 10);
    }

    #[test]
    fn the_newest_hundred_are_kept() {
        assert!(expired(&table(1..=99), "main", 50).is_empty());
        assert_eq!(expired(&table(1..=100), "main", 50), [(1, 1)]);
        assert_eq!(expired(&table(1..=200), "main", 3), [(1, 1), (2, 1), (3, 1)]);
    }

    #[test]
    fn the_base_is_the_newest_without_a_held_prune() {
        assert_eq!(base(&table([]), "main"), None);
        assert_eq!(base(&table(1..=5), "main").as_deref(), Some("main-4"));
        assert_eq!(whole(&table(1..=5), "main").as_deref(), Some("main-2"));
    }
}
