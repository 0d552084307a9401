//! Statuses of commits for forges.

use schema::violation::{Severity, Violation};

use super::*;

#[test]
fn a_commit_has_the_state_that_history_shows() {
    let degraded = Verdict::Degraded { why: "1 file could not be applied: a.yaml".to_owned() };
    let cases = [
        (Verdict::Applied, MessageState::Pending, "applied; what it changed is not healthy yet"),
        (Verdict::Good, MessageState::Success, "everything it changed is healthy"),
        (bad("\nPod/default/web: it ends\nat line 2"), MessageState::Failure, "Pod/default/web: it ends"),
        (degraded, MessageState::Failure, "1 file could not be applied: a.yaml"),
        (
            Verdict::Superseded,
            MessageState::Success,
            "superseded by 222222222222 before its outcome was known",
        ),
    ];
    for (verdict, state, title) in cases {
        let mut world = World::forge();
        world.apply(&Revision { verdict, ..revision(1, COMMIT) });
        world.apply(&revision(2, C2));
        let status = world.wanted(70).remove(&format!("commit.{COMMIT}")).unwrap();
        assert_eq!((status.state, status.title.as_str()), (state, title));
        assert_eq!((status.page.as_str(), status.commit.as_deref()), ("/history/main/1", Some(COMMIT)));
        let shown = crate::view::history(&world.snapshot, None, at(70)).pop().unwrap();
        let is_good = ["Good", "Superseded"].contains(&shown.status.as_str());
        assert_eq!((shown.revision.sequence, state == MessageState::Success), (1, is_good));
        assert_eq!(state == MessageState::Pending, shown.status == "Applied");
    }
}

// Would fail with the words of the verdict, and with a second failure for another reason.
#[test]
fn a_file_in_quarantine_gives_the_place_and_the_first_reason_stays() {
    let mut world = World::forge();
    let degraded = Verdict::Degraded { why: "1 file could not be applied: a.yaml".to_owned() };
    world.apply(&Revision { verdict: degraded, ..revision(1, COMMIT) });
    let mut source = quarantined("a.yaml");
    source.quarantined[0].commit = COMMIT.to_owned();
    source.quarantined[0].violations = vec![Violation {
        file: "a.yaml".to_owned(),
        line: 3,
        column: 1,
        severity: Severity::Error,
        rule: "unknown-field".into(),
        message: "unknown field `imagee`".to_owned(),
        help: String::new(),
        object: None,
    }];
    world.source(&source);
    let first = world.news(40);
    assert!(first[0].contains("a.yaml:3:1: unknown field `imagee`"), "{first:?}");
    world.send(40);
    world.apply(&decided(1, COMMIT, bad("Pod/default/web: it ends"), 70));
    assert_eq!(world.news(71), first);
}

// Would fail without a character less for the mark.
#[test]
fn a_reason_is_cut_at_a_character_and_drives_no_terminal() {
    let mut world = World::forge();
    world
        .apply(&Revision { verdict: bad(&format!("\u{1b}[31m{}", "ä".repeat(300))), ..revision(1, COMMIT) });
    let title = world.wanted(40).pop_first().unwrap().1.title;
    assert!(title.starts_with("\\u{1b}[31mää") && title.ends_with("ä…"), "{title}");
    assert_eq!(title.chars().count(), 140);
}

#[test]
fn the_newest_revision_of_a_commit_counts() {
    let mut world = World::forge();
    world.apply(&decided(1, COMMIT, bad("x"), 40));
    world.apply(&decided(2, C2, Verdict::Good, 70));
    world.apply(&revision(3, COMMIT));
    let states: Vec<_> = world.wanted(100).into_values().map(|status| status.state).collect();
    assert_eq!(states, [MessageState::Pending, MessageState::Success]);
}

#[test]
fn an_old_commit_has_an_entry_only_until_its_last_status_was_sent_and_an_hour_longer() {
    let mut world = World::forge();
    world.apply(&revision(1, COMMIT));
    assert_eq!(world.news(30 + HOUR), [""; 0]);
    world.send(40);
    world.apply(&decided(1, COMMIT, Verdict::Good, 5 * HOUR));
    let good = format!("commit.{COMMIT}: success: everything it changed is healthy");
    assert_eq!(world.news(5 * HOUR), [good.as_str()]);
    world.send(5 * HOUR);
    assert_eq!(world.news(6 * HOUR - 1), [good.as_str()]);
    assert_eq!(world.news(6 * HOUR), [""; 0]);
    // It leaves the history.
    world.snapshot.revisions = Table::new();
    assert_eq!(world.news(6 * HOUR - 1), [good.as_str()]);
    assert_eq!(world.news(6 * HOUR), [""; 0]);
}

// Would fail with the commit left yellow for good.
#[test]
fn a_commit_that_leaves_the_history_undecided_is_superseded() {
    let mut world = World::forge();
    world.apply(&revision(1, COMMIT));
    let (subject, pending) = world.wanted(40).pop_first().unwrap();
    let waiting = entry(&subject, pending.clone(), at(40));
    let sent = Some(SentMessage { message: pending, id: "1".to_owned(), at: at(40) });
    world.snapshot.revisions = Table::new();
    let over = format!("commit.{COMMIT}: success: superseded by newer commits");
    for entry in [waiting.clone(), OutboxEntry { sent, ..waiting }] {
        world.put(&Key::Outbox("ops".to_owned(), subject.clone()), &entry);
        assert_eq!(world.news(9 * HOUR), [over.as_str()]);
    }
    // The forge refuses it: it is tried for six hours.
    let over = world.wanted(9 * HOUR).pop_first().unwrap().1;
    world.put(&Key::Outbox("ops".to_owned(), subject.clone()), &entry(&subject, over, at(9 * HOUR)));
    assert_eq!(world.news(15 * HOUR - 1).len(), 1);
    assert_eq!(world.news(15 * HOUR), [""; 0]);
}

// Would fail with the paths of an error, and with a commit that is red because etcd was away for a moment.
#[test]
fn a_commit_that_cannot_be_applied_is_a_failure_and_other_errors_change_nothing() {
    for (kind, title) in [
        (SourceErrorKind::Refused, "not applied: a file cannot be applied, and the source is strict"),
        (SourceErrorKind::SignatureInvalid, "not applied: its signature is not accepted"),
        (SourceErrorKind::CommitUnreadable, "not applied: it cannot be read"),
        (SourceErrorKind::ApplyFailed, ""),
        (SourceErrorKind::RemoteUnreachable, ""),
        (SourceErrorKind::NotConfigured, ""),
    ] {
        let mut world = World::forge();
        world.source(&failing(kind, C2));
        // However long it lasts.
        let wanted: Vec<String> = world.wanted(9 * HOUR).into_values().map(|status| status.title).collect();
        assert_eq!(wanted.concat(), title, "{kind:?}");
        // The applied commit has the state of its revision.
        world.source(&failing(kind, COMMIT));
        assert_eq!(world.news(9 * HOUR), [""; 0], "{kind:?}");
    }
}

// Would fail with an entry that is forgotten while the remote is away, and made anew once it is back.
#[test]
fn the_status_of_the_newest_commit_stays_whatever_the_error_is_then() {
    let mut world = World::forge();
    world.source(&failing(SourceErrorKind::Refused, C2));
    world.send(0);
    let refused = world.wanted(0);
    for kind in [SourceErrorKind::RemoteUnreachable, SourceErrorKind::ApplyFailed] {
        world.source(&failing(kind, C2));
        assert_eq!(world.wanted(9 * HOUR), refused);
    }
    world.source(&failing(SourceErrorKind::RemoteUnreachable, C3));
    assert_eq!(world.news(9 * HOUR), [""; 0]);
}
