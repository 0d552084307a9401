//! Properties of any workflow and any order of events: it ends, late and duplicate events change
//! nothing, and its journal reproduces the run.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::{Event, Played, Run, at, context, spec};

/// Source of a test's choices, one after another.
struct Choices {
    all: Vec<u8>,
    next: usize,
}

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        let byte = self.all.get(self.next % self.all.len().max(1)).copied().unwrap_or_default();
        self.next += 1;
        usize::from(byte) % bound.max(1)
    }
}

/// A machine without cycles: each state leads to the next.
fn machine(choices: &mut Choices, depth: usize, names: &mut usize) -> Json {
    let length = 1 + choices.below(3);
    let first = *names;
    *names += length;
    let mut states = Map::new();
    for index in 0..length {
        let name = format!("s{}", first + index);
        let next = (index + 1 < length).then(|| format!("s{}", first + index + 1));
        let mut state = state(choices, depth, names, next.as_deref());
        match (&next, state["type"] == "Choice") {
            (Some(next), false) => state["next"] = json!(next),
            (None, false) => state["end"] = json!(true),
            _ => {}
        }
        states.insert(name, state);
    }
    json!({"startAt": format!("s{first}"), "states": states})
}

fn state(choices: &mut Choices, depth: usize, names: &mut usize, next: Option<&str>) -> Json {
    let catch = match next {
        Some(next) if choices.below(2) == 0 => json!([{"errorEquals": ["States.ALL"], "next": next}]),
        _ => json!([]),
    };
    let retry = match choices.below(3) {
        0 => json!([{"errorEquals": ["A"], "maxAttempts": 2, "jitterStrategy": "FULL"}]),
        _ => json!([]),
    };
    match (choices.below(if depth < 2 { 8 } else { 5 }), next) {
        (0, Some(next)) => json!({"type": "Choice", "default": next,
            "choices": [{"variable": "$.x", "isPresent": true, "next": next}]}),
        (0 | 1, _) => json!({"type": "Pass", "parameters": {"u.$": "States.UUID()", "in.$": "$"}}),
        (2, _) => json!({"type": "Wait", "seconds": choices.below(4)}),
        (3 | 4, _) => json!({"type": "Task", "function": "f", "timeoutSeconds": 1 + choices.below(9),
            "retry": retry, "catch": catch}),
        (5 | 6, _) => json!({"type": "Parallel", "retry": retry, "catch": catch,
            "branches": [machine(choices, depth + 1, names), machine(choices, depth + 1, names)]}),
        _ => {
            json!({"type": "Map", "itemsPath": "$$.Execution.Input.items", "maxConcurrency": choices.below(3),
            "toleratedFailureCount": choices.below(2), "retry": retry, "catch": catch,
            "itemProcessor": machine(choices, depth + 1, names)})
        }
    }
}

/// Chooses one of the events possible now.
fn event(run: &Run, now: &mut Timestamp, choices: &mut Choices) -> Event {
    let pending = run.pending();
    let kinds = usize::from(pending.continues) + pending.calls.len() + usize::from(!pending.continues);
    let at = choices.below(kinds);
    if pending.continues && at == 0 {
        return Event::Continue;
    }
    if let Some(call) = pending.calls.get(at - usize::from(pending.continues)) {
        return match choices.below(4) {
            0 => Event::Failed { call: call.id, error: "A".to_owned(), cause: String::new() },
            1 => Event::Failed { call: call.id, error: "B".to_owned(), cause: String::new() },
            _ => Event::Returned { call: call.id, output: json!({"n": call.id}) },
        };
    }
    let timer = pending.timers.iter().min_by_key(|timer| timer.due).copied().expect("the run's own limit");
    *now = (*now).max(timer.due);
    Event::Due { timer: timer.id }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_run_ends_and_its_journal_gives_it_again(
        bytes in proptest::collection::vec(any::<u8>(), 40..400),
        number in proptest::num::f64::NORMAL,
    ) {
        let mut choices = Choices { all: bytes, next: 0 };
        let mut definition = machine(&mut choices, 0, &mut 0);
        definition["timeoutSeconds"] = json!(3600);
        let spec = spec(&definition.to_string());
        // Without serde_json's `float_roundtrip`, a number is not always read back as written.
        let input = json!({"items": [1, 2, 3], "number": number});
        let mut played = Played::begin(spec.clone(), input.clone());
        while played.run.outcome().is_none() {
            let event = event(&played.run, &mut played.now, &mut choices);
            prop_assert!(played.step(event), "what is asked for is taken");
            prop_assert!(played.run.events() < 2000, "it does not end");
            // Stored and read back at any point.
            let stored = serde_json::to_string(&played.run).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Run>(&stored).unwrap(), &played.run);
            // An old event arrives again, late. Seen red with a clock that such an event moves forward.
            let before = played.run.clone();
            for _ in 0..2 {
                let (_, again) = played.journal[choices.below(played.journal.len())].clone();
                if again != Event::Continue {
                    let later = played.now + SignedDuration::from_secs(1);
                    prop_assert_eq!(played.run.step(&spec, later, &again), None);
                    prop_assert_eq!(&played.run, &before);
                }
            }
            if !played.run.pending().continues {
                prop_assert_eq!(played.run.step(&spec, played.now, &Event::Continue), None);
            }
        }
        let (mut replayed, mut history) = Run::begin(context(input), &spec);
        for (at, event) in &played.journal {
            history.extend(replayed.step(&spec, *at, event).expect("each entry of the journal changes the run"));
        }
        prop_assert_eq!(&replayed, &played.run);
        prop_assert_eq!(&history, &played.history);
        let ids: Vec<u32> = history.iter().map(|event| event.id).collect();
        prop_assert_eq!(ids, (1..=u32::try_from(history.len()).unwrap()).collect::<Vec<_>>());
        prop_assert!(history.iter().all(|event| event.previous_event_id < event.id));
        prop_assert!(played.now >= at(0));
    }
}
