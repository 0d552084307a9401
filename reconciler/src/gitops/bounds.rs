//! Truncates a status and a revision to fit under their keys, whatever a repository holds. Pure.
//!
//! Takes both as folded and cuts detail step by step until they fit. Without this, a single hostile or merely
//! broken commit could keep a source from writing anything at all.

use schema::codec;
use schema::records::{Revision, SourceStatus, Verdict};
use schema::violation::{Violation, shortened};

/// Cuts detail until the status fits under its key. No list that had items becomes empty, so the state still
/// follows from it.
pub fn status(mut status: SourceStatus) -> SourceStatus {
    for (files, violations) in [(usize::MAX, 5), (200, 1), (50, 1), (10, 1)] {
        if codec::encode(&status).is_ok() {
            return status;
        }
        status.quarantined.truncate(files);
        for quarantine in &mut status.quarantined {
            quarantine.violations.truncate(violations);
        }
    }
    for (chars, items) in [(500, 10), (200, 5), (100, 1)] {
        if codec::encode(&status).is_ok() {
            break;
        }
        shorten(&mut status, chars, items);
    }
    status
}

/// Drops the list of removals and cuts texts until the revision fits under its key.
pub fn revision(mut revision: Revision) -> Revision {
    for chars in [4_000, 1_000] {
        if codec::encode(&revision).is_ok() {
            break;
        }
        let Revision { author, subject, verdict, removed, plan, timeline, .. } = &mut revision;
        removed.clear();
        if let Some(timeline) = timeline {
            timeline.slowest.truncate(10);
        }
        cut(author, chars);
        cut(subject, chars);
        if let Verdict::Degraded { why } | Verdict::Bad { why } = verdict {
            cut(why, chars);
        }
        if let Some(plan) = plan {
            cut(&mut plan.why, chars);
            plan.reviewed.iter_mut().for_each(|reviewed| cut(reviewed, chars));
        }
    }
    revision
}

fn cut(text: &mut String, chars: usize) {
    *text = shortened(std::mem::take(text), chars);
}

fn shorten(status: &mut SourceStatus, chars: usize, items: usize) {
    let SourceStatus { url, reference, path, quarantined, held_prune, waiting, error, .. } = status;
    quarantined.truncate(items);
    waiting.truncate(items);
    let mut texts: Vec<&mut String> = vec![url, reference, path];
    for quarantine in quarantined {
        texts.extend([&mut quarantine.file, &mut quarantine.author]);
        for Violation { file, message, help, object, rule, .. } in &mut quarantine.violations {
            texts.extend([file, message, help, rule]);
            texts.extend(object);
        }
    }
    if let Some(held) = held_prune {
        held.objects.truncate(items);
        texts.push(&mut held.why);
        texts.extend(held.objects.iter_mut().flat_map(|object| [&mut object.namespace, &mut object.name]));
    }
    for one in waiting {
        texts.extend([&mut one.object.name, &mut one.object.namespace, &mut one.on.name]);
        texts.extend([&mut one.on.namespace, &mut one.why]);
    }
    texts.extend(error.as_mut().map(|error| &mut error.message));
    texts.into_iter().for_each(|text| cut(text, chars));
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;
    use schema::kinds::Kind;
    use schema::meta::ObjectRef;
    use schema::records::{
        HeldPrune, PlanRecord, PodTimeline, Quarantine, SourceError, SourceErrorKind, SourceState,
        TIMELINE_PODS_MAX, Timeline, WaitingObject,
    };
    use schema::testing;
    use schema::violation::Severity;

    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef { kind: Kind::Pod, namespace: "default".to_owned(), name: name.to_owned() }
    }

    fn quarantine(file: &str, text: &str, violations: usize) -> Quarantine {
        let violation = Violation {
            file: file.to_owned(),
            line: 1,
            column: 1,
            severity: Severity::Error,
            rule: "unknown-kind".to_owned(),
            message: text.to_owned(),
            help: text.to_owned(),
            object: Some(text.to_owned()),
        };
        Quarantine {
            file: file.to_owned(),
            commit: "c".repeat(40),
            author: text.to_owned(),
            violations: vec![violation; violations],
            violations_total: violations as u64,
        }
    }

    /// Builds a status with `text` in every field and lists of `count` items.
    fn status_of(text: &str, count: usize) -> SourceStatus {
        let waiting =
            WaitingObject { object: object(text), on: object(text), why: text.to_owned(), since: None };
        SourceStatus {
            url: text.to_owned(),
            reference: text.to_owned(),
            path: text.to_owned(),
            quarantined: vec![quarantine(text, text, count.min(2)); count],
            held_prune: Some(HeldPrune {
                commit: "c".repeat(40),
                why: text.to_owned(),
                deletes: 1,
                owned: 7,
                since: 0,
                objects: vec![object(text); count],
            }),
            waiting: vec![waiting; count],
            waiting_total: count as u64,
            error: Some(SourceError {
                kind: SourceErrorKind::Refused,
                message: text.to_owned(),
                since: Timestamp::UNIX_EPOCH,
            }),
            ..testing::source_status(SourceState::Degraded)
        }
    }

    fn revision_of(text: &str) -> Revision {
        Revision {
            author: text.to_owned(),
            subject: text.to_owned(),
            verdict: Verdict::Degraded { why: text.to_owned() },
            removed: vec![
                ObjectRef { kind: Kind::Pod, namespace: "n".repeat(253), name: "n".repeat(253) };
                100
            ],
            plan: Some(PlanRecord {
                hash: "h".repeat(64),
                reviewed: Some(text.to_owned()),
                matches: Some(false),
                why: text.to_owned(),
            }),
            timeline: Some(Timeline {
                seen_at: Timestamp::UNIX_EPOCH,
                seen_by: None,
                read: Some(u64::MAX),
                checked: Some(u64::MAX),
                planned: Some(u64::MAX),
                applied: Some(u64::MAX),
                bound: Some(u64::MAX),
                ready: Some(u64::MAX),
                programmed: Some(u64::MAX),
                decided: Some(u64::MAX),
                pods: u64::MAX,
                slowest: vec![longest_pod(); TIMELINE_PODS_MAX],
            }),
            ..testing::revision(1, testing::COMMIT)
        }
    }

    fn longest_pod() -> PodTimeline {
        let name = "n".repeat(253);
        PodTimeline {
            object: format!("HorizontalPodAutoscaler/{name}/{name}"),
            pod: format!("{name}/{name}"),
            node: Some(name),
            bound: Some(u64::MAX),
            image: Some(u64::MAX),
            created: Some(u64::MAX),
            started: Some(u64::MAX),
            ready: Some(u64::MAX),
            reported: Some(u64::MAX),
            programmed: Some(u64::MAX),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 20, ..ProptestConfig::default() })]
        #[test]
        fn no_texts_and_no_counts_keep_a_status_or_a_revision_from_being_written(
            text in "[a-zé漢\u{1}\"]{1,40}", times in 1usize..300, count in 0usize..60,
        ) {
            let text = text.repeat(times);
            let written = status(status_of(&text, count));
            prop_assert!(codec::encode(&written).is_ok());
            // Lists that determine the source's state stay.
            prop_assert_eq!(written.quarantined.is_empty(), count == 0);
            prop_assert!(written.held_prune.is_some() && written.error.is_some());
            prop_assert!(codec::encode(&revision(revision_of(&text))).is_ok());
        }
    }

    #[test]
    fn what_fits_stays_whole_and_what_was_cut_is_not_cut_again() {
        let small = status_of("short", 3);
        assert_eq!(status(small.clone()), small);
        let cut = status(status_of(&"long ".repeat(9_000), 40));
        assert_eq!(status(cut.clone()), cut);
    }
}
